"""The search for the fastest loader within a time and a memory budget.

1. Climb: for each backend workers are doubled until that stops helping, nobody waits, or the memory
   budget would be passed; one short measurement each.
2. Look around: for the fastest of each backend also the numbers of workers in between, and more
   batches ahead.
3. Compare: the fastest few are measured again in turns, the slower half dropped after each round.
4. Choose: of those within 2 % of the fastest, the one that needs least.

Measuring is a function that the caller gives; nothing here knows of loaders. A measurement is only
begun if it should end in time, as far as those before it tell.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Backend = Literal["main", "process", "thread"]

HELPS = 1.03  # ratio of rates from which on more workers help
AS_GOOD = 0.98  # of the fastest
IN_REACH = 0.6  # of the fastest after one measurement each, which may have been lucky
CONTENDERS = 6
ROUNDS = 8


class Setting(NamedTuple):
    """What is varied; in order of what it costs."""

    workers: int
    prefetch: int
    backend: Backend
    pin: bool = False


class Slice(NamedTuple):
    """One measurement.

    Attributes:
        batches, seconds: delivered in what time; 0 batches: not even the first ones came.
        waited: share of the time in which the consumer waited.
        memory: bytes of the whole process tree; 0: not known.
        refused: why the setting cannot be; empty if it can.
    """

    batches: int
    seconds: float
    waited: float = 0.0
    memory: int = 0
    refused: str = ""


Measure = Callable[[Setting, float], Slice]


@dataclass
class Trial:
    """All measurements of a setting."""

    setting: Setting
    slices: list[Slice] = field(default_factory=list)
    refused: str = ""

    @property
    def rate(self) -> float:
        """Batches per second, the median of the measurements; 0 if it cannot be used."""
        rates = sorted(one.batches / one.seconds for one in self.slices if one.seconds)
        if self.refused or not rates:
            return 0.0
        middle = len(rates) // 2
        return rates[middle] if len(rates) % 2 else (rates[middle - 1] + rates[middle]) / 2

    @property
    def waited(self) -> float:
        return sum(one.waited for one in self.slices) / max(len(self.slices), 1)

    @property
    def memory(self) -> int:
        return max((one.memory for one in self.slices), default=0)


@dataclass(frozen=True)
class Space:
    """What may be tried.

    Attributes:
        backends: besides main, which is always tried.
        workers: at most.
        pin: whether there is a device for which pinning may help.
        memory: bytes that the process tree may take; None: any.
        base: bytes that it takes without workers.
    """

    backends: Sequence[Backend]
    workers: int
    pin: bool = False
    memory: int | None = None
    base: int = 0


class Search:
    """One search.

    Args:
        measure: measures a setting for about so many seconds; takes longer by its start-up.
        seconds: of the whole search.
        slice_seconds: of one measurement.
    """

    def __init__(
        self, space: Space, measure: Measure, seconds: float, slice_seconds: float,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self.space = space
        self.trials: dict[Setting, Trial] = {}
        self._measure = measure
        self._timer = timer
        self._slice = slice_seconds
        self._end = timer() + seconds
        self._taken: dict[Backend, float] = {}  # the longest measurement of each backend
        self._each: dict[Backend, float] = {}  # bytes of a worker of each backend

    def run(self) -> Trial:
        """The trial of the setting to use."""
        self._try(Setting(0, 0, "main"))
        for backend in self.space.backends:
            self._climb(backend)
        for setting in self._around():
            self._try(setting)
        self._compare()
        return self.choice()

    def choice(self) -> Trial:
        """The cheapest of those that are about as fast as the fastest."""
        best = self.ranked()[0]
        # What was measured more often has been compared with its like.
        finalists = [one for one in self.trials.values() if len(one.slices) >= len(best.slices)]
        as_good = [one for one in finalists if one.rate >= AS_GOOD * best.rate]
        return min(as_good or [best], key=lambda trial: trial.setting)

    def ranked(self) -> list[Trial]:
        """Trials, those that were compared most and are fastest first."""
        most = max((len(one.slices) for one in self.trials.values() if one.rate), default=0)
        return sorted(
            self.trials.values(),
            key=lambda one: (len(one.slices) >= min(most, 2), one.rate), reverse=True,
        )  # fmt: skip

    def _climb(self, backend: Backend) -> None:
        best, misses, workers = 0.0, 0, 1
        while workers <= self.space.workers and misses < 2:
            trial = self._try(Setting(workers, 2, backend))
            if trial is None or trial.refused:
                return
            misses = 0 if trial.rate > HELPS * best else misses + 1
            best = max(best, trial.rate)
            if trial.waited < 0.02:
                return
            last = workers == self.space.workers
            workers = 2 * workers if last else min(2 * workers, self.space.workers)

    def _around(self) -> Iterator[Setting]:
        """Settings near the fastest of each backend that is not far behind."""
        best = max((one.rate for one in self.trials.values()), default=0.0)
        for backend in self.space.backends:
            trials = [one for one in self.trials.values() if one.setting.backend == backend]
            top = max(trials, key=lambda one: one.rate, default=None)
            if top is None or top.rate < IN_REACH * best:
                continue
            workers = top.setting.workers
            for near in (workers * 3 // 4, workers * 3 // 2):
                if 0 < near <= self.space.workers and near != workers:
                    yield Setting(near, 2, backend)
            yield Setting(workers, 4, backend)
            if self.space.pin:
                yield Setting(workers, 2, backend, True)

    def _compare(self) -> None:
        contenders = self._fastest(CONTENDERS)
        for _ in range(ROUNDS):
            if len(contenders) < 2:
                return
            if not all(self._again(trial) for trial in contenders):
                return
            keep = max(len(contenders) // 2, 2)
            contenders = _ordered(contenders)[:keep]

    def _fastest(self, count: int) -> list[Trial]:
        able = _ordered([one for one in self.trials.values() if one.rate])
        best = max((one.rate for one in able), default=0.0)
        return [one for one in able[:count] if one.rate > IN_REACH * best]

    def _try(self, setting: Setting) -> Trial | None:
        """Measure a setting for the first time; None if there is no time or memory for it."""
        if setting in self.trials:
            return self.trials[setting]
        if self.trials and (self._late(setting.backend) or self._too_large(setting)):
            return None
        self.trials[setting] = Trial(setting)
        self._again(self.trials[setting])
        return self.trials[setting]

    def _again(self, trial: Trial) -> bool:
        """Measure a setting, if there is time."""
        backend = trial.setting.backend
        if trial.slices and self._late(backend):
            return False
        began = self._timer()
        found = self._measure(trial.setting, self._slice)
        self._taken[backend] = max(self._timer() - began, self._taken.get(backend, 0.0))
        trial.slices.append(found)
        trial.refused = trial.refused or found.refused
        self._weigh(trial.setting, found)
        if self.space.memory is not None and found.memory > self.space.memory:
            trial.refused = "over the memory budget"
        return True

    def _late(self, backend: Backend) -> bool:
        longest = max(self._taken.values(), default=2 * self._slice)
        expected = self._taken.get(backend, longest)
        return self._timer() + expected > self._end

    def _weigh(self, setting: Setting, found: Slice) -> None:
        if setting.workers and found.memory and self.space.base:
            each = (found.memory - self.space.base) / setting.workers
            self._each[setting.backend] = max(each, self._each.get(setting.backend, 0.0))

    def _too_large(self, setting: Setting) -> bool:
        if self.space.memory is None:
            return False
        each = self._each.get(setting.backend, 0.0)
        return self.space.base + each * setting.workers > self.space.memory


def _ordered(trials: Sequence[Trial]) -> list[Trial]:
    """First those about as fast as the fastest, the cheapest first; then the others by rate."""
    best = max((one.rate for one in trials), default=0.0)
    good = [one for one in trials if one.rate >= AS_GOOD * best]
    rest = [one for one in trials if one.rate < AS_GOOD * best]
    return sorted(good, key=lambda one: one.setting) + sorted(rest, key=lambda one: -one.rate)
