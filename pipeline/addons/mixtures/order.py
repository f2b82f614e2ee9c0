"""Rows of several sources in given shares, which may change with the step.

Which source stands at a position, and with which of its rows, follows without the positions before:

1. The run is cut into stages of constant shares: at changes of weights, and where a source has
   given all that it may. The rows that each source has given before a stage are known from the
   start.
2. Inside a stage, `Interleaving` says the source and how many rows it has given there.
3. A source's rows follow an order of its own, whose epochs are the source's passes.

Any 1,000 positions in a row of one stage have each source's share to within one row; those that
reach into another stage within a few, as it begins where sources are as much ahead or behind.
Cost: 0.2 us a position in batches of thousands, anywhere; 1 ms a stage to begin with.

Several sources in constant shares, evenly spread: which stands at a position, and how often
before, without the positions before.

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

from collections.abc import Mapping, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from math import fsum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.addons.mixtures.weights import Mixing
from penstock.errors import ConfigError, Problem
from penstock.order.keys import FloatArray, IntArray, hash64
from penstock.order.samplers import Order, Random, Tail

_FOR_EVER = 1 << 62


class _Stage(NamedTuple):
    """Positions between two changes.

    Attributes:
        start: the first one, of all epochs laid end to end.
        units: shares of the sources; see `units_of`.
        place: where in the interleaving the stage begins.
        before: rows that each source has given before the stage, less those of the interleaving
            before that place, int64[sources].
    """

    start: int
    units: tuple[int, ...]
    place: int
    before: IntArray

    def counts(self, position: int) -> IntArray:
        """Rows of each source before a position of the whole run."""
        offset = position - self.start + self.place
        return self.before + interleaved(self.units).counts(offset)

    def given(self, source: int, positions: IntArray) -> IntArray:
        """Rows of one source before each position of the whole run: int64[n]."""
        offsets = positions - self.start + self.place
        return self.before[source] + interleaved(self.units).given(source, offsets)

    def split(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """The source at each position, and how many rows it has given before: int64[n] each."""
        offsets = positions - self.start + self.place
        source, count = interleaved(self.units).split(offsets)
        return source, self.before[source] + count


class MixtureOrder(Order):
    """Several map-style sources, mixed by weights.

    Rows are numbered through all sources in their order, as for a dataset that joins them.
    Positions of all epochs follow each other, so a source's passes continue from epoch to epoch.

    Args:
        mixing: the sources, and how they are mixed.
        batch_size: positions of a step.
        tail: "drop" gives an epoch whole batches only, so that no row of a pass is left out.
        sources: the orders of some sources, by name, over the rows of each; others are at random.

    Raises:
        ConfigError: names and key of what is wrong.
    """

    def __init__(
        self,
        mixing: Mixing,
        seed: int,
        batch_size: int,
        tail: Tail = "keep",
        sources: Mapping[str, Order] | None = None,
    ) -> None:
        self.names, lengths = tuple(mixing.lengths), mixing.lengths
        nodes = sources or {}
        for name in nodes.keys() - lengths.keys():
            raise ConfigError(
                Problem(
                    f"sampler.sources.{name}",
                    f"there is no such source; there are {', '.join(self.names)}",
                )
            )
        self._orders = [
            nodes.get(name) or Random(length, hash64(seed, "mixture", name))
            for name, length in lengths.items()
        ]
        self._rows = np.cumsum([0, *lengths.values()], dtype=np.int64)  # the first of each source
        self._passes = np.array([max(order.size(0), 1) for order in self._orders], np.int64)
        self._size = mixing.num_samples or int(self._rows[-1])
        if tail == "drop" and self._size >= batch_size:
            self._size -= self._size % batch_size
        self._batch_size = batch_size
        self._stages, self._end = self._lay_out(mixing)
        self._starts = np.array([stage.start for stage in self._stages], np.int64)

    @property
    def even(self) -> bool:
        return len(self._stages) == 1 and all(order.even for order in self._orders)

    def size(self, epoch: int) -> int:
        """Positions of an epoch; fewer, and then none, where all sources have given their passes"""
        return max(0, min(self._size, self._end - epoch * self._size))

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        source, rank = self.sources(epoch, np.arange(start, stop, dtype=np.int64))
        rows = np.empty(len(source), np.int64)
        for number in np.unique(source).tolist():
            mine = np.flatnonzero(source == number)
            first, last, length = int(rank[mine[0]]), int(rank[mine[-1]]), int(self._passes[number])
            pieces = []  # the source's rows follow each other, from one pass to the next
            for turn in range(first // length, last // length + 1):
                low, high = max(first - turn * length, 0), min(last - turn * length + 1, length)
                pieces.append(self._orders[number].indices(turn, low, high))
            rows[mine] = self._rows[number] + np.concatenate(pieces)
        return rows

    def sources(self, epoch: int, positions: npt.ArrayLike) -> tuple[IntArray, IntArray]:
        """The number of the source at each position of `epoch` (int64[n]), and how many rows that
        source has given before it, in this and earlier epochs: int64[n] each.
        """
        whole = np.asarray(positions, np.int64) + epoch * self._size
        of = np.searchsorted(self._starts, whole, side="right") - 1
        source, rank = np.empty(len(whole), np.int64), np.empty(len(whole), np.int64)
        for number in np.unique(of).tolist():
            stage, inside = self._stages[number], of == number
            source[inside], rank[inside] = stage.split(whole[inside])
        return source, rank

    def given(self, epoch: int, position: int = 0) -> dict[str, int]:
        """Rows that each source has given before a position of `epoch`, by name."""
        whole = min(epoch * self._size + position, self._end)
        stage = self._stages[int(np.searchsorted(self._starts, whole, side="right")) - 1]
        counts = stage.counts(whole)
        return dict(zip(self.names, counts.tolist(), strict=True))

    def shares(self, epoch: int, position: int) -> dict[str, float]:
        """The share of each source at a position of `epoch`, by name."""
        whole = epoch * self._size + position
        stage = self._stages[int(np.searchsorted(self._starts, whole, side="right")) - 1]
        return {name: unit / TOTAL for name, unit in zip(self.names, stage.units, strict=True)}

    def passes(self, rows: Mapping[str, int]) -> dict[str, float]:
        """How often each source was read, if it gave so many rows."""
        lengths = self._passes.tolist()
        return {name: rows[name] / length for name, length in zip(self.names, lengths, strict=True)}

    def _lay_out(self, mixing: Mixing) -> tuple[list[_Stage], int]:
        """The stages, and the position at which the last one ends."""
        once = mixing.stop == "first" and not mixing.passes
        most = [1 if once else mixing.passes.get(name) for name in self.names]
        limits = np.array(
            [
                _FOR_EVER if times is None else times * length
                for times, length in zip(most, self._passes.tolist(), strict=True)
            ]
        )
        # The positions of an epoch's steps, the last of which may be smaller.
        steps = -(-self._size // self._batch_size)
        laid_out: list[_Stage] = []
        before = np.zeros(len(self.names), np.int64)
        surplus = np.zeros(len(before))  # of rows above shares so far
        stages = mixing.stages()
        starts = [start for start, _ in stages]
        if mixing.knots == "steps":
            starts = [
                step // steps * self._size + step % steps * self._batch_size for step in starts
            ]
        for (_, shares), start, stop in zip(
            stages, starts, [*starts[1:], _FOR_EVER >> 1], strict=True
        ):
            while start < stop:
                open_ = before < limits
                weights = np.where(open_, shares, 0.0)
                if (mixing.stop == "first" and not open_.all()) or not weights.any():
                    return laid_out, start
                units = units_of(weights)
                # From where sources have the surplus that they have here, so that it never grows.
                offset = interleaved(units).place_of(surplus)
                rows = interleaved(units).counts(offset)
                stage = _Stage(start, units, offset, before - rows)
                laid_out.append(stage)
                end = _until(stage, stop, np.where(weights > 0, limits, _FOR_EVER))
                after = stage.counts(end)
                surplus += (after - before) - np.array(units) / TOTAL * (end - start)
                before, start = after, end
        return laid_out, _FOR_EVER


def _until(stage: _Stage, stop: int, limits: IntArray) -> int:
    """Where a stage ends: at `stop`, or after the position at which a source reaches its limit."""
    if (stage.counts(stop) < limits).all():
        return stop
    low, high = stage.start, stop
    while high - low > 1:
        middle = (low + high) // 2
        if (stage.counts(middle) < limits).all():
            low = middle
        else:
            high = middle
    return high


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
