"""Rows of several sources in given shares, which may change with the step.

Which source stands at a position, and with which of its rows, follows without what lies before:

1. The run is cut into stages of constant shares: at changes of weights, and where a source has
   given all that it may. What each source has given before a stage is known from the start.
2. Inside a stage, `Interleaving` says the source and how many rows it has given there.
3. A source's rows follow an order of its own, whose epochs are the source's passes.

Any 1,000 positions in a row of one stage have each source's share to within one row; those that
reach into another stage within a few, as it begins where sources are as much ahead or behind.
Cost: 0.2 us a position in batches of thousands, anywhere; 1 ms a stage to begin with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.addons.mixtures.interleaving import TOTAL, interleaved, units_of
from penstock.addons.mixtures.weights import Mixing
from penstock.errors import ConfigError, Problem
from penstock.order.orders import Order, Tail
from penstock.order.randomness import IntArray, hash64
from penstock.order.samplers import Random

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

    Rows are numbered through all sources in their order, as of a dataset that joins them. Positions
    of all epochs follow each other, so a source's passes go on from one epoch to the next.

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

    def positions_of(self, epoch: int, row: int) -> list[int]:
        """Where `row` stands: the inverse of each pass that the epoch touches, 20 us a pass, and a
        search for all of them together, 5 us a position. A source of one row has it in all.
        """
        if not 0 <= row < self._rows[-1]:
            return []
        number = int(np.searchsorted(self._rows, row, side="right")) - 1
        name, length = self.names[number], int(self._passes[number])
        first = self.given(epoch)[name]
        last = self.given(epoch, self.size(epoch))[name]
        if self._rows[number + 1] - self._rows[number] == 1:
            ranks = np.arange(first, last, dtype=np.int64)
        else:
            own = row - int(self._rows[number])
            turns = range(first // length, -(-last // length))
            order = self._orders[number]
            places = [turn * length + at for turn in turns for at in order.positions_of(turn, own)]
            ranks = np.array(places, np.int64)
            ranks = ranks[(first <= ranks) & (ranks < last)]
        start = epoch * self._size
        return (self._places(number, ranks, start, start + self.size(epoch)) - start).tolist()

    def _places(self, number: int, ranks: IntArray, start: int, stop: int) -> IntArray:
        """Where from `start` to `stop`, of the whole run, a source gives its rows `ranks`."""
        positions = [ranks[:0]]
        for stage, end in zip(self._stages, [*self._starts[1:].tolist(), self._end], strict=True):
            low, high = max(stage.start, start), min(end, stop)
            if low >= high:
                continue
            before, after = stage.given(number, np.array([low, high])).tolist()
            inside = ranks[(before <= ranks) & (ranks < after)]
            lows, highs = np.full(len(inside), low), np.full(len(inside), high)
            while (highs - lows > 1).any():  # the last position before which a rank were given
                middle = (lows + highs) // 2
                less = stage.given(number, middle) <= inside
                lows, highs = np.where(less, middle, lows), np.where(less, highs, middle)
            positions.append(lows)
        return np.sort(np.concatenate(positions))

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
