"""Rows of several sources in given shares, which may change with the step.

Which source stands at a position follows from the shares alone, without what lies before it. In
each segment between two changes of weights:

1. The first source has floor(C(p) + 1/2) of the first p positions, where C is its share summed up
   (a line, or a parabola where weights are interpolated). So it stands where that number rises.
2. The other sources have the remaining positions, q of the first p; among these, the next source
   stands by the same rule with its share of the rest, and so on. The last one takes what is left.

So the count of the first source in any window is within one of its share, of the others within two,
and mostly within one. A source's nth row is row n mod its length of a keyed order, a new one for
each pass. Cost: 0.3 us a position and source, anywhere; memory: a few numbers a segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import ConfigError, Problem
from pipeline.order.permutation import Permutation
from pipeline.order.randomness import FloatArray, IntArray, hash64
from pipeline.order.samplers import Order, Tail

Knots = Sequence[tuple[int, float]]  # (step, weight), ascending
Weight = float | Knots

_UNITS = 1 << 20  # constant shares are multiples of 1 / _UNITS, so that sums of them are exact
_LONGEST = 1 << 40  # positions of a segment, so that they are exact, too
_FOR_EVER = 1 << 62


@dataclass(frozen=True)
class _Segment:
    """Positions between two changes of weights.

    Attributes:
        start: its first position, of all epochs laid end to end.
        first, last: shares at its two ends, float[sources]; the same where they are constant.
        length: over which they go from one to the other.
        before: rows that each source has given before it, int64[sources].
    """

    start: int
    first: FloatArray
    last: FloatArray
    length: int
    before: IntArray

    def split(self, offsets: IntArray) -> tuple[IntArray, IntArray]:
        """The source at each offset into the segment, and its rows before there in the segment."""
        source = np.full(len(offsets), -1, np.int64)
        count = np.zeros(len(offsets), np.int64)
        rest = offsets.copy()  # positions before, of the sources that are left
        for number, steps in enumerate(self._levels()):
            here, after = steps(rest), steps(rest + 1)
            open_ = source < 0
            taken = open_ & (after > here)
            source[taken], count[taken] = number, here[taken]
            rest = np.where(open_, rest - here, rest)
        return source, count

    def counts(self, offset: int) -> IntArray:
        """Rows of each source before an offset: int64[sources]."""
        rest, counts = np.array([offset]), []
        for steps in self._levels():
            here = steps(rest)
            counts.append(int(here[0]))
            rest = rest - here
        return np.array(counts, np.int64)

    def _levels(self) -> list[Any]:
        """For each source, how many of the first q remaining positions are its own."""
        if np.array_equal(self.first, self.last):
            units = _in_units(self.first)
            left = np.cumsum(units[::-1])[::-1]
            return [_straight(int(own), int(rest)) for own, rest in zip(units, left, strict=True)]
        left_first = np.cumsum(self.first[::-1])[::-1]
        left_last = np.cumsum(self.last[::-1])[::-1]
        ends = zip(self.first, self.last, left_first, left_last, strict=True)
        last = len(self.first) - 1
        return [_curved(*four, self.length, number == last) for number, four in enumerate(ends)]


class MixtureOrder(Order):
    """Several map-style sources, mixed by weights.

    Rows are numbered through all sources in their order, as of a dataset that joins them. Positions
    of all epochs follow each other, so a source's passes go on from one epoch to the next.

    Args:
        lengths: rows of each source, by name; a source that is added comes last.
        weights: of each source, by name: a number, or knots [[step, weight], ...] of steps of the
            whole run; before its first knot a weight is that of the first, behind the last that of
            the last.
        batch_size: positions of a step.
        num_samples: positions of an epoch; None: as many as all sources have rows.
        linear: weights go in a line from one knot to the next; else they change at a knot.
        passes: how often a source is read at most, by name; then the others have its share.

    Raises:
        ConfigError: names and key of what is wrong.
    """

    def __init__(
        self,
        lengths: Mapping[str, int],
        weights: Mapping[str, Weight],
        seed: int,
        batch_size: int,
        num_samples: int | None = None,
        tail: Tail = "keep",
        linear: bool = False,
        passes: Mapping[str, int] | None = None,
    ) -> None:
        self.names, self.seed = tuple(lengths), seed
        self._lengths = np.array([lengths[name] for name in self.names], np.int64)
        self._offsets = np.cumsum(self._lengths) - self._lengths
        knots = _knots(lengths, weights)
        self._size = num_samples or int(self._lengths.sum())
        rest = 0 if tail == "drop" else batch_size - 1
        self._steps, self._batch_size = (self._size + rest) // batch_size, batch_size
        limits = _limits(lengths, passes or {})
        self._segments: list[_Segment] = []
        self._lay_out([knots[name] for name in self.names], linear, limits)
        self._starts = np.array([one.start for one in self._segments], np.int64)
        self._end = self._segments_end
        if self._end < self._size:
            raise ConfigError(
                Problem("dataset.passes", f"all sources end after {self._end} samples, and an "
                        f"epoch has {self._size}; allow more passes, or set num_samples")
            )  # fmt: skip

    def size(self, epoch: int) -> int:
        return max(0, min(self._size, self._end - epoch * self._size))

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        source, rank = self.sources(epoch, np.arange(start, stop, dtype=np.int64))
        rows = np.empty(len(source), np.int64)
        turn, place = rank // self._lengths[source], rank % self._lengths[source]
        both = source * (int(turn.max(initial=0)) + 1) + turn
        for one in np.unique(both):
            here = both == one
            number, times = int(source[here][0]), int(turn[here][0])
            rows[here] = self._offsets[number] + self._order(number, times)(place[here])
        return rows

    def sources(self, epoch: int, positions: npt.ArrayLike) -> tuple[IntArray, IntArray]:
        """The number of the source at each position of `epoch` (int64[n]), and how many rows that
        source has given before it, in this and earlier epochs: int64[n] each.
        """
        whole = np.asarray(positions, np.int64) + epoch * self._size
        of = np.searchsorted(self._starts, whole, side="right") - 1
        source, rank = np.empty(len(whole), np.int64), np.empty(len(whole), np.int64)
        for number in np.unique(of):
            segment, here = self._segments[number], of == number
            source[here], count = segment.split(whole[here] - segment.start)
            rank[here] = segment.before[source[here]] + count
        return source, rank

    def given(self, epoch: int, position: int = 0) -> dict[str, int]:
        """Rows that each source has given before a position of `epoch`, by name."""
        whole = epoch * self._size + position
        segment = self._segments[int(np.searchsorted(self._starts, whole, side="right")) - 1]
        counts = segment.before + segment.counts(whole - segment.start)
        return dict(zip(self.names, counts.tolist(), strict=True))

    def positions_of(self, index: int, epoch: int) -> list[int]:
        """Where row `index` stands in `epoch`; a search for each pass that the epoch touches."""
        number = int(np.searchsorted(self._offsets, index, side="right")) - 1
        name, length = self.names[number], int(self._lengths[number])
        first = self.given(epoch)[name]
        last = self.given(epoch, self.size(epoch))[name]
        found = []
        for times in range(first // length, -(-last // length)):
            order = self._order(number, times)
            rank = times * length + int(order.inverse([index - int(self._offsets[number])])[0])
            if first <= rank < last:
                low, high = 0, self.size(epoch)  # the last position before which `rank` were given
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (
                        (middle, high) if self.given(epoch, middle)[name] <= rank else (low, middle)
                    )
                found.append(low)
        return found

    def _order(self, source: int, times: int) -> Permutation:
        key = hash64(self.seed, "mixture", self.names[source], times)
        return Permutation(int(self._lengths[source]), key)

    def _position(self, step: int) -> int:
        """The first position of a step of the whole run."""
        epoch, inside = divmod(step, self._steps)
        return epoch * self._size + inside * self._batch_size

    def _lay_out(self, knots: list[Knots], linear: bool, limits: IntArray) -> None:
        """Make the segments: at each knot a new one, and wherever a source has given all."""
        steps = sorted({0, *(step for one in knots for step, _ in one)})
        before = np.zeros(len(knots), np.int64)
        ended = np.zeros(len(knots), np.bool_)
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            start = self._position(step)
            stop = start + _LONGEST if following is None else self._position(following)
            here = np.array([_at(one, step, linear) for one in knots])
            there = here
            if linear and following is not None:
                there = np.array([_at(one, following, linear) for one in knots])
            length = stop - start
            while start < stop:
                done = (length - (stop - start)) / length
                first = here + (there - here) * done
                if not np.where(ended, 0, first).any() and not np.where(ended, 0, there).any():
                    self._segments_end = start
                    return
                segment = _Segment(
                    start, _shares(first, ended), _shares(there, ended), stop - start, before
                )
                end, out = self._first_end(segment, stop, limits)
                self._segments.append(segment)
                before = before + segment.counts(end - start)
                start = end
                if out >= 0:
                    ended = ended.copy()
                    ended[out] = True
        self._segments_end = _FOR_EVER

    def _first_end(self, segment: _Segment, stop: int, limits: IntArray) -> tuple[int, int]:
        """Where the first source of a segment has given all, and which; else `stop` and -1."""

        def over(length: int) -> npt.NDArray[np.bool_]:
            full = segment.before + segment.counts(length) >= limits
            return full & ((segment.first > 0) | (segment.last > 0))

        low, high = 0, stop - segment.start
        if not over(high).any():
            return stop, -1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if over(middle).any() else (middle, high)
        return segment.start + high, int(np.flatnonzero(over(high))[0])


def _straight(own: int, rest: int) -> Any:
    """floor(own / rest q + 1/2), exactly."""
    if own == 0:
        return np.zeros_like
    return lambda q: (2 * own * q + rest) // (2 * rest)


def _curved(
    own: float, own_last: float, rest: float, rest_last: float, length: int, takes_all: bool
) -> Any:
    """The same where shares go in a line from their first to their last value."""
    if takes_all:
        return lambda q: q
    if own == own_last == 0:
        return np.zeros_like

    def steps(q: IntArray) -> IntArray:
        # The place x at which the rest has had q positions: rest x + slope x^2 / 2 = q.
        slope = (rest_last - rest) / length
        root = np.sqrt(np.maximum(rest * rest + 2 * slope * q, 0))
        with np.errstate(divide="ignore", invalid="ignore"):
            place = np.where(rest + root > 0, 2 * q / (rest + root), 0.0)
        summed = own * place + (own_last - own) / length * place * place / 2
        return np.floor(summed + 0.5).astype(np.int64)

    return steps


def _in_units(shares: FloatArray) -> IntArray:
    """Shares as whole numbers, of which a positive one is at least 1."""
    return np.maximum(np.rint(shares * _UNITS), shares > 0).astype(np.int64)


def _shares(weights: FloatArray, ended: npt.NDArray[np.bool_]) -> FloatArray:
    left = np.where(ended, 0.0, weights)
    total = left.sum()
    return left / total if total else left


def _at(knots: Knots, step: int, linear: bool) -> float:
    """The weight at a step that is a knot of this or another source."""
    steps = [one for one, _ in knots]
    after = int(np.searchsorted(steps, step, side="right"))
    if after == 0 or after == len(knots) or not linear:
        return float(knots[max(after - 1, 0)][1])
    (left, low), (right, high) = knots[after - 1], knots[after]
    return float(low + (high - low) * (step - left) / (right - left))


def _knots(lengths: Mapping[str, int], weights: Mapping[str, Weight]) -> dict[str, Knots]:
    key = "dataset.weights"
    if set(lengths) != set(weights):
        odd = ", ".join(sorted(set(lengths) ^ set(weights)))
        raise ConfigError(Problem(key, f"give one weight for each source; {odd} is in one only"))
    found: dict[str, Knots] = {}
    for name, given in weights.items():
        knots = [(0, given)] if isinstance(given, (int, float)) else list(given)
        try:
            pairs = [(int(step), float(weight)) for step, weight in knots]
        except (TypeError, ValueError):
            pairs = []
        steps = [step for step, _ in pairs]
        sane = all(np.isfinite(weight) and weight >= 0 for _, weight in pairs)
        if not pairs or not sane or steps[0] < 0 or steps != sorted(set(steps)):
            raise ConfigError(
                Problem(f"{key}.{name}", f"{given!r}; allowed: a number, 0 or more, or "
                        "[[step, weight], ...] with steps in ascending order")
            )  # fmt: skip
        if lengths[name] < 1 and any(weight for _, weight in pairs):
            raise ConfigError(Problem(f"dataset.sources.{name}", "has no samples"))
        found[name] = pairs
    every = {step for one in found.values() for step, _ in one} | {0}
    for step in sorted(every):
        if not any(_at(one, step, linear=False) for one in found.values()):
            raise ConfigError(Problem(key, f"all weights are 0 at step {step}"))
    return found


def _limits(lengths: Mapping[str, int], passes: Mapping[str, int]) -> IntArray:
    for name, times in passes.items():
        if name not in lengths or times < 1:
            known = ", ".join(lengths)
            raise ConfigError(
                Problem(f"dataset.passes.{name}", f"{times}; allowed: 1 or more passes of a source "
                        f"({known})")
            )  # fmt: skip
    return np.array(
        [lengths[name] * passes[name] if name in passes else _FOR_EVER for name in lengths],
        np.int64,
    )
