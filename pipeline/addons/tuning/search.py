"""The search for the fastest loader within a time and a memory budget.

1. Climb: for each backend, double the workers while that helps; one short measurement each.
2. Look around: near the fastest of each backend, other numbers of workers and batches ahead.
3. Compare: measure the fastest few again in turns, and drop the slower half after each round.
4. Choose: of those within 2 % of the fastest, the cheapest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Backend = Literal["main", "process", "thread"]

HELPS = 1.03  # ratio of rates from which on more workers help
AS_GOOD = 0.98  # of the fastest
IN_REACH = 0.6  # of the fastest after one measurement each, which varies
CONTENDERS = 6
ROUNDS = 8


class Setting(NamedTuple):
    """A setting of the loader; they sort by cost."""

    workers: int
    prefetch: int
    backend: Backend
    pin: bool = False


class Slice(NamedTuple):
    """One measurement."""

    batches: int  # delivered in `seconds`, after the first ones
    seconds: float
    waited: float = 0.0  # share of the time in which the consumer waited
    memory: int = 0  # bytes of the whole process tree; 0: unknown
    refused: str = ""  # why the setting cannot be used; empty if it can


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
        rates = [
            measured.batches / measured.seconds for measured in self.slices if measured.seconds
        ]
        return 0.0 if self.refused or not rates else statistics.median(rates)

    @property
    def waited(self) -> float:
        return sum(measured.waited for measured in self.slices) / max(len(self.slices), 1)

    @property
    def memory(self) -> int:
        return max((measured.memory for measured in self.slices), default=0)


@dataclass(frozen=True)
class Space:
    """The limits of a search."""

    backends: Sequence[Backend]  # besides main, which is always tried
    workers: int  # at most
    pin: bool = False  # whether there is a device for which pinning may help
    memory: int | None = None  # bytes that the process tree may use; None: any
    base: int = 0  # bytes that it uses without workers


class Search:
    """One search.

    Args:
        measure: measures a setting for about so many seconds, without its start-up.
        seconds: of the whole search.
        slice_seconds: of one measurement.
    """

    def __init__(
        self,
        space: Space,
        measure: Measure,
        seconds: float,
        slice_seconds: float,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.space = space
        self.trials: dict[Setting, Trial] = {}
        self._measure = measure
        self._timer = timer
        self._slice = slice_seconds
        self._end = timer() + seconds
        self._taken: dict[Backend, float] = {}  # the longest measurement of each backend
        self._each: dict[Backend, float] = {}  # bytes of a worker of each backend

    def run(self) -> Trial:
        """Search; returns the trial of the setting to use."""
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
        # Only those that were measured as often have been compared with it.
        finalists = [
            trial for trial in self.trials.values() if len(trial.slices) >= len(best.slices)
        ]
        as_good = [trial for trial in finalists if trial.rate >= AS_GOOD * best.rate]
        return min(as_good or [best], key=lambda trial: trial.setting)

    def ranked(self) -> list[Trial]:
        """Trials, first those that were compared, then the fastest."""
        most = max((len(trial.slices) for trial in self.trials.values() if trial.rate), default=0)
        return sorted(
            self.trials.values(),
            key=lambda trial: (len(trial.slices) >= min(most, 2), trial.rate),
            reverse=True,
        )

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
        best = max((trial.rate for trial in self.trials.values()), default=0.0)
        for backend in self.space.backends:
            trials = [trial for trial in self.trials.values() if trial.setting.backend == backend]
            top = max(trials, key=lambda trial: trial.rate, default=None)
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
        able = _ordered([trial for trial in self.trials.values() if trial.rate])
        best = max((trial.rate for trial in able), default=0.0)
        contenders = [trial for trial in able[:CONTENDERS] if trial.rate > IN_REACH * best]
        for _ in range(ROUNDS):
            if len(contenders) < 2 or not all(self._again(trial) for trial in contenders):
                return
            contenders = _ordered(contenders)[: max(len(contenders) // 2, 2)]

    def _try(self, setting: Setting) -> Trial | None:
        """Measure a setting for the first time; None if there is no time or memory for it."""
        if setting in self.trials:
            return self.trials[setting]
        each = self._each.get(setting.backend, 0.0)
        space = self.space
        large = space.memory is not None and space.base + each * setting.workers > space.memory
        if self.trials and (large or self._late(setting.backend)):
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
        measured = self._measure(trial.setting, self._slice)
        self._taken[backend] = max(self._timer() - began, self._taken.get(backend, 0.0))
        trial.slices.append(measured)
        trial.refused = trial.refused or measured.refused
        workers, base = trial.setting.workers, self.space.base
        if workers and measured.memory and base:
            each = (measured.memory - base) / workers
            self._each[backend] = max(each, self._each.get(backend, 0.0))
        if self.space.memory is not None and measured.memory > self.space.memory:
            trial.refused = "over the memory budget"
        return True

    def _late(self, backend: Backend) -> bool:
        longest = max(self._taken.values(), default=2 * self._slice)
        expected = self._taken.get(backend, longest)
        return self._timer() + expected > self._end


def _ordered(trials: Sequence[Trial]) -> list[Trial]:
    """First those about as fast as the fastest, by cost; then the others, by rate."""
    best = max((trial.rate for trial in trials), default=0.0)
    good = [trial for trial in trials if trial.rate >= AS_GOOD * best]
    rest = [trial for trial in trials if trial.rate < AS_GOOD * best]
    return sorted(good, key=lambda trial: trial.setting) + sorted(
        rest, key=lambda trial: -trial.rate
    )
