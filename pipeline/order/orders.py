"""The two kinds of samplers: an order of rows, and a strategy that forms batches of them.

Both are functions of the epoch, and can be asked backwards: where does a row stand?
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import numpy as np

from penstock.order.randomness import IntArray

_SLICE = 1 << 16  # positions that a search looks at together

Tail = Literal["keep", "drop", "pad"]


class _Sampler(ABC):
    """
    Attributes:
        column_arguments: arguments that name columns of the dataset's table.
        packs: whether rows stand in blocks, so that validation packs them, too.
    """

    column_arguments: ClassVar[tuple[str, ...]] = ()
    packs: ClassVar[bool] = False

    @abstractmethod
    def size(self, epoch: int) -> int:
        """Number of positions (of an order) or global batches (of a strategy) in `epoch`."""

    def __len__(self) -> int:
        return self.size(0)


class Order(_Sampler):
    """Rows of the dataset by position, for any slice of an epoch."""

    @property
    def even(self) -> bool:
        """Whether any slice of an epoch is a fair sample of all of it, as for a random order."""
        return False

    @abstractmethod
    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Rows at positions start .. stop-1: int64[stop - start]."""

    def positions_of(self, epoch: int, row: int) -> list[int]:
        """The positions of `epoch` at which `row` stands, ascending; none if it has no such row.

        This lists the epoch: 0.05 to 0.2 us a row, and 512 KiB.
        """
        positions: list[int] = []
        size = self.size(epoch)
        for start in range(0, size, _SLICE):
            rows = self.indices(epoch, start, min(start + _SLICE, size))
            positions += (np.flatnonzero(rows == row) + start).tolist()
        return positions


class BatchStrategy(_Sampler):
    """Which positions of an epoch stand together in a global batch.

    Attributes:
        group: rows that belong together, as those of one identity, follow each other in groups of
            this size; 0: there are no groups.
    """

    group: int = 0

    @abstractmethod
    def batch(self, epoch: int, step: int) -> tuple[IntArray, IntArray]:
        """Positions and rows of one global batch: int64[n] each. No position comes twice, but where
        rows are cut into parts."""

    def parts(self, epoch: int, step: int) -> IntArray | None:
        """Which parts of its rows a batch has, in which blocks: int64[n, 4] as `Request.parts`."""
        return None

    def beginnings(self, count: int) -> IntArray | None:
        """The same for a batch of that many rows, each of which begins a block of its own."""
        return None

    def steps_of(self, epoch: int, row: int) -> list[int]:
        """The steps of `epoch` whose batches have `row`, ascending; forms every batch of it."""
        return [
            step for step in range(self.size(epoch)) if (self.batch(epoch, step)[1] == row).any()
        ]
