"""Which jobs of a sweep saw the same batches, and the first address at which two part.

What is known of a job: the hash of its whole order and the fingerprint of its data (manifest.json),
the settings and the code that make a batch of its samples (likewise), and the rows of each batch
(ledger.jsonl). Jobs that are equal in all of that are put together first; only one of each such
class is compared with the others, by ledger, and no further than to where they part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Literal

from penstock.config.changes import effect_of, is_default, leaves
from penstock.config.sections import Changes
from penstock.errors import PenstockError
from penstock.loading.known_by import relation
from penstock.runs.record import LEDGER, Ledger, RunRecord, read_ledger

Kind = Literal["same", "alike", "part", "made", "data", "differ", "unknown"]

_IN_THE_ORDER = ("sampler", "batch", "dataset", "trainer")  # sections that show in the order
Pairs = tuple[tuple[str, str], ...]
_MOST_KEPT = 1 << 24  # steps of ledgers, 40 bytes each
_FIRST = 4096  # lines that are read of a ledger to begin with


@dataclass(frozen=True)
class Relation:
    """How the batches of two jobs compare.

    Attributes:
        kind: "same": equal as far as both went;
            "alike": the same rows as far as both went, of data that is not known to be the same;
            "part": other samples from an address on;
            "made": the same samples, of which other settings or code made other batches;
            "data": other data;
            "differ": other samples, and without ledgers nobody knows where from;
            "unknown".
        address: epoch and step where they part.
        batches: how many of them are equal; None if that is known by hashes of the whole, or
            follows from the settings.
        keys: settings that made the batches different.
    """

    kind: Kind
    address: tuple[int, int] | None = None
    batches: int | None = None
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Seen:
    """What a job's folder says about its batches; empty where it says nothing."""

    data: Pairs  # with what it is known by
    told: Mapping[str, object]  # the same, as in the manifest
    choosing: Pairs  # settings on which the order depends
    making: Pairs  # settings and code by which batches are made of samples
    order: str
    steps: int | None  # in all
    ledger: Path | None

    @classmethod
    def of(cls, run: RunRecord | None) -> Seen:
        """Of a run; of nothing at all without one."""
        if run is None:
            return cls((), {}, (), (), "", None, None)
        data = _mapping(run.manifest.get("data"))
        facts = _mapping(run.manifest.get("fingerprint"))
        code = _mapping(run.manifest.get("code"))
        effects = {key: effect_of(str(key)) for key in facts}
        kept = {
            key: value
            for key, value in facts.items()
            if not is_default(str(key), value)
            and (effects[key].changes == Changes.BATCHES or effects[key].cuts)
        }
        choosing = {
            key: value for key, value in kept.items() if str(key).partition(".")[0] in _IN_THE_ORDER
        }
        making = {key: value for key, value in kept.items() if key not in choosing}
        making |= {f"code.{key}": value for key, value in leaves(code)}
        order, ledger = run.manifest.get("order"), run.path / LEDGER
        steps = _mapping(run.manifest.get("last")).get("step")
        return cls(
            _pairs(
                {
                    "by": data.get("fingerprint", ""),
                    "train": data.get("train", ""),
                    **_mapping(_mapping(data.get("identity")).get("train")),
                }
            ),
            data,
            _pairs(choosing),
            _pairs(making),
            order if isinstance(order, str) else "",
            steps if isinstance(steps, int) else None,
            ledger if ledger.exists() else None,
        )


@dataclass(frozen=True)
class SameData:
    """The classes of jobs with equal batches, and how each two of them compare.

    Attributes:
        classes: places of jobs, in order; the jobs of a class saw the same batches, as far as they
            went. Jobs of which no batch is recorded are in none.
        between: by the places of two classes, the smaller one first.
        troubles: ledgers that could not be read.
        alike: places of classes whose jobs read the same rows of data that is not known to be the
            same.
    """

    classes: list[list[int]]
    between: dict[tuple[int, int], Relation]
    troubles: list[str]
    alike: frozenset[int] = frozenset()

    @classmethod
    def of(cls, runs: Sequence[RunRecord | None]) -> SameData:
        """Compare all runs; None is one that has not begun."""
        seen = [Seen.of(run) for run in runs]
        together: dict[object, list[int]] = {}
        for number, (run, job) in enumerate(zip(runs, seen, strict=True)):
            if run is not None and (job.order or job.ledger is not None):
                known = job.order and job.told.get("train")
                whole = (job.data, job.making, job.order) if known else number
                together.setdefault(whole, []).append(number)
        classes = list(together.values())
        ledgers = _Ledgers([seen[jobs[0]].ledger for jobs in classes])
        between = {
            (a, b): _relation(seen[classes[a][0]], seen[classes[b][0]], ledgers, a, b)
            for a, b in combinations(range(len(classes)), 2)
        }
        return cls(classes, between, ledgers.troubles)._without_unfinished(seen)

    def _without_unfinished(self, seen: Sequence[Seen]) -> SameData:
        """Jobs that ended early join the whole ones that they saw the same batches as, if those
        are of one class.
        """
        places = range(len(self.classes))
        whole = [number for number in places if seen[self.classes[number][0]].order]
        joined: dict[int, int] = {}
        for a in places:
            same = [b for b in whole if self.relation(a, b).kind in ("same", "alike")]
            if a not in whole and len(same) == 1:
                joined[a] = same[0]
        left = [number for number in places if number not in joined]
        members = {number: list(self.classes[number]) for number in left}
        for a, b in joined.items():
            members[b] += self.classes[a]
        pairs = combinations(enumerate(left), 2)
        between = {(i, j): self.relation(a, b) for (i, a), (j, b) in pairs}
        classes = [sorted(members[number]) for number in left]
        data = [seen[jobs[0]].told for jobs in classes]
        alike = [
            number
            for number, jobs in enumerate(classes)
            if len(jobs) > 1 and not relation(data[number], data[number]).same
        ]
        return SameData(classes, between, self.troubles, frozenset(alike))

    def relation(self, first: int, second: int) -> Relation:
        """How two classes compare."""
        if first == second:
            return Relation("alike" if first in self.alike else "same")
        return self.between[min(first, second), max(first, second)]


