"""`task=where`: at which addresses a sample was or will be seen, or which samples an address has.

    task=where sample=17 epochs=0:3           a row; also a path, or the end of one
    task=where sample='label == 3'            rows by an expression over the table
    task=where address=3,1200                 the rows of a batch, with their keys
    ... run=outputs/DATE/TIME                 the same in that run, with what it knows of them

Orders are searched (order/samplers.py), so no log is needed and no sample is read. A line has
the position in the epoch's order, the rank, and the key that the sample's random numbers follow
from. What a run knows of an address is in its ledger and in its sessions: where each began (`at`)
and how many steps of the ledger it took again (`repeated`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from penstock.addons.filters.expressions import is_expression, matching
from penstock.build.data import DataParts, Split
from penstock.config.schema import Config
from penstock.distributed.world import World, default_processes
from penstock.errors import ConfigError, Problem
from penstock.loading import facts
from penstock.loading.bad_samples import path_of
from penstock.loading.facts import SomeRows, table_of, unfiltered
from penstock.loading.known_by import relation
from penstock.order.address import Address, Skipped
from penstock.order.keys import sample_keys
from penstock.order.plan import Plan, Request
from penstock.runs import left_out
from penstock.runs.left_out import normal
from penstock.runs.quarantine import known_rows
from penstock.runs.record import LEDGER, RunRecord, skipped_in
from penstock.runs.resumption import run_of
from penstock.tasks.summary import put_rows
from penstock.terminal import one_line, put, say

MOST_ROWS, MOST_LINES = 100, 1000  # that are listed
SKIPPED = "left out (trainer.skip)"

Sample = int | str | Sequence[int | str]

_KEY = "sample"
_SHOWN = 5  # paths of an ambiguous name
_COLUMNS = ("path", "class", "label")  # of the dataset's table, where it has them


def run(config: Config) -> None:
    """Answer what `config.sample` or `config.address` asks.

    Raises:
        ConfigError: neither or both are given, or there is no such sample or address.
    """
    if (config.sample is None) == (config.address is None):
        raise ConfigError(
            Problem("sample", "give this or address, one of the two: sample=17, or address=3,1200")
        )
    folder = config.run and (run_of(Path(config.run)) or Path(config.run))
    record = RunRecord.read(folder, "run") if folder else None
    question = _Question(getattr(DataParts(config, World()), config.split), record)
    if config.address is not None:
        question.put_batch(Address(*config.address))
    elif config.sample is not None:
        question.put_samples(rows_of(config.sample, question.split))


class _Question:
    """One split of a configuration, and of a run if there is one.

    Attributes:
        history: of the run; None without one, and of validation, which the ledger leaves out.
    """

    def __init__(self, split: Split, record: RunRecord | None) -> None:
        self.split, self.config, self.record = split, split.config, record
        self.plan: Plan = plan_of(split)
        if record is not None:
            compare_data(record, split)
        trained = record if split.name == "train" else None
        self.history = None if trained is None else RunHistory(trained)

    def put_samples(self, rows: Sequence[int]) -> None:
        shown = rows[:MOST_ROWS]
        for row in shown:
            path, cause = path_of(self.split.dataset, row), self._left_out.get(row)
            names = [one_line(text) for text in (source_of(self.split.dataset, row), path) if text]
            if cause is not None:
                names.append(f"left out wherever it stands: {one_line(cause)}")
            if names:
                put("  ".join([f"row {self._own(row)}", *names]))
        lines = list(islice(chain.from_iterable(map(self._lines, shown)), MOST_LINES + 1))
        loss = ["loss"] if self.history else []
        header = ["row", "epoch", "step", "position", "rank", "key", *self._packed, *loss, ""]
        put_rows([header, *lines[:MOST_LINES]])
        if len(rows) > MOST_ROWS:
            say(f"{len(rows)} samples, of which these are the first {MOST_ROWS}")
        if len(lines) > MOST_LINES:
            say(f"more than {MOST_LINES} lines; ask for fewer epochs (epochs=0:3) or samples")

    def put_batch(self, address: Address) -> None:
        steps = self.plan.steps(address.epoch)
        if address.step >= steps:
            where = f"epoch {address.epoch} of the {self.split.name} split"
            raise ConfigError(
                Problem(
                    "address",
                    f"{where} has {steps} steps, 0 to {steps - 1}, and no step {address.step}",
                )
            )
        world = self._world(address)
        shares = [self.plan.request(*address, rank, world) for rank in range(world)]
        parts = [f"batch {address}", f"{sum(share.valid for share in shares)} rows"]
        if self.history:
            loss = self.history.loss(address)
            parts += [] if loss is None else [f"loss {loss:.6g}"]
        put("  ".join([*parts, self._fate(address)]).rstrip())
        table = table_of(self.split.dataset, self.split.data.fields)
        names = [] if table is None else [name for name in _COLUMNS if name in table.columns]
        mixes = bool(source_of(self.split.dataset, int(shares[0].indices[0])))
        sources = ["source"] if mixes else []
        lines = [["position", "row", "rank", "key", *self._packed, *sources, *names, ""]]
        for rank, share in enumerate(shares):
            for place in range(share.valid):
                row = int(share.indices[place])
                known = [one_line(source_of(self.split.dataset, row))] if mixes else []
                known += (
                    [] if table is None else [one_line(table[name].iloc[row]) for name in names]
                )
                note = "left out" if row in self._left_out else ""
                lines.append(
                    [
                        str(share.positions[place]),
                        str(self._own(row)),
                        str(rank),
                        self._key(share, place),
                        *_part(share, place),
                        *known,
                        note,
                    ]
                )
        put_rows(lines)

    def _lines(self, row: int) -> Iterator[list[str]]:
        """The history of a row, epoch by epoch."""
        own = str(self._own(row))
        for epoch in self._epochs():
            met, steps = self._steps_of(epoch, row), self.plan.steps(epoch)
            if not met or met[0] >= steps:
                empty = [""] * (4 + len(self._packed) + bool(self.history))
                yield [own, str(epoch), *empty, self._why_not(met)]
            for step in met:
                if step < steps:
                    yield from self._at(own, row, Address(epoch, step))

    def _steps_of(self, epoch: int, row: int) -> list[int]:
        """The steps whose batches have `row`, also behind the epoch's end."""
        tail = "keep" if self.plan.tail == "drop" else self.plan.tail
        every = replace(self.plan, most=None, tail=tail)
        steps = range(every.steps(epoch))
        return [step for step in steps if (every.request(epoch, step).indices == row).any()]

    def _at(self, own: str, row: int, address: Address) -> Iterator[list[str]]:
        """The lines of a row in a batch that has it."""
        world, cells = self._world(address), []
        if self.history:
            loss = self.history.loss(address)
            cells = ["" if loss is None else f"{loss:.6g}"]
        fate = self._fate(address)
        for rank in range(world):
            share = self.plan.request(*address, rank, world)
            for place in np.flatnonzero(share.indices[: share.valid] == row).tolist():
                yield [
                    own,
                    *map(str, address),
                    str(share.positions[place]),
                    str(rank),
                    self._key(share, place),
                    *_part(share, place),
                    *cells,
                    fate,
                ]

    def _fate(self, address: Address) -> str:
        """The fate of an address, past or coming; empty for most."""
        if self.history and self.history.loss(address) is not None:
            return self.history.fate(address)
        if address in self.plan.skipped:
            return SKIPPED
        if self._end is not None and address >= self._end:
            return f"behind the end (trainer.max_steps={self.config.trainer.max_steps})"
        return self.history.fate(address) if self.history else ""

    def _why_not(self, steps: Sequence[int]) -> str:
        """Why an epoch does not have a row that its order has in `steps`."""
        if not steps:
            return "not in this epoch"
        if self.plan.most is not None and steps[0] >= self.plan.most:
            return f"behind the {self.plan.most} batches that an epoch is limited to"
        return "in the rest that is less than a batch (batch.tail=drop)"

    def _epochs(self) -> range:
        epochs = self.config.epochs
        if isinstance(epochs, int):
            return range(epochs, epochs + 1)
        if epochs is not None:
            return range(*map(int, epochs.split(":")))
        if self._end is not None:
            return range(self._end.epoch + (self._end.step > 0))
        # Every epoch of validation has the same order.
        return range(self.config.trainer.max_epochs if self.split.name == "train" else 1)

    @cached_property
    def _end(self) -> Address | None:
        """The first address that is not trained on because of `trainer.max_steps`; None: no such,
        or unknown where batches are left out, which do not count.
        """
        trainer = self.config.trainer
        if trainer.max_steps is None or self.plan.skipped or self.split.name != "train":
            return None
        left = trainer.max_steps  # updates, one for each group of batches, the last one smaller
        for epoch in range(trainer.max_epochs):
            steps = self.plan.steps(epoch)
            if left * trainer.accumulate < steps:
                return Address(epoch, left * trainer.accumulate)
            left -= -(-steps // trainer.accumulate)
        return None

    def _world(self, address: Address) -> int:
        """The ranks that share the batch at `address`."""
        if self.history:
            return self.history.world(address)
        distributed = self.config.distributed
        if distributed.strategy == "none":
            return 1
        return default_processes() if distributed.nproc == "auto" else distributed.nproc

    def _own(self, row: int) -> int:
        return own_row(self.split.dataset, row)

    def _key(self, share: Request, row: int) -> str:
        position = share.positions[row : row + 1]
        return f"{int(sample_keys(self.config.seed, share.epoch, position)[0]):016x}"

    @cached_property
    def _packed(self) -> list[str]:
        """Columns of rows that stand in blocks."""
        return ["tokens", "block"] if getattr(self.plan.sampler, "packs", False) else []

    @cached_property
    def _left_out(self) -> dict[int, str]:
        """Causes by row, from the quarantines that the run reads and writes."""
        paths = [self.config.bad_samples.quarantine]
        if self.record is not None and (self.record.path / left_out.NAME).exists():
            paths.append(str(self.record.path / left_out.NAME))
        causes: dict[int, str] = {}
        for path in filter(None, paths):
            causes |= listed_in(path, self.split)
        return causes


def _part(share: Request, row: int) -> list[str]:
    """Which tokens of its row stand at a place, and in which block of the global batch."""
    if share.parts is None:
        return []
    start, stop, length, block = share.parts[row].tolist()
    return [f"{start}:{stop} of {length}", str(block)]


class RunHistory:
    """The addresses of one run's training.

    Raises:
        PenstockError: its ledger is damaged.
    """

    def __init__(self, record: RunRecord) -> None:
        # Of each start: the address of its first batch, its ranks, the steps that it repeated.
        self._starts = [
            (Address(*one.get("at", (0, 0))), one.get("world", 1), one.get("repeated", 0))
            for one in record.sessions
        ]
        self._ledger, self._path = record.ledger, record.path / LEDGER

    def world(self, address: Address) -> int:
        """The ranks of the start that trained on `address` last, or will if nothing changes."""
        worlds = [world for at, world, _ in self._starts if at <= address]
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
        for at, _, repeated in self._starts:
            first = self._place(at)
            times += first is not None and first <= line < first + repeated
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


def compare_data(record: RunRecord, split: Split) -> None:
    """Say so if the data is not that of a run, or not known to be."""
    then = record.manifest.get("data")
    known = split.known_by
    mode = split.config.data.fingerprint
    now = {
        "fingerprint": mode,
        split.name: split.fingerprint["dataset"],
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
            (`addons/filters/expressions.py`), or several of these.

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
    own = facts.own_row(dataset, row)
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
    own = facts.unfiltered_fingerprint(dataset, split.fingerprint["dataset"])
    causes = known_rows(path, unfiltered(dataset), split.name, own)
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
