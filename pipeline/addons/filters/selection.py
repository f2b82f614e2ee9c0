"""Rows that are kept of a dataset: their sorted numbers, 8 bytes each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from penstock.order.randomness import IntArray


class Selection:
    """Some rows out of `length`, in the order of the dataset.

    Args:
        masks: bool[n] each, True for rows that are kept; one after the other they are all rows.

    Attributes:
        length: rows before the selection.
        count: rows that are kept.
        rows: numbers of these, ascending: int64[count].
    """

    def __init__(self, masks: Iterable[npt.NDArray[np.bool_]]) -> None:
        mask = np.concatenate([np.zeros(0, np.bool_), *masks])
        self.length, self.rows = len(mask), np.flatnonzero(mask)
        self.count = len(self.rows)

    @property
    def fingerprint(self) -> str:
        """A hash (32 hex digits) of which rows are kept."""
        digest = hashlib.blake2b(f"{self.length}:".encode(), digest_size=16)
        digest.update(self.rows.data)
        return digest.hexdigest()

    def select(self, numbers: npt.ArrayLike) -> IntArray:
        """The rows that have `numbers` (int64[n]) among the kept ones: int64[n].

        Raises:
            IndexError: one is outside of [0, count).
        """
        chosen = np.asarray(numbers, dtype=np.int64)
        if chosen.size and (int(chosen.min()) < 0 or int(chosen.max()) >= self.count):
            raise IndexError(f"a number is outside [0, {self.count})")
        return self.rows[chosen]

    def row(self, number: int) -> int:
        """The same for one; raises IndexError."""
        if not 0 <= number < self.count:
            raise IndexError(f"there are {self.count} rows, not one numbered {number}")
        return int(self.rows[number])

    def mask(self) -> npt.NDArray[np.bool_]:
        """Whether each row is kept: bool[length]."""
        mask = np.zeros(self.length, np.bool_)
        mask[self.rows] = True
        return mask

    def rank(self, rows: npt.ArrayLike) -> IntArray:
        """How many kept rows come before each of `rows`: int64[n]. Of a kept row, its number."""
        return np.searchsorted(self.rows, rows)
