"""The cells of a small table as text: CSV, TSV, Parquet or Arrow, all of it in memory.

Cost: about 1 us a cell of CSV, and 60 bytes of memory; every row stands for a file of its own, so
reading that file costs far more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import get_close_matches

from penstock.addons.tables.read import Csv, TableFile
from penstock.datasets.files import FolderFile
from penstock.errors import ConfigError, DataError, Problem

Cell = str | list[str]  # a list where a column of Parquet has lists


@dataclass(frozen=True)
class Cells:
    """A table of text.

    Attributes:
        name: of its file, for messages.
        columns: the cells of each column, by its name; "" where a value is missing.
    """

    name: str
    columns: dict[str, list[Cell]]

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
        return DataError(f"{self.name!r}, row {row}, column {column!r}: {value} {wrong}.")


def read_cells(file: FolderFile, delimiter: str | None, encoding: str) -> Cells:
    """Read a table; its suffix says which kind it is.

    Args:
        delimiter: of columns; None is a comma for `.csv`, else a tab.
        encoding: of a CSV or TSV.

    Raises:
        DataError: it is missing, empty, damaged, in another encoding, or has no rows; a row has
            too few or too many cells.
        ConfigError: there is no such encoding.
    """
    name, text = str(file), Csv(delimiter, True, encoding=encoding)

    def read(path: str) -> dict[str, list[Cell]]:
        opened = TableFile(path, name, text)
        table = opened.table(opened.schema.names)
        return {column: [*map(_text, table[column].to_pylist())] for column in table.column_names}

    return Cells(name, file.read(read))


def _text(value: object) -> Cell:
    """A cell as text."""
    if value is None:
        return ""
    if isinstance(value, list):
        return [str(item) for item in value]
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return str(int(value))  # a label, where a column of whole numbers has gaps
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value).strip()
