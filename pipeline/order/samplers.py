"""Orders and batch strategies: which rows of a dataset an epoch reads, and in which order.

Both are functions of (seed, epoch) alone; `order/plan.py` cuts them into addresses. Columns of the
dataset's table are read once, when a sampler is made; no sampler loads a sample.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError, Problem
from penstock.files.limits import Count, Fraction, Index
from penstock.order.columns import column_of, weights_of
from penstock.order.keys import IntArray, hash64, uniform
from penstock.order.permutation import Permutation, permutation

Tail = Literal["keep", "drop", "pad"]


class _Sampler(ABC):
    """What orders and batch strategies have in common.

    Attributes:
        column_arguments: arguments that name columns of the dataset's table.
        packs: whether rows stand in blocks, so that validation packs them, too.
        length: positions (of an order) or global batches (of a strategy) in each epoch, unless
            `size` is another one.
    """

    column_arguments: ClassVar[tuple[str, ...]] = ()
    packs: ClassVar[bool] = False
    length: int

    def size(self, epoch: int) -> int:
        """Number of positions (of an order) or global batches (of a strategy) in `epoch`."""
        return self.length


class Order(_Sampler):
    """Rows of the dataset by position, for any slice of an epoch.

    Attributes:
        even: whether any slice of an epoch is a fair sample of all of it, as for a random order.
    """

    even: bool = False

    @abstractmethod
    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Rows at positions start .. stop-1: int64[stop - start]."""


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


class Sequential(Order):
    """Every row once, in the order of the dataset."""

    def __init__(self, length: int) -> None:
        self.length = length

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        return np.arange(start, stop, dtype=np.int64)


class Random(Order):
    """Every row once, in another random order each epoch.

    Cost: O(1) memory; 0.1 us a row read in order, 0.1 ms for a jump to another position.
    """

    even = True
    AHEAD = 1024  # the fewest positions that are evaluated at once
    SLICES = 8  # slices that are evaluated at once, where these are large

    def __init__(self, length: int, seed: int) -> None:
        self.length, self.seed = length, seed
        self._block = (-1, 0, np.empty(0, dtype=np.int64))  # epoch, first position, rows

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        known, first, rows = self._block  # read once: other threads may ask for other positions
        if known != epoch or start < first or stop > first + len(rows):
            # A thousand positions cost hardly more than one, and the next ones are asked for next.
            ahead = max(self.AHEAD, self.SLICES * (stop - start))
            order = permutation(self.length, hash64(self.seed, "order", epoch))
            first, rows = start, order(np.arange(start, min(start + ahead, self.length)))
            self._block = (epoch, first, rows)
        # A view would keep the block alive, and whoever writes into it would change later slices.
        return rows[start - first : stop - first].copy()


class Subset(Order):
    """Only some rows, the same ones in every epoch.

    Args:
        indices: the rows themselves; or
        fraction: a random share of all rows, in (0, 1].
        shuffle: read them in another order each epoch.
    """

    def __init__(
        self,
        length: int,
        seed: int,
        indices: Sequence[Index] | None = None,
        fraction: Fraction | None = None,
        shuffle: bool = True,
    ) -> None:
        rows = np.asarray(indices if fraction is None else range(round(length * fraction)))
        if (
            (indices is None) == (fraction is None)
            or not rows.size
            or rows.dtype.kind not in "iu"
            or not 0 <= rows.min() <= rows.max() < length
        ):
            raise ConfigError(
                Problem(
                    f"sampler.{'indices' if fraction is None else 'fraction'}",
                    f"indices={str(indices)[:80]} and fraction={fraction} choose none of {length} "
                    f"rows; set one of them: rows from 0 to {length - 1}, or a share in (0, 1]",
                )
            )
        self.rows = rows.astype(np.int64)
        if fraction is not None:
            # Positions of a permutation: a larger fraction adds rows and keeps those there were.
            self.rows = np.sort(Permutation(length, hash64(seed, "subset"))(self.rows))
        self._order: Order = Random(len(rows), seed) if shuffle else Sequential(len(rows))
        self.length, self.even = len(rows), shuffle

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        return self.rows[self._order.indices(epoch, start, stop)]


