"""`filter`, `unique` and `without` of a dataset: which of its rows a run uses.

1. `filter`: rows for which every expression, or function of the table, holds.
2. `unique`: of these, the first with its value in a column; rows without a value stay.
3. `without`: rows that a list or a quarantine file names are left out.

In this order: a row that is left out by name is not replaced by its duplicate. Rows are looked at
in pieces, and a bit of each is kept.

Some rows of a map-style dataset as a dataset: what a filter leaves, numbered anew from 0.

The sampler, the plan and the ledger know the new numbers; messages, tables and quarantine files
name the dataset's own row beside it or in its place. Cost: a bit a row (selection.py), and
5 us a sample that is read alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Subset

from penstock.addons.filters.row_filter import Expression, no_column
from penstock.addons.filters.selection import Selection
from penstock.config.instantiate import make
from penstock.config.nodes import filters
from penstock.errors import ConfigError, DataError, Problem
from penstock.loading.dataset_facts import columns_of, lengths_of, table_of
from penstock.loading.named_fields import Fields
from penstock.loading.wrapped import SomeRows
from penstock.order.columns import ColumnView
from penstock.order.randomness import IntArray
from penstock.order.streams import is_stream
from penstock.runs import quarantine

if TYPE_CHECKING:
    from penstock.protocols import Column

_AT_ONCE = 1 << 16  # rows
_SHOWN = 60  # characters of an expression

Mask = npt.NDArray[np.bool_]
Holds = Callable[[int, int], Mask]  # for rows start .. stop-1
Reasons = dict[str, int]
Fingerprint = Callable[[object], str]


class RowChoice:
    """The filters that the configuration has for a dataset's rows.

    Args:
        given: the keys `filter`, `unique` and `without`, by the key that they stand below.
        split: "train" or "val". A list of rows in `without` is of the training split, unless it
            stands below `dataset.val`.
        fields: names for samples that are no dicts.
        fingerprint: dataset -> fingerprint, for quarantine files; None: by path alone.
    """

    def __init__(
        self,
        chosen: Mapping[str, Mapping[str, Any]],
        split: str,
        fields: Fields | None = None,
        fingerprint: Fingerprint | None = None,
    ) -> None:
        self.given = {
            f"{key}.{name}": value
            for key, node in chosen.items()
            for name, value in node.items()
            if value is not None
        }
        self._split, self._fields, self._fingerprint = split, fields, fingerprint

    def of(self, dataset: Any) -> tuple[Any, Reasons]:
        """The rows of `dataset` that are chosen, and how many were left out by what.

        It is `dataset` itself if no row was.

        Raises:
            ConfigError: a column or a row does not exist, a function gives no mask, or the dataset
                has no rows by index.
            DataError: nothing is left.
        """
        if not self.given:
            return dataset, {}
        if is_stream(dataset) or not hasattr(dataset, "__getitem__"):
            key, kind = next(iter(self.given)), type(dataset).__name__
            raise ConfigError(Problem(key, f"chooses rows by index, and {kind} has none"))
        length, reasons = len(dataset), dict[str, int]()
        table = _table(dataset, self._fields or Fields())
        named = list(self._filters(table, dataset, length))
        reasons |= dict.fromkeys((name for name, _ in named), 0)
        masks = _all_hold(named, length, reasons)
        for key, column in self._values("unique"):
            reasons[f"{key} ({column})"] = 0
            masks = _first_of_each(masks, table, column, key, reasons)
        for key, value in self._values("without"):
            rows = self._named(key, value, dataset, length)
            reasons[key] = 0
            masks = _without(masks, rows, key, reasons)
        selection = Selection(masks)
        if selection.count == length:
            return dataset, reasons
        return kept_rows(dataset, selection, reasons), reasons

    def _values(self, name: str) -> Iterator[tuple[str, Any]]:
        return (item for item in self.given.items() if item[0].rpartition(".")[2] == name)

    def _filters(self, table: Any, dataset: Any, length: int) -> Iterator[tuple[str, Holds]]:
        """Name and masks of each filter."""
        for key, value in self._values("filter"):
            for where, condition in filters({"filter": value}, key.rpartition(".")[0]):
                if isinstance(condition, str):
                    holds = _holds(Expression(condition, where), table, length)
                    shown = condition if len(condition) <= _SHOWN else f"{condition[:_SHOWN]}..."
                    yield f"{where} ({shown})", holds
                else:
                    function = make({**condition, "_partial_": True}, where)
                    mask = _by_function(function, table if hasattr(table, "iloc") else dataset)
                    yield f"{where} ({condition['_target_']})", _checked(mask, length, where).mask

    def _named(self, key: str, value: Any, dataset: Any, length: int) -> list[int]:
        """The rows that `without` names in this split, ascending."""
        if isinstance(value, str):
            fingerprint = "" if self._fingerprint is None else self._fingerprint(dataset)
            try:
                known = quarantine.known_rows(value, dataset, self._split, fingerprint)
            except ConfigError as error:
                raise ConfigError(
                    [Problem(key, problem.message) for problem in error.problems]
                ) from None
            return sorted(known)
        of = "val" if key.split(".")[1] == "val" else "train"
        by_split = value if isinstance(value, Mapping) else {of: value}
        rows = sorted(set(by_split.get(self._split) or ()))
        for row in rows:
            if not 0 <= row < length:
                reason = f"row {row} does not exist; the {self._split} split has {length} rows"
                raise ConfigError(Problem(key, reason))
        return rows


def _table(dataset: object, fields: Fields) -> object:
    """The table of a dataset: pandas', or where it only tells `lengths`, that column by name."""
    lengths = None if hasattr(dataset, "metadata") else lengths_of(dataset)
    if lengths is None:
        return table_of(dataset, fields)
    return {"length": lengths, **columns_of(dataset, fields)}


