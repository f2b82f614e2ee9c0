"""The cells of a small table as text: CSV, TSV, Parquet or Arrow, all of it in memory.

Cost: about 1 us a cell of CSV, and 60 bytes of memory; every row stands for a file of its own, so
reading that file costs far more.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from penstock.datasets.files import Files, FolderFile
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Limits

_ARROW = (".parquet", ".arrow", ".feather")

Cell = str | list[str]  # a list where a column of Parquet has lists


@dataclass(frozen=True)
class Cells:
    """A table of text.

    Attributes:
        name: of its file, for messages.
        columns: the cells of each column, by its name; "" where a value is missing.
        lines: of each row, for messages: "line 3" of a CSV, "row 2" of Parquet.
    """

    name: str
    columns: dict[str, list[Cell]]
    lines: Sequence[str]

    def column(self, name: str, key: str) -> list[Cell]:
        """The cells of a column; ConfigError for `key` if there is none of that name."""
        if name not in self.columns:
            near = get_close_matches(name, self.columns, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            has = ", ".join(list(self.columns)[:12])
            single = next(iter(self.columns)) if len(self.columns) == 1 else ""
            if ";" in single or "\t" in single:
                hint = "; its columns are divided by another sign: set dataset.delimiter"
            reason = f"{self.name!r} has no column {name!r}{hint}; it has {has}"
            raise ConfigError(Problem(key, reason))
        return self.columns[name]

    def texts(self, name: str, key: str) -> list[str]:
        """The same of a column without lists."""
        cells = self.column(name, key)
        for row, cell in enumerate(cells):
            if not isinstance(cell, str):
                raise self.error(row, name, "is a list, and one value is needed")
        return cells  # type: ignore[return-value]

    def error(self, row: int, column: str, wrong: str) -> DataError:
        """The error of a cell, which `wrong` completes: "is empty. Fill it in"."""
        shown = self.columns[column][row]
        value = repr(shown if len(shown) <= 60 else f"{shown[:57]}...")
        return DataError(f"{self.name!r}, {self.lines[row]}, column {column!r}: {value} {wrong}.")


def read_cells(
    file: FolderFile, delimiter: str | None, encoding: str, files: Files | None, limits: Limits
) -> Cells:
    """Read a table; its suffix says which kind it is.

    Args:
        delimiter: of columns; None is a tab for `.tsv`, else a comma.
        encoding: of a CSV or TSV.
        files: access to addresses.
        limits: `columns`, `files` for the rows, `record_bytes` for a cell.

    Raises:
        DataError: it is missing, empty, damaged, in another encoding, or has no rows; a row has
            too few or too many cells.
        ConfigError: Parquet needs something installed, or there is no such encoding.
    """
    name = str(file)
    if name.lower().endswith(_ARROW):
        return _of_arrow(name, files or Files(), limits)
    chosen = delimiter or ("\t" if name.lower().endswith(".tsv") else ",")
    if len(chosen) != 1 or chosen in '\r\n"':
        raise ConfigError(Problem("dataset.delimiter", f"{delimiter!r}; allowed: one sign"))
    try:
        return file.read(lambda path: _of_text(path, name, chosen, encoding, limits))
    except LookupError as error:
        raise ConfigError(Problem("dataset.encoding", f"{encoding!r}: {error}")) from error
    except OSError as error:
        raise DataError(
            f"the table {name!r} cannot be read: {error.strerror or error}. Set dataset.table to "
            "its name in the folder dataset.root."
        ) from error
    except UnicodeError as error:
        raise DataError(
            f"{name!r} is not {encoding}: {error}. Save it in UTF-8, or say what it is: "
            "dataset.encoding=cp1252, or utf-16."
        ) from error


def _of_text(path: str, name: str, delimiter: str, encoding: str, limits: Limits) -> Cells:
    if encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
        encoding = "utf-8-sig"  # as some programs mark it, or not
    with Path(path).open(newline="", encoding=encoding) as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            header = [column.strip() for column in next(reader, [])]
            _check_header(name, header, limits)
            rows: list[list[str]] = []
            lines: list[str] = []
            for row in reader:
                if not row:  # a blank line, as editors leave at the end
                    continue
                line = reader.line_num
                if len(row) != len(header):
                    raise DataError(
                        f"{name!r}, line {line}: {len(row)} cells, but the header has "
                        f"{len(header)} columns. Complete the row or remove it."
                    )
                if len(rows) >= limits.files:
                    claim = limits.refusal("files", f"{line} lines and more")
                    raise DataError(f"{name!r} has {claim}.")
                rows.append(row)
                lines.append(f"line {line}")
        except csv.Error as error:
            wrong = f"{name!r}, line {reader.line_num}: {error}"
            raise DataError(f"{wrong}. Save the table as CSV in UTF-8.") from error
    if not rows:
        raise DataError(f"{name!r} has a header and no rows: there is nothing to train on.")
    stripped = ([cell.strip() for cell in column] for column in zip(*rows, strict=True))
    return Cells(name, dict(zip(header, stripped, strict=True)), lines)


def _check_header(name: str, header: list[str], limits: Limits) -> None:
    if not any(header):
        raise DataError(f"{name!r} is empty: its first line has to name the columns.")
    if len(header) > limits.columns:
        claim = limits.refusal("columns", f"{len(header)} columns")
        raise DataError(f"{name!r}, line 1 has {claim}.")
    column, count = Counter(header).most_common(1)[0]
    if count > 1:
        raise DataError(f"{name!r}: column {column!r} occurs {count} times. Rename one.")


def _of_arrow(name: str, files: Files, limits: Limits) -> Cells:
    try:
        import pyarrow  # noqa: F401

        from penstock.addons.tables.arrow.files import ArrowFiles, check_texts
    except ImportError as error:
        reason = f"{name!r} needs pyarrow: pip install 'penstock-loader[tables]', or save it as CSV"
        raise ConfigError(Problem("dataset.table", reason)) from error
    opened = ArrowFiles([name], files)
    header, count = list(opened.schema.names), int(opened.bounds[-1])
    _check_header(name, header, limits)
    if count > limits.files:
        raise DataError(f"{name!r} has {limits.refusal('files', f'{count} rows')}.")
    if not count:
        raise DataError(f"{name!r} has no rows: there is nothing to train on.")
    columns: dict[str, list[Cell]] = {column: [] for column in header}
    for group in range(len(opened)):
        table, _ = opened.read(group, header)
        for column in header:
            cells = table.column(column)
            check_texts(cells, name, column, "write the table without this column")
            columns[column] += map(_text, cells.to_pylist())
    return Cells(name, columns, [f"row {row}" for row in range(count)])


def _text(value: object) -> Cell:
    """A cell of Arrow as a cell of CSV would have it."""
    if value is None:
        return ""
    if isinstance(value, list):
        return [str(item) for item in value]
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return str(int(value))  # a label, where a column of whole numbers has gaps
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
