"""A training's day with failures, by a clock that only counts: steps, saves, failures, restarts.

Nothing sleeps. Whoever trains (`Trains`) is told to step, to give its state and to go back to one;
it may be a counter, or a real loader (benchmarks/scale.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

SECONDS = 86_400.0


class Trains(Protocol):
    """What a day does with a training."""

    def step(self) -> None:
        """Train one step."""

    def state(self) -> Any:
        """What a checkpoint would hold now."""

    def restore(self, state: Any) -> None:
        """Go back to a state, in a new process."""


class Clock:
    """Counts steps and nothing else."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        self.steps += 1

    def state(self) -> int:
        return self.steps

    def restore(self, state: int) -> None:
        self.steps = state


@dataclass(frozen=True)
class Policy:
    """When to save, and what things cost; seconds.

    Attributes:
        every: steps between saves.
        cost: for which a save stops the training.
        written: until it is on the disk and can be resumed from; `cost` or more.
        restart: from a failure until the first step.
    """

    every: int
    cost: float
    written: float
    restart: float


def failures_of(seed: int, between: float, seconds: float) -> list[float]:
    """Times of failures, exponentially distributed; those after the end are left out."""
    random, times, now = np.random.default_rng(seed), [], 0.0
    while (now := now + float(random.exponential(between))) < seconds:
        times.append(now)
    return times


def day(
    training: Trains, policy: Policy, failures: list[float], step: float, seconds: float = SECONDS
) -> int:
    """Train from 0 to `seconds`; returns the number of restarts.

    A failure undoes all that came after the last state on the disk, and the save that was being
    written. One that falls into a restart begins it anew. The next save waits for the last one.

    Args:
        step: seconds of a step.
    """
    now, restarts, kept = 0.0, 0, training.state()
    for failure in [*failures, seconds]:
        if failure < now:  # in a restart
            now = failure + policy.restart
            restarts += 1
            continue
        since, coming = 0, None  # steps since the last save; when one is on the disk, and it
        while now + step <= failure:
            now += step
            training.step()
            since += 1
            if since == policy.every:
                since = 0
                if coming is not None:
                    now = max(now, coming[0])
                    if now > failure:
                        break
                    kept = coming[1]
                coming = (now + policy.written, training.state())
                now += policy.cost
        if coming is not None and coming[0] <= failure:
            kept = coming[1]
        if failure < seconds:
            training.restore(kept)
            now = failure + policy.restart
            restarts += 1
    return restarts