def _all_hold(named: Sequence[tuple[str, Holds]], length: int, reasons: Reasons) -> Iterator[Mask]:
    """A mask for each piece; counts in `reasons` what the first filter leaves out, and so on."""
    for start in range(0, length, _AT_ONCE):
        stop = min(start + _AT_ONCE, length)
        mask = np.ones(stop - start, np.bool_)
        for name, holds in named:
            holding = holds(start, stop)
            reasons[name] += int((mask & ~holding).sum())
            mask &= holding
        yield mask


def _holds(expression: Expression, table: object, length: int) -> Holds:
    if table is None or not expression.by_row:
        every = table if table is None else _Piece(table, 0, length)
        return _checked(expression.mask(every), length, expression.key).mask
    expression.check(list(columns_of_table(table)))
    return lambda start, stop: expression.mask(_Piece(table, start, stop))


class _Piece:
    """Some rows of a table."""

    def __init__(self, table: Any, start: int, stop: int) -> None:
        self._table, self._rows = table, slice(start, stop)
        self.columns = columns_of_table(table)

    def __len__(self) -> int:
        return self._rows.stop - self._rows.start

    def __getitem__(self, name: str) -> Any:
        column = self._table[name]
        if hasattr(column, "iloc"):
            return column.iloc[self._rows]
        return column[np.arange(self._rows.start, self._rows.stop)]


def columns_of_table(table: Any) -> list[str]:
    """Names of the columns of a table, or of columns by name."""
    return [str(name) for name in getattr(table, "columns", table)]


def _by_function(function: Any, table: Any) -> Any:
    try:
        return function(table)
    except Exception as error:
        error.add_note("while filtering the rows of the dataset")
        raise


def _checked(result: object, length: int, key: str) -> Selection:
    """The answers of a function: bool[length], or such arrays one after the other."""
    pieces: Iterable[object] = result if isinstance(result, Iterator) else [result]

    def masks() -> Iterator[Mask]:
        for piece in pieces:
            mask = np.asarray(piece)
            if mask.dtype != np.bool_ or mask.ndim != 1:
                raise ConfigError(
                    Problem(
                        key,
                        f"gave {type(piece).__name__} of {mask.dtype} {mask.shape}, "
                        "and a filter gives true or false for each row: bool[n]",
                    )
                )
            yield mask

    selection = Selection(masks())
    if selection.length != length:
        reason = f"gave true or false for {selection.length} rows, and there are {length}"
        raise ConfigError(Problem(key, reason))
    return selection


def _first_of_each(
    masks: Iterator[Mask], table: Any, column: str, key: str, reasons: Reasons
) -> Iterator[Mask]:
    known = [] if table is None else columns_of_table(table)
    if column not in known:
        reason = no_column(column, known) if known else "the dataset has no table of metadata"
        raise ConfigError(Problem(key, reason))
    import pandas as pd

    mask = np.concatenate([*masks, np.zeros(0, np.bool_)])
    rows = np.flatnonzero(mask)
    values = pd.Series(np.asarray(table[column])[rows])
    again = (values.duplicated(keep="first") & values.notna()).to_numpy()
    mask[rows[again]] = False
    reasons[f"{key} ({column})"] = int(again.sum())
    yield mask


def _without(
    masks: Iterator[Mask], rows: Sequence[int], key: str, reasons: Reasons
) -> Iterator[Mask]:
    left, start = np.asarray(rows, np.int64), 0
    for mask in masks:
        rows_here = (
            left[np.searchsorted(left, start) : np.searchsorted(left, start + len(mask))] - start
        )
        reasons[key] += int(mask[rows_here].sum())
        mask[rows_here] = False
        start += len(mask)
        yield mask


_OF_A_ROW = frozenset({"path", "check"})  # methods of one row
_OF_ROWS = frozenset({"locality", "files_of", "fetch_batch"})  # of several
_A_ROW_EACH = frozenset({"targets", "labels", "_labels", "samples", "imgs"})
_MARK = " kept="  # in a fingerprint
_ROWS_AT_ONCE = 1 << 20  # rows of a column that are read together


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

    def __getattr__(self, name: str) -> object:
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

    def __getstate__(self) -> dict[str, object]:
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
    def source_lengths(self) -> object:
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

    def told(self, fingerprint: object) -> str:
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
        for start in range(0, self._selection.length, _ROWS_AT_ONCE):
            mask = self._selection.mask(start, min(start + _ROWS_AT_ONCE, self._selection.length))
            kept = self._column[start + np.flatnonzero(mask)]
            values[filled : filled + len(kept)] = kept
            filled += len(kept)
        return values


def kept_rows(dataset: object, selection: Selection, reasons: Mapping[str, int]) -> KeptRows:
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
