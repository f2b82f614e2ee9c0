"""Seconds by stage of one batch, and what they say about a run. Cost: 0.2 us a lap."""

from __future__ import annotations

import time
from typing import Literal

WAITS = 0.1  # share of the time waited from which on training is not the bottleneck


class StageTimer:
    """Seconds by stage of the batch that begins now."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """End a stage, which began with the last lap."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


def slower_side(
    waited: float, work: float, step: float, workers: int, busy: float
) -> Literal["training", "loading", "neither"]:
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
