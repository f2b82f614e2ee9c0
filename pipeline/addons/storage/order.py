"""An order that suits stores: rows that lie together are read about the same time.

    rows      0 1 2 | 3 4 5 | 6 7 8 | 9 10           blocks of neighbouring rows
    slots     6 7 8 | 0 1 2 | 9 10 | 3 4 5           the blocks in a random order
    windows   1 7 0 6 8 2 | 4 9 3 10 5               rows of `window` blocks in a random order

Every row once an epoch, at a position that is computed: 8 bytes of memory a window, 0.3 to 0.6 us a
row in batches of 256.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from penstock.files.limits import Count, Seed
from penstock.order.keys import IntArray, hash64
from penstock.order.permutation import Permutation
from penstock.order.samplers import Order


class Blocks(Order):
    """Blocks of neighbouring rows in a random order, and rows shuffled within windows of blocks.

    Args:
        length: rows of the dataset.
        seed: of the run.
        block: rows that are read about the same time.
        window: blocks whose rows are shuffled among each other.
    """

    def __init__(self, length: int, seed: Seed, block: Count = 64, window: Count = 64) -> None:
        self.length, self.seed = length, seed
        self.block, self.window = block, window

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        parts, stop = [], min(stop, self.length)
        key = hash64(self.seed, "blocks of rows", epoch)
        slots, bounds, short_end, lack = _layout(self.length, self.block, self.window, key)
        while start < stop:
            number = int(np.searchsorted(bounds, start, side="right")) - 1
            first, last = bounds[number : number + 2].tolist()
            end = min(stop, last)
            order = _order(last - first, hash64(self.seed, "window of blocks", epoch, number))
            places = first + order(np.arange(start - first, end - first))
            places += (places >= short_end) * lack  # as if the short block had all its rows
            parts.append(slots(places // self.block) * self.block + places % self.block)
            start = end
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


_order = lru_cache(4)(Permutation)


@lru_cache(2)
def _layout(
    length: int, block: int, window: int, key: int
) -> tuple[Permutation, IntArray, int, int]:
    """Slot -> block; where windows begin, and the last one ends; where the short block, which is
    the last one of the dataset, ends; and the rows that it lacks. 0.05 to 0.2 us a block."""
    blocks = -(-length // block)
    slots, lack = Permutation(blocks, key), blocks * block - length
    short = int(np.argmax(slots(np.arange(blocks)))) if blocks else 0  # its slot
    ends = np.minimum(np.arange(0, blocks + window, window), blocks)
    return slots, ends * block - lack * (ends > short), (short + 1) * block - lack, lack
