"""Several sources in constant shares, evenly spread: which stands at a position, and how often
before, without what lies before.

1. Positions are cut into blocks of 1,000. In units of 1/1024 a source has w + f rows of each block.
   Its w whole rows stand at the same places of every block; the fractions f of all sources make up
   a whole number of places beside them.
2. These places go around: the fractions lie one after the other on a line, and in block b the
   places stand at b x stride, b x stride + 1, ... of it. A source has the place that stands in its
   fraction, if one does. After 1,024 blocks each has had exactly its fraction of them.
3. The places of a block are dealt out by the earliest deadline first, so that every part of it from
   its start has each source's share to within one row of w (Steiner, Yeomans: "Level schedules for
   mixed-model, just-in-time processes", 1993).

So any 1,000 positions in a row, at whatever place they start, have w or w + 1 rows of a source, and
those that have no fraction exactly w: a place may change hands between two blocks, and a source
that gives one up gets none that lies earlier, as no stride is longer than the least gap, 1 - f.

Cost: 0.1 us a position; 1 ms and 8 KiB a source to begin with.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush
from math import fsum

import numpy as np

from penstock.order.randomness import FloatArray, IntArray

BLOCK = 1000  # positions
PERIOD = 1024  # blocks
TOTAL = BLOCK * PERIOD  # units of shares
_GOLDEN = 0.618  # strides of 1 / (n + this) of a turn visit it evenly


class Interleaving:
    """Sources at positions 0, 1, 2, ...

    Args:
        units: of each source in TOTAL; see `units_of`.
    """

    def __init__(self, units: Sequence[int]) -> None:
        self._units = np.array(units, np.int64)
        self._whole, self._parts = np.divmod(self._units, PERIOD)
        sources, extra = len(units), int(self._parts.sum()) // PERIOD
        self._layout = spread(np.append(self._whole, extra))  # `sources` stands for a shared place
        own = self._layout == np.arange(sources)[:, None]
        self._before = np.zeros((sources, BLOCK + 1), np.int16)
        np.cumsum(own, axis=1, out=self._before[:, 1:])

        # Blocks of a period x sources: how many of the shared places lie up to a source's end.
        turns = np.arange(PERIOD) * _stride(self._parts) % PERIOD
        up_to = -(-(np.cumsum(self._parts) - turns[:, None]) // PERIOD)
        has = np.diff(up_to, axis=1, prepend=0) > 0
        shared = np.flatnonzero(self._layout == sources)
        self._number = np.cumsum(self._layout == sources) - 1  # of a shared place, where one is
        block, source = np.nonzero(has)
        number = up_to[block, source] - 1
        self._holder = np.zeros((PERIOD, max(extra, 1)), np.int16)
        self._holder[block, number] = source
        self._held = np.full(has.shape, BLOCK, np.int16)  # the place that a source has in a block
        self._held[block, source] = shared[number]
        self._extras = np.zeros((PERIOD + 1, sources), np.int32)  # in the blocks before
        np.cumsum(has, axis=0, out=self._extras[1:])

    def split(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """The source at each position, and how many rows it has before there: int64[n] each."""
        block, at = np.divmod(positions, BLOCK)
        source = self._layout[at]
        shared = np.flatnonzero(source == len(self._whole))
        source[shared] = self._holder[block[shared] % PERIOD, self._number[at[shared]]]
        return source, self._count(source, block, at)

    def counts(self, position: int) -> IntArray:
        """Rows of each source before a position: int64[sources]."""
        block, at = divmod(position, BLOCK)
        sources = np.arange(len(self._whole))
        return self._count(sources, np.array(block), np.array(at))

    def given(self, source: int, positions: IntArray) -> IntArray:
        """Rows of one source before each position: int64[n]."""
        block, at = np.divmod(positions, BLOCK)
        return self._count(np.full(len(positions), source), block, at)

    def place_of(self, surplus: FloatArray) -> int:
        """The position in the first block before which sources have most nearly such a surplus.

        Args:
            surplus: rows of each source above its share, float[sources].
        """
        places = np.arange(BLOCK)
        counts = self._before[:, :BLOCK] + (self._held[0][:, None] < places)
        own = counts - self._units[:, None] / TOTAL * places
        far = np.square(own - surplus[:, None]).sum(axis=0)
        return int(far.round(6).argmin())  # the same on machines that round in another way

    def _count(self, source: IntArray, block: IntArray, at: IntArray) -> IntArray:
        periods, turn = np.divmod(block, PERIOD)
        count = self._whole[source] * block + self._parts[source] * periods
        count += self._extras[turn, source]
        count += self._before[source, at]
        count += self._held[turn, source] < at
        return count


def spread(counts: IntArray) -> IntArray:
    """Which of several things stands at each of sum(counts) places: int64[sum(counts)].

    Each of them is spread so evenly that every part from the start has its share to within one.
    """
    total = int(counts.sum())
    waiting = sorted(
        (number * total // count, -(-(number + 1) * total // count), thing)
        for thing, count in enumerate(counts.tolist())
        for number in range(count)
    )
    ready: list[tuple[int, int]] = []  # deadline, thing
    order, following = np.empty(total, np.int64), 0
    for at in range(total):
        while following < total and waiting[following][0] <= at:
            heappush(ready, waiting[following][1:])
            following += 1
        order[at] = heappop(ready)[1]
    return order


def _stride(parts: IntArray) -> int:
    """Units by which the shared places move from one block to the next; odd, so that they visit
    everything.
    """
    most = PERIOD - int(parts.max())
    turns = max(1, int(np.ceil(PERIOD / most - _GOLDEN)))
    return max((int(PERIOD / (turns + _GOLDEN)) - 1) | 1, 1)


def units_of(weights: FloatArray) -> tuple[int, ...]:
    """Shares in 1 / TOTAL, of which each weight above 0 has at least one."""
    units = np.rint(weights / fsum(weights) * TOTAL).astype(np.int64)
    units = np.maximum(units, weights > 0)
    units[units.argmax()] += TOTAL - units.sum()
    return tuple(units.tolist())


@lru_cache(maxsize=16)
def interleaved(units: tuple[int, ...]) -> Interleaving:
    """The Interleaving of these shares, which is kept for the next time."""
    return Interleaving(units)
