"""Files of tables as record batches, read by pyarrow: the only place that knows formats.

    .parquet                    row groups
    .arrow, .feather            record batches of Arrow's file format, or of its stream format
    .csv, .tsv, .txt, .jsonl    text, also compressed: .gz, .bz2, .zst; read forwards only

CSV is RFC 4180 in one dialect: a field in quotes may hold delimiters and line ends, and a quote in
it is doubled; blank lines are no rows. Cost on one core: 0.3 s for 100 MB of CSV, or less.
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from penstock.datasets.files import stranger
from penstock.errors import ConfigError, DataError, Problem

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

    def __post_init__(self) -> None:
        problems = []
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            reason = f'{self.delimiter!r}; allowed: one sign other than " and line ends'
            problems.append(Problem("dataset.delimiter", reason))
        try:
            b"text".decode(self.encoding, "replace")
        except LookupError as error:
            problems.append(Problem("dataset.encoding", f"{self.encoding!r}: {error}"))
        if self.header is False and self.columns is None:
            reason = "the file has no header (dataset.header=false): set the names of its columns"
            problems.append(Problem("dataset.columns", reason))
        if problems:
            raise ConfigError(problems)

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
                self._parquet = pa.parquet.ParquetFile(
                    pa.OSFile(path) if isinstance(path, str) else path
                )
                self.schema = self._parquet.schema_arrow
                groups = self._parquet.metadata
                self.lengths = [groups.row_group(n).num_rows for n in range(groups.num_row_groups)]
            elif name.lower().endswith(ARROW):
                # Mapped: batches that are not compressed take no memory but their touched pages.
                source = pa.memory_map(path)
                try:
                    reader = pa.ipc.open_file(source)
                    self._batch, count = reader.get_batch, reader.num_record_batches
                except pa.ArrowInvalid:  # Arrow's stream format, which `datasets` writes
                    source.seek(0)
                    reader = pa.ipc.open_stream(source)
                    batches = list(reader)
                    self._batch, count = batches.__getitem__, len(batches)
                self.schema = reader.schema
                self.lengths = [self._batch(part).num_rows for part in range(count)]
            else:
                self.schema = next(self._forwards(None), None) or pa.schema([])
        double, count = (
            Counter(self.schema.names).most_common(1)[0] if len(self.schema) else ("", 0)
        )
        if count > 1:
            raise DataError(f"{name!r}: column {double!r} appears {count} times. Rename one.")

    def batches(self, columns: Sequence[str], part: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of one part, or of all, forwards; of these columns, in this order.

        Raises:
            DataError: the file is damaged, or a record has too few or too many fields.
        """
        with self._reading():
            if self.lengths is None:
                yield from self._forwards(columns)
            elif self.name.lower().endswith(".parquet"):
                groups = range(len(self.lengths)) if part is None else [part]
                for batch in self._parquet.iter_batches(
                    # Arrow's threads would compete with the loader's workers.
                    1 << 16,
                    row_groups=list(groups),
                    columns=list(columns),
                    use_threads=False,
                ):
                    yield batch.select(list(columns))
            else:
                for number in range(len(self.lengths)) if part is None else [part]:
                    yield self._batch(number).select(list(columns))

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

    def _forwards(self, columns: Sequence[str] | None) -> Iterator[Any]:
        """Record batches of a text; without `columns` its schema alone."""
        with pa.input_stream(self._path, compression="detect") as stream:
            if not self.is_text:
                block = pa.json.ReadOptions(use_threads=False, block_size=_BLOCK)
                reader = pa.json.open_json(stream, read_options=block)
                yield from [reader.schema] if columns is None else reader
                return
            counted = _Counted(stream, self._text.quoting == "standard")
            reader = self._csv(counted, columns)
            if columns is None:
                yield reader.schema
                return
            yield from reader
            # pyarrow takes all that follows an open quote for the text of one field.
            if counted.quotes % 2:
                raise DataError(
                    f"{self.name!r}: a quoted field is not closed. Repair it; or, if quotes are "
                    "characters like others in this file, set dataset.quoting=none."
                )

    def _csv(self, stream: _Counted, columns: Sequence[str] | None) -> Any:
        text, names = self._text, self._text.columns
        first = stream.first_record(text)
        if not first:
            raise DataError(f"{self.name!r} is empty: its first line has to name the columns.")
        in_file = text.header if text.header is not None else names is None or first == list(names)
        chosen = first if names is None else list(names)
        if len(first) != len(chosen):
            raise DataError(
                f"{self.name!r}, line 1: there are the columns {first}, but dataset.columns says "
                f"{chosen}. Correct one of them; dataset.delimiter is {text.delimiter!r}."
            )
        return pa.csv.open_csv(
            stream,
            pa.csv.ReadOptions(
                use_threads=False,
                block_size=_BLOCK,
                column_names=chosen,
                skip_rows_after_names=int(in_file),
                encoding=text.encoding,
            ),
            pa.csv.ParseOptions(
                delimiter=text.delimiter,
                quote_char='"' if text.quoting == "standard" else False,
                newlines_in_values=text.quoting == "standard",
            ),
            pa.csv.ConvertOptions(
                column_types=dict.fromkeys(chosen, pa.string()) if text.texts else None,
                include_columns=list(columns) if columns else None,
            ),
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
        except (pa.ArrowException, OSError, ValueError, UnicodeError, csv.Error) as error:
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

    def __init__(self, stream: Any, counts: bool) -> None:
        self._stream, self._counts, self.quotes = stream, counts, 0
        self._begun = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        if self._begun:
            piece, self._begun = self._begun[:size], self._begun[size:]
        else:
            piece = self._stream.read(size)
        self.quotes += piece.count(b'"') if self._counts else 0
        return bytes(piece)

    def first_record(self, text: Csv) -> list[str]:
        """The fields of the first record, which is read again."""
        self._begun = self._stream.read(_BLOCK)
        decoded = io.TextIOWrapper(
            io.BytesIO(self._begun), encoding=text.encoding, errors="replace", newline=""
        )
        sign, plain = text.delimiter or ",", text.quoting == "none"
        records = csv.reader(
            decoded, delimiter=sign, quotechar=None if plain else '"', quoting=3 if plain else 0
        )
        return [field.strip().removeprefix("\ufeff") for field in next(records, [])]


def exact(cells: pa.ChunkedArray) -> Any:
    """A column as pandas has it, but whole numbers with gaps as such: as floats, those above 2^53
    would become their neighbours."""
    import pandas as pd

    if pa.types.is_integer(cells.type) and cells.null_count:
        gaps = cells.is_null().to_numpy()
        return pd.arrays.IntegerArray(cells.fill_null(0).to_numpy(), gaps)
    return cells.to_pandas()
