"""Files of tables as record batches, read by pyarrow: the only place that knows formats.

    .parquet                    row groups
    .arrow, .feather            record batches of Arrow's file format, or of its stream format
    .csv, .tsv, .txt, .jsonl    text, also compressed: .gz, .bz2, .zst; read forwards only

CSV is RFC 4180 in one dialect: a field in quotes may hold delimiters and line ends, and a quote in
it is doubled; blank lines are no rows. Cost on one core: 0.3 s for 100 MB of CSV, or less.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from penstock.datasets.files import stranger
from penstock.errors import DataError

ARROW = (".parquet", ".arrow", ".feather")
TEXT = (".csv", ".tsv", ".txt", ".jsonl")
PACKED = ("", ".gz", ".bz2", ".zst")
SUFFIXES = (*ARROW, *(kind + packed for kind in TEXT if kind != ".txt" for packed in PACKED))
_BLOCK = 16 << 20  # bytes of text at once, and the most that a record may have
Quoting = Literal["standard", "none"]


@dataclass(frozen=True)
class Csv:
    """How a CSV or TSV is written.

    Attributes:
        delimiter: of columns; None is a comma for `.csv`, else a tab.
        header: whether the first record names the columns; None: it does if `columns` are not
            given, or are the same.
        columns: names of all columns, in order.
        quoting: "standard", or "none", where quotes are characters like others.
        encoding: any that Python knows; a mark of UTF-8 at the beginning is left out.
        texts: whether every column is text; else pyarrow tells numbers by the first block.
    """

    delimiter: str | None = None
    header: bool | None = None
    columns: Sequence[str] | None = None
    quoting: Quoting = "standard"
    encoding: str = "utf-8"
    texts: bool = True

    def of(self, name: str) -> Csv:
        """The same with the delimiter of a file of that name."""
        return replace(self, delimiter=self.delimiter or ("," if ".csv" in name.lower() else "\t"))


class TableFile:
    """One open file.

    Args:
        path: on this machine; or, of Parquet, an open file.
        name: its path or address, for messages; the suffix says what it is.
        text: how it is written, if it is a CSV or TSV.

    Attributes:
        schema: of its columns.
        is_text: whether it is a CSV or TSV.
        lengths: rows of each of its parts (row groups, record batches); None for text.

    Raises:
        DataError: it is missing, damaged, empty, of another format, or has a column twice.
    """

    def __init__(self, path: str | io.BufferedReader, name: str, text: Csv) -> None:
        self.name, self._path, self._text = name, path, text.of(name)
        self.lengths: list[int] | None = None
        self.is_text = not name.lower().endswith(ARROW) and ".jsonl" not in name.lower()
        with self._reading():
            if name.lower().endswith(".parquet"):
                # Not mapped: a file that becomes shorter is then an error and no fatal signal.
                source = pa.OSFile(path) if isinstance(path, str) else path
                parquet = pa.parquet.ParquetFile(source)
                # Arrow's threads would compete with the loader's workers.
                self._part = lambda number, columns: parquet.iter_batches(
                    1 << 16, [number], columns, use_threads=False
                )
                self.schema, groups = parquet.schema_arrow, parquet.metadata
                self.lengths = [groups.row_group(n).num_rows for n in range(groups.num_row_groups)]
            elif name.lower().endswith(ARROW):
                # Mapped: batches that are not compressed take no memory but their touched pages.
                source = pa.memory_map(path)
                try:
                    reader = pa.ipc.open_file(source)
                    get, count = reader.get_batch, reader.num_record_batches
                except pa.ArrowInvalid:  # Arrow's stream format, which `datasets` writes
                    source.seek(0)
                    reader = pa.ipc.open_stream(source)
                    batches = list(reader)
                    get, count = batches.__getitem__, len(batches)
                self._part = lambda number, columns: [get(number)]
                self.schema, self.lengths = reader.schema, [get(n).num_rows for n in range(count)]
            else:
                with pa.input_stream(path, compression="detect") as stream:
                    self.schema = self._text_reader(stream, None).schema
                if self.is_text and self._text.texts:
                    self.schema = pa.schema([(column, pa.string()) for column in self.schema.names])
        names = self.schema.names
        if double := [column for column in names if names.count(column) > 1]:
            raise DataError(f"{name!r}: column {double[0]!r} appears twice. Rename one.")

    def batches(self, columns: Sequence[str], part: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of one part, or of all, forwards; of these columns, in this order.

        Raises:
            DataError: the file is damaged, or a record has too few or too many fields.
        """
        with self._reading():
            if self.lengths is None:
                yield from self._forwards(columns)
                return
            for number in range(len(self.lengths)) if part is None else [part]:
                for batch in self._part(number, columns):
                    yield batch.select(list(columns))

    def table(self, columns: Sequence[str]) -> pa.Table:
        """All rows of these columns, in memory.

        Raises:
            DataError: as `batches`; or there is no row.
        """
        batches = list(self.batches(columns))
        if not sum(batch.num_rows for batch in batches):
            raise DataError(f"{self.name!r} has no rows: there is nothing to read.")
        table = pa.Table.from_batches(batches)
        with self._reading():
            table.validate(full=True)  # Arrow looks at no text, and Python wants UTF-8
        return table

    def _forwards(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with pa.input_stream(self._path, compression="detect") as stream:
            counted = _Counted(stream)
            for number, batch in enumerate(self._text_reader(counted, columns)):
                rows = batch.select(list(columns))
                # Where somebody names the columns, files may still have a header.
                named = number == 0 and self._text.columns and self._text.header is None
                is_header = named and rows.slice(0, 1).to_pylist() == [{c: c for c in columns}]
                yield rows.slice(int(bool(is_header)))
        # pyarrow takes all that follows an open quote for the text of one field.
        if self.is_text and self._text.quoting == "standard" and counted.quotes % 2:
            raise DataError(
                f"{self.name!r}: a quoted field is not closed. Repair it; or, if quotes are "
                "characters like others in this file, set dataset.quoting=none."
            )

    def _text_reader(self, stream: Any, columns: Sequence[str] | None) -> Any:
        """A reader of these columns; without them, of types that the first block suggests."""
        if not self.is_text:
            block = pa.json.ReadOptions(use_threads=False, block_size=_BLOCK)
            return pa.json.open_json(stream, read_options=block)
        text = self._text
        typed = dict.fromkeys(columns or (), pa.string()) if text.texts else None
        # Of names alone the beginning says enough; pyarrow parses a block when it opens a file.
        few = 4 << 20 if text.texts and columns is None else _BLOCK
        return pa.csv.open_csv(
            stream,
            pa.csv.ReadOptions(
                use_threads=False,
                block_size=few,
                column_names=text.columns,
                # So a message about columns that are missing shows that no name is known.
                autogenerate_column_names=text.header is False and text.columns is None,
                skip_rows_after_names=int(bool(text.header and text.columns)),
                encoding=text.encoding,
            ),
            pa.csv.ParseOptions(
                delimiter=text.delimiter,
                quote_char='"' if text.quoting == "standard" else False,
                newlines_in_values=text.quoting == "standard",
            ),
            pa.csv.ConvertOptions(column_types=typed, include_columns=columns),
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turns what pyarrow raises inside into a DataError that names the file."""
        try:
            yield
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            raise DataError(
                f"{self.name!r} cannot be read: {os.strerror(error.errno or 0)}. Set dataset.root."
            ) from error
        except (pa.ArrowException, OSError, ValueError, TypeError, LookupError) as error:
            wrong = str(error).split("\n")[0].rstrip(".")
            if self.name.lower().endswith(ARROW):
                with open(self._path, "rb") if isinstance(self._path, str) else self._path as file:
                    file.seek(0)
                    other = stranger(file.read(256))
                wrong = f"it is not a table: {other}" if other else f"was it cut off? {wrong}"
            else:
                wrong += "; dataset.delimiter and dataset.encoding say how it is written"
            raise DataError(
                f"{self.name!r} cannot be read: {wrong}. Repair or replace it."
            ) from error


class _Counted(io.RawIOBase):
    """The bytes of a text, and how many quotes are among those that were read."""

    def __init__(self, stream: Any) -> None:
        self._stream, self.quotes = stream, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        piece: bytes = self._stream.read(size)
        self.quotes += piece.count(b'"')
        return piece


def exact(cells: pa.ChunkedArray) -> Any:
    """A column as pandas has it, but whole numbers with gaps as such: as floats, those above 2^53
    would become their neighbours."""
    import pandas as pd

    if pa.types.is_integer(cells.type) and cells.null_count:
        gaps = cells.is_null().to_numpy()
        return pd.arrays.IntegerArray(cells.fill_null(0).to_numpy(), gaps)
    return cells.to_pandas()
