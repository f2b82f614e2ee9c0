"""Which rows a person means by a row, a path or an expression, for questions asked backwards.

The records of an address in a run's folder: its loss, how often it was trained on, and its ranks.

A session's entry in the manifest has the address at which it began (`at`), and how many steps of
the ledger it took again (`repeated`), since they came after the checkpoint that it resumed from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.addons.filters.row_filter import is_expression, matching
from penstock.build.data import Split
from penstock.config.data_rules import mode_of
from penstock.errors import ConfigError, Problem
from penstock.loading import wrapped
from penstock.loading.dataset_facts import table_of
from penstock.loading.known_by import relation
from penstock.loading.sampled_rows import SampleRequest
from penstock.loading.wrapped import SomeRows, unfiltered
from penstock.order.address import Address
from penstock.order.plan import Plan
from penstock.order.skipped import Skipped
from penstock.runs.left_out import normal
from penstock.runs.quarantine import known_rows
from penstock.runs.record import LEDGER, RunRecord, skipped_in
from penstock.terminal import say

Sample = int | str | Sequence[int | str]

_KEY = "sample"
_SHOWN = 5  # paths of an ambiguous name


def compare_data(record: RunRecord, split: Split) -> None:
    """Say so if the data is not that of a run, or not known to be.

    Of a dataset without a fingerprint, as many rows are read as the run looked at.
    """
    then = record.manifest.get("data")
    known = split.identity.known_by
    if split.name == "train" and not split.identity.is_told:
        known |= split.fetch().sample(SampleRequest.of(len(split.dataset)))["seen"]
    mode = mode_of(split.config)
    now = {
        "fingerprint": mode,
        split.name: split.identity.data(mode),
        "identity": {split.name: known},
    }
    related = relation(then, now, split.name)
    if related.same is False:
        say(f"WARNING: the data is not that of {record.path}: {related.why}")
    elif related.same is None:
        say(f"beside {record.path}, {related.why}")


def rows_of(sample: Sample, split: Split) -> list[int]:
    """The rows that `sample` means, ascending, as the plan of `split` numbers them.

    Args:
        sample: a row of the dataset (of all its rows, where a filter leaves some out), SOURCE:ROW
            of a mixture, the path of a file or its last parts, an expression over the table
            (`loading/row_filter.py`), or several of these.

    Raises:
        ConfigError: there is no such sample, a name is that of several files, or a filter leaves
            the row out.
    """
    samples = [sample] if isinstance(sample, (int, str)) else list(sample)
    if not samples:
        raise ConfigError(Problem(_KEY, "is empty; give a row, a path, or an expression"))
    return sorted({row for asked in samples for row in _rows_of_one(asked, split)})


def own_row(dataset: object, row: int) -> int:
    """The dataset's own number of a row that the plan numbers `row`; another behind a filter."""
    own = wrapped.own_row(dataset, row)
    return row if own is None else own


def source_of(dataset: object, row: int) -> str:
    """SOURCE:ROW, the source of a mixture and its own row; "" where there are no sources."""
    whole = unfiltered(dataset)
    if not hasattr(whole, "place_of"):
        return ""
    name, own = whole.place_of(own_row(dataset, row))
    return f"{name}:{own}"


def listed_in(path: Path | str, split: Split) -> dict[int, str]:
    """Causes by row, as the plan numbers them, of those that a quarantine lists.

    Raises:
        ConfigError: it cannot be read, or is of another dataset.
    """
    dataset = split.dataset
    causes = known_rows(path, unfiltered(dataset), split.name, split.identity.unfiltered)
    if not isinstance(dataset, SomeRows):
        return causes
    return {row: causes[own] for row, own in dataset.places(list(causes)).items()}


def plan_of(split: Split) -> Plan:
    """The plan of a split whose rows have numbers.

    Raises:
        ConfigError: it is a stream's.
    """
    if isinstance(split.plan, Plan):
        return split.plan
    name = type(split.dataset).__name__
    raise ConfigError(
        Problem(
            "dataset",
            f"{name} is a stream: which record stands where is known only by "
            "reading up to it, so it cannot be asked backwards. task=replay makes the batch of "
            "an address",
        )
    )


def _rows_of_one(sample: int | str, split: Split) -> Sequence[int]:
    text = str(sample).strip()
    if text.lstrip("+-").isdecimal():
        return [_kept(int(text), split)]
    lengths = getattr(unfiltered(split.dataset), "source_lengths", {})
    source, _, row = text.rpartition(":")
    if source in lengths and row.isdecimal():
        return [_kept(_within(lengths, source, int(row)), split)]
    if is_expression(text):
        return _matching(text, split)
    dataset = split.dataset
    rows = _named(text, _paths(dataset))
    if rows:
        return rows
    if isinstance(dataset, SomeRows) and _named(text, _paths(dataset.dataset)):
        raise ConfigError(Problem(_KEY, f"{text!r} is left out by the dataset's filter"))
    try:
        return _matching(text, split)
    except ConfigError as error:
        reason = error.problems[0].message.partition(": ")[2]
        raise ConfigError(
            Problem(
                _KEY,
                f"no sample's path ends in {text!r}, and it is no expression over the "
                f"table either: {reason}",
            )
        ) from None


