"""Which rows of a table belong to a split: all of them, a list, or `reading.row_split`'s."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from pipeline.order.randomness import IntArray


class TableRows(Protocol):
    """Rows of a table, ascending."""

    def __len__(self) -> int: ...

    def rows(self, indices: npt.ArrayLike) -> IntArray:
        """Rows of the table at `indices` of the split: int64[n] for int64[n]."""


class AllRows:
    """Every row of a table.

    Args:
        total: rows of the table.
    """

    def __init__(self, total: int) -> None:
        self._total = total

    def __len__(self) -> int:
        return self._total

    def rows(self, indices: npt.ArrayLike) -> IntArray:
        return np.asarray(indices, dtype=np.int64)


class ListedRows:
    """Rows that are listed, 8 bytes each.

    Args:
        listed: int64[n], ascending.
    """

    def __init__(self, listed: IntArray) -> None:
        self._listed = listed

    def __len__(self) -> int:
        return len(self._listed)

    def rows(self, indices: npt.ArrayLike) -> IntArray:
        return self._listed[np.asarray(indices, dtype=np.int64)]


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
