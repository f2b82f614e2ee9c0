"""Seconds by stage of one batch; traced, also when, where and how much of it was computing.

Times are of `time.perf_counter`, which on Linux is CLOCK_MONOTONIC, so those of all processes of a
machine compare. Cost: 0.2 us a lap, 1 us where it traces.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass
class StageTrace:
    """The work on one batch.

    Attributes:
        process, thread: who did it, as the operating system numbers them.
        begin, end: when, in seconds of `time.perf_counter`.
        laps: (stage, begin, end) in order; neighbours of the same stage are one.
        computing: seconds of its own on a core, by stage, as the kernel counts them.
        delayed: seconds in which it could have computed, but had no core.
    """

    process: int
    thread: int
    begin: float
    end: float
    laps: list[tuple[str, float, float]]
    computing: dict[str, float]
    delayed: float

    @property
    def blocked(self) -> float:
        """Seconds in which it waited for something other than a core: in a loader, for data."""
        return max(self.end - self.begin - sum(self.computing.values()) - self.delayed, 0.0)


class StageTimer:
    """Seconds by stage of the batch that begins now; `traced` also keeps a `StageTrace`."""

    def __init__(self, traced: bool = False) -> None:
        self.seconds: dict[str, float] = {}
        self._traced = traced
        if traced:
            self._laps: list[tuple[str, float, float]] = []
            self._computing: dict[str, float] = {}
            before = time.perf_counter()
            self._delayed = delayed()
            self._computed = time.thread_time()
        self._begin = self._last = time.perf_counter()
        if traced:  # a delay between the two does not belong to the batch
            self._delayed += self._begin - before

    def lap(self, stage: str) -> float:
        """End a stage, which began with the last lap; the time now."""
        now = time.perf_counter()
        begin, self._last = self._last, now
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - begin
        if self._traced:
            computed = time.thread_time()
            self._computing[stage] = self._computing.get(stage, 0.0) + computed - self._computed
            self._computed = computed
            if self._laps and self._laps[-1][0] == stage:
                begin = self._laps.pop()[1]
            self._laps.append((stage, begin, now))
        return now

    def trace(self) -> StageTrace | None:
        """The work up to the last lap; None if it was not traced."""
        if not self._traced:
            return None
        late = delayed() - self._delayed
        late = max(late - (time.perf_counter() - self._last), 0.0)
        return StageTrace(
            os.getpid(),
            threading.get_native_id(),
            self._begin,
            self._last,
            self._laps,
            self._computing,
            late,
        )


def delayed() -> float:
    """Seconds for which this thread has waited for a core so far, 0 if not counted; 20 us."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


WAITS = 0.1  # share of the time waited from which on training is not the bottleneck
Side = Literal["training", "loading", "neither"]


def slower_side(waited: float, work: float, step: float, workers: int, busy: float) -> Side:
    """Which of the two bounds a run: what, made faster, makes the run faster.

    "neither" is where batches come late though the workers have time to spare: at the starts of
    epochs, in bursts, or because they are long under way.

    Args:
        waited: share of the time in which the training loop waited for data.
        work: time that a batch takes to make, in the unit of `step`.
        step: time that training on it takes.
        workers: that make batches; 0: the training loop does, between its steps.
        busy: share of the time in which a worker had work.
    """
    if not workers:
        return "training" if waited < 0.5 else "loading"
    stalls = waited < 2.5 * WAITS and work / workers < 0.5 * step and busy < 0.5
    if waited < WAITS or stalls:  # little waiting that does not come from the work on batches
        return "training"
    return "neither" if work / workers < step and busy < 0.6 else "loading"
