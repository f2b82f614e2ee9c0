"""How many requests are under way, or wait as results for their turn.

Normally workers times `prefetch_factor`, as in torch. While the consumer waits for a batch with a
slow sample, those behind it get ready, and the workers would soon have nothing to do. Then the
window grows, so that they go on, and shrinks again slowly: batches are begun so much earlier that
the next slow one is ready in time. What it grows by is bounded, in batches and in bytes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from penstock.loading.sizes import nbytes

_MOST = 8  # batches beyond the normal window, for each worker
_SHRINK = 64  # batches after which the window is one smaller


class Waiting(Protocol):
    """A request that was handed to a pool; `result` is None until it is there."""

    result: Any


class Window:
    """The window of one run through a loader.

    Args:
        workers: of the pool.
        ahead: batches that each is ahead in normal times.
        budget: bytes that the batches beyond these may take.

    Attributes:
        most: batches beyond the normal window, whatever the budget.
        extra: batches that it has grown by.
        early: batches that were begun before they came into the window.
        largest: bytes of the largest batch that was measured.
        measures: whether to measure all batches.
    """

    def __init__(self, workers: int, ahead: int, budget: int) -> None:
        self.extra = self.early = self.largest = 0
        self.measures = False
        self.most = _MOST * workers
        self._normal, self._workers, self._budget = workers * ahead, workers, budget
        self._spare = min(workers + 1, self._normal)
        self._delivered = 0

    @property
    def size(self) -> int:
        """Requests that may be under way or waiting, without the early ones."""
        if not self.extra:
            return self._normal
        return self._normal + max(min(self.extra, self._room - self.early), 0)

    @property
    def has_room(self) -> bool:
        """Whether one more may be begun early: not more than there are workers."""
        return self.largest > 0 and self.early < min(self._workers, self._room - self.extra)

    @property
    def _room(self) -> int:
        return self._budget // max(self.largest, 1)

    def grow(self, pending: Collection[Waiting]) -> bool:
        """Grow by one if workers get idle while the first of `pending` is waited for."""
        if len(pending) < self.size or self.extra >= self.most or not self._budget:
            return False
        there = [one.result for one in pending if one.result is not None]
        if len(pending) - len(there) >= self._spare:
            return False
        self.largest = max([self.largest, *map(_nbytes, there[-1:])])
        self.extra = self.size - self._normal + 1
        return len(pending) < self.size

    def deliver(self, result: Any) -> None:
        """Take note of a batch that is its consumer's from now on."""
        if self.extra or self.measures:
            self.largest = max(self.largest, _nbytes(result))
        if self.extra:
            self._delivered += 1
            if self._delivered % _SHRINK == 0:
                self.extra -= 1


def _nbytes(result: Any) -> int:
    return nbytes(getattr(result, "value", result))  # of a DataLoader's results
