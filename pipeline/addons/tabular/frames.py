"""A table in memory, as a frame of pandas: of any file that `tables/read.py` reads, or a frame.

The columns of a CSV are numbers if all cells are, beside those that stand for no value: whole ones
stay exact, whatever their size. Anything else is text, as it stands. A text such as "NA" is no
value among numbers and dates, and a name among texts, in Parquet and frames as well;
`encoding.oddities` says what may be meant otherwise. Cost: 0.3 us a cell.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.addons.tables.read import Csv, TableFile, exact
from penstock.datasets.files import Files
from penstock.errors import ConfigError, DataError, Problem

if TYPE_CHECKING:
    import pandas as pd

# Of the names of all columns and of their table: those to read.
Choose = Callable[[Sequence[str], str], Sequence[str]]
_SHOWN = 12  # columns that a message lists
MARKS = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "#N/A", "<NA>", "NaT")
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
PADDED = re.compile(r"[+-]?0\d+", re.ASCII)
_PLAIN = (str, bool, int, float, Decimal, date, time, timedelta, np.generic)


@dataclass(frozen=True)
class TextFormat:
    """How a CSV or TSV is written.

    Attributes:
        delimiter: of columns; None is a comma for `.csv`, else a tab.
        decimal: the sign between whole and parts.
        encoding: any that Python knows; a mark of UTF-8 at the beginning is left out.
        missing: cells that stand for no value, in all columns. None: `MARKS` among numbers and
            dates, and the empty cell among texts.
    """

    delimiter: str | None = None
    decimal: str = "."
    encoding: str = "utf-8"
    missing: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if len(self.decimal) != 1 or self.decimal == self.delimiter:
            reason = f"{self.decimal!r}; allowed: one sign, other than the delimiter"
            raise ConfigError(Problem("dataset.decimal", reason))
        if not all(isinstance(cell, str) for cell in self.missing or ()):
            reason = f"{self.missing!r}; allowed: texts (quote them in YAML)"
            raise ConfigError(Problem("dataset.missing", reason))

    @property
    def marks(self) -> Sequence[str]:
        """Texts that are no value among numbers and dates."""
        return MARKS if self.missing is None else tuple(self.missing)


@dataclass(frozen=True)
class Frame:
    """A table, and where its cells stand.

    Attributes:
        name: of its file, for messages.
        table: the chosen columns, rows numbered from 0; a missing value is NaN, NaT or None.
        names: of all columns there are.
        marks: texts that are no value among numbers and dates.
        marked: how many cells were taken for no value, by column and text.
    """

    name: str
    table: pd.DataFrame
    names: Sequence[str]
    marks: Sequence[str] = MARKS
    marked: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def plain(self) -> dict[str, list[Any]]:
        """The cells of each column as numbers, truth values or texts; None where one is missing."""
        made = {}
        for name, cells in self.table.items():
            there, objects = cells.notna(), cells.astype(object)
            made[str(name)] = [
                None if not ok else cell if isinstance(cell, (int, float, str)) else str(cell)
                for ok, cell in zip(there, objects, strict=True)
            ]
        return made

    def error(self, row: int, column: str, wrong: str) -> DataError:
        """The error of a cell, which `wrong` completes: "is not a number. Correct it"."""
        value = self.table[column].iloc[row]
        return DataError(f"{self.where(row)}, column {column!r}: {short(value)} {wrong}.")

    def where(self, row: int) -> str:
        """The file and the row, for messages."""
        return f"{self.name!r}, row {row}"


def read_frame(
    source: str | pd.DataFrame,
    choose: Choose,
    texts: Sequence[str] = (),
    format: TextFormat | None = None,
    files: Files | None = None,
    beside: bool = False,
) -> Frame:
    """Read a table.

    Args:
        source: a path or an address, whose suffix says what it is; or a frame, which is not copied.
        choose: of (names of all columns, name of the table) the columns that are needed; raises
            ConfigError.
        texts: columns of a CSV that are texts, even if all their cells look like numbers.
        format: of a CSV or TSV; `missing` is for all sources.
        beside: whether the other columns of a file are read as well, those that can be.

    Raises:
        DataError: it is missing, empty, damaged or in another encoding; a record has too few or too
            many fields; cells are lists, bytes, complex numbers ...
        ConfigError: there is no such encoding.
    """
    import pandas as pd

    format, marked, made = format or TextFormat(), dict[str, Any](), dict[str, Any]()
    if isinstance(source, str):
        name, text = source, Csv(format.delimiter, True, encoding=format.encoding)
        opened = (files or Files()).read(source, lambda path: TableFile(path, source, text))
        names = opened.schema.names
        odd = [of.name for of in opened.schema if pa.types.is_nested(of.type)]
        chosen = [*choose(names, name)]
        chosen += [of for of in names if beside and of not in chosen and of not in odd]
        table = opened.table(chosen)
        for column in chosen:
            if opened.is_text:
                cells = pd.Series(pc.utf8_trim_whitespace(table[column]).to_pylist(), dtype=object)
                if column not in texts:
                    cells, marked[column] = _typed(cells, format)
            else:
                cells = pd.Series(exact(table[column]))
            made[column] = cells
    else:
        name, names = "the frame", [str(column) for column in source.columns]
        whole = source.set_axis(names, axis=1).reset_index(drop=True)
        made = {column: whole[column] for column in choose(names, name)}
    empty = {"", *(format.missing or ())}
    for column, cells in made.items():
        strange = {kind.__name__ for kind in kinds_in(cells) if not issubclass(kind, _PLAIN)}
        if cells.dtype.kind not in "biufmMO" or (cells.dtype.kind == "O" and strange):
            raise DataError(
                f"{name!r}, column {column!r} is {', '.join(sorted(strange)) or cells.dtype}; a "
                "table has numbers, texts, truth values, dates and durations. Leave it out: "
                f"dataset.exclude=[{column}]."
            )
        if cells.dtype.kind == "O":
            plain = cells.astype(object)
            none = plain.map(lambda cell: isinstance(cell, str) and cell.strip() in empty)
            if none.any():
                made[column] = plain.mask(none.astype(bool), None)
                marked[column] = Counter(plain[none.astype(bool)])
    if not made or not len(next(iter(made.values()))):
        raise DataError(f"{name!r} has no rows: there is nothing to read.")
    return Frame(name, pd.DataFrame(made), names, format.marks, marked)


def kinds_in(cells: Any) -> set[type]:
    """The types of the values that there are in a column."""
    return set(map(type, cells[cells.notna()]))


def check_columns(names: Sequence[str], wanted: Sequence[str], key: str, file: str) -> None:
    """Raise ConfigError for `key` unless all of `wanted` are among `names`."""
    for name in wanted:
        if name in names:
            continue
        near = get_close_matches(str(name), names, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        if len(names) == 1 and any(sign in names[0] for sign in ";,\t|"):
            hint = "; its columns are divided by another sign: set dataset.delimiter"
        reason = f"{file!r} has no column {name!r}{hint}; it has {listed(names)}"
        raise ConfigError(Problem(key, reason))


def listed(names: Sequence[str]) -> str:
    """The first names of a list, for messages."""
    shown = ", ".join(str(name)[:40] for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def short(value: object) -> str:
    text = repr(value if isinstance(value, (str, bool)) else str(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def _typed(cells: pd.Series, format: TextFormat) -> tuple[pd.Series, Mapping[str, int]]:
    """The numbers of a column of a CSV, whole ones exactly, and the texts beside them that stand
    for no value; the same texts if not all are numbers."""
    import pandas as pd

    codes, found = pd.factorize(cells)
    there = np.array([text not in format.marks for text in found])
    present = [str(text) for text in found[there]]
    if any(map(PADDED.fullmatch, present)):  # postcodes, numbers of accounts
        return cells, {}
    values: Any = np.full(len(found), None)
    kind = "float64"
    if present and all(map(_WHOLE.fullmatch, present)):
        whole = values[there] = [int(text) for text in present]
        sizes = {"Int64": (-(2**63), 2**63), "UInt64": (0, 2**64)}
        fits = (of for of, (low, high) in sizes.items() if low <= min(whole) and max(whole) < high)
        kind = next(fits, "object")
        kind = kind.lower() if there.all() else kind
    else:
        numbers = pd.to_numeric(_with_point(present, format.decimal), errors="coerce")
        if np.isnan(numbers.to_numpy(np.float64)).any():
            return cells, {}
        values[there] = numbers
    counts = np.bincount(codes, minlength=len(found)).tolist()
    marked = {text: n for text, n, ok in zip(found, counts, there, strict=True) if text and not ok}
    return pd.Series(pd.array(values, dtype=kind).take(codes)), marked


def _with_point(texts: Sequence[str], decimal: str) -> Any:
    import pandas as pd

    swapped = str.maketrans({decimal: ".", ".": "_"}) if decimal != "." else {}
    return pd.Series([text.translate(swapped) for text in texts], dtype=object)


def floats(frame: Frame, column: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A column of numbers, float64[N]; durations and times of a day in seconds; NaN where a value
    is missing.

    Raises:
        DataError: a cell is not a number, or infinite.
    """
    import pandas as pd

    cells = frame.table[column]
    if cells.dtype.kind in "biuf":
        values = cells.to_numpy(np.float64, na_value=np.nan)
    else:
        numbers = cells.astype(object).map(lambda cell: _number(cell, frame.marks))
        values = pd.to_numeric(numbers, errors="coerce").to_numpy(np.float64)
        wrong = np.isnan(values) & numbers.notna().to_numpy()
        if wrong.any():
            raise frame.error(
                int(wrong.argmax()),
                column,
                "is not a number. Correct it, add it to dataset.missing, or read the column as a "
                "category (dataset.categories)",
            )
    if np.isinf(values).any():
        raise frame.error(
            int(np.isinf(values).argmax()), column, "is not finite. Correct or empty it"
        )
    return values


