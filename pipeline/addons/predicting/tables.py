"""Rows of predictions as a file: .jsonl, .csv or .parquet, written as they come."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from penstock.errors import ConfigError, Problem
from penstock.files.disk import replacing

ENDINGS = (".jsonl", ".csv", ".parquet")
_AT_ONCE = 4096  # rows that are in memory
Row = Mapping[str, Any]
Rows = Callable[[], Iterable[Row]]


def write(path: Path, columns: Sequence[str], rows: Rows) -> None:
    """Write rows in one piece; lists and mappings are JSON in a CSV file, as they are elsewhere.

    Args:
        columns: all that rows have, in order.
        rows: gives the rows; for Parquet twice, as the first time finds the types.

    Raises:
        ConfigError: pyarrow is missing, or a column of Parquet has values of several kinds.
    """
    with replacing(path) as file:
        {".parquet": _parquet, ".csv": _csv, ".jsonl": _jsonl}[path.suffix](file, columns, rows)


def _jsonl(file: BinaryIO, columns: Sequence[str], rows: Rows) -> None:
    for row in rows():
        file.write(json.dumps(row).encode() + b"\n")


def _csv(file: BinaryIO, columns: Sequence[str], rows: Rows) -> None:
    text = io.TextIOWrapper(file, "utf-8", "backslashreplace", newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows([_cell(row.get(name)) for name in columns] for row in rows())
    text.flush()
    text.detach()


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (list, dict)) else value


def _parquet(file: BinaryIO, columns: Sequence[str], rows: Rows) -> None:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        reason = "a .parquet needs pyarrow: pip install pyarrow; .csv and .jsonl need nothing"
        raise ConfigError(Problem("out", reason)) from error

    def tables(schema: pa.Schema | None) -> Iterator[pa.Table]:
        source = iter(rows())
        while several := list(islice(source, _AT_ONCE)):
            cells = {name: [_text(row.get(name)) for row in several] for name in columns}
            yield pa.table(cells, schema=schema)

    try:
        schema = pa.schema([(name, pa.null()) for name in columns])
        for table in tables(None):
            schema = pa.unify_schemas([schema, table.schema], promote_options="permissive")
        with parquet.ParquetWriter(file, schema) as writer:
            for table in tables(schema):
                writer.write_table(table)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        reason = f"the rows are no table of Parquet: {error}; .jsonl takes any"
        raise ConfigError(Problem("out", reason)) from error


def _text(value: Any) -> Any:
    """A name of a file may have bytes that are no text."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value
