"""Tells the process that fetches what the coming steps read, while the current ones are at work.

Steps are announced until their rows take all of `files.ahead`. Cost: the plan of each step once
more, and 2 us a row.
"""

from __future__ import annotations

from typing import Any

from penstock.order.address import Address
from penstock.order.plan import Plan

_STEPS = 8  # announced at once: a batch must not wait for it


class Ahead:
    """The loader's part that looks ahead.

    Args:
        plan, rank, world: whose rows are read.
        dataset: has `want(indices)`, which fetches rows ahead; it returns their
            share of `files.ahead`.
    """

    def __init__(self, plan: Plan, dataset: Any, rank: int, world: int) -> None:
        self._plan, self._rank, self._world = plan, rank, world
        self._want = dataset.want
        self._epoch = self._next = -1
        self._parts: dict[int, float] = {}  # of `ahead`, by the steps that are announced
        self._is_remote = True

    def move(self, epoch: int, step: int) -> None:
        """All batches before `step` are delivered."""
        self._parts = {at: part for at, part in self._parts.items() if at >= step}
        # The first batch of an epoch shares the connections with nothing that is not needed yet.
        steps = _STEPS if epoch == self._epoch else 1
        # A resume, or a loader that was faster than what is announced, begins at its own step.
        if epoch != self._epoch or not self._parts:
            self._epoch, self._next, self._parts = epoch, step, {}
        last = min(self._plan.steps(epoch), self._next + steps)
        while self._is_remote and self._next < last and sum(self._parts.values()) < 1:
            if Address(epoch, self._next) not in self._plan.skipped:
                request = self._plan.request(epoch, self._next, self._rank, self._world)
                self._parts[self._next] = self._want(request.indices)
                self._is_remote = self._parts[self._next] > 0
            self._next += 1