def _kept(row: int, split: Split) -> int:
    dataset = split.dataset
    length = len(unfiltered(dataset))
    if not 0 <= row < length:
        raise ConfigError(
            Problem(
                _KEY, f"row {row} does not exist; the {split.name} split has rows 0 to {length - 1}"
            )
        )
    if not isinstance(dataset, SomeRows):
        return row
    places = list(dataset.places([row]))
    if not places:
        raise ConfigError(Problem(_KEY, f"row {row} is left out by the dataset's filter"))
    return places[0]


def _within(lengths: Mapping[str, int], source: str, row: int) -> int:
    """The number of a source's row in the mixture."""
    if row >= lengths[source]:
        raise ConfigError(
            Problem(
                _KEY, f"{source}:{row} does not exist; {source} has rows 0 to {lengths[source] - 1}"
            )
        )
    before = list(lengths)[: list(lengths).index(source)]
    return row + sum(lengths[name] for name in before)


def _matching(text: str, split: Split) -> list[int]:
    table = table_of(split.dataset, split.data.fields)
    mask = matching(table, text, _KEY)
    if not mask.any():
        raise ConfigError(Problem(_KEY, f"{text!r}: holds for none of {len(mask)} rows"))
    rows: list[int] = np.flatnonzero(mask).tolist()
    return rows


def _paths(dataset: Any) -> Iterator[str]:
    """The path of each row; of a dataset that knows none, nothing."""
    table: Any = getattr(dataset, "metadata", None)
    if hasattr(table, "columns") and "path" in table.columns:
        yield from map(str, table["path"])
    elif callable(getattr(dataset, "path", None)):
        for row in range(len(dataset)):
            yield str(dataset.path(row))


def _named(text: str, paths: Iterator[str]) -> list[int]:
    """The rows of the one file that is `text`, or else whose path ends in it."""
    whole, tail = normal(text), "/" + text.lstrip("./")
    same: list[int] = []
    ending: dict[str, list[int]] = {}
    for row, path in enumerate(paths):
        if path == text or (path.endswith(tail) and normal(path) == whole):
            same.append(row)
        elif ("/" + path).endswith(tail):
            ending.setdefault(path, []).append(row)
    if same or not ending:
        return same
    if len(ending) > 1:
        names = ", ".join([*ending][:_SHOWN]) + (", ..." if len(ending) > _SHOWN else "")
        raise ConfigError(
            Problem(_KEY, f"{len(ending)} files end in {text!r}: {names}; give more of the path")
        )
    return next(iter(ending.values()))


SKIPPED = "left out (trainer.skip)"

_MOST_RANKS = 1 << 20


class _Start(NamedTuple):
    """One start of the run: the address of its first batch, and its ranks."""

    at: Address
    world: int
    repeated: int


class RunHistory:
    """The addresses of one run's training.

    Raises:
        PenstockError: its ledger is damaged.
    """

    def __init__(self, record: RunRecord) -> None:
        self._starts = [_start(session) for session in record.sessions]
        self._ledger, self._path = record.ledger, record.path / LEDGER

    def world(self, address: Address) -> int:
        """The ranks of the start that trained on `address` last, or will if nothing changes."""
        worlds = [start.world for start in self._starts if start.at <= address]
        return worlds[-1] if worlds else 1

    def loss(self, address: Address) -> float | None:
        """The mean loss of its batch; None if the ledger does not have it."""
        line = self._place(address)
        return None if self._ledger is None or line is None else float(self._ledger.loss[line])

    def fate(self, address: Address) -> str:
        """The fate of `address`, in a few words."""
        ledger = self._ledger
        if ledger is None:
            return "unknown: no ledger"
        line = self._place(address)
        if line is None:
            passed = len(ledger.epoch) and address < (ledger.epoch[-1], ledger.step[-1])
            if not passed:
                return "not reached"
            return SKIPPED if address in self._skipped else "passed over"
        times = 1
        for start in self._starts:
            first = self._place(start.at)
            times += first is not None and first <= line < first + start.repeated
        return "trained" if times == 1 else f"trained {times} times, last with this loss"

    @cached_property
    def _skipped(self) -> Skipped:
        return skipped_in(self._path)

    def _place(self, address: Address) -> int | None:
        """The number of its line in the ledger."""
        if self._ledger is None:
            return None
        first, last = np.searchsorted(self._ledger.epoch, [address.epoch, address.epoch + 1])
        steps = self._ledger.step[first:last]
        line = int(np.searchsorted(steps, address.step))
        return int(first) + line if line < len(steps) and steps[line] == address.step else None


def _start(session: dict[str, object]) -> _Start:
    """A session of a manifest, which may be anybody's."""
    at, world, repeated = (session.get(name) for name in ("at", "world", "repeated"))
    known = isinstance(at, list) and len(at) == 2 and all(type(number) is int for number in at)
    return _Start(
        Address(*at) if known and isinstance(at, list) else Address(0, 0),
        world if type(world) is int and 1 <= world <= _MOST_RANKS else 1,
        repeated if type(repeated) is int and repeated > 0 else 0,
    )
