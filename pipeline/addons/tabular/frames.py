"""A table in memory, as a frame of pandas: CSV, TSV, Parquet, Arrow, or a frame itself.

1. A first pass over text counts records and their fields, a record at a time, so that what is wrong
   has a line and nothing is allocated for what the file only claims. 0.1 us a cell.
2. pandas reads the chosen columns: numbers as float64 or int64, all else as objects.

Parquet and Arrow are read by the add-on `tables`, which bounds what they may become.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.datasets.files import Files
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Limits
from penstock.loading.memory import limit as memory_limit

if TYPE_CHECKING:
    import pandas as pd

# Of the names of all columns and of their table: those to read.
Choose = Callable[[Sequence[str], str], Sequence[str]]
_ARROW = (".parquet", ".arrow", ".feather")
_CELL = 24  # bytes of memory a cell, or more: of a number read, and what is made of it
_LINE = 1 << 20  # bytes of a line that are looked at
_SHOWN = 12  # columns that a message lists
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "#N/A")


@dataclass(frozen=True)
class TextFormat:
    """How a CSV or TSV is written.

    Attributes:
        delimiter: of columns; None is a comma for `.csv`, else a tab.
        decimal: the sign between whole and parts.
        encoding: any that Python knows; a mark of UTF-8 at the beginning is left out.
        missing: cells that stand for no value.
    """

    delimiter: str | None = None
    decimal: str = "."
    encoding: str = "utf-8"
    missing: Sequence[str] = MISSING

    def __post_init__(self) -> None:
        for key, value, wrong in (
            ("delimiter", self.delimiter or ",", '\r\n"'),
            ("decimal", self.decimal, '\r\n"' + (self.delimiter or "")),
        ):
            if len(value) != 1 or value in wrong:
                reason = f"{value!r}; allowed: one sign, other for delimiter and decimal"
                raise ConfigError(Problem(f"dataset.{key}", reason))
        if not all(isinstance(cell, str) for cell in self.missing):
            reason = f"{list(self.missing)!r}; allowed: texts (quote them in YAML)"
            raise ConfigError(Problem("dataset.missing", reason))

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
    """

    name: str
    table: pd.DataFrame
    names: Sequence[str]
    line: Callable[[int], int] | None = field(default=None, compare=False)

    def __len__(self) -> int:
        return len(self.table)

    def error(self, row: int, column: str, wrong: str) -> DataError:
        """The error of a cell, which `wrong` completes: "is not a number. Correct it"."""
        value = self.table[column].iloc[row]
        return DataError(f"{self.where(row)}, column {column!r}: {_short(value)} {wrong}.")

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
) -> Frame:
    """Read a table.

    Args:
        source: a path or an address, whose suffix says what it is; or a frame, which is not copied.
        choose: of (names of all columns, name of the table) the columns that are needed; raises
            ConfigError.
        texts: columns of a CSV that are texts, even if all their cells look like numbers.
        format: of a CSV or TSV.
        limits: `columns`, `files` for the rows, `record_bytes` for a line.

    Raises:
        DataError: it is missing, empty, damaged, in another encoding, or too large for the memory;
            a record has too few or too many fields.
        ConfigError: Parquet needs something installed, or there is no such encoding.
    """
    limits, format = limits or Limits(), format or TextFormat()
    if not isinstance(source, str):
        return _of_frame(source, choose, limits)
    if source.lower().endswith(_ARROW):
        return _of_arrow(source, choose, files or Files(), limits)
    text = _Text(source, format.of(source), limits)
    try:
        return (files or Files()).read(source, lambda path: text.read(path, choose, texts))
    except LookupError as error:
        raise ConfigError(Problem("dataset.encoding", f"{format.encoding!r}: {error}")) from error
    except OSError as error:
        wrong = error.strerror or str(error)
        raise DataError(
            f"dataset.root: {source!r} cannot be read: {wrong}. Set it to a CSV, TSV, Parquet or "
            "Arrow file, or to its folder, with dataset.file."
        ) from error


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


