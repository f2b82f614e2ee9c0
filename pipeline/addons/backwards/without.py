"""`task=without`: how a run continues as if it had never seen a sample.

    task=without sample=17 run=outputs/faces

1. Ask the run's order backwards: at which address did training first meet the sample?
2. Find the last checkpoint from before that, of this run or of the one that it began from.
3. Write a quarantine with the sample beside the run; all others keep their addresses.
4. Print the command that continues from that checkpoint with that quarantine.

The weights that result have never seen the sample, for the price of the steps since then. Nothing
is deleted; checkpoints that have seen it are named. Cost: the sampler's inverse for each epoch; no
sample is read.

Where checkpoints stand is read from their headers: no tensor, no checksum, 1 ms each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from penstock import program
from penstock.addons.backwards.backwards import RunHistory, compare_data, plan_of, rows_of
from penstock.addons.reports.values import command
from penstock.build.data import DataParts, Split
from penstock.config.changes import leaves
from penstock.config.schema import Config
from penstock.distributed.world import World
from penstock.errors import ConfigError, Problem
from penstock.files import plain_json
from penstock.files.plain_json import integer, mapping
from penstock.files.regular_file import open_regular
from penstock.loading.bad_samples import ATTEMPTS, path_of, rule
from penstock.loading.wrapped import own_row
from penstock.order.address import Address
from penstock.order.plan import Plan
from penstock.runs import left_out, quarantine
from penstock.runs.left_out import KEY, Entry
from penstock.runs.quarantine import QuarantineFile
from penstock.runs.record import RunRecord
from penstock.runs.resumption import run_of
from penstock.runs.sharded_checkpoint import STATE
from penstock.tasks.folder_config import asked_of
from penstock.terminal import one_line, put, say

_FEW = 16  # rows up to which each is looked for; of more, one is met soon by going forwards
_MOST_RUNS = 100  # that began from each other


def run(config: Config) -> None:
    """Print how the run `config.run` continues without `config.sample`.

    Raises:
        ConfigError: there is no such run or sample, or the run's data is a stream.
    """
    asked, record = asked_of(config)
    if record is None or config.sample is None:
        raise ConfigError(
            Problem(
                "sample" if record else "run",
                "is missing: task=without sample=17 run=outputs/faces",
            )
        )
    split = DataParts(asked, World()).train
    compare_data(record, split)
    trained = _Trained(record, asked, split, rows_of(config.sample, split))
    for row in trained.rows[:_FEW]:
        put(
            f"{'sample':<10} row {_own(split.dataset, row)}  "
            f"{one_line(path_of(split.dataset, row))}".rstrip()
        )
    if len(trained.rows) > _FEW:
        put(f"{'':<10} and {len(trained.rows) - _FEW} more rows")
    first, reached = trained.first, trained.reached
    if first is None and not trained.is_ahead:
        put(f"{'seen':<10} never, and the run never will: nothing has to be done")
        return
    at = reached if first is None else first
    seen = f"first at epoch {at.epoch}, step {at.step}" if first else "not yet"
    put(f"{'seen':<10} {seen}; the run has reached epoch {reached.epoch}, step {reached.step}")
    _warn(record, asked)
    start = next(_before(record, at), None)
    folder = record.path if record.path.name not in ("", "..") else record.path.resolve()
    file = _free(folder.with_name(f"{folder.name}-without.csv"))
    words = [program.override(KEY, file), program.override("run_dir", file.with_suffix(""))]
    if start is None:
        put(f"{'resumes':<10} from the beginning: no checkpoint is older than that")
    else:
        put(f"{'resumes':<10} from {_described(start)}")
        words.insert(0, program.override("resume", start.path))
    for saved in saved_in(record.path):
        if saved.address is None or saved.address > at:
            put(f"{'has seen':<10} {_described(saved)}")
    _quarantine(trained, at, file)
    put(f"{'left out':<10} {file}")
    line = command(record, *words, again=start is None)
    way = f"\n  {line}" if line else " the overrides of this run cannot be used; give your own"
    put(f"\nTo continue without it:{way}")


class _Trained:
    """The steps at which a run has trained on some rows.

    Attributes:
        reached: the address after the last batch, as far as the run's files know.
    """

    def __init__(
        self, record: RunRecord, config: Config, split: Split, rows: Sequence[int]
    ) -> None:
        self.record, self.config, self.split, self.rows = record, config, split, rows
        self.plan: Plan = plan_of(split)
        self._history, ledger = RunHistory(record), record.ledger
        self._between: tuple[Address, Address] | None = None  # the ledger's first and last
        ends = [saved.address for saved in saved_in(record.path) if saved.address is not None]
        if ledger is not None and len(ledger.epoch):
            first, last = (Address(int(ledger.epoch[n]), int(ledger.step[n])) for n in (0, -1))
            self._between = first, last
            ends.append(Address(last.epoch, last.step + 1))
        self.reached = max(ends, default=Address(config.trainer.max_epochs, 0))

    @cached_property
    def first(self) -> Address | None:
        """The first address at which one of the rows was trained on, also instead of another."""
        met = self._met(self.rows, self.reached)
        instead = self._instead(met or self.reached)
        return min((address for address in (met, instead) if address is not None), default=None)

    @property
    def is_ahead(self) -> bool:
        """Whether the rest of the run has one of the rows."""
        end = max(self.reached, Address(self.config.trainer.max_epochs, 0))
        return self._met(self.rows, end) is not None

    def _met(self, rows: Sequence[int], until: Address) -> Address | None:
        """The first address before `until` whose batch has one of `rows` and is trained on."""
        return next(
            (address for address in self._of(rows, until) if self._is_trained(address)), None
        )

    def _of(self, rows: Sequence[int], until: Address) -> Iterator[Address]:
        """The addresses before `until` whose batches have any of `rows`, in order."""
        rows_asked = np.array(rows)
        for epoch in range(until.epoch + 1):
            stop = until.step if epoch == until.epoch else self.plan.steps(epoch)
            steps = range(min(stop, self.plan.steps(epoch)))
            if len(rows) <= _FEW:
                met = {step for row in rows for step in self.plan.steps_of(epoch, row)}
                yield from (Address(epoch, step) for step in sorted(met) if step in steps)
                continue
            for step in steps:
                if np.isin(self.plan.request(epoch, step).indices, rows_asked).any():
                    yield Address(epoch, step)

    def _is_trained(self, address: Address) -> bool:
        """Whether the run was or will be trained on `address`: the ledger knows, or else the plan.

        A run that began from another's checkpoint has no lines from before that.
        """
        if self._between and self._between[0] <= address <= self._between[1]:
            return self._history.loss(address) is not None
        return address not in self.plan.skipped

    def _instead(self, until: Address) -> Address | None:
        """The first address before `until` at which one of the rows stood in for a bad one."""
        if self.config.bad_samples.on_error != "substitute":
            return None
        dataset, split = self.split.dataset, self.split
        paths = [self.config.bad_samples.quarantine, self.record.path / left_out.NAME]
        bad: dict[int, str] = {}
        for path in paths:
            if path is not None and Path(path).exists():
                bad |= quarantine.policy(
                    "skip",
                    str(path),
                    split.name,
                    self.plan,
                    dataset,
                    split.fingerprint["dataset"],
                    self.config.seed,
                ).known
        if not bad:
            return None
        policy = rule("substitute", {}, self.plan.sampler, len(dataset), self.config.seed)
        for address in self._of(list(bad), until):
            request: Any = self.plan.request(*address)
            for at in np.flatnonzero(np.isin(request.indices[: request.valid], list(bad))):
                rows = policy.substitutes.rows(request, int(at)) if policy.substitutes else ()
                taken = next((row for row in islice(rows, ATTEMPTS) if row not in bad), None)
                if taken in self.rows and self._is_trained(address):
                    return address
        return None


def _before(record: RunRecord, at: Address) -> Iterator[Saved]:
    """Checkpoints before `at`, latest first: the run's, then those of the one it began from."""
    for _ in range(_MOST_RUNS):
        yield from newest_before(saved_in(record.path), at)
        first = record.sessions[0] if record.sessions else {}
        begun, resumed = first.get("at"), first.get("resumed")
        if not isinstance(resumed, str) or not isinstance(begun, list) or len(begun) != 2:
            return
        folder = run_of(Path(resumed))
        if folder is None:
            say(f"the run began from {resumed}, which is no longer there")
            return
        at, record = min(at, Address(*begun)), RunRecord.read(folder, "run")