class Weighted(Order):
    """Draws rows with chances proportional to weights.

    With replacement, a draw is a search in the prefix sums at a counter-based random number: any
    length (torch's multinomial stops at 2^24), any slice. Without replacement, an epoch's order is
    a sort by -log(u) / weight (Efraimidis, Spirakis, 2006), kept for the current epoch.

    Args:
        metadata: the dataset's table; needed for `column` and for a named `weights`.
        column: balance this column's values: each value is drawn equally often.
        weights: name of a column of weights, or the weights themselves (float[length]), instead of
            `column`.
        num_samples: draws in an epoch. None: `length`, and without replacement as many as there are
            rows of positive weight, which is also the most.
    """

    column_arguments = ("column", "weights")

    def __init__(
        self,
        length: int,
        seed: int,
        metadata: object = None,
        column: str | None = "label",
        weights: str | npt.ArrayLike | None = None,
        num_samples: Count | None = None,
        replacement: bool = True,
    ) -> None:
        self.seed = seed
        values = weights_of(length, metadata, column, weights)
        positive = np.flatnonzero(values)
        self._sums = np.cumsum(values)
        self._weights = None if replacement else values
        self._last = int(positive[-1])
        self.length = num_samples or (length if replacement else len(positive))
        self.even = replacement
        self._drawn = (-1, positive)  # an epoch without replacement, and its rows
        if not replacement and self.length > len(positive):
            raise ConfigError(
                Problem(
                    "sampler.num_samples",
                    f"{num_samples} draws without replacement, but only {len(positive)} rows have "
                    "a positive weight",
                )
            )

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        key = hash64(self.seed, "weighted", epoch)
        if self._weights is None:
            points = uniform(key, np.arange(start, stop)) * self._sums[-1]
            rows = np.searchsorted(self._sums, points, side="right")
            # A point can be rounded up to the very end of the sums, where no row is.
            return np.minimum(rows, self._last).astype(np.int64)
        known, rows = self._drawn  # read once: other threads may ask for other epochs
        if known != epoch:
            times = np.full(len(self._weights), np.inf)  # that of rows of weight 0
            drawn = -np.log1p(-uniform(key, np.arange(len(times))))
            np.divide(drawn, self._weights, out=times, where=self._weights > 0)
            rows = np.argsort(times, kind="stable")[: self.length].astype(np.int64)
            self._drawn = (epoch, rows)
        return rows[start:stop]