def _short(value: object) -> str:
    text = repr(value if isinstance(value, (str, bool)) else str(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True)
class _Text:
    """A CSV or TSV."""

    name: str
    format: TextFormat
    limits: Limits

    def read(self, path: str, choose: Choose, texts: Sequence[str]) -> Frame:
        import pandas as pd

        names, rows, size = self._counted(path)
        chosen = list(choose(names, self.name))
        _check_memory(self.name, rows * len(chosen) * _CELL + 2 * size)
        with Path(path).open("rb") as content:
            try:
                table = pd.read_csv(
                    content,
                    sep=self.format.delimiter,
                    names=names,
                    header=0,
                    usecols=chosen,
                    dtype=dict.fromkeys((name for name in chosen if name in texts), object),
                    keep_default_na=False,
                    na_values=list(self.format.missing),
                    decimal=self.format.decimal,
                    encoding=self.format.encoding,
                    skipinitialspace=True,
                    low_memory=False,
                )
            except (ValueError, UnicodeError) as error:  # pandas' own are ValueErrors
                raise DataError(f"{self.name!r} cannot be read: {error}.") from error
        if len(table) != rows or sorted(map(str, table.columns)) != sorted(chosen):
            raise DataError(
                f"{self.name!r}: pandas finds {len(table)} rows, and Python's csv {rows}. Save the "
                "table again as plain CSV in UTF-8."
            )
        return Frame(self.name, table[chosen], names, partial(self._line, path))

    def _counted(self, path: str) -> tuple[list[str], int, int]:
        """The names of the columns, the number of rows, and the size in bytes."""
        number, size = 0, Path(path).stat().st_size
        with Path(path).open(newline="", encoding=self.format.encoding) as file:
            reader = self._reader(file)
            try:
                names = [name.strip() for name in next(reader, [])]
                _check_names(self.name, names, self.limits)
                width = len(names)
                for record in reader:
                    if len(record) != width:
                        if not record:  # a blank line
                            continue
                        raise DataError(
                            f"{self.name!r}, line {reader.line_num}: {len(record)} of {width} "
                            "cells that the header names. Complete the row or remove it."
                        )
                    number += 1
                    if number > self.limits.files:
                        claim = self.limits.refusal("files", f"{number} rows and more")
                        raise DataError(f"{self.name!r} has {claim}.")
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
        return names, number, size

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


def _undecoded(path: str) -> int:
    """The first line of a file that is not UTF-8; 0 where all are."""
    with Path(path).open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_LINE), b""), start=1):
            try:
                line.decode()
            except UnicodeError:
                return number
    return 0


def _of_arrow(name: str, choose: Choose, files: Files, limits: Limits) -> Frame:
    try:
        import pyarrow as pa

        from penstock.addons.tables.arrow.files import ArrowFiles, check_texts
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
    _check_memory(name, rows * len(chosen) * _CELL)
    parts, size = [], 0
    for group in range(len(opened)):
        part, taken = opened.read(group, chosen)
        parts.append(part)
        size += taken
        _check_memory(name, 2 * size)
    whole = pa.concat_tables(parts)
    for column in chosen:
        kind = whole.schema.field(column).type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            raise DataError(
                f"{name!r}, column {column!r} is {kind}; a table has numbers, texts, truth values "
                f"and dates. Leave it out: dataset.exclude=[{column}]."
            )
        if pa.types.is_decimal(kind):
            position = whole.schema.get_field_index(column)
            whole = whole.set_column(position, column, whole[column].cast(pa.float64()))
        check_texts(whole[column], name, column, f"leave it out: dataset.exclude=[{column}]")
    plain = whole.replace_schema_metadata(None)  # which pandas reads even where it is ignored
    return Frame(name, plain.to_pandas(ignore_metadata=True), names)


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
    """Refuse a table that would take more than half of the memory of this process."""
    most, what = memory_limit()
    if most and size > most // 2:
        raise DataError(
            f"{name!r} takes {size / 2**30:.1f} GiB of memory or more, and half of {what} is "
            f"{most / 2**31:.1f} GiB. Read fewer columns (dataset.columns), or larger tables "
            "row by row with dataset=parquet."
        )


def floats(frame: Frame, column: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A column of numbers, float64[N]; NaN where a value is missing.

    Raises:
        DataError: a cell is not a number, or infinite.
    """
    import pandas as pd

    cells = frame.table[column]
    if cells.dtype.kind in "biuf":
        values = cells.to_numpy(np.float64, na_value=np.nan)
    else:
        values = pd.to_numeric(cells.astype(object), errors="coerce").to_numpy(np.float64)
        wrong = np.isnan(values) & cells.notna().to_numpy()
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


def moments(
    frame: Frame, column: str, format: str | None = None
) -> np.ndarray[Any, np.dtype[np.datetime64]]:
    """A column of dates, datetime64[ns][N] in UTC; NaT where a value is missing.

    Args:
        format: of strptime; None is ISO 8601, with or without a time of day.

    Raises:
        DataError: a cell is no such date.
    """
    import pandas as pd

    cells = frame.table[column]
    if cells.dtype.kind == "M":
        whole = cells.dt.tz_convert("UTC").dt.tz_localize(None) if _zoned(cells) else cells
        return whole.to_numpy("datetime64[ns]")
    texts = cells.astype(object)
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
    return read.dt.tz_localize(None).to_numpy("datetime64[ns]")


def words(frame: Frame, column: str) -> np.ndarray[Any, np.dtype[np.object_]]:
    """A column as texts without blanks around them, object[N]; None where a value is missing."""
    cells = frame.table[column]
    missing = cells.isna().to_numpy()
    if cells.dtype.kind == "f":  # whole numbers with gaps are floats
        texts = [str(int(value)) if value.is_integer() else str(value) for value in cells]
    else:
        texts = [str(value).strip() for value in cells]
    made = np.array(texts, dtype=object)
    made[missing] = None
    return made


def _zoned(cells: Any) -> bool:
    return getattr(cells.dtype, "tz", None) is not None
