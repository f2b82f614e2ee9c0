"""Orders and batch strategies: which rows of a dataset an epoch reads, and in which order.

Both are functions of (seed, epoch) alone; `order/plan.py` cuts them into addresses. Columns of the
dataset's table are read once, when a sampler is made; no sampler loads a sample.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from pipeline.errors import ConfigError, DataError, Problem
from pipeline.order.bucketing import bucket_sizes
from pipeline.order.permutation import Permutation
from pipeline.order.randomness import IntArray, hash64, uniform

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

    def size(self, epoch: int) -> int:
        return self.length

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        return np.arange(start, stop, dtype=np.int64)


class Random(Order):
    """Every row once, in another random order each epoch; O(1) memory, about 1 us a row."""

    AHEAD = 1024  # positions evaluated at once

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self.seed = seed
        self._order = (-1, Permutation(1, 0))  # epoch, its order
        self._block = (-1, 0, np.empty(0, dtype=np.int64))  # epoch, first position, rows

    def size(self, epoch: int) -> int:
        return self.length

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        of, first, rows = self._block
        if of != epoch or start < first or stop > first + len(rows):
            if self._order[0] != epoch:
                self._order = (epoch, Permutation(self.length, hash64(self.seed, "order", epoch)))
            # A thousand positions cost hardly more than one, and the next ones are asked for next.
            last = min(max(stop, start + self.AHEAD), self.length)
            first, rows = start, self._order[1](np.arange(start, last))
            self._block = (epoch, first, rows)
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
        indices: Sequence[int] | None = None,
        fraction: float | None = None,
        shuffle: bool = True,
    ) -> None:
        if (indices is None) == (fraction is None):
            raise ConfigError(Problem("sampler", "set either indices or fraction, and not both"))
        if fraction is not None:
            if not 0 < fraction <= 1:
                raise ConfigError(Problem("sampler.fraction", f"{fraction} is not in (0, 1]"))
            places = np.arange(round(length * fraction))
            self.rows = np.sort(Permutation(length, hash64(seed, "subset"))(places))
        else:
            self.rows = np.asarray(indices, dtype=np.int64)
            outside = self.rows[(self.rows < 0) | (self.rows >= length)]
            if outside.size:
                raise ConfigError(
                    Problem("sampler.indices", f"row {outside[0]} does not exist; there are "
                            f"{length} rows")
                )  # fmt: skip
        self._order: Order = Random(len(self.rows), seed) if shuffle else Sequential(len(self.rows))

    def size(self, epoch: int) -> int:
        return len(self.rows)

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
        weights: name of a column of weights, or the weights themselves (float[length]), in place
            of `column`.
        num_samples: draws per epoch; `length` when None. Without replacement, all rows of positive
            weight when None and at most that many.
    """

    column_arguments = ("column", "weights")

    def __init__(
        self,
        length: int,
        seed: int,
        metadata: Any = None,
        column: str | None = "label",
        weights: str | npt.ArrayLike | None = None,
        num_samples: int | None = None,
        replacement: bool = True,
    ) -> None:
        values = _weights(length, metadata, column, weights)
        positive = np.flatnonzero(values)
        self._last = int(positive[-1])
        self._draws = num_samples or (length if replacement else len(positive))
        self._weights = None if replacement else values
        self._sums = np.cumsum(values)
        self._order = (-1, positive[:0].copy())  # epoch, its rows
        self.seed = seed
        if not replacement and self._draws > len(positive):
            raise ConfigError(
                Problem("sampler.num_samples", f"{num_samples} draws without replacement, but only "
                        f"{len(positive)} rows have a positive weight")
            )  # fmt: skip

    def size(self, epoch: int) -> int:
        return self._draws

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        key = hash64(self.seed, "weighted", epoch)
        if self._weights is None:
            points = uniform(key, np.arange(start, stop)) * self._sums[-1]
            rows = np.searchsorted(self._sums, points, side="right")
            # A point can be rounded up to the very end of the sums, where no row is.
            return np.minimum(rows, self._last).astype(np.int64)
        if self._order[0] != epoch:
            draws = uniform(key, np.arange(len(self._weights)))
            with np.errstate(divide="ignore"):
                arrival = -np.log1p(-draws) / self._weights
            arrival[self._weights == 0] = np.inf
            order = np.argsort(arrival, kind="stable")[: self._draws].astype(np.int64)
            self._order = (epoch, order)
        return self._order[1][start:stop]


def column_of(
    metadata: Any, name: str, argument: str, section: str = "sampler"
) -> npt.NDArray[Any]:
    """A column of the dataset's table, checked to exist and to have no gaps.

    It is an array, or where a dataset tells `lengths` another `pipeline.protocols.Column`.
    """
    if metadata is None or name not in metadata.columns:
        known = "columns " + ", ".join(metadata.columns) if metadata is not None else (
            "no metadata: give it `metadata`, a table, or `targets`, a list of labels "
            "(docs/own_dataset.md)"
        )  # fmt: skip
        raise ConfigError(
            Problem(f"{section}.{argument}", f"the dataset has no column {name!r}; it has {known}")
        )
    column = metadata[name]
    if not hasattr(column, "isna"):  # a dataset's own `lengths`
        return column
    gaps = np.flatnonzero(column.isna().to_numpy())
    if gaps.size:
        raise DataError(f"column {name!r} has no value in row {gaps[0]}; {section} needs one a row")
    return np.asarray(column.to_numpy())


