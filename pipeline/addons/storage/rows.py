"""Rows of a long file that train or validate, computed instead of listed."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.datasets.reading.base import check_split, val_count
from penstock.order.keys import IntArray, hash64, hash64_array


class TableRows(Protocol):
    """Rows of a table, ascending."""

    def __len__(self) -> int: ...

    def rows(self, indices: npt.ArrayLike) -> IntArray:
        """Rows of the table at `indices` of the split: int64[n] for int64[n]."""


class ListedRows:
    """The rows `listed` (int64[n], ascending), 8 bytes each."""

    def __init__(self, listed: IntArray) -> None:
        self._listed = listed

    def __len__(self) -> int:
        return len(self._listed)

    def rows(self, indices: npt.ArrayLike) -> IntArray:
        return self._listed[np.asarray(indices, dtype=np.int64)]


class RowSplit:
    """The rows of one split of a long file, computed instead of listed.

    The rows are cut into as many runs of (nearly) equal length as rows shall validate, and of each
    run one row does, chosen by a keyed hash. So the share is exact and validation is spread evenly
    over the file. The rows of a test are chosen in the same way among those that are left, so they
    change none that validates. Cost: constant memory, about 20 us a call and 50 ns a row. Rows are
    numbers in the file: the same data in another order is split differently.

    Args:
        total: rows in all, at most 2^31.
        split, val_fraction, seed, test_fraction: as for `split_rows`; without them, all rows train.

    Raises:
        ConfigError: `split` or a share is out of range.
    """

    def __init__(
        self,
        total: int,
        split: str = "train",
        val_fraction: float = 0.0,
        seed: int = 0,
        test_fraction: float = 0.0,
    ) -> None:
        check_split(split, val_fraction, test_fraction)
        self.total = total
        self._runs = val_count(total, val_fraction)  # as many as rows that validate
        self._train = split != "val"
        self._key = hash64(seed, "row split")
        left = total - self._runs
        tests = min(val_count(total, test_fraction), left)
        self._inner: RowSplit | None = None
        if self._train and (tests or split == "test"):
            # Which of the rows that do not validate are kept for the test.
            self._inner = RowSplit(left, seed=hash64(seed, "test"))
            self._inner._runs, self._inner._train = tests, split == "train"

    def __len__(self) -> int:
        if self._inner is not None:
            return len(self._inner)
        return self.total - self._runs if self._train else self._runs

    def rows(self, indices: npt.ArrayLike) -> IntArray:
        numbers = np.asarray(indices, dtype=np.int64)
        if numbers.size and (int(numbers.min()) < 0 or int(numbers.max()) >= len(self)):
            raise IndexError(f"an index is outside [0, {len(self)})")
        if self._inner is not None:
            numbers = self._inner.rows(numbers)
        if not self._train:
            return self._chosen(numbers)
        if not self._runs:
            return numbers
        # Before run r come floor(r * trains / runs) rows that train; this is the last run r that
        # has no more than `wanted` of them before it.
        trains = self.total - self._runs
        run = ((numbers + 1) * self._runs - 1) // trains
        row = numbers + run  # each whole run before it left out one row
        return row + (row >= self._chosen(run))

    def _chosen(self, run: IntArray) -> IntArray:
        """The row of each run that validates."""
        first = run * self.total // self._runs
        width = (run + 1) * self.total // self._runs - first
        draws = hash64_array(self._key, run) >> np.uint64(1)
        return first + draws.astype(np.int64) % width


def rows_before(rows: TableRows, bounds: IntArray) -> IntArray:
    """How many of `rows` lie before each of `bounds`: int64[n] for int64[n].

    By halving, for all bounds at once: about 30 calls of `rows.rows`.
    """
    low, high = np.zeros(len(bounds), np.int64), np.full(len(bounds), len(rows), np.int64)
    while (open_ := low < high).any():
        middle = (low + high) // 2
        before = np.zeros(len(bounds), bool)
        before[open_] = rows.rows(middle[open_]) < bounds[open_]
        low, high = np.where(before, middle + 1, low), np.where(before | ~open_, high, middle)
    return low


def no_column(name: object, known: Sequence[str]) -> str:
    """A message about a column that is not there."""
    near = get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"there is no column {name!r}{hint} (there are {', '.join(known)})"