class Bucket(BatchStrategy):
    """Batches of rows of similar length, in random order.

    Rows are sorted by length and cut into buckets of equal count. In each epoch every bucket is
    permuted and cut into batches, and the batches of all buckets are permuted.

    Args:
        batch_size: rows in a batch, unless `tokens` is given.
        tail: "keep" the smaller last batch of a bucket, or "drop" it.
        column: metadata column of lengths.
        tokens: a budget for rows x longest row of a batch, padding included; long rows then
            stand in smaller batches.
        num_buckets: None takes one for about every eight batches, at most 64.
        long_tail: cut buckets where that saves padding (`cuts`) instead of by equal counts; the
            build sets it for lengths of texts. Cost: 0.1 s at most, for any number of rows.

    Attributes:
        edges: of the buckets in the rows sorted by length: int64[buckets + 1].
        batch_sizes: rows in a batch of each bucket: int64[buckets].
    """

    column_arguments = ("column",)

    def __init__(
        self,
        length: int,
        seed: int,
        metadata: object,
        batch_size: int,
        tail: Tail = "keep",
        column: str = "length",
        tokens: Count | None = None,
        num_buckets: Count | None = None,
        long_tail: bool = False,
    ) -> None:
        lengths = column_of(metadata, column, "column", numbers=True)
        self.seed = seed
        self._rows = np.argsort(lengths, kind="stable").astype(np.int64)
        lengths = lengths[self._rows]
        usual = batch_size if tokens is None else max(1, int(tokens // max(1.0, lengths.mean())))
        if long_tail:
            self.edges = cuts(lengths, usual, num_buckets)
        else:
            count = num_buckets or min(_MOST_BUCKETS, max(1, length // (8 * usual)))
            self.edges = np.linspace(0, length, min(count, length) + 1).astype(np.int64)
        if tokens is not None and lengths[-1] > tokens:
            raise ConfigError(
                Problem(
                    "sampler.tokens",
                    f"the budget is {tokens}, but the longest row has {lengths[-1]}; raise the "
                    "budget to at least that, or leave long rows out",
                )
            )
        longest = np.maximum(1, lengths[self.edges[1:] - 1])
        self.batch_sizes: IntArray = np.asarray(
            np.full(len(longest), batch_size) if tokens is None else tokens // longest, np.int64
        )
        up = 0 if tail == "drop" else self.batch_sizes - 1
        counts = (np.diff(self.edges) + up) // self.batch_sizes
        self._first_batch = np.concatenate([[0], np.cumsum(counts)])
        self.length = int(counts.sum())

    def batch(self, epoch: int, step: int) -> tuple[IntArray, IntArray]:
        order = permutation(self.length, hash64(self.seed, "batches", epoch))
        number = int(order([step])[0])
        bucket = int(np.searchsorted(self._first_batch, number, side="right")) - 1
        first, last = self.edges[bucket : bucket + 2].tolist()
        size = int(self.batch_sizes[bucket])
        start = (number - int(self._first_batch[bucket])) * size
        positions = np.arange(start, min(start + size, last - first))
        inside = Permutation(last - first, hash64(self.seed, "bucket", epoch, bucket))
        return first + positions, self._rows[first + inside(positions)]


class Identity(BatchStrategy):
    """Batches of P identities x K samples, for metric learning.

    Identities come in random order, each once a round; a round has as many batches as whole groups
    of P. In round r an identity gives its next K rows in an order of its own (one with fewer than
    K rows gives some of them again).

    Args:
        column: metadata column that tells identities apart.
        identities: P, identities in a batch.
        samples: K, rows of each.
        batches: batches in an epoch; None takes as many as cover about every row once.
    """

    column_arguments = ("column",)

    def __init__(
        self,
        length: int,
        seed: int,
        metadata: object,
        column: str = "label",
        identities: Count = 8,
        samples: Count = 4,
        batches: Count | None = None,
    ) -> None:
        values, codes, counts = np.unique(
            column_of(metadata, column, "column"), return_inverse=True, return_counts=True
        )
        if identities > len(values):
            raise ConfigError(
                Problem(
                    "sampler.identities",
                    f"a batch wants {identities} identities, but column "
                    f"{column!r} has only {len(values)} different values",
                )
            )
        self.seed, self.identities, self.samples = seed, identities, samples
        self.group = samples
        self._rows = np.argsort(codes, kind="stable").astype(np.int64)
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._round_batches = len(values) // identities
        self.length = batches or max(1, length // (identities * samples))

    def batch(self, epoch: int, step: int) -> tuple[IntArray, IntArray]:
        round_, group = divmod(step, self._round_batches)
        order = permutation(len(self._starts) - 1, hash64(self.seed, "identities", epoch, round_))
        chosen = order(np.arange(group * self.identities, (group + 1) * self.identities))
        rows = np.concatenate([self._rows_of(epoch, round_, int(identity)) for identity in chosen])
        return step * len(rows) + np.arange(len(rows), dtype=np.int64), rows

    def _rows_of(self, epoch: int, round_: int, identity: int) -> IntArray:
        first, last = int(self._starts[identity]), int(self._starts[identity + 1])
        order = Permutation(last - first, hash64(self.seed, "identity", epoch, identity))
        # An identity with fewer rows than `samples` begins again within a batch.
        positions = (round_ * self.samples + np.arange(self.samples)) % (last - first)
        return self._rows[first + order(positions)]


class Curriculum(Order):
    """Every row once, from easy to hard: in stages by a column, each shuffled anew every epoch.

    Args:
        column: metadata column of numbers, of which the smallest come first.
        stages: of equal size, to the nearest row.
        descending: the largest come first.

    Memory: 8 bytes a row.
    """

    column_arguments = ("column",)

    def __init__(
        self,
        length: int,
        seed: int,
        metadata: object,
        column: str = "length",
        stages: Count = 4,
        descending: bool = False,
    ) -> None:
        values = column_of(metadata, column, "column", numbers=True)
        rising = -values.astype(np.float64) if descending else values
        self._rows = np.argsort(rising, kind="stable").astype(np.int64)
        self._edges = np.arange(stages + 1) * length // stages
        self.length, self.seed = length, seed

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        positions = np.arange(start, stop, dtype=np.int64)
        stage = np.searchsorted(self._edges, positions, side="right") - 1
        rows = np.empty(len(positions), np.int64)
        for number in np.unique(stage).tolist():
            first, last = int(self._edges[number]), int(self._edges[number + 1])
            order = permutation(last - first, hash64(self.seed, "stage", epoch, number))
            mine = stage == number
            rows[mine] = self._rows[first + order(positions[mine] - first)]
        return rows


class Repeated(Order):
    """Every row of another order several times in a batch, with augmentations of its own each time.

    A batch has its rows once, then all of them again, and so on. So ranks hold different
    repetitions of a row if their number is that of the repetitions (or a multiple of it), and the
    neighbours that mixing pairs are different rows. DeiT's sampler shows an augmentation of a row
    to each rank in the same way ("Training data-efficient image transformers", 2021).

    Args:
        times: how often a row comes; it divides the batch, so that all stand in the same one.
        order: the other order; None: each row once, at random.
        shorten: an epoch has as many positions as the other order, and so only the first of its
            rows, as in DeiT; else `times` as many.
    """

    def __init__(
        self,
        length: int,
        seed: int,
        batch_size: int,
        times: Count = 2,
        order: Order | None = None,
        shorten: bool = True,
    ) -> None:
        if times < 1 or batch_size % times:
            raise ConfigError(
                Problem(
                    "sampler.times",
                    f"{times} does not divide batch.size={batch_size}, so a row's repetitions "
                    "would be in two batches; take a multiple of it",
                )
            )
        self.times, self.order, self.shorten = times, order or Random(length, seed), shorten
        self.even = self.order.even
        self._rows = batch_size // times  # of the other order, in a batch
        if (size := self.order.size(0)) and not self._distinct(0):
            raise ConfigError(
                Problem(
                    "sampler.times",
                    f"{times} repetitions do not fit into an epoch as long as the {size} rows that "
                    "are repeated; set sampler.shorten=false",
                )
            )

    def size(self, epoch: int) -> int:
        return self._distinct(epoch) * self.times

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        batch, slot = np.divmod(np.arange(start, stop, dtype=np.int64), self._rows * self.times)
        first, distinct = batch * self._rows, self._distinct(epoch)
        # The last batch has fewer rows of the other order, each as often as in any batch.
        others = first + slot % np.minimum(self._rows, distinct - first)
        if not len(others):
            return others
        low, high = int(others.min()), int(others.max()) + 1
        return self.order.indices(epoch, low, high)[others - low]

    def _distinct(self, epoch: int) -> int:
        return self.order.size(epoch) // (self.times if self.shorten else 1)


WITHIN = 1.1  # the padded size of buckets, in units of that of a plain sort
_MOST_CUTS = 512  # places at which a cut may be
_MOST_BUCKETS = 64


def cuts(lengths: npt.NDArray[np.number], rows: int, count: int | None) -> IntArray:
    """Edges of the buckets: int64[n + 1], from 0 to the number of rows.

    Texts have many short rows and a long tail: buckets of equal count would put a row of 20 tokens
    beside one of 250. The cuts that save most padding, at multiples of a batch, are found by
    dynamic programming (Jenks, 1967). Each bucket has at least two batches, so that rows are still
    mixed.

    Args:
        lengths: in ascending order.
        rows: in a batch.
        count: of buckets; None takes as many as keep the padded size below `WITHIN` times that of
            a plain sort.
    """
    # Whole batches apart: a cut inside of a batch would make two smaller ones of it.
    step = rows * max(1, -(-len(lengths) // (rows * _MOST_CUTS)))
    places = np.append(np.arange(0, len(lengths), step), len(lengths))
    longest = np.maximum(lengths[places[1:] - 1], 1).astype(np.float64)
    # padded[i, j]: rows x longest of the bucket from place i to place j + 1. A bucket of a single
    # step could not mix its rows.
    padded = (places[None, 1:] - places[:-1, None]) * longest[None, :]
    units = len(longest)
    few = np.arange(units)[None, :] - np.arange(units)[:, None] < min(1, units - 1)
    padded[few] = np.inf
    sort = float((np.diff(places) * longest).sum())
    # smallest[j]: the least padded size of the rows before place j + 1, in the buckets so far.
    # starts[n][j]: the place at which the last of n + 1 buckets begins for that.
    smallest, starts = padded[0].copy(), [np.zeros(units, dtype=np.int64)]
    most = min(count or _MOST_BUCKETS, max(1, units // 2))
    while len(starts) < most and (count is not None or smallest[-1] > WITHIN * sort):
        extended = smallest[:-1, None] + padded[1:]  # by one bucket, which ends at place j + 1
        if extended[:, -1].min() >= smallest[-1]:
            break
        starts.append(extended.argmin(axis=0) + 1)
        smallest = extended.min(axis=0)
    edges, last = [], units  # from the last bucket back to the first
    for begins in reversed(starts):
        edges.append(places[last])
        last = begins[last - 1]
    return np.array([0, *reversed(edges)], dtype=np.int64)
