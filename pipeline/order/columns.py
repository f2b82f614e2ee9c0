"""Columns of a dataset's table, checked for samplers; and such that need no table in memory.

A dataset that tells `lengths` is sampled by them without a pandas table,
which for 10^9 rows would take 8 GB and a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError, DataError, Problem
from penstock.order.keys import IntArray

Column = Any  # whole numbers read by row, int64[n]: an array, a memory map or a `ColumnView`
_PIECE = 1 << 20  # rows that are read at once where all are wanted
_SMALLEST_WEIGHT = 2.0**-1000  # in units of the largest; quotients by it are finite


def column_of(
    metadata: Any, name: str, argument: str, section: str = "sampler"
) -> npt.NDArray[Any]:
    """A column of the dataset's table, checked to exist and to have no gaps.

    It is an array, or where a dataset tells `lengths` another `Column`.
    """
    if metadata is None or name not in metadata.columns:
        known = (
            "columns " + ", ".join(metadata.columns)
            if metadata is not None
            else (
                "no metadata: give it `metadata`, a table, or `targets`, a list of labels "
                "(docs/own_dataset.md)"
            )
        )
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


def weights_of(
    length: int, metadata: object, column: str | None, weights: str | npt.ArrayLike | None
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
    # A power of two changes no draw, and keeps their sum finite.
    scaled = np.ldexp(values, -np.frexp(values.max())[1])
    small = np.flatnonzero((values > 0) & (scaled < _SMALLEST_WEIGHT))
    if small.size:
        raise DataError(
            f"{where}: the weight of row {small[0]} is less than 2^-1000 of the largest, so it "
            "would never be drawn; make it larger, or 0"
        )
    return scaled


class ColumnView:
    """A column that is computed from others; as an array it is read in pieces."""

    dtype: np.dtype[Any]

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, rows: IntArray, /) -> npt.NDArray[Any]:
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        values = np.empty(len(self), self.dtype if dtype is None else dtype)
        for start in range(0, len(self), _PIECE):
            stop = min(start + _PIECE, len(self))
            values[start:stop] = self[np.arange(start, stop)]
        return values


class ChosenRows(ColumnView):
    """Some rows of a column, as a filter or a split leaves them; nothing is copied.

    Args:
        column: of all rows.
        count: rows that are left.
        rows: int64[n] of numbers below `count` -> the rows of `column` that they stand for.
    """

    def __init__(self, column: Column, count: int, rows: Callable[[IntArray], IntArray]) -> None:
        self.column, self.count, self.rows = column, count, rows
        self.dtype = column.dtype

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, rows: IntArray, /) -> npt.NDArray[Any]:
        return self.column[self.rows(np.asarray(rows, dtype=np.int64))]


class EndToEnd(ColumnView):
    """Several columns as one, as files or datasets are joined; nothing is copied."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        self.dtype = np.result_type(*(column.dtype for column in self.columns))
        self._starts = np.cumsum([0, *(len(column) for column in self.columns)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, rows: IntArray, /) -> npt.NDArray[Any]:
        rows = np.asarray(rows, dtype=np.int64)
        of = np.searchsorted(self._starts, rows, side="right") - 1
        values = np.empty(len(rows), self.dtype)
        for number in np.unique(of).tolist():
            mine = of == number
            values[mine] = self.columns[number][rows[mine] - self._starts[number]]
        return values


class LengthTable:
    """The columns that samplers read of a table, where they read no other than `length`."""

    columns = ("length",)

    def __init__(self, lengths: Column) -> None:
        self.lengths = lengths

    def __getitem__(self, name: str) -> Column:
        return self.lengths
