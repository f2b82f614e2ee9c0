"""A table in memory as columns of Arrow: any file that `tables/read.py` reads, or a pandas frame.

A column of a CSV is numbers if all its cells are, beside those that stand for no value; whole ones
stay exact. Texts such as "NA" are names among texts, and no value among numbers and dates: in every
kind of file alike. Cost: 0.3 us a cell.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from penstock.addons.storage.rows import no_column
from penstock.addons.tables.kinds import is_list, is_text
from penstock.addons.tables.read import Csv, TableFile
from penstock.datasets.files import Files
from penstock.errors import ConfigError, DataError, Problem
from penstock.order.keys import IntArray

_log = logging.getLogger(__name__)

Kind = Literal["number", "category", "date"]
Floats = npt.NDArray[np.float64]

# Pandas takes these for missing everywhere, also among names, where NA is Namibia.
MARKS = ("NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "#N/A", "<NA>", "NaT")
FRAME = "frame"  # the name of one of pandas, in messages
_DATE = r"^\d{4}-\d\d?-\d\d?([T ]\d\d?:\d\d.*)?$"
# Postcodes and numbers of accounts are names; and Arrow would read 0x10 as 16.
_PADDED = r"^[+-]?0[\dxX]"
# Types of Arrow, by the beginnings of their names.
_PLAIN = (
    *("bool", "int", "uint", "halffloat", "float", "double"),
    *("decimal", "null", "date", "timestamp"),
)
_WAYS = "Correct it; of dataset=table, see dataset.missing and dataset.categories"


@dataclass(frozen=True)
class Frame:
    """The columns of a table.

    Attributes:
        name: of its file, for messages.
        table: the columns that were read; what stands for no value is null.
        marks: texts that are no value among numbers and dates.
        decimal: the sign between whole and parts.
    """

    name: str
    table: pa.Table
    marks: Sequence[str]
    decimal: str

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def error(self, row: int, column: str, wrong: str) -> DataError:
        """The error of a cell, which `wrong` completes: "is not a number. Correct it"."""
        value = self.table[column][row].as_py()
        shown = "a missing value" if value is None else repr(str(value))[:60]
        return DataError(f"{self.name!r}, row {row}, column {column!r}: {shown} {wrong}.")

    def refuse(self, column: str, wrong: npt.ArrayLike, reason: str) -> None:
        """Raise DataError that names the first of the cells that are `wrong`, bool[N]."""
        for row in np.flatnonzero(wrong)[:1].tolist():
            raise self.error(row, column, reason)

    def kind(self, column: str) -> Kind:
        """The kind of a column by its type, and of texts by their first cells."""
        kind, texts = self.table[column].type, pa.array([], pa.large_string())
        if is_text(kind):
            # Of the first cells, so that one mistake below makes an error that names its row,
            # instead of categories by the hundred.
            texts = _without(self.table[column], self.marks).drop_null()[:200]
        # None without a text, which is no date.
        if pa.types.is_temporal(kind) or pc.all(pc.match_substring_regex(texts, _DATE)).as_py():
            return "date"
        return "category" if len(texts) or pa.types.is_boolean(kind) else "number"

    def numbers(self, column: str, complete: bool = False) -> Floats:
        """A column of numbers, float64[N]; NaN where a value is missing, which `complete` refuses.

        Raises:
            DataError: a cell is not a number, or infinite.
        """
        cells = self.table[column]
        if is_text(cells.type) or pa.types.is_temporal(cells.type):
            cells = _numeric(cells.cast(pa.large_string()), self.marks, self.decimal)
        # Pandas tells which cell is no number; a cast of Arrow only says that one is none. Whole
        # numbers above 2^53 round to their neighbours, which statistics do not mind.
        values = pd.to_numeric(cells.to_pandas(), errors="coerce").to_numpy(np.float64)
        # Parquet tells NaN from null; pandas and a CSV do not.
        is_given = np.bool_(is_text(cells.type)) & cells.is_valid().to_numpy()
        wrong = np.isinf(values) | (np.isnan(values) & (is_given | complete))
        self.refuse(column, wrong, f"is not a number, or not finite. {_WAYS}")
        return values

    def dates(self, column: str, format: str | None = None) -> npt.NDArray[np.datetime64]:
        """A column of dates, datetime64[us][N] in UTC; NaT where a value is missing.

        Args:
            format: of strptime; None is ISO 8601, with or without a time of day.

        Raises:
            DataError: a cell is no such date.
            ValueError: there is no such format.
        """
        cells = self.table[column]
        # Arrow keeps instants in UTC, so a zone falls away without a change.
        if pa.types.is_temporal(cells.type):
            return cells.cast(pa.timestamp("us"), safe=False).to_numpy()
        # Whole numbers such as 20260131 are texts to a format of strptime.
        texts = _without(cells.cast(pa.large_string()), self.marks).to_pandas()
        read = pd.to_datetime(texts, format=format or "ISO8601", errors="coerce", utc=True)
        self.refuse(
            column,
            read.isna() & texts.notna(),
            f"is no date of the form {format or 'ISO 8601'} (dataset.date_format). {_WAYS}",
        )
        return read.dt.tz_localize(None).to_numpy("datetime64[us]")

    def words(self, column: str) -> npt.NDArray[np.object_]:
        """A column as texts, object[N]; None where a value is missing."""
        # Not a cast of Arrow, which writes true where Python and a CSV have True.
        return np.array([*map(_word, self.table[column].to_pylist())], dtype=object)

    def texts(self, column: str) -> list[str]:
        """A column as texts, all of which are there; DataError if one is missing."""
        words = self.words(column)
        self.refuse(column, pd.isna(words), "is refused. Fill it in, or remove the row")
        return words.tolist()

    def codes(self, column: str, names: Sequence[str], all_known: bool = False) -> IntArray:
        """The number of each cell among `names`, int64[N]: -1 where it is none of them, which
        `all_known` refuses, and -2 where it is missing."""
        numbers: dict[str | None, int] = {name: number for number, name in enumerate(names)}
        numbers[None] = -2
        codes = np.array([numbers.get(word, -1) for word in self.words(column)], np.int64)
        if all_known:
            reason = f"is none of the classes {', '.join(names[:12])}. Correct it, or add it to"
            self.refuse(column, codes == -1, f"{reason} dataset.classes")
        return codes


def read_frame(
    source: str | os.PathLike[str] | pd.DataFrame,
    roles: Mapping[str, str | Sequence[str] | None],
    columns: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    texts: Sequence[str] = (),
    files: Files | None = None,
    delimiter: str | None = None,
    decimal: str = ".",
    encoding: str = "utf-8",
    missing: Sequence[str] | None = None,
    separator: str | None = None,
) -> Frame:
    """Read a table.

    Columns of lists, bytes and the like are left out, with a line.

    Args:
        source: a path or an address, whose suffix says what it is; or a frame of pandas.
        roles: columns that have to be there, by the key of `dataset` that names them.
        columns: those to read; None: all but those to `exclude`.
        texts: columns of a CSV that are texts, even if all their cells look like numbers.
        files: access to addresses.
        delimiter, encoding: of a CSV, see `penstock.addons.tables.read.Csv`.
        decimal: the sign of a CSV between whole and parts.
        missing: texts that stand for no value in all columns. None: "", and `MARKS` among numbers
            and dates.
        separator: what joins the texts of lists to one; None: such columns are left out.

    Raises:
        DataError: the table is missing, empty, damaged or in another encoding; a record has too few
            or too many fields; a named column has lists, bytes or the like.
        ConfigError: there is no such column or encoding.
        pyarrow.ArrowException: a column of a frame has values of several kinds.
    """
    marks = MARKS if missing is None else [*map(str, missing)]
    name = FRAME if isinstance(source, pd.DataFrame) else os.fspath(source)
    named = {key: [of] if isinstance(of, str) else of or () for key, of in roles.items()}

    def chosen(names: Sequence[str]) -> list[str]:
        absent = [(key, of) for key, role in named.items() for of in role if of not in names]
        for key, column in absent[:1]:
            # One column in all is the sign of another delimiter.
            hint = "; is dataset.delimiter another one?" if len(names) == 1 else ""
            where = f"in {name!r} {no_column(column, names[:12])}"
            raise ConfigError(Problem(f"dataset.{key}", where + hint))
        return [of for of in names if of not in exclude and (columns is None or of in columns)]

    def read(path: str) -> tuple[pa.Table, bool]:
        opened = TableFile(path, name, Csv(delimiter, True, encoding=encoding))
        # Read in here: a file from an address may be gone from the cache afterwards.
        return opened.table(chosen(opened.schema.names)), opened.is_text

    if isinstance(source, pd.DataFrame):
        whole, is_csv = source.set_axis([*map(str, source.columns)], axis=1), False
        # Only the columns that are wanted: others may hold anything.
        table = pa.Table.from_pandas(whole[chosen([*whole])], preserve_index=False)
    else:
        table, is_csv = (files or Files()).read(name, read)
    made = dict[str, Any]()
    for column in table.column_names:
        cells = table[column]
        # Categories of pandas, and of Arrow: also such as nobody has, and numbers that are names.
        if pa.types.is_dictionary(cells.type):
            cells = cells.cast(cells.type.value_type).cast(pa.large_string())
        if separator and is_list(cells.type) and is_text(cells.type.value_type):
            cells = pc.binary_join(cells, separator)
        if is_text(cells.type):
            trimmed = pc.utf8_trim_whitespace(cells.cast(pa.large_string()))
            cells = _without(trimmed, ["", *(marks if missing is not None else [])])
            if is_csv and column not in texts:
                cells = _typed(cells, marks, decimal)
        elif not str(cells.type).startswith(_PLAIN):
            # A column that nothing names is no mistake: tables have pictures and lists beside
            # numbers.
            wrong = f"{name!r}, column {column!r} is {cells.type}, which is no number, text or date"
            if any(column in role for role in named.values()):
                raise DataError(f"{wrong}. Leave it out: dataset.exclude=[{column}].")
            _log.warning("%s: it is left out", wrong)
            continue
        made[column] = cells
    return Frame(name, pa.table(made), marks, decimal)


def check_roles(roles: Mapping[str, Sequence[str]]) -> None:
    """Raise ConfigError if a column is named by two keys of `dataset`."""
    for name in {name for names in roles.values() for name in names}:
        first, *others = [key for key, names in roles.items() if name in names]
        for key in others:
            raise ConfigError(Problem(f"dataset.{key}", f"column {name!r} is also dataset.{first}"))


def _without(cells: pa.ChunkedArray, marks: Sequence[str]) -> pa.ChunkedArray:
    """Texts; null where they are one of `marks`."""
    is_mark = pc.is_in(cells, pa.array(marks, pa.large_string()))
    return pc.if_else(is_mark, pa.scalar(None, pa.large_string()), cells)


def _numeric(cells: pa.ChunkedArray, marks: Sequence[str], decimal: str) -> pa.ChunkedArray:
    """Texts of numbers as Arrow and pandas read them."""
    if decimal != ".":
        # A point between thousands would be taken for one between whole and parts.
        cells = pc.replace_substring(pc.replace_substring(cells, ".", "_"), decimal, ".")
    return _without(cells, marks)


def _typed(cells: pa.ChunkedArray, marks: Sequence[str], decimal: str) -> pa.ChunkedArray:
    """The numbers of a column of a CSV; the same texts if not all are numbers."""
    # Whole kinds first: as floats, numbers above 2^53 would become their neighbours.
    texts = _numeric(cells, marks, decimal)
    if not pc.any(pc.match_substring_regex(texts, _PADDED)).as_py():
        for kind in (pa.int64(), pa.uint64(), pa.float64(), pa.bool_()):
            with suppress(pa.ArrowInvalid):
                # Arrow makes an error for every cell that fails: half a second for 100,000 rows.
                texts.drop_null()[:100].cast(kind)
                return texts.cast(kind)
    return cells


def _word(value: Any) -> str | None:
    """A category; whole numbers without a point, whatever their type."""
    # A column of whole numbers with gaps is one of floats in many files.
    is_whole = isinstance(value, float) and value.is_integer()
    return None if value is None or value != value else str(int(value) if is_whole else value)