def _relation(first: Seen, second: Seen, ledgers: _Ledgers, a: int, b: int) -> Relation:
    data = relation(first.told, second.told)
    if data.same is False:
        return Relation("data", keys=data.keys)
    if not data.same and not data.alike:
        return Relation("unknown")
    rows = _of_rows(first, second, ledgers, a, b)
    return replace(rows, kind="alike") if rows.kind == "same" and data.alike else rows


def _of_rows(first: Seen, second: Seen, ledgers: _Ledgers, a: int, b: int) -> Relation:
    """How two jobs compare that had the same data."""
    made, other = dict(first.making), dict(second.making)
    keys = tuple(key for key in {**made, **other} if made.get(key) != other.get(key))
    if first.order and first.order == second.order:
        return Relation("made", keys=keys) if keys else Relation("same")
    compared = ledgers.compare(a, b)
    if compared.kind == "same" and keys:
        return Relation("made", keys=keys, batches=compared.batches)
    if compared.kind != "unknown":
        return compared
    if first.choosing and first.choosing == second.choosing:
        return Relation("made", keys=keys) if keys else Relation("same")
    if first.order and second.order and first.steps == second.steps is not None:
        return Relation("differ")
    return compared


class _Ledgers:
    """The ledgers of classes, read as far as comparing them needs."""

    def __init__(self, paths: Sequence[Path | None]) -> None:
        self.paths = paths
        self.troubles: list[str] = []
        self._read: dict[int, tuple[int, Ledger | None]] = {}

    def compare(self, a: int, b: int) -> Relation:
        """Where the samples of two classes part, by their ledgers."""
        least = _FIRST
        while True:
            first, second = self._head(a, least), self._head(b, least)
            if first is None or second is None:
                return Relation("unknown")
            parted = parting(first, second)
            if parted.kind != "same" or min(len(first.epoch), len(second.epoch)) < least:
                return parted
            least *= 8

    def _head(self, which: int, least: int) -> Ledger | None:
        """At least so many lines, if there are so many; None without a ledger."""
        path = self.paths[which]
        if path is None:
            return None
        known, ledger = self._read.get(which, (0, None))
        if known < least:
            try:
                ledger = read_ledger(path, least)
            except PenstockError as error:
                ledger, least = None, 2**62
                self.troubles.append(str(error))
            # A ledger that has ended is not read again.
            short = ledger is not None and len(ledger.epoch) < least
            self._read.pop(which, None)
            self._read[which] = (2**62 if short else least, ledger)
            kept = {oldest: len(read.epoch) for oldest, (_, read) in self._read.items() if read}
            for oldest in list(kept)[:-1]:  # those read first; they are read again if needed
                if sum(kept.values()) > _MOST_KEPT:
                    self._read.pop(oldest)
                    kept.pop(oldest)
        return ledger


def parting(first: Ledger, second: Ledger) -> Relation:
    """Where two runs' samples part, as far as both ledgers go. Cost: 10 ns a batch.

    A ledger may begin in mid-run: what comes before the later beginning is not compared.
    """
    if not len(first.epoch) or not len(second.epoch):
        return Relation("unknown")
    begin = max((int(ledger.epoch[0]), int(ledger.step[0])) for ledger in (first, second))
    columns = []
    for ledger in (first, second):
        at = int(
            (
                (ledger.epoch < begin[0]) | ((ledger.epoch == begin[0]) & (ledger.step < begin[1]))
            ).sum()
        )
        columns.append([column[at:] for column in (ledger.epoch, ledger.step, ledger.order)])
    length = min(len(ledger[0]) for ledger in columns)
    if not length:
        return Relation("unknown")
    (epoch, step, order), (epochs, steps, orders) = (
        [c[:length] for c in ledger] for ledger in columns
    )
    differ = (epoch != epochs) | (step != steps) | (order != orders)
    if not differ.any():
        return Relation("same", batches=length)
    at = int(differ.argmax())
    address = min((int(epoch[at]), int(step[at])), (int(epochs[at]), int(steps[at])))
    return Relation("part", address, batches=at)


def _pairs(values: Mapping[str, object]) -> Pairs:
    return tuple(sorted((str(key), str(value)) for key, value in values.items()))


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
