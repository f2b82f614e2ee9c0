"""Whether a sample is the same when it is made again: compared for the first two of a process.

Everything rests on a sample being a function of its row and its key. Code of others may break that
unnoticed: a generator made anew at each call, the clock, a counter, a transform that writes into
data that the dataset keeps. Where the two differ, steps are compared one by one to name the one.
A difference in few samples only may go unseen.

Cost: two samples more when a process begins, and 1 ms a MiB of them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from copy import deepcopy
from typing import Any

from penstock.errors import DataError
from penstock.loading import worker_status
from penstock.order.plan import Request
from penstock.order.randomness import Draws

SAMPLES = 2  # that are made again
_ATTEMPTS = 4  # to see a difference again, step by step

_ADVICE = (
    "Something that has no seed decides it: a generator made anew at each call, the clock, the "
    "system's random numbers, a counter, or a step that changes what the dataset keeps. So batches "
    "depend on who makes them, and no run, resumed or repeated, gives them again. Draw from "
    "`random`, `numpy.random` or torch, or from a generator that is kept as an attribute: these "
    "are seeded for each sample"
)

Hashes = dict[str, bytes]  # by field
Hashed = Callable[[Any], bytes]


class Again:
    """Makes the first samples of a request again.

    Args:
        rows: what samples are read from; `spare(indices)` gives copies of records that are there
            already, and that transforms may write into. It raises what cannot be copied.
        many: rows are read by `__getitems__`.
        named: makes a dict of a sample that is none.
        steps: transforms by name.
    """

    def __init__(
        self,
        request: Request,
        rows: Any,
        many: bool,
        named: Callable[[Any], Any],
        steps: Mapping[str, Callable[[Any], Any]],
        keys: list[int],
        draws: Draws,
    ) -> None:
        self._request, self._many, self._named = request, many, named
        self._steps, self._keys, self._draws = steps, keys, draws
        self._indices = request.indices[:SAMPLES].tolist()
        self._rows = rows.spare(self._indices) if hasattr(rows, "spare") else rows

    def difference(self, samples: list[Any], bad: Container[int], hashed: Hashed) -> str:
        """A message about a sample that differs when it is made again; else "".

        Args:
            bad: places of samples that could not be made.
            hashed: a hash of a value; DataError for an unknown type.
        """
        try:
            for slot, sample in enumerate(samples[:SAMPLES]):
                first = _hashes(sample, hashed) if slot not in bad else {}
                if not first:
                    continue
                *_, (_, again) = self._stages(slot)
                fields = _differing(first, _hashes(again, hashed))
                if fields:
                    row, position = self._indices[slot], int(self._request.positions[slot])
                    named = " and ".join(repr(name) for name in fields if name)
                    return (
                        f"sample {row} (epoch {self._request.epoch}, position {position}) "
                        f"{f'has another {named}' if named else 'is another'} when it is made again"
                        f"{self._culprit(slot, hashed)}. {_ADVICE}"
                    )
        except Exception:  # fetch itself meets what goes wrong the first time
            return ""
        return ""

    def _stages(self, slot: int) -> Iterator[tuple[str, Any]]:
        """The name that messages use for each stage, and the sample after it."""
        self._draws.seed(self._keys[slot])
        worker_status.report(slot, worker_status.READ)
        row = self._indices[slot]
        read = self._rows.__getitems__([row])[0] if self._many else self._rows[row]
        # Of a copy: a step may write into a row that the dataset hands out again.
        sample = deepcopy(self._named(read))
        yield "reading it", sample
        for name, step in self._steps.items():
            sample = step(sample)
            yield f"the transform {name!r}", sample

    def _culprit(self, slot: int, hashed: Hashed) -> str:
        """The first stage that gives another sample the second time, or writes into its sample."""
        for _ in range(_ATTEMPTS):
            once = [(stage, _hashes(sample, hashed)) for stage, sample in self._stages(slot)]
            twice = [_hashes(sample, hashed) for _, sample in self._stages(slot)]
            for (stage, first), second in zip(once, twice, strict=True):
                if _differing(first, second):
                    return f": {stage} does not give the same twice"
        before: tuple[Any, Hashes] | None = None
        for stage, sample in self._stages(slot):
            if before is not None and _differing(before[1], _hashes(before[0], hashed)):
                return (
                    f": {stage} changes its sample in place, and the dataset hands out what it "
                    "keeps"
                )
            before = sample, _hashes(sample, hashed)
        return ", though none of its steps shows it alone"


def _hashes(sample: Any, hashed: Hashed) -> Hashes:
    """The hashes of a sample's fields; those that have none are left out."""
    fields = sample if isinstance(sample, Mapping) else {"": sample}
    hashes: Hashes = {}
    for name, value in fields.items():
        try:
            hashes[str(name)] = hashed(value)
        except DataError:
            continue
    return hashes


def _differing(first: Hashes, other: Hashes) -> list[str]:
    return [name for name in {**first, **other} if first.get(name) != other.get(name)]