def _weights(
    length: int, metadata: Any, column: str | None, weights: str | npt.ArrayLike | None
) -> npt.NDArray[np.float64]:
    if weights is None:
        if column is None:
            raise ConfigError(Problem("sampler", "set either column or weights"))
        _, codes, counts = np.unique(
            column_of(metadata, column, "column"), return_inverse=True, return_counts=True
        )
        return np.asarray(1.0 / counts[codes], dtype=np.float64)
    where = "sampler.weights"
    if isinstance(weights, str):
        where, weights = f"column {weights!r}", column_of(metadata, weights, "weights")
    try:
        values = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} does not hold numbers: {error}") from error
    if values.shape != (length,):
        raise ConfigError(
            Problem("sampler.weights", f"{values.size} weights for {length} rows; give one a row")
        )
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if bad.size:
        raise DataError(
            f"{where}: the weight of row {bad[0]} is {values[bad[0]]}; "
            "weights must be finite and not negative"
        )
    if not values.any():
        raise DataError(f"{where}: all {length} weights are zero, so nothing could be drawn")
    return values


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
        long_tail: cut buckets where that saves padding (order/bucketing.py) instead of by equal
            counts; the build sets it for lengths of texts.
    """

    column_arguments = ("column",)

    def __init__(
        self,
        length: int,
        seed: int,
        metadata: Any,
        batch_size: int,
        tail: Tail = "keep",
        column: str = "length",
        tokens: int | None = None,
        num_buckets: int | None = None,
        long_tail: bool = False,
    ) -> None:
        lengths = np.asarray(column_of(metadata, column, "column"))
        if not np.issubdtype(lengths.dtype, np.number):
            raise DataError(f"column {column!r} does not hold numbers, so rows cannot be bucketed")
        self.seed = seed
        self._rows = np.argsort(lengths, kind="stable").astype(np.int64)
        sizes = bucket_sizes(lengths[self._rows], batch_size, tokens, num_buckets, long_tail)
        self._starts = np.concatenate([[0], np.cumsum([count for count, _ in sizes])])
        self._batch_sizes = [size for _, size in sizes]
        counts = [n // size if tail == "drop" else -(-n // size) for n, size in sizes]
        self._first_batch = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def size(self, epoch: int) -> int:
        return int(self._first_batch[-1])

    def batch(self, epoch: int, step: int) -> tuple[IntArray, IntArray]:
        order = Permutation(self.size(epoch), hash64(self.seed, "batches", epoch))
        number = int(order([step])[0])
        bucket = int(np.searchsorted(self._first_batch, number, side="right")) - 1
        first, last = int(self._starts[bucket]), int(self._starts[bucket + 1])
        size = self._batch_sizes[bucket]
        start = (number - int(self._first_batch[bucket])) * size
        places = np.arange(start, min(start + size, last - first))
        inside = Permutation(last - first, hash64(self.seed, "bucket", epoch, bucket))
        return first + places, self._rows[first + inside(places)]


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
        metadata: Any,
        column: str = "label",
        identities: int = 8,
        samples: int = 4,
        batches: int | None = None,
    ) -> None:
        values, codes, counts = np.unique(
            column_of(metadata, column, "column"), return_inverse=True, return_counts=True
        )
        if identities > len(values):
            raise ConfigError(
                Problem("sampler.identities", f"a batch wants {identities} identities, but column "
                        f"{column!r} has only {len(values)} different values")
            )  # fmt: skip
        self.seed = seed
        self.identities, self.samples = identities, samples
        self.group = samples
        self._rows = np.argsort(codes, kind="stable").astype(np.int64)
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._round = len(values) // identities  # batches in a round
        self._batches = batches or max(1, length // (identities * samples))

    def size(self, epoch: int) -> int:
        return self._batches

    def batch(self, epoch: int, step: int) -> tuple[IntArray, IntArray]:
        turn, group = divmod(step, self._round)
        order = Permutation(len(self._starts) - 1, hash64(self.seed, "identities", epoch, turn))
        chosen = order(np.arange(group * self.identities, (group + 1) * self.identities))
        rows = np.concatenate([self._rows_of(epoch, turn, int(identity)) for identity in chosen])
        return step * len(rows) + np.arange(len(rows), dtype=np.int64), rows

    def _rows_of(self, epoch: int, turn: int, identity: int) -> IntArray:
        first, last = int(self._starts[identity]), int(self._starts[identity + 1])
        order = Permutation(last - first, hash64(self.seed, "identity", epoch, identity))
        places = (turn * self.samples + np.arange(self.samples)) % (last - first)
        return self._rows[first + order(places)]
