"""Rows of predictions as a file: .jsonl, .csv or .parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, Problem
from penstock.files.disk import write_atomically
from penstock.files.table_cells import cell

ENDINGS = (".jsonl", ".csv", ".parquet")


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows in one piece; lists and mappings are JSON in a CSV file, as they are elsewhere.

    Raises:
        ConfigError: pyarrow is missing, or a column of Parquet has values of several kinds.
    """
    names = list(dict.fromkeys(name for row in rows for name in row if name != "error"))
    names += ["error"] * any("error" in row for row in rows)
    if path.suffix == ".parquet":
        write_atomically(path, _parquet(names, rows))
        return
    text = io.StringIO(newline="")
    if path.suffix == ".csv":
        table = csv.writer(text, lineterminator="\n")
        table.writerow(map(cell, names))
        table.writerows([_cell(row.get(name)) for name in names] for row in rows)
    else:
        text.writelines(json.dumps(row) + "\n" for row in rows)
    write_atomically(path, text.getvalue().encode("utf-8", "backslashreplace"))


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return cell(value)
    return json.dumps(value) if isinstance(value, (list, dict)) else value


def _parquet(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        reason = "a .parquet needs pyarrow: pip install pyarrow; .csv and .jsonl need nothing"
        raise ConfigError(Problem("out", reason)) from error
    sink = io.BytesIO()
    try:
        columns = {name: [_text(row.get(name)) for row in rows] for name in names}
        parquet.write_table(pa.table(columns), sink)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        reason = f"the rows are no table of Parquet: {error}; .jsonl takes any"
        raise ConfigError(Problem("out", reason)) from error
    return sink.getvalue()


def _text(value: Any) -> Any:
    """A name of a file may have bytes that are no text."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value
