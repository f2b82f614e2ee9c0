"""Which rows train and which validate."""

from __future__ import annotations

import hashlib
import math
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError, Problem
from penstock.order.randomness import IntArray, hash64, hash64_array

Split = Literal["train", "val"]
Names = npt.NDArray[np.bytes_]


def check_split(split: str, val_fraction: float = 0.0) -> None:
    """Raise ConfigError unless `split` is "train" or "val" and `val_fraction` lies in [0, 1]."""
    if split not in ("train", "val"):
        raise ConfigError(Problem("dataset.split", f"{split!r} is neither 'train' nor 'val'"))
    if not 0.0 <= val_fraction <= 1.0:
        raise ConfigError(
            Problem("dataset.val_fraction", f"{val_fraction} is out of range; allowed: 0 to 1")
        )


def split_rows(
    names: Names | int,
    split: str,
    val_fraction: float,
    seed: int,
    labels: IntArray | None = None,
) -> IntArray:
    """Rows of one split, ascending: int64[n].

    Rows are ranked by a keyed hash of their names and the lowest ranks validate, so

    - the order of rows in a CSV or of files in a folder changes nothing;
    - the share is exact (to the nearest sample), overall and, within one sample, in every class;
    - a larger `val_fraction` adds validation rows and keeps those there were.

    Cost: about 1 us a name.

    Args:
        names: bytes[N], unique; or N for rows without names, which are ranked by row number.
        split: "train" or "val".
        val_fraction: share of the rows that validate, in [0, 1]. Between the ends and with two rows
            or more, neither split is empty.
        seed: another seed, another split.
        labels: int64[N]; each label then gives its share of the validation rows.

    Raises:
        ConfigError: `split` or `val_fraction` is out of range.
    """
    check_split(split, val_fraction)
    if isinstance(names, int):
        numbers = np.arange(names, dtype=np.uint64)
    else:
        digests = (hashlib.blake2b(name, digest_size=8).digest() for name in names.tolist())
        numbers = np.frombuffer(b"".join(digests), dtype="<u8")
    keys = hash64_array(hash64(seed, "split"), numbers)
    if labels is None:
        order = np.argsort(keys, kind="stable")
    else:
        # By a row's rank within its label over the size of that label, ties by key: any first part
        # of this order takes about that part of each label.
        by_label = np.lexsort((keys, labels))
        _, starts, sizes = np.unique(labels[by_label], return_index=True, return_counts=True)
        ranks = np.arange(len(keys)) - np.repeat(starts, sizes)
        places = np.empty(len(keys), dtype=np.float64)
        places[by_label] = (ranks + 0.5) / np.repeat(sizes, sizes)
        order = np.lexsort((keys, places))
    count = _val_count(len(keys), val_fraction)
    chosen = order[:count] if split == "val" else order[count:]
    return np.sort(chosen).astype(np.int64)


def _val_count(total: int, val_fraction: float) -> int:
    count = math.floor(total * val_fraction + 0.5)
    if 0.0 < val_fraction < 1.0 and total >= 2:
        count = min(max(count, 1), total - 1)
    return count


class TableRows(Protocol):
    """Rows of a table, ascending."""

    def __len__(self) -> int: ...

    def rows(self, indices: npt.ArrayLike) -> IntArray:
        """Rows of the table at `indices` of the split: int64[n] for int64[n]."""


class AllRows:
    """Every one of `total` rows."""

    def __init__(self, total: int) -> None:
        self._total = total

    def __len__(self) -> int:
        return self._total

    def rows(self, indices: npt.ArrayLike) -> IntArray:
        return np.asarray(indices, dtype=np.int64)


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
    over the file. Cost: constant memory, about 20 us a call and 50 ns a row. Rows are numbers in
    the file: the same data in another order is split differently.

    Args:
        total: rows in all, at most 2^31.
        split, val_fraction, seed: as for `split_rows`.

    Raises:
        ConfigError: `split` or `val_fraction` is out of range.
    """

    def __init__(self, total: int, split: str, val_fraction: float, seed: int) -> None:
        check_split(split, val_fraction)
        self.total = total
        self._runs = _val_count(total, val_fraction)  # as many as rows that validate
        self._train = split == "train"
        self._key = hash64(seed, "row split")

    def __len__(self) -> int:
        return self.total - self._runs if self._train else self._runs

    def rows(self, indices: npt.ArrayLike) -> IntArray:
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
        row = wanted + run  # each whole run before it left out one row
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
