"""A table in memory as columns of Arrow: any file that `tables/read.py` reads, or a pandas frame.

A column of a CSV is numbers if all its cells are, beside those that stand for no value; whole ones
stay exact. Texts such as "NA" are names among texts, and no value among numbers and dates: in every
kind of file alike. Cost: 0.3 us a cell.

`learned` reads training rows alone and says how they become the inputs of a model; `encoded` then
encodes any rows.
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
from penstock.addons.tables.kinds import is_text
from penstock.addons.tables.read import Csv, TableFile
from penstock.datasets.files import Files
from penstock.errors import ConfigError, DataError, Problem
from penstock.order.keys import IntArray
from penstock.transforms.statistics import scales

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
FIRST = 2  # index of the first category; 0 is a missing one, 1 one that training rows don't have
_MANY = 100  # texts, all different, that are names of rows and no categories
_CYCLES = {"year": 365.2425, "week": 7.0, "day": 1.0}  # days


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
        cells, none = self.table[column], pa.array([], pa.large_string())
        # Of the first cells, so that one mistake below makes an error that names its row, instead
        # of categories by the hundred.
        texts = _without(cells, self.marks).drop_null()[:200] if is_text(cells.type) else none
        # None without a text, which is no date.
        if (
            pa.types.is_temporal(cells.type)
            or pc.all(pc.match_substring_regex(texts, _DATE)).as_py()
        ):
            return "date"
        return "category" if len(texts) or pa.types.is_boolean(cells.type) else "number"

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
        self.refuse(
            column,
            np.isinf(values) | (np.isnan(values) & (is_given | complete)),
            f"is not a number, or not finite. {_WAYS}",
        )
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
        numbers: dict[str | None, int] = {name: code for code, name in enumerate(names)}
        numbers[None] = -2
        codes = np.array([numbers.get(word, -1) for word in self.words(column)], np.int64)
        if all_known:
            self.refuse(
                column,
                codes == -1,
                f"is none of the classes {', '.join(names[:12])}. Correct it, or add it to "
                "dataset.classes",
            )
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
        # One column in all is the sign of another delimiter.
        hint = "; is dataset.delimiter another one?" if len(names) == 1 else ""
        for key, column in [(by, of) for by in named for of in named[by] if of not in names]:
            raise ConfigError(
                Problem(f"dataset.{key}", f"in {name!r} {no_column(column, names[:12])}{hint}")
            )
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
        # Categories of pandas and Arrow may have no rows, and may be numbers that are names.
        if pa.types.is_dictionary(cells.type):
            cells = cells.cast(cells.type.value_type).cast(pa.large_string())
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
    kind = pa.large_string()
    return pc.if_else(pc.is_in(cells, pa.array(marks, kind)), pa.scalar(None, kind), cells)


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


def learned(
    frame: Frame,
    rows: IntArray,
    kinds: Mapping[str, Kind],
    chosen: Sequence[str],
    rare: int,
    date_format: str | None,
) -> dict[str, Any]:
    """The facts of a table's training rows: the encoding, as plain values.

        numbers        of each column of numbers or dates, in the order of the table: name, is_date,
                       mean and scale (of dates in days since 1970), flagged (whether a value is
                       missing) and daily (whether a date has a time)
        categories     those of each column of categories, by name
        date_format    of strptime; absent: ISO 8601

    Args:
        rows: those that train.
        kinds: of the columns, in order.
        chosen: columns of categories that a person has named, of which any number may be.
        rare: categories of fewer training rows count as unknown.

    Raises:
        DataError: a cell is no number, or no date.
        ConfigError: nearly all texts of a column differ.
    """
    numbers, categories = list[dict[str, Any]](), dict[str, list[str]]()
    for name in [name for name, kind in kinds.items() if kind != "category"]:
        is_date = kinds[name] == "date"
        values = _values(frame, name, is_date, date_format)[rows]
        known = values[~np.isnan(values)]
        present = known if len(known) else np.zeros(1)
        # Deviations from the first value: squares of dates or of large numbers would lose their
        # digits.
        mean = float(present[0] + (present - present[0]).mean())
        # Floats of 32 bits differ from each other by rounding where those of 64 do not.
        noise = 1e-6 if str(frame.table[name].type) == "float" else 1e-11
        # A constant divided by its own rounding would be noise in training, and another value later
        # any number of deviations away.
        scale = float(scales((present - mean).std(), np.abs(present).max(), noise))
        numbers.append(
            {
                "name": name,
                "is_date": is_date,
                "mean": mean,
                "scale": scale,
                "flagged": len(known) < len(values),
                "daily": is_date and bool((present % 1).any()),
            }
        )
    for name in [name for name, kind in kinds.items() if kind == "category"]:
        counts = pd.Series(frame.words(name)[rows], dtype=object).value_counts()
        # An embedding of names or numbers of rows learns each training row by heart, and validation
        # rows are then all unknown: refused, unless a person asks for it.
        if name not in chosen and len(counts) > max(_MANY, counts.sum() // 2):
            raise ConfigError(
                Problem(
                    "dataset.categories",
                    f"column {name!r} of {frame.name!r} has {len(counts)} different texts in "
                    f"{counts.sum()} rows, so a model learns nothing of it: leave it out, "
                    f"dataset.exclude=[{name}]; or name it in dataset.categories to keep it. If it "
                    "has numbers, say how they are written: dataset.missing, dataset.decimal",
                )
            )
        # By name and not by frequency, so that one more row moves no other index.
        categories[name] = sorted(counts.index[counts >= rare])
    return {
        "numbers": numbers,
        "categories": categories,
        **({} if date_format is None else {"date_format": date_format}),
    }


def _values(frame: Frame, name: str, is_date: bool, date_format: str | None) -> Floats:
    """Numbers of a column, or days since 1970, float64[N]; NaN where a value is missing."""
    if not is_date:
        return frame.numbers(name)
    # Days and not seconds: float64 then holds microseconds exactly for ten thousand years.
    return (frame.dates(name, date_format) - np.datetime64(0, "us")) / np.timedelta64(1, "D")


def encoded(
    frame: Frame, rows: IntArray, encoding: Mapping[str, Any]
) -> tuple[list[str], dict[str, npt.NDArray[Any]]]:
    """Names of the numbers; and `numbers` float32 [n, F] and `categories` int64 [n, C] of rows.

    Args:
        encoding: what `learned` says of training rows.

    Raises:
        DataError: a cell is no number, or no date.
    """
    made = dict[str, npt.NDArray[Any]]()
    for column in encoding["numbers"]:
        name, date_format = column["name"], encoding.get("date_format")
        values = _values(frame, name, column["is_date"], date_format)[rows]
        # Zero stands for a missing value: the mean of a number, and no day at all of a cycle, where
        # sine and cosine are never both 0.
        missing = np.isnan(values)
        made[name] = np.where(missing, 0.0, (values - column["mean"]) / column["scale"])
        for cycle in [*_CYCLES][: 2 + column["daily"]] if column["is_date"] else ():
            # From the values and not from their differences to the mean: the same day of the year
            # or week has the same angle in every table.
            angle = values * (2 * np.pi / _CYCLES[cycle])
            made[f"{name} sine of {cycle}"] = np.where(missing, 0.0, np.sin(angle))
            made[f"{name} cosine of {cycle}"] = np.where(missing, 0.0, np.cos(angle))
        if column["flagged"]:
            made[f"{name} missing"] = missing
    # Categories that training rows lack share one index: a model cannot learn more of them than
    # that they are new, and its embedding has no place for them.
    codes = {
        name: FIRST + frame.codes(name, known)[rows]
        for name, known in encoding["categories"].items()
    }
    # In rows of C order, so that a batch is one gather of neighbouring bytes a row.
    return [*made], {
        field: np.ascontiguousarray(np.array([*of.values()], kind).reshape(-1, len(rows)).T)
        for field, of, kind in (
            ("numbers", made, np.float32),
            ("categories", codes, np.int64),
        )
    }
