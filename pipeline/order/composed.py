"""Orders that are made of others, or of stages: a curriculum, and rows that come several times."""

from __future__ import annotations

import numpy as np

from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Count
from penstock.order.permutation import Permutation
from penstock.order.randomness import IntArray, hash64
from penstock.order.samplers import Order, Random, column_of


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
        if not 1 <= stages <= max(length, 1):
            raise ConfigError(
                Problem("sampler.stages", f"{stages}; allowed: 1 to {length}, the number of rows")
            )
        values = np.asarray(column_of(metadata, column, "column"))
        if values.dtype.kind not in "biuf":
            raise DataError(f"column {column!r} does not hold numbers, so rows cannot be ordered")
        keys = -values.astype(np.float64) if descending else values
        self._rows = np.argsort(keys, kind="stable").astype(np.int64)
        self._edges = np.arange(stages + 1) * length // stages
        self.seed = seed

    def size(self, epoch: int) -> int:
        return len(self._rows)

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        positions = np.arange(start, stop, dtype=np.int64)
        stage = np.searchsorted(self._edges, positions, side="right") - 1
        rows = np.empty(len(positions), np.int64)
        for number in np.unique(stage).tolist():
            first, last = int(self._edges[number]), int(self._edges[number + 1])
            order = Permutation(last - first, hash64(self.seed, "stage", epoch, number))
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
            low = batch_size // max(times, 1) * times
            ways = " or ".join(str(even) for even in (low, low + times) if even > 0)
            raise ConfigError(
                Problem(
                    "sampler.times",
                    f"{times} does not divide batch.size={batch_size}, so a row's repetitions "
                    f"would be in two batches; take batch.size={ways}",
                )
            )
        self.times, self.order, self.shorten = times, order or Random(length, seed), shorten
        self._rows = batch_size // times  # of the other order, in a batch
        size = self.order.size(0)
        if size and not self._distinct(0):
            raise ConfigError(
                Problem(
                    "sampler.times",
                    f"{times} repetitions do not fit into an epoch as long as "
                    f"the {size} rows that are repeated; set sampler.shorten=false",
                )
            )

    @property
    def even(self) -> bool:
        return self.order.even

    def size(self, epoch: int) -> int:
        return self._distinct(epoch) * self.times

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        batch, slot = np.divmod(np.arange(start, stop, dtype=np.int64), self._rows * self.times)
        first, distinct = batch * self._rows, self._distinct(epoch)
        others = first + slot % np.minimum(self._rows, distinct - first)
        if not len(others):
            return others
        low, high = int(others.min()), int(others.max()) + 1
        return self.order.indices(epoch, low, high)[others - low]

    def _distinct(self, epoch: int) -> int:
        size = self.order.size(epoch)
        return size // self.times if self.shorten else size
