"""Which rows of a long file train and which validate, evaluated instead of listed.

`reading.split` sorts hashes of all rows, 8 bytes and more each. A file of 10^8 records needs a
rule that is computed where it is asked: the rows are cut into as many runs of (nearly) equal length
as rows shall validate, and of each run one row does, chosen by a keyed hash. So the share is exact,
and validation is spread evenly over the file. Cost: constant memory, about 20 us a call and 50 ns a
row. Rows are numbers in the file: the same data in another order is split otherwise.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from pipeline.datasets.reading.split import check_split
from pipeline.order.randomness import IntArray, hash64, hash64_array


class RowSplit:
    """The rows of one split, ascending.

    Args:
        total: rows in all, at most 2^31.
        split: "train" or "val".
        val_fraction: share of the rows that validate, in [0, 1]. Between the ends and with two rows
            or more, neither split is empty.
        seed: another seed, another split.

    Raises:
        ConfigError: `split` or `val_fraction` is out of range.
    """

    def __init__(self, total: int, split: str, val_fraction: float, seed: int) -> None:
        check_split(split, val_fraction)
        count = math.floor(total * val_fraction + 0.5)
        if 0.0 < val_fraction < 1.0 and total >= 2:
            count = min(max(count, 1), total - 1)
        self.total = total
        self._runs = count  # as many as rows that validate
        self._train = split == "train"
        self._key = hash64(seed, "row split")

    def __len__(self) -> int:
        return self.total - self._runs if self._train else self._runs

    def rows(self, indices: npt.ArrayLike) -> IntArray:
        """Rows of the file at `indices` of this split: int64[n] for int64[n]."""
        wanted = np.asarray(indices, dtype=np.int64)
        if wanted.size and (int(wanted.min()) < 0 or int(wanted.max()) >= len(self)):
            raise IndexError(f"an index lies outside [0, {len(self)})")
        if not self._train:
            return self._chosen(wanted)
        if not self._runs:
            return wanted
        # Before run r come floor(r * trains / runs) rows that train; this is the last run r that
        # has no more than `wanted` of them before it.
        trains = self.total - self._runs
        run = ((wanted + 1) * self._runs - 1) // trains
        row = wanted + run  # as many rows were passed over as there are whole runs before
        return row + (row >= self._chosen(run))

    def _chosen(self, run: IntArray) -> IntArray:
        """The row of each run that validates."""
        first = run * self.total // self._runs
        width = (run + 1) * self.total // self._runs - first
        draws = hash64_array(self._key, run) >> np.uint64(1)
        return first + draws.astype(np.int64) % width