def _number(cell: Any, marks: Sequence[str]) -> Any:
    if isinstance(cell, str):
        return None if cell.strip() in marks else cell
    if isinstance(cell, timedelta):
        return cell.total_seconds()
    if isinstance(cell, time):
        return cell.hour * 3600 + cell.minute * 60 + cell.second + cell.microsecond / 1e6
    return float(cell) if isinstance(cell, (Decimal, int)) else cell


def moments(
    frame: Frame, column: str, format: str | None = None
) -> np.ndarray[Any, np.dtype[np.datetime64]]:
    """A column of dates, datetime64[us][N] in UTC; NaT where a value is missing.

    Args:
        format: of strptime; None is ISO 8601, with or without a time of day.

    Raises:
        DataError: a cell is no such date.
    """
    import pandas as pd

    cells = frame.table[column]
    if cells.dtype.kind == "M":
        has_zone = getattr(cells.dtype, "tz", None) is not None
        whole = cells.dt.tz_convert("UTC").dt.tz_localize(None) if has_zone else cells
        return whole.to_numpy("datetime64[us]")
    texts = cells.astype(object).map(lambda cell: _day(cell, frame.marks))
    try:
        read = pd.to_datetime(texts, format=format or "ISO8601", errors="coerce", utc=True)
    except ValueError as error:
        raise ConfigError(Problem("dataset.date_format", f"{format!r}: {error}")) from error
    wrong = (read.isna() & texts.notna()).to_numpy()
    if wrong.any():
        way = f"of the form {format!r}" if format else "as ISO 8601 writes it, 2026-05-28"
        raise frame.error(
            int(wrong.argmax()),
            column,
            f"is no date {way}. Correct it, or say how dates are written: dataset.date_format",
        )
    return read.dt.tz_localize(None).to_numpy("datetime64[us]")


