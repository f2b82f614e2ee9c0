"""Tells the process that fetches what the coming steps read, while the current ones are at work.

Steps are announced until their rows take all of `files.ahead`. Cost: the plan of each step once
more, and 2 us a row.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from penstock.order.address import Address
from penstock.order.plan import Plan

_STEPS = 8  # announced at once: a batch must not wait for it


class Ahead:
    """The loader's part that looks ahead.

    Args:
        plan, rank, world: whose rows are read.
        dataset: has `want(indices)`, which fetches rows ahead and gives their part of what may be.
    """

    def __init__(self, plan: Plan, dataset: Any, rank: int, world: int) -> None:
        self._plan, self._rank, self._world = plan, rank, world
        self._want = dataset.want
        self._epoch = self._next = -1
        self._announced: deque[tuple[int, float]] = deque()  # steps and their parts of `ahead`
        self._is_remote = True

    def move(self, epoch: int, step: int) -> None:
        """All batches before `step` are delivered."""
        while self._announced and self._announced[0][0] < step:
            self._announced.popleft()
        # A resume, or a loader that was faster than what is announced, begins at its own step.
        if epoch != self._epoch or not self._announced:
            self._epoch, self._next = epoch, step
            self._announced.clear()
        last = min(self._plan.steps(epoch), self._next + _STEPS)
        while (
            self._is_remote and self._next < last and sum(part for _, part in self._announced) < 1
        ):
            if Address(epoch, self._next) not in self._plan.skipped:
                request = self._plan.request(epoch, self._next, self._rank, self._world)
                part = self._want(request.indices)
                self._is_remote = part > 0
                self._announced.append((self._next, part))
            self._next += 1