def _quarantine(trained: _Trained, at: Address, file: Path) -> None:
    """Write the rows to a new quarantine, after what the run already leaves out."""
    split, before = trained.split, trained.config.bad_samples.quarantine
    dataset, out = split.dataset, QuarantineFile(file)
    out.add(left_out.read(before) if before else [])
    # By row, and not by path: that is exact for this dataset, and of no other split.
    out.add(
        Entry(
            "train",
            _own(dataset, row),
            "",
            *at,
            -1,
            f"task=without {path_of(dataset, row)}".rstrip(),
            split.identity.unfiltered,
        )
        for row in trained.rows
    )


def _own(dataset: Any, row: int) -> int:
    own = own_row(dataset, row)  # another one behind a filter
    return row if own is None else own


def _warn(record: RunRecord, config: Config) -> None:
    """Say what the addresses do not tell."""
    if record.state == "running":
        say("the run is still training; stop it, or it may see the sample")
    words = [
        word for start in [record.manifest, *record.sessions] for word in start.get("overrides", [])
    ]
    if any(str(word).startswith("resume_despite=") for word in words):
        say(
            "the run was once resumed with other settings (resume_despite): if these have changed "
            "its batches, it may have seen the sample at other addresses before"
        )
    steps = leaves(config.transform.model_dump())
    if any(key.endswith(".statistics") and used == "dataset" for key, used in steps):
        say(
            "a transform normalizes by statistics of the whole dataset, with the sample in them; "
            "give it numbers if that counts"
        )


