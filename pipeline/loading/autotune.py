"""The number of workers of a loader, tuned while it runs.

1. Begin with few. After a window of batches, look at its time and at the time waited.
2. Where there was waiting, double the workers.
3. Where batches came no faster, in two windows, step back and stay.
4. Stay where nobody waits. Never grow past the memory budget, as far as the growth so far tells,
   and step down where it is exceeded all the same.
5. After a while try again whether more workers help, each time after twice as long.

`Climb` decides, without clock or process; `Autotune` cuts a loader's statistics into its windows.
Batches stay the same, since they have addresses.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

GAIN = 0.05  # of the time per batch, by which more workers have to help
IDLE = 0.02  # share of the time waited below which nobody waits
LOOK_EVERY = 30.0  # seconds between two looks at the memory while nothing changes


@dataclass(frozen=True)
class Auto:
    """The bounds of the search: workers at most, and bytes that all processes may take together."""

    most: int
    memory: int | None = None


@dataclass(frozen=True)
class Window:
    """Consecutive batches by the same number of workers: their count, the consumer's seconds, and
    the bytes of the process and its workers (0 if unknown)."""

    batches: int
    waited: float
    elapsed: float
    memory: int = 0

    @property
    def pace(self) -> float:
        """Seconds per batch."""
        return self.elapsed / self.batches


class Climb:
    """Climbs to a number of workers, a window at a time.

    Args:
        start: workers at first.
        base: bytes of the process without workers, 0 if unknown.
        patience: seconds after which a settled search tries again for the first time. Starting
            workers costs about half a second, however short the batches are.

    Attributes:
        workers: how many to use now.
    """

    def __init__(self, start: int, bounds: Auto, base: int = 0, patience: float = 60.0) -> None:
        self.workers = max(1, min(start, bounds.most))
        self._most = bounds.most
        self._budget = bounds.memory
        self._base = base
        self._patience = patience
        self._from: tuple[int, float] | None = None  # workers and pace before the climb under trial
        self._tried = False  # whether that climb has not helped in a window
        self._resting: float | None = None  # seconds until it looks again; None: it is climbing
        self._each = 0.0  # the most that a worker was seen to take

    @property
    def settled(self) -> bool:
        return self._resting is not None

    def observe(self, window: Window) -> int:
        """The number of workers to keep, after a window with `workers` of them."""
        if window.memory and self._base:
            self._each = max(self._each, (window.memory - self._base) / self.workers)
        if self._budget is not None and window.memory > self._budget:
            self._most = max(1, self.workers - 1)
            fewer = self._from[0] if self._from else self.workers // 2
            return self._settle(max(1, min(fewer, self._most)))
        if self._resting is not None:
            self._resting -= window.elapsed
            if self._resting > 0:
                return self.workers
            self._resting = None
        if self._from is not None and window.pace > self._from[1] * (1 - GAIN):  # of no help
            if self._tried:
                return self._settle(self._from[0])
            self._tried = True  # a window may be slow for reasons of its own
            return self.workers
        return self._grow(window)

    def _grow(self, window: Window) -> int:
        self._from, self._tried = None, False
        workers = min(2 * self.workers, self._most)
        if self._budget is not None and self._each > 0:
            room = int((self._budget - window.memory) / self._each)
            workers = min(workers, self.workers + max(room, 0))
        if window.waited <= IDLE * window.elapsed or workers <= self.workers:
            return self._settle(self.workers)
        self._from = self.workers, window.pace
        self.workers = workers
        return workers

    def _settle(self, workers: int) -> int:
        self.workers = workers
        self._from, self._tried = None, False
        self._resting, self._patience = self._patience, 2 * self._patience
        return workers


class Autotune:
    """Cuts a loader's statistics into windows; `memory` gives the bytes taken now."""

    def __init__(self, start: int, bounds: Auto, memory: Callable[[], int]) -> None:
        self._memory = memory
        self._climb = Climb(start, bounds, memory())
        self._looked = time.monotonic()
        self._seen = 0, 0.0, 0.0
        self._skip = 0
        self._begin(self.workers)

    @property
    def workers(self) -> int:
        """How many the loader should have now."""
        return self._climb.workers

    def begin_epoch(self) -> None:
        """The loader's statistics begin anew; the window continues."""
        self._skip, self._seen = max(self._skip, 1), (0, 0.0, 0.0)

    def _begin(self, skip: int) -> None:
        """Begin a window after `skip` batches."""
        self._skip = skip
        self._sums = [0, 0.0, 0.0]

    def delivered(self, batches: int, waited: float, elapsed: float) -> bool:
        """Whether the number of workers changes before the next batch.

        Args:
            batches, waited, elapsed: batches and seconds since the epoch began.
        """
        before, self._seen = self._seen, (batches, waited, elapsed)
        if self._skip > 0:
            self._skip -= 1
            return False
        for number in range(3):
            self._sums[number] += self._seen[number] - before[number]
        if self._sums[0] < max(6, 2 * self.workers):
            return False
        now, memory = time.monotonic(), 0
        if not self._climb.settled or now - self._looked >= LOOK_EVERY:
            self._looked, memory = now, self._memory()
        workers, (count, waiting, seconds) = self.workers, self._sums
        changes = self._climb.observe(Window(int(count), waiting, seconds, memory)) != workers
        # The first batches of new workers come late and all at once.
        self._begin(self.workers if changes else 1)
        return changes
