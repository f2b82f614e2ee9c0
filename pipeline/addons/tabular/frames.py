"""A table in memory, as a frame of pandas: CSV, TSV, Parquet, Arrow, or a frame itself.

A CSV is read once, a record at a time, so that what is wrong has a line. Its columns are numbers
if all cells are, beside those that stand for no value: whole ones stay exact, whatever their size.
Anything else is text, as it stands. A text such as "NA" is no value among numbers and dates, and a
name among texts, in Parquet and frames as well; `encoding.oddities` says what may be meant
otherwise. Cost: 0.3 us a cell.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.datasets.files import Files
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Limits

if TYPE_CHECKING:
    import pandas as pd

# Of the names of all columns and of their table: those to read.
Choose = Callable[[Sequence[str], str], Sequence[str]]
_ARROW = (".parquet", ".arrow", ".feather")
_CELL = 80  # bytes of memory a cell, or more: of a text, and what is made of it
_LINE = 1 << 20  # bytes of a line that are looked at
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
        for key, value, wrong in (
            ("delimiter", self.delimiter or ",", '\r\n"'),
            ("decimal", self.decimal, '\r\n"' + (self.delimiter or "")),
        ):
            if len(value) != 1 or value in wrong:
                reason = f"{value!r}; allowed: one sign, other for delimiter and decimal"
                raise ConfigError(Problem(f"dataset.{key}", reason))
        if not all(isinstance(cell, str) for cell in self.missing or ()):
            reason = f"{self.missing!r}; allowed: texts (quote them in YAML)"
            raise ConfigError(Problem("dataset.missing", reason))

    @property
    def marks(self) -> Sequence[str]:
        """Texts that are no value among numbers and dates."""
        return MARKS if self.missing is None else tuple(self.missing)

    def of(self, name: str) -> TextFormat:
        """The format of a file of that name."""
        delimiter = self.delimiter or ("," if ".csv" in name.lower() else "\t")
        plain = self.encoding.lower().replace("_", "-") in ("utf-8", "utf8")
        encoding = "utf-8-sig" if plain else self.encoding
        return TextFormat(delimiter, self.decimal, encoding, self.missing)


@dataclass(frozen=True)
class Frame:
    """A table, and where its cells stand.

    Attributes:
        name: of its file, for messages.
        table: the chosen columns, rows numbered from 0; a missing value is NaN, NaT or None.
        names: of all columns there are.
        line: the line of a row in the file; None where it has no lines.
        marks: texts that are no value among numbers and dates.
        marked: how many cells were taken for no value, by column and text.
    """

    name: str
    table: pd.DataFrame
    names: Sequence[str]
    line: Callable[[int], int] | None = field(default=None, compare=False)
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
        at = f"row {row}" if self.line is None else f"line {self.line(row)}"
        return f"{self.name!r}, {at}"


def read_frame(
    source: str | pd.DataFrame,
    choose: Choose,
    texts: Sequence[str] = (),
    format: TextFormat | None = None,
    files: Files | None = None,
    limits: Limits | None = None,
    beside: bool = False,
) -> Frame:
    """Read a table.

    Args:
        source: a path or an address, whose suffix says what it is; or a frame, which is not copied.
        choose: of (names of all columns, name of the table) the columns that are needed; raises
            ConfigError.
        texts: columns of a CSV that are texts, even if all their cells look like numbers.
        format: of a CSV or TSV; `missing` is for all sources.
        limits: `columns`, `files` for the rows, `record_bytes` for a line.
        beside: whether the other columns of a file are read as well, those that can be.

    Raises:
        DataError: it is missing, empty, damaged, in another encoding, or too large for the memory;
            a record has too few or too many fields; cells are lists, bytes, complex numbers ...
        ConfigError: Parquet needs something installed, or there is no such encoding.
    """
    limits, format = limits or Limits(), format or TextFormat()
    if not isinstance(source, str):
        return _checked(_of_frame(source, choose, limits), format)
    if source.lower().endswith(_ARROW):
        return _checked(_of_arrow(source, choose, files or Files(), limits, beside), format)
    text = _Text(source, format.of(source), limits)
    try:
        read = (files or Files()).read(source, lambda path: text.read(path, choose, texts, beside))
    except LookupError as error:
        raise ConfigError(Problem("dataset.encoding", f"{format.encoding!r}: {error}")) from error
    except OSError as error:
        wrong = error.strerror or str(error)
        raise DataError(
            f"dataset.root: {source!r} cannot be read: {wrong}. Set it to a CSV, TSV, Parquet or "
            "Arrow file, or to its folder, with dataset.file."
        ) from error
    return _checked(read, format)


def _checked(frame: Frame, format: TextFormat) -> Frame:
    """The same without texts that stand for no value; refuses columns that are no values."""
    table, marked = frame.table, dict(frame.marked)
    empty = {"", *(format.missing or ())}
    for name in table.columns:
        cells = table[name]
        if cells.dtype.kind not in "biufmMO":
            raise _no_values(frame.name, name, cells.dtype)
        if cells.dtype.kind != "O":
            continue
        strange = {kind.__name__ for kind in kinds_in(cells) if not issubclass(kind, _PLAIN)}
        if strange:
            raise _no_values(frame.name, name, ", ".join(sorted(strange)))
        texts = cells.astype(object)
        none = texts.map(lambda cell: isinstance(cell, str) and cell.strip() in empty).astype(bool)
        if none.any():
            table = table.assign(**{name: texts.mask(none, None)})
            marked[name] = Counter(texts[none])
    return replace(frame, table=table, marks=format.marks, marked=marked)


def _no_values(file: str, name: str, kind: object) -> DataError:
    return DataError(
        f"{file!r}, column {name!r} is {kind}; a table has numbers, texts, truth values, "
        f"dates and durations. Leave it out: dataset.exclude=[{name}]."
    )


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


@dataclass(frozen=True)
class _Text:
    """A CSV or TSV."""

    name: str
    format: TextFormat
    limits: Limits

    def read(self, path: str, choose: Choose, texts: Sequence[str], beside: bool) -> Frame:
        import pandas as pd

        names, columns = self._cells(path, choose, beside)
        table, marked = {}, {}
        for name, cells in columns.items():
            column = table[name] = pd.Series(cells, dtype=object)
            if name not in texts:
                table[name], marked[name] = _typed(column, self.format)
        read = pd.DataFrame(table)
        return Frame(self.name, read, names, partial(self._line, path), marked=marked)

    def _cells(
        self, path: str, choose: Choose, beside: bool
    ) -> tuple[list[str], dict[str, list[str]]]:
        """The names of all columns, and the cells of the chosen ones without blanks around them."""
        number, size = 0, Path(path).stat().st_size
        with Path(path).open(newline="", encoding=self.format.encoding) as file:
            reader = self._reader(file)
            try:
                names = [name.strip() for name in next(reader, [])]
                _check_names(self.name, names, self.limits)
                width = len(names)
                chosen = [*choose(names, self.name), *(names if beside else [])]
                columns: dict[str, list[str]] = {name: [] for name in chosen}
                read = [(names.index(name), cells.append) for name, cells in columns.items()]
                _check_memory(self.name, 2 * size)
                for record in reader:
                    if len(record) != width:
                        if not record:  # a blank line
                            continue
                        raise DataError(
                            f"{self.name!r}, line {reader.line_num}: {len(record)} of {width} "
                            "cells that the header names. Complete the row or remove it."
                        )
                    for position, add in read:
                        add(record[position].strip())
                    number += 1
                    if number > self.limits.files:
                        claim = self.limits.refusal("files", f"{number} rows and more")
                        raise DataError(f"{self.name!r} has {claim}.")
                    if not number & 0xFFFF:
                        _check_memory(self.name, number * len(read) * _CELL)
            except csv.Error as error:
                raise DataError(
                    f"{self.name!r}, line {reader.line_num}: {error}. Save the table as CSV in "
                    "UTF-8."
                ) from error
            except UnicodeError as error:
                encoding = self.format.encoding.removesuffix("-sig")
                line = _undecoded(path) if encoding == "utf-8" else 0
                where = f"{self.name!r}, line {line}" if line else repr(self.name)
                raise DataError(
                    f"{where} is not {encoding}: {error}. Save it in UTF-8, or say what it is: "
                    "dataset.encoding=cp1252, or utf-16."
                ) from error
        if not number:
            raise DataError(f"{self.name!r} has a header and no rows: there is nothing to read.")
        return names, columns

    def _line(self, path: str, row: int) -> int:
        """The line that a row ends at; reads the file up to it."""
        with Path(path).open(newline="", encoding=self.format.encoding) as file:
            reader = self._reader(file)
            number = -2  # the header is row -1
            for record in reader:
                number += bool(record)
                if number == row:
                    break
            return int(reader.line_num)

    def _reader(self, file: io.TextIOBase) -> Any:
        return csv.reader(
            self._lines(file),
            delimiter=self.format.delimiter or ",",
            strict=True,
            skipinitialspace=True,
        )

    def _lines(self, file: io.TextIOBase) -> Iterator[str]:
        """The lines of a file; of one without line ends, no more than a record may have."""
        most, number = self.limits.record_bytes, 1
        while line := file.readline(most):
            if len(line) == most:
                claim = self.limits.refusal("record_bytes", f"{most} characters")
                raise DataError(f"{self.name!r}, line {number} has {claim}.")
            yield line
            number += 1


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


def _undecoded(path: str) -> int:
    """The first line of a file that is not UTF-8; 0 where all are."""
    with Path(path).open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_LINE), b""), start=1):
            try:
                line.decode()
            except UnicodeError:
                return number
    return 0


def _of_arrow(name: str, choose: Choose, files: Files, limits: Limits, beside: bool) -> Frame:
    try:
        import pyarrow as pa

        from penstock.addons.tables.arrow.files import ArrowFiles, check_texts, exact_frame
    except ImportError as error:
        reason = f"{name!r} needs pyarrow: pip install pyarrow; or save it as CSV"
        raise ConfigError(Problem("dataset.root", reason)) from error
    opened = ArrowFiles([name], files)
    names, rows = list(opened.schema.names), int(opened.bounds[-1])
    _check_names(name, names, limits)
    if rows > limits.files:
        raise DataError(f"{name!r} has {limits.refusal('files', f'{rows} rows')}.")
    if not rows:
        raise DataError(f"{name!r} has no rows: there is nothing to read.")
    chosen = list(choose(names, name))
    odd = {column for column in names if _is_odd(opened.schema.field(column).type)}
    for column in chosen:
        if column in odd:
            raise _no_values(name, column, opened.schema.field(column).type)
    if beside:
        chosen += [column for column in names if column not in chosen and column not in odd]
    _check_memory(name, rows * len(chosen) * _CELL)
    parts, size = [], 0
    for group in range(len(opened)):
        part, taken = opened.read(group, chosen)
        parts.append(part)
        size += taken
        _check_memory(name, 2 * size)
    whole = pa.concat_tables(parts)
    for column in chosen:
        check_texts(whole[column], name, column, f"leave it out: dataset.exclude=[{column}]")
    return Frame(name, exact_frame(whole.replace_schema_metadata(None)), names)


def _is_odd(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind))


def _of_frame(table: pd.DataFrame, choose: Choose, limits: Limits) -> Frame:
    names = [str(name) for name in table.columns]
    _check_names("the frame", names, limits)
    if not len(table):
        raise DataError("the frame has no rows: there is nothing to read.")
    whole = table.set_axis(names, axis=1).reset_index(drop=True)
    return Frame("the frame", whole[list(choose(names, "the frame"))], names)


def _check_names(name: str, names: Sequence[str], limits: Limits) -> None:
    if not any(names):
        raise DataError(f"{name!r} is empty: its first line has to name the columns.")
    if len(names) > limits.columns:
        raise DataError(f"{name!r} has {limits.refusal('columns', f'{len(names)} columns')}.")
    double, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise DataError(f"{name!r}: column {double!r} occurs {count} times. Rename one.")


def _check_memory(name: str, size: int) -> None:
    """Refuse a table that would take more than half of the memory of this machine."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > most // 2:
        raise DataError(
            f"{name!r} takes {size / 2**30:.1f} GiB of memory or more, and half of this machine's "
            f"is {most / 2**31:.1f} GiB. Read fewer columns (dataset.columns), or larger tables "
            "row by row with dataset=parquet."
        )


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
