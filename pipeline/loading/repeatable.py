"""Whether a sample is the same when it is made again: tried with the first samples of a process.

Everything rests on a sample being a function of its row and its key. Code of others may break that
without a word: a generator made anew at each call, the clock, a counter, a transform that writes
into what the dataset keeps. So the first two samples are made once more and compared; where they
differ, steps are compared one by one to say which it was. What differs in few samples only may go
unseen.

Cost: two samples more when a process begins, and 1 ms a MiB of them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pipeline.errors import DataError
from pipeline.loading import worker_status
from pipeline.order.plan import Request
from pipeline.order.randomness import Draws

SAMPLES = 2  # that are made again
_ATTEMPTS = 4  # to see a difference again, step by step

_ADVICE = (
    "Something that has no seed decides it: a generator made anew at each call, the clock, the "
    "system's random numbers, a counter, or a step that changes what the dataset keeps. So batches "
    "depend on who makes them, and no run, resumed or repeated, gives them again. Draw from "
    "`random`, `numpy.random` or torch, or from a generator that is kept as an attribute: these "
    "are seeded for each sample"
)

Told = dict[str, bytes]
Hashed = Callable[[Any], bytes]
Steps = Mapping[str, Callable[[Any], Any]]


@dataclass(frozen=True)
class Again:
    """How the first samples of a request are made again.

    Attributes:
        request: which samples.
        read: gives the row at a place, before its transforms.
        steps: transforms by name.
        keys: of the samples.
        draws: the generators to put a sample's key into.
    """

    request: Request
    read: Callable[[int], Any]
    steps: Steps
    keys: list[int]
    draws: Draws

    @classmethod
    def of(
        cls,
        request: Request,
        rows: Any,
        many: bool,
        steps: Steps,
        keys: list[int],
        draws: Draws,
        named: Callable[[Any], Any],
    ) -> Again | None:
        """The same of `rows` as they are now; None where they cannot be kept.

        Args:
            rows: what samples are read from; `spare(indices)` gives copies of those that are there
                already, and that transforms may write into.
            many: read by `__getitems__`.
            named: makes a dict of a sample that is none.
        """
        indices = request.indices[:SAMPLES].tolist()
        try:
            spare = rows.spare(indices) if hasattr(rows, "spare") else rows
        except Exception:  # a record that cannot be copied
            return None

        def read(place: int) -> Any:
            worker_status.report(place, worker_status.READ)
            row = indices[place]
            return named(spare.__getitems__([row])[0] if many else spare[row])

        return cls(request, read, steps, keys, draws)

    def unlike(self, samples: list[Any], bad: Container[int], hashed: Hashed) -> str:
        """What is to be said of a sample that is another when it is made again; else "".

        Args:
            samples: of the request, by place.
            bad: places of those that could not be made.
            hashed: gives bytes that tell a value from others; DataError for what it cannot tell.
        """
        try:
            for place, sample in enumerate(samples[:SAMPLES]):
                told = _told(sample, hashed) if place not in bad else {}
                fields = _unlike(told, self._told_again(place, hashed)) if told else []
                if fields:
                    return f"{self._at(place)} {_of(fields)} when it is made again" \
                           f"{self._culprit(place, hashed)}. {_ADVICE}"  # fmt: skip
        except Exception:  # what goes wrong the first time is met by fetch itself
            return ""
        return ""

    def _at(self, place: int) -> str:
        row, position = int(self.request.indices[place]), int(self.request.positions[place])
        return f"sample {row} (epoch {self.request.epoch}, position {position})"

    def _told_again(self, place: int, hashed: Hashed) -> Told:
        *_, (_, sample) = self._stages(place)
        return _told(sample, hashed)

    def _stages(self, place: int) -> Iterator[tuple[str, Any]]:
        """The sample after each stage, by what messages call the stage."""
        self.draws.seed(self.keys[place])
        # Of a copy: a step may write into a row that the dataset hands out again.
        sample = deepcopy(self.read(place))
        yield "reading it", sample
        for name, step in self.steps.items():
            sample = step(sample)
            yield f"the transform {name!r}", sample

    def _culprit(self, place: int, hashed: Hashed) -> str:
        """The first stage that gives something else the second time."""
        for _ in range(_ATTEMPTS):
            once = [(stage, _told(sample, hashed)) for stage, sample in self._stages(place)]
            twice = [_told(sample, hashed) for _, sample in self._stages(place)]
            for (stage, told), other in zip(once, twice, strict=True):
                if _unlike(told, other):
                    return f": {stage} does not give the same twice"
        return self._writer(place, hashed)

    def _writer(self, place: int, hashed: Hashed) -> str:
        """The step that writes into its sample, which the dataset may hand out again."""
        before: tuple[Any, Told] | None = None
        for stage, sample in self._stages(place):
            if before is not None and _unlike(before[1], _told(before[0], hashed)):
                return (f": {stage} changes its sample in place, and the dataset hands out what it "
                        "keeps")  # fmt: skip
            before = sample, _told(sample, hashed)
        return ", though none of its steps shows it alone"


def _told(sample: Any, hashed: Hashed) -> Told:
    """The hashes of a sample's fields; those that have none are left out."""
    fields = sample if isinstance(sample, Mapping) else {"": sample}
    found: Told = {}
    for name, value in fields.items():
        try:
            found[str(name)] = hashed(value)
        except DataError:
            continue
    return found


def _unlike(one: Told, other: Told) -> list[str]:
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def _of(fields: list[str]) -> str:
    named = [repr(name) for name in fields if name]
    return f"has another {' and '.join(named)}" if named else "is another"
