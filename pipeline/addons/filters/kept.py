"""`data.filter`, `unique` and `without`: which rows of a dataset a run uses.

1. `filter`: rows for which every expression, or function of the table, holds.
2. `unique`: of these, the first with its value in a column; rows without a value stay.
3. `without`: rows that a list or a quarantine file names are left out.

In this order: a row that is left out by name is not replaced by its duplicate.

Some rows of a map-style dataset as a dataset: what a filter leaves, numbered anew from 0.

The sampler, the plan and the ledger know the new numbers; messages, tables and quarantine files
name the dataset's own row beside it or in its place. Cost: 8 bytes a kept row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Subset

from penstock.addons.filters.expressions import Expression, Mask, columns_of_table, no_column
from penstock.config.schema import DataSection
from penstock.config.targets import make
from penstock.errors import ConfigError, DataError, Problem
from penstock.loading.facts import KEPT, SomeRows, columns_of, table_of
from penstock.loading.fields import Fields
from penstock.order.keys import IntArray
from penstock.order.plan import is_stream
from penstock.runs import quarantine

if TYPE_CHECKING:
    from penstock.build.data import Split
import hashlib
from collections.abc import Iterable


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


_SHOWN = 60  # characters of an expression

Reasons = dict[str, int]

Fingerprint = Callable[[object], str]


class RowChoice:
    """The filters that the configuration has for a dataset's rows.

    Args:
        given: the values of `filter` (or `val_filter`), `unique` and `without`, by full key.
        split: "train", "val" or "test". A list of rows in `without` is of the training split.
        fields: names for samples that are no dicts.
        fingerprint: dataset -> fingerprint, for quarantine files; None: by path alone.
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        split: str,
        fields: Fields | None = None,
        fingerprint: Fingerprint | None = None,
    ) -> None:
        self.given = {key: value for key, value in given.items() if value is not None}
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
        mask = np.ones(length, np.bool_)
        for name, holds in self._filters(table, dataset, length):
            reasons[name] = int((mask & ~holds).sum())
            mask &= holds
        for key, column in self._values("unique"):
            again = _repeated(mask, table, column, key)
            reasons[f"{key} ({column})"] = len(again)
            mask[again] = False
        for key, value in self._values("without"):
            rows = np.asarray(self._named(key, value, dataset, length), np.int64)
            reasons[key] = int(mask[rows].sum())
            mask[rows] = False
        selection = Selection([mask])
        if selection.count == length:
            return dataset, reasons
        return kept_rows(dataset, selection, reasons), reasons

    def _values(self, name: str) -> Iterator[tuple[str, Any]]:
        return (item for item in self.given.items() if item[0].endswith(name))

    def _filters(self, table: Any, dataset: Any, length: int) -> Iterator[tuple[str, Mask]]:
        """Name and mask of each filter."""
        for key, value in self._values("filter"):
            several = isinstance(value, list)
            for number, condition in enumerate(value if several else [value]):
                where = f"{key}[{number}]" if several else key
                if isinstance(condition, str):
                    mask = Expression(condition, where).mask(table)
                    shown = condition if len(condition) <= _SHOWN else f"{condition[:_SHOWN]}..."
                    yield f"{where} ({shown})", _checked(mask, length, where)
                    continue
                function, shown = condition, "a function"
                if isinstance(condition, Mapping):
                    function = make({**condition, "_partial_": True}, where)
                    shown = condition["_target_"]
                mask = _by_function(function, table if hasattr(table, "iloc") else dataset)
                yield f"{where} ({shown})", _checked(mask, length, where)

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
        by_split = value if isinstance(value, Mapping) else {"train": value}
        rows = sorted(set(by_split.get(self._split) or ()))
        for row in rows:
            if not 0 <= row < length:
                reason = f"row {row} does not exist; the {self._split} split has {length} rows"
                raise ConfigError(Problem(key, reason))
        return rows


def _table(dataset: object, fields: Fields) -> object:
    """The table of a dataset: pandas', or where it only tells `lengths`, that column by name."""
    columns = {} if hasattr(dataset, "metadata") else columns_of(dataset, fields)
    return columns if "length" in columns else table_of(dataset, fields)


def _by_function(function: Any, table: Any) -> Any:
    try:
        return function(table)
    except Exception as error:
        error.add_note("while filtering the rows of the dataset")
        raise


