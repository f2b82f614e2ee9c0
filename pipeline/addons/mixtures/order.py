"""Rows of several sources in given shares, which may change with the step.

The source and the row at a position follow without the positions before it:

1. The run is cut into stages of constant shares: at changes of weights, and where a source has
   given all its passes. The rows that each source gives before a stage are counted once.
2. A stage is cut into blocks of 1,000 positions. The rows of a source before a block are its share
   of the positions, rounded; the rows of a block stand in an order drawn from (seed, stage, block).
3. A source's rows follow a random order of its own, whose epochs are the source's passes.

Cost: 1 us a position in long slices, 0.24 ms a batch of 64 (once, on a busy machine);
5 ms for each source that ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from math import inf
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import ConfigError, Problem
from penstock.order.keys import IntArray, hash64
from penstock.order.permutation import Permutation
from penstock.order.samplers import Order, Random, Tail

Knots = Sequence[tuple[int, float]]  # (step or sample of the run, weight), ascending
Weights = Mapping[str, float | list[tuple[int, float]]]

BLOCK = 1000  # positions
_END = 1 << 53  # behind all positions of a run
_BITS = 40  # of a ratio, a whole number of 2^-40: integers round the same everywhere


class _Stage(NamedTuple):
    """Positions between two changes.

    Attributes:
        start: its first position, of all epochs laid end to end.
        ratios: the part of each source in what the sources before it leave, in 2^-40.
        key: of the orders inside its blocks.
        before: rows of each source before the stage, int64[sources].
    """

    start: int
    ratios: tuple[int, ...]
    key: int
    before: IntArray

    def counts(self, position: int) -> IntArray:
        """Rows of each source before a position of the whole run: int64[sources]."""
        number, at = divmod(position - self.start, BLOCK)
        sources = _block(self.ratios, self.key, number)[0, :at]
        inside = np.bincount(sources, minlength=len(self.before))
        return self.before + _before(self.ratios, number) + inside

    def reaches(self, limits: IntArray, position: int) -> bool:
        """Whether a source gives the last row that it may before a position."""
        return bool(((self.before < limits) & (self.counts(position) >= limits)).any())


def _stages(
    lengths: Mapping[str, int],
    pieces: Sequence[tuple[int, list[float]]],
    passes: Mapping[str, int],
    key: int,
) -> Iterator[_Stage]:
    """The stages of a run.

    Args:
        pieces: the first position of each piece of constant weights, and its weights.

    Raises:
        ConfigError: no source may give rows at a position.
    """
    limits = np.array(
        [passes[n] * length if n in passes else _END for n, length in lengths.items()]
    )
    before = np.zeros(len(lengths), np.int64)
    for (place, written), (end, _) in pairwise([*pieces, (_END, [])]):
        while place < end:
            weights = np.where(before < limits, written, 0.0).tolist()
            if not any(weights):
                reason = f"no source has a weight above 0, and passes left, from sample {place} on"
                raise ConfigError(Problem("dataset.weights", reason))
            # Sums from the last source on, so that one that is added with weight 0 changes nothing.
            sums = [*accumulate(reversed(weights))][::-1]
            ratios = tuple(
                round(weight / total * (1 << _BITS)) if weight else 0
                for weight, total in zip(weights, sums, strict=True)
            )
            stage = _Stage(place, ratios, hash64(key, place), before)
            yield stage
            later = range(place + 1, end)
            # The first position at which a source has ended: counts only rise, so halving finds it.
            place += 1 + bisect_left(later, True, key=partial(stage.reaches, limits))
            before = stage.counts(place)


def _knots(name: str, written: float | Knots, length: int) -> Knots:
    """The knots of a weight, checked."""
    pairs = (
        [(0, written)]
        if isinstance(written, (int, float))
        else [(step, weight) for step, weight in written]
    )
    steps = [step for step, _ in pairs]
    sane = all(0 <= weight < inf and (length or not weight) for _, weight in pairs)
    if not pairs or not sane or steps[0] < 0 or steps != sorted(set(steps)):
        allowed = "a number, 0 or more, or ascending [[step, weight], ...]; 0 without samples"
        raise ConfigError(Problem(f"dataset.weights.{name}", f"{written!r}; allowed: {allowed}"))
    return pairs


def _before(ratios: tuple[int, ...], number: int) -> IntArray:
    """Rows of each source before a block of a stage: int64[sources].

    Each source takes its ratio of what is left, rounded, so no count falls from one block to the
    next. It is within a row of the share, and half the logarithm of the number of sources.
    """
    left, counts = number * BLOCK, []
    for ratio in ratios:
        counts.append((left * ratio + (1 << _BITS - 1)) >> _BITS)
        left -= counts[-1]
    return np.array(counts, np.int64)


@lru_cache(maxsize=64)
def _block(ratios: tuple[int, ...], key: int, number: int) -> IntArray:
    """The source at each position of a block, and the source's rows before it in the stage:
    int64[2, BLOCK].
    """
    first, last = _before(ratios, number), _before(ratios, number + 1)
    # Shuffled within a block: in turns, each batch would have its sources at the same places.
    order = Permutation(BLOCK, hash64(key, number))(np.arange(BLOCK))
    source = np.repeat(np.arange(len(ratios)), last - first)[order]
    rank = np.empty(BLOCK, np.int64)
    rank[np.argsort(source, kind="stable")] = np.concatenate(list(map(np.arange, first, last)))
    return np.stack([source, rank])


class MixtureOrder(Order):
    """Several map-style sources, mixed by weights.

    Rows are numbered through all sources in their order, as for a dataset that joins them.
    Positions of all epochs follow each other, so a source's passes continue from epoch to epoch.

    Args:
        dataset: a `Mixture`, or what a filter leaves of it: `source_lengths` and `mixing`.
        batch_size: positions of a step.
        tail: "drop" gives an epoch whole batches only, so that no row of a pass is left out.

    Raises:
        ConfigError: names and key of what is wrong.
    """

    def __init__(self, dataset: Any, seed: int, batch_size: int, tail: Tail = "keep") -> None:
        if not hasattr(dataset, "mixing"):
            reason = f"mixes the sources of dataset=mixture, and {type(dataset).__name__} has none"
            raise ConfigError(Problem("sampler", reason))
        self.lengths = lengths = dict(dataset.source_lengths)
        mixing, key = dataset.mixing, hash64(seed, "mixture")
        self._firsts = np.cumsum([0, *lengths.values()], dtype=np.int64)
        self._orders = [Random(length, hash64(key, name)) for name, length in lengths.items()]
        self.length = size = mixing["num_samples"] or int(self._firsts[-1])
        # What a dropped tail held would never come: positions of epochs follow each other.
        if tail == "drop" and size >= batch_size:
            self.length = size = size - size % batch_size
        weights: Weights = lengths if mixing["weights"] is None else mixing["weights"]
        if odd := (weights.keys() ^ lengths.keys()) | (mixing["passes"].keys() - lengths.keys()):
            reason = f"{', '.join(sorted(odd))}: weights and passes are of {', '.join(lengths)}"
            raise ConfigError(Problem("dataset.weights", reason))
        knots = [_knots(name, weights[name], length) for name, length in lengths.items()]
        pieces, steps = [], -(-size // batch_size)
        for step in sorted({0, *(step for pairs in knots for step, _ in pairs)}):
            last = [max(bisect_right(pairs, (step, inf)) - 1, 0) for pairs in knots]
            start = step
            if mixing["knots"] == "steps":  # the last one of an epoch may be smaller
                start = step // steps * size + step % steps * batch_size
            pieces.append((start, [pairs[n][1] for pairs, n in zip(knots, last, strict=True)]))
        self._stages = list(_stages(lengths, pieces, mixing["passes"], key))
        # Then any slice of an epoch has the shares of the whole.
        self.even = len(self._stages) == 1

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        place, end = epoch * self.length + start, epoch * self.length + stop
        pieces: list[Any] = [np.empty((2, 0), np.int64)]  # source, and its rows before
        while place < end:
            number = self._number(place)
            stage, after = self._stages[number], self._stages[number + 1 : number + 2]
            block, at = divmod(place - stage.start, BLOCK)
            size = min(BLOCK - at, end - place, *(one.start - place for one in after))
            piece = _block(stage.ratios, stage.key, block)[:, at : at + size]
            pieces.append(piece + [[0], [1]] * stage.before[piece[0]])
            place += size
        source, rank = np.concatenate(pieces, axis=1)
        rows = np.empty(len(source), np.int64)
        for number in np.unique(source).tolist():
            # The source's rows follow each other, from one pass to the next.
            mine, order = np.flatnonzero(source == number), self._orders[number]
            turn, row = np.divmod(rank[mine], order.length)
            passes = [
                order.indices(one, int(row[turn == one][0]), int(row[turn == one][-1]) + 1)
                for one in range(int(turn[0]), int(turn[-1]) + 1)
            ]
            rows[mine] = self._firsts[number] + np.concatenate(passes)
        return rows

    def consumed(self, epoch: int, position: int) -> dict[str, dict[str, float]]:
        """`rows` and `passes` that each source has given before a position of `epoch`, by name."""
        place = epoch * self.length + position
        counts = self._stages[self._number(place)].counts(place).tolist()
        counted = zip(self.lengths.items(), counts, strict=True)
        return {name: {"rows": n, "passes": n / max(length, 1)} for (name, length), n in counted}

    def _number(self, place: int) -> int:
        """The number of the stage that has a position of the whole run."""
        return bisect_right(self._stages, place, key=lambda stage: stage.start) - 1
