"""Some rows of a map-style dataset as a dataset: what a filter leaves, numbered anew from 0.

The sampler, the plan and the ledger know the new numbers; messages, tables and quarantine files
name the dataset's own row beside it or in its place. Cost: a bit a row (selection.py), and
5 us a sample that is read alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Subset

from penstock.addons.filters.selection import Selection
from penstock.errors import DataError
from penstock.loading.wrapped import SomeRows
from penstock.order.columns import ColumnView
from penstock.order.randomness import IntArray

if TYPE_CHECKING:
    from penstock.protocols import Column

_OF_A_ROW = frozenset({"path", "check"})  # methods of one row
_OF_ROWS = frozenset({"locality", "files_of", "fetch_batch"})  # of several
_A_ROW_EACH = frozenset({"targets", "labels", "_labels", "samples", "imgs"})
_MARK = " kept="  # in a fingerprint
_AT_ONCE = 1 << 20  # rows of a column that are read together


class KeptRows(SomeRows):
    """The rows of a map-style dataset that a selection keeps.

    Args:
        dataset: with `len()` and rows by index.
        selection: of its rows.
        reasons: how many rows were left out, by why.

    Raises:
        DataError: nothing is left.
    """

    def __init__(self, dataset: Any, selection: Selection, reasons: Mapping[str, int]) -> None:
        if not selection.count:
            why = ", ".join(f"{count} by {reason}" for reason, count in reasons.items() if count)
            raise DataError(f"none of {selection.length} samples is left: {why}")
        self.dataset, self.selection, self.reasons = dataset, selection, dict(reasons)

    def __len__(self) -> int:
        return self.selection.count

    def row(self, index: int) -> int:
        return self.selection.row(index)

    def places(self, rows: Sequence[int]) -> dict[int, int]:
        kept = [
            row for row, is_kept in zip(rows, self.selection.kept(rows), strict=True) if is_kept
        ]
        return dict(zip(self.selection.rank(kept).tolist(), kept, strict=True))

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.selection.row(index)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":  # copy and pickle look before there is one
            raise AttributeError(name)
        member = getattr(self.dataset, name)
        if name in _OF_A_ROW and callable(member):
            return lambda index: member(self.selection.row(index))
        if name in _OF_ROWS and callable(member):
            return lambda indices, **options: member(self.selection.select(indices), **options)
        if name == "names_fingerprint":
            return lambda: self.told(member())
        if name == "text_lengths":
            return lambda *how: _taken(member(*how), self._mask)
        if name in _A_ROW_EACH and hasattr(member, "__len__") and len(member) == len(self._mask):
            return _taken(member, self._mask)
        return member

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "metadata"}

    @property
    def _mask(self) -> npt.NDArray[np.bool_]:
        return self.selection.mask(0, self.selection.length)

    @cached_property
    def metadata(self) -> Any:
        """The rows of the dataset's table that are kept, numbered anew."""
        table = self.dataset.metadata
        if not hasattr(table, "iloc"):
            return table
        return table.iloc[np.flatnonzero(self._mask)].reset_index(drop=True)

    def column(self, column: Column) -> KeptColumn:
        return KeptColumn(column, self.selection)

    @property
    def lengths(self) -> KeptColumn:
        """The dataset's `lengths` of the kept rows, looked up as they are asked for."""
        return self.column(self.dataset.lengths)

    @property
    def source_lengths(self) -> Any:
        """How many rows of each source of a mixture are kept."""
        lengths = self.dataset.source_lengths
        counts = list(lengths.values() if isinstance(lengths, Mapping) else lengths)
        edges = self.selection.rank(np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]))
        kept = np.diff(edges).tolist()
        return dict(zip(lengths, kept, strict=True)) if isinstance(lengths, Mapping) else kept

    @property
    def fingerprint(self) -> str:
        """The dataset's, and which rows of it are kept."""
        return self.told(getattr(self.dataset, "fingerprint", None) or len(self.dataset))

    def told(self, fingerprint: Any) -> str:
        chosen = self.selection
        return f"{fingerprint}{_MARK}{chosen.count}/{chosen.length}:{chosen.fingerprint}"

    def untold(self, fingerprint: str) -> str:
        return fingerprint.rpartition(_MARK)[0]


class KeptRowsAtOnce(KeptRows):
    """The same of a dataset that reads many rows at once."""

    def __getitems__(self, indices: Sequence[int]) -> Any:
        return self.dataset.__getitems__(self.selection.select(indices).tolist())


class KeptTokens(KeptRowsAtOnce):
    """The same of a dataset that writes tokens where they belong."""

    def read_tokens(
        self, into: IntArray, places: IntArray, indices: IntArray, starts: IntArray, stops: IntArray
    ) -> None:
        rows = self.selection.select(indices)
        self.dataset.read_tokens(into, places, rows, starts, stops)


class KeptColumn(ColumnView):
    """The values of kept rows in a column of all rows; nothing is copied."""

    def __init__(self, column: Column, selection: Selection) -> None:
        self._column, self._selection = column, selection
        self.dtype = column.dtype

    def __len__(self) -> int:
        return self._selection.count

    def __getitem__(self, rows: IntArray, /) -> npt.NDArray[Any]:
        return np.asarray(self._column[self._selection.select(rows)])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        values = np.empty(len(self), self.dtype if dtype is None else dtype)
        filled = 0
        for start in range(0, self._selection.length, _AT_ONCE):
            mask = self._selection.mask(start, min(start + _AT_ONCE, self._selection.length))
            kept = self._column[start + np.flatnonzero(mask)]
            values[filled : filled + len(kept)] = kept
            filled += len(kept)
        return values


def kept_rows(dataset: Any, selection: Selection, reasons: Mapping[str, int]) -> KeptRows:
    """The rows of `dataset` that are kept; see `KeptRows`."""
    # torch's Subset only loops over `__getitem__` there, see `Fetch`.
    many = hasattr(dataset, "__getitems__") and not isinstance(dataset, Subset)
    kind = KeptRowsAtOnce if many else KeptRows
    kind = KeptTokens if many and hasattr(type(dataset), "read_tokens") else kind
    return kind(dataset, selection, reasons)


def _taken(values: Any, mask: npt.NDArray[np.bool_]) -> Any:
    """The values of the rows of a mask: a list of a list, else what indexing gives."""
    rows: IntArray = np.flatnonzero(mask)
    if isinstance(values, (list, tuple)):
        return [values[row] for row in rows.tolist()]
    return values[rows]