def _checked(result: object, length: int, key: str) -> Mask:
    """The answers of a function: bool[length], or such arrays one after the other."""
    pieces = list(result) if isinstance(result, Iterator) else [result]
    masks = [np.asarray(piece) for piece in pieces]
    for mask, piece in zip(masks, pieces, strict=True):
        if mask.dtype != np.bool_ or mask.ndim != 1:
            reason = (
                f"gave {type(piece).__name__} of {mask.dtype} {mask.shape}, "
                "and a filter gives true or false for each row: bool[n]"
            )
            raise ConfigError(Problem(key, reason))
    if sum(map(len, masks)) != length:
        reason = f"gave true or false for {sum(map(len, masks))} rows, and there are {length}"
        raise ConfigError(Problem(key, reason))
    return np.concatenate([np.zeros(0, np.bool_), *masks])


def _repeated(mask: Mask, table: Any, column: str, key: str) -> IntArray:
    """Those rows of a mask whose value in a column stands in an earlier one of them, too."""
    known = [] if table is None else columns_of_table(table)
    if column not in known:
        reason = no_column(column, known) if known else "the dataset has no table of metadata"
        raise ConfigError(Problem(key, reason))
    import pandas as pd

    rows = np.flatnonzero(mask)
    values = pd.Series(np.asarray(table[column])[rows])
    return rows[(values.duplicated(keep="first") & values.notna()).to_numpy()]


_OF_A_ROW = frozenset({"path", "check", "about"})  # methods of one row

_OF_ROWS = frozenset({"files_of", "fetch_batch"})  # of several

_A_ROW_EACH = frozenset({"targets", "labels", "_labels", "samples", "imgs"})


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
        self.rows = selection.rows

    def __len__(self) -> int:
        return self.selection.count

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
            return lambda: self.fingerprint_with(member())
        if name == "text_lengths":
            return lambda *how: _taken(member(*how), self.selection.rows)
        whole = self.selection.length
        if name in _A_ROW_EACH and hasattr(member, "__len__") and len(member) == whole:
            return _taken(member, self.selection.rows)
        return member

    def __getstate__(self) -> dict[str, object]:
        cached = ("metadata", "lengths")
        return {name: value for name, value in vars(self).items() if name not in cached}

    @cached_property
    def metadata(self) -> Any:
        """The rows of the dataset's table that are kept, numbered anew."""
        table = self.dataset.metadata
        if not hasattr(table, "iloc"):
            return table
        return table.iloc[self.selection.rows].reset_index(drop=True)

    @cached_property
    def lengths(self) -> npt.NDArray[Any]:
        """The dataset's `lengths` of the kept rows."""
        return np.asarray(self.dataset.lengths)[self.rows]

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
        return self.fingerprint_with(
            getattr(self.dataset, "fingerprint", None) or len(self.dataset)
        )

    def fingerprint_with(self, fingerprint: object) -> str:
        chosen = self.selection
        return f"{fingerprint}{KEPT}{chosen.count}/{chosen.length}:{chosen.fingerprint}"


class KeptRowsAtOnce(KeptRows):
    """The same of a dataset that reads many rows at once."""

    def __getitems__(self, indices: Sequence[int]) -> Any:
        return self.dataset.__getitems__(self.selection.select(indices).tolist())


class KeptTokens(KeptRowsAtOnce):
    """The same of a dataset that writes tokens where they belong."""

    def read_tokens(
        self, into: IntArray, places: IntArray, indices: IntArray, starts: IntArray, stops: IntArray
    ) -> Any:
        rows = self.selection.select(indices)
        return self.dataset.read_tokens(into, places, rows, starts, stops)


def kept_rows(dataset: object, selection: Selection, reasons: Mapping[str, int]) -> KeptRows:
    """The rows of `dataset` that are kept; see `KeptRows`."""
    # torch's Subset only loops over `__getitem__` there, see `Fetch`.
    many = hasattr(dataset, "__getitems__") and not isinstance(dataset, Subset)
    kind = KeptRowsAtOnce if many else KeptRows
    kind = KeptTokens if many and hasattr(type(dataset), "read_tokens") else kind
    return kind(dataset, selection, reasons)


def _taken(values: Any, rows: IntArray) -> Any:
    """The values of some rows: a list of a list, else what indexing gives."""
    if isinstance(values, (list, tuple)):
        return [values[row] for row in rows.tolist()]
    return values[rows]


def chosen_rows(split: Split, dataset: Any) -> Any:
    """The rows of a split's dataset that filters leave."""
    given = _given(split.config.data, split.is_train)
    return RowChoice(given, split.name, split.data.fields, split.fingerprint_of).of(dataset)[0]


def _given(data: DataSection, is_train: bool) -> dict[str, Any]:
    name = "filter" if is_train or data.val_filter is None else "val_filter"
    names = (name, "unique", "without")
    return {f"data.{name}": getattr(data, name) for name in names}