def _day(cell: Any, marks: Sequence[str]) -> Any:
    if isinstance(cell, str):
        return None if cell.strip() in marks else cell
    return str(cell) if isinstance(cell, int) else cell  # 20260131


def words(frame: Frame, column: str) -> np.ndarray[Any, np.dtype[np.object_]]:
    """A column as texts without blanks around them, object[N]; None where a value is missing.

    Raises:
        DataError: whole numbers are floats, and so large that neighbours have become one.
    """
    cells = frame.table[column].astype(object)
    merged = cells.map(lambda cell: isinstance(cell, float) and 2**53 <= abs(cell) < np.inf)
    if merged.any():
        raise frame.error(
            int(merged.to_numpy().argmax()),
            column,
            "is a float above 2^53, where names become one. Give the column as Int64 or as texts",
        )
    missing = cells.isna().to_numpy()
    made = np.array([_word(value) for value in cells], dtype=object)
    made[missing] = None
    return made


def _word(value: Any) -> str:
    """Whole numbers without a point, whatever their type."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, Decimal) and value.is_finite():
        return f"{value:f}".rstrip("0").rstrip(".") if "." in f"{value:f}" else f"{value:f}"
    return str(value).strip()


def noise_of(frame: Frame, column: str) -> float:
    """By what share of the largest one the values of a column differ from rounding alone."""
    kind = frame.table[column].dtype
    is_plain = isinstance(kind, np.dtype) and kind.kind == "f"
    return max(1e-11, 8 * float(np.finfo(str(kind)).eps)) if is_plain else 1e-11