def _described(saved: Saved) -> str:
    if saved.address is None:
        return f"{saved.path}, as far as is known: it cannot be read ({saved.trouble})"
    return f"{saved.path}, at epoch {saved.address.epoch}, step {saved.address.step}"


def _free(path: Path) -> Path:
    """`path`, or one with a number in its name: neither it nor the run of its name exists."""
    names = (path.with_stem(f"{path.stem}-{number}") if number > 1 else path for number in count(1))
    return next(path for path in names if not path.exists() and not path.with_suffix("").exists())


_LARGEST = 128 << 20  # bytes of a header or a state.json


@dataclass(frozen=True)
class Saved:
    """A checkpoint; it has learned from all batches before `address`, as far as that is known."""

    path: Path
    address: Address | None
    trouble: str = ""

    @property
    def is_usable(self) -> bool:
        """Whether a run may resume from it: not if it was set aside as damaged or abandoned."""
        return self.address is not None and not self.path.name.startswith("set-aside-")


def saved_in(run: Path) -> list[Saved]:
    """The checkpoints in a run's folder under all their names, by address, the best first."""
    folder = run / "checkpoints"
    paths = folder.iterdir() if folder.is_dir() else ()
    checkpoints = [
        _read(path) for path in paths if path.suffix == ".safetensors" or (path / STATE).exists()
    ]
    return sorted(
        checkpoints, key=lambda checkpoint: (checkpoint.address or (0, 0), checkpoint.path.name)
    )


def _read(path: Path) -> Saved:
    try:
        if path.is_dir():
            text = mapping(plain_json.read(path / STATE, _LARGEST))["state"]
        else:
            text = mapping(_header(path)["__metadata__"])["state"]
        if not isinstance(text, str):
            raise TypeError(f"its state is {plain_json.name(text)}, and must be a text")
        loader = mapping(mapping(plain_json.parse(text, _LARGEST)).get("loader"))
        return Saved(path, Address(integer(loader, "epoch"), integer(loader, "step")))
    except (OSError, ValueError, LookupError, TypeError) as error:
        return Saved(path, None, f"{type(error).__name__}: {str(error)[:200]}")


def _header(path: Path) -> dict[str, object]:
    """The header of a safetensors file: 8 bytes with its length, and JSON."""
    with open_regular(path) as file:
        size = int.from_bytes(file.read(8), "little")
        if size > _LARGEST:
            raise ValueError(f"its header claims {size} bytes, more than {_LARGEST}")
        return mapping(plain_json.parse(file.read(size), _LARGEST))


def newest_before(saved: list[Saved], address: Address) -> Iterator[Saved]:
    """Those that a run may resume from and that have not learned from `address`, latest first."""
    usable = [checkpoint for checkpoint in saved if checkpoint.is_usable]
    yield from (
        checkpoint
        for checkpoint in reversed(usable)
        if checkpoint.address is not None and checkpoint.address <= address
    )
