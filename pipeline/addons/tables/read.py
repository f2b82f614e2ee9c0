"""Files of tables as record batches, read by pyarrow: the only place that knows formats.

    .parquet                    row groups
    .arrow, .feather            record batches of Arrow's file format, or of its stream format
    .csv, .tsv, .jsonl          text, also compressed: .gz, .bz2, .zst; read forwards only

CSV is RFC 4180 in one dialect: a field in quotes may hold delimiters and line ends, and a quote in
it is doubled; blank lines are no rows. Cost on one core: 0.5 s (texts) to 0.7 s (numbers) for
100 MB of CSV.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from penstock.addons.storage.files import RecordFiles
from penstock.datasets.files import Files, local_file, stranger
from penstock.errors import DataError
from penstock.files.paths import join

ARROW = (".parquet", ".arrow", ".feather")
_TEXT = (".csv", ".tsv", ".jsonl")  # of a plain text, each line is a document
SUFFIXES = (*ARROW, *(kind + packed for kind in _TEXT for packed in ("", ".gz", ".bz2", ".zst")))
# Bytes of text by which types are told, and the most that a record may have.
_BLOCK = 8 << 20
# Cells of no value. Of pyarrow's own list not those that begin like numbers, as 1.#IND: a sixth of
# the time went into comparing each number with them.
_NULLS = ["", "#N/A", "#N/A N/A", "#NA", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null"]
PAGE = "\f"  # between two documents of a plain text
_MARKS = ("\n\n", "\n", " ")  # where a long document is cut, the best first
Quoting = Literal["standard", "none"]
Types = Mapping[str, Literal["int", "float", "bool", "text"]]
_TYPES = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "text": pa.string()}


@dataclass(frozen=True)
class Csv:
    """How a CSV or TSV is written.

    Attributes:
        delimiter: of columns; None is a comma for `.csv`, else a tab.
        header: whether the first record names the columns; None: it does without `columns`, and if
            it is equal to them.
        columns: names of all columns, in order.
        quoting: "standard", or "none", where quotes are characters like others.
        encoding: any that Python knows; a mark of UTF-8 at the beginning is left out.
        texts: whether every column is text; else pyarrow tells the types by the first 8 MiB.
        longest: characters of a document, if this is no table but plain text.
        lines: whether each line of plain text is a document; None: in .tsv, .csv and .jsonl.
        types: of columns of a CSV or of JSON lines, where others than those of the first 8 MiB.
    """

    delimiter: str | None = None
    header: bool | None = None
    columns: Sequence[str] | None = None
    quoting: Quoting = "standard"
    encoding: str = "utf-8"
    texts: bool = True
    longest: int = 0
    lines: bool | None = None
    # Not in the repr, which is hashed: without types, fingerprints are those of before.
    types: Types = field(default_factory=dict, repr=False)


class TableFile:
    """One open file.

    Args:
        path: on this machine; or, of Parquet, an open file.
        name: its path or address, for messages; the suffix says what it is.
        text: how it is written, if it is a CSV or TSV.
        schema: of its columns, if it is known, for it takes a look at the first block of a text.
        head: the rows of that block, if another look has converted them.

    Attributes:
        schema: of its columns.
        head: rows of a CSV that telling the types has converted, and the bytes behind which the
            others begin, -1 if there are none; None where that is not sure.
        is_text: whether it is a CSV or TSV.
        lengths: rows of each of its parts (row groups, record batches); None for text.
        parquet: its footer; of Parquet alone.

    Raises:
        DataError: it is missing, damaged, empty, of another format, or has a column twice.
    """

    def __init__(
        self,
        path: str | BinaryIO,
        name: str,
        text: Csv,
        schema: pa.Schema | None = None,
        head: tuple[pa.Table, int] | None = None,
    ) -> None:
        # The numbers are for messages: rows that came, and those in front of what is read.
        self.name, self._path, self._text, self.head, self._rows, self._before = (
            name,
            path,
            text,
            head,
            0,
            0,
        )
        self.lengths: list[int] | None = None
        self._part: Callable[[int, Sequence[str]], Iterable[pa.RecordBatch]] = lambda _, columns: (
            self._forwards(columns)
        )
        self._delimiter = text.delimiter or ("," if ".csv" in name.lower() else "\t")
        self.is_text = not name.lower().endswith(ARROW) and ".jsonl" not in name.lower()
        with self._reading():
            if name.lower().endswith(".parquet"):
                # Not mapped: a file that becomes shorter is then an error and no fatal signal.
                parquet = pa.parquet.ParquetFile(pa.OSFile(path) if isinstance(path, str) else path)
                # Arrow's threads would compete with the loader's workers.
                self._part = lambda number, columns: parquet.iter_batches(
                    1 << 16, [number], columns, use_threads=False
                )
                self.schema, self.parquet = parquet.schema_arrow, parquet.metadata
                self.lengths = [
                    self.parquet.row_group(n).num_rows for n in range(self.parquet.num_row_groups)
                ]
            elif name.lower().endswith(ARROW):
                # Mapped: batches that are not compressed take no memory but their touched pages.
                source = pa.memory_map(path)
                is_file = source.read_at(6, 0) == b"ARROW1"  # else the stream of `datasets`
                reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
                stream = [] if is_file else list(reader)
                get = reader.get_batch if is_file else stream.__getitem__
                self._part = lambda number, columns: [get(number)]
                self.schema, self.lengths = (
                    reader.schema,
                    [
                        get(n).num_rows
                        for n in range(reader.num_record_batches if is_file else len(stream))
                    ],
                )
            elif text.longest:
                self.schema = pa.schema([("text", pa.large_string())])
            else:
                if self.is_text and text.columns and text.header is None:
                    with self._opened() as lines:
                        first = lines.read(1 << 16).decode("utf-8", "ignore").split("\n")[0]
                    # Some copies of a file without names begin with them all the same.
                    self._text = replace(
                        text,
                        header=first.strip("\ufeff\r").replace('"', "")
                        == self._delimiter.join(text.columns),
                    )
                self.schema = schema or self._first_types()
        if double := [of for of in self.schema.names if self.schema.names.count(of) > 1]:
            raise DataError(f"{name!r}: column {double[0]!r} appears twice. Rename one.")

    def batches(self, columns: Sequence[str], part: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of one part, or of all, forwards; of these columns, in this order.

        Raises:
            DataError: the file is damaged, or a record has too few or too many fields.
        """
        with self._reading():
            for number in (
                [part]
                if part is not None
                else range(1 if self.lengths is None else len(self.lengths))
            ):
                for batch in self._part(number, columns):
                    if batch.num_rows:
                        yield batch.select(list(columns))
                    self._rows += batch.num_rows  # for messages

    def table(self, columns: Sequence[str]) -> pa.Table:
        """All rows of these columns, in memory.

        Raises:
            DataError: as `batches`; or there is no row.
        """
        batches = list(self.batches(columns))
        if not batches:
            raise DataError(f"{self.name!r} has no rows: there is nothing to read.")
        table = pa.Table.from_batches(batches)
        with self._reading():
            table.validate(full=True)  # Arrow looks at no text, and Python wants UTF-8
        return table

    def _first_types(self) -> pa.Schema:
        """The columns of a text, and the types that its first block suggests."""
        # Not of the file itself, of which pyarrow reads 32 blocks ahead. Some bytes more, and the
        # block is not the last one, which would have to end with a whole record. Arrow's own
        # buffer: a thread of Arrow's may be the last to drop it, which ends the process if Python
        # is ending.
        with self._opened() as stream:
            block = stream.read_buffer(_BLOCK + 4)
        reader = self._text_reader(pa.BufferReader(block), None)
        schema, content = reader.schema, block.to_pybytes()
        # Without quotes and the line ends of Windows, the last record of a block ends with its last
        # line.
        if self.is_text and b'"' not in content and b"\r" not in content:
            self.head = (
                pa.Table.from_batches([*filter(None, [next(iter(reader), None)])], schema),
                content.rfind(b"\n", 0, _BLOCK) + 1 if len(content) > _BLOCK else -1,
            )
        # Text in another encoding looks like bytes, and is refused with its row.
        types = {
            of.name: pa.string()
            if (self.is_text and self._text.texts) or of.type == pa.binary()
            else of.type
            for of in schema
        } | {name: _TYPES[kind] for name, kind in self._text.types.items()}
        return pa.schema([of.with_type(types[of.name]) for of in schema])

    def _opened(self) -> Any:
        """The bytes of a text, in UTF-8."""
        stream, encoding = pa.input_stream(self._path, compression="detect"), self._text.encoding
        "".encode(encoding)  # refuses what is no encoding of texts, such as zip
        return (
            stream
            if codecs.lookup(encoding).name == "utf-8"
            else pa.transcoding_input_stream(stream, encoding, "utf-8")
        )

    def _forwards(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        text, quotes = self._text, list[int]()

        def counted(block: pa.Buffer) -> pa.Buffer:
            # Part by part: a mask of the whole block would be fresh pages of memory each time.
            quotes.extend(
                int(np.count_nonzero(part == ord('"')))
                for part in np.array_split(
                    np.frombuffer(block, np.uint8), 1 + block.size // 262_144
                )
            )
            return block

        with self._opened() as stream:
            if not text.longest:
                # A person, or other files, may say other types than its first block does.
                head, behind = (
                    self.head
                    if self.head and self.head[0].schema == self.schema
                    else (pa.table({}), 0)
                )
                yield from head.to_batches()
                stream.read_buffer(max(behind, 0))
                self._before = len(head) + (len(head) > 0 and text.header is not False)
                if behind >= 0:
                    # Closed with it: what pyarrow reads ahead must not end in a forked process.
                    with self._text_reader(
                        pa.TransformInputStream(stream, counted), columns, len(head)
                    ) as reader:
                        yield from reader
            elif content := stream.read().decode().removeprefix("\ufeff"):
                by_line = self.name.lower().endswith(_TEXT) if text.lines is None else text.lines
                yield pa.record_batch(
                    [pa.array(documents(content, by_line, text.longest), pa.large_string())],
                    self.schema,
                )
        # pyarrow takes all that follows an open quote for the text of one field.
        if self.is_text and text.quoting == "standard" and sum(quotes) % 2:
            raise DataError(
                f"{self.name!r}: a quoted field is not closed. Repair it; or, if quotes are "
                "characters like others in this file, set dataset.quoting=none."
            )

    def _text_reader(self, stream: Any, columns: Sequence[str] | None, skipped: int = 0) -> Any:
        """A reader of these columns; without them, of types that the first block suggests."""
        if not self.is_text:
            return pa.json.open_json(
                stream,
                pa.json.ReadOptions(use_threads=False, block_size=_BLOCK),
                pa.json.ParseOptions(explicit_schema=self.schema if columns else None),
            )
        text = self._text
        return pa.csv.open_csv(
            stream,
            pa.csv.ReadOptions(
                use_threads=False,
                # What is parsed stays in the processor's cache where records are short, of 8 kB.
                block_size=_BLOCK // 2 if skipped > 1000 else _BLOCK,
                column_names=self.schema.names if skipped else text.columns,
                # So a message about columns that are missing shows that no name is known.
                autogenerate_column_names=not (skipped or text.header is not False or text.columns),
                skip_rows_after_names=bool(text.header and text.columns and not skipped),
            ),
            pa.csv.ParseOptions(
                delimiter=self._delimiter,
                quote_char='"' if text.quoting == "standard" else False,
                newlines_in_values=text.quoting == "standard",
            ),
            # pyarrow converts each block twice whose types it has to tell.
            pa.csv.ConvertOptions(
                column_types=self.schema if columns else None,
                include_columns=columns,
                null_values=_NULLS,
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
        except (pa.ArrowException, OSError, ValueError, TypeError, LookupError) as error:
            wrong = re.sub(
                r"Row #(\d+)",  # of what was read, from the rows on that were known
                lambda row: f"Row #{int(row[1]) + self._before}",
                str(error).split("\n")[0].rstrip("."),
            )
            for number, row, kind, value in re.findall(
                r"In CSV column #(\d+): (Row #\d+): .* error to (\w+).*: invalid value '(.*)'",
                wrong,
            ):
                column = self.schema.names[int(number)]
                wider = "float" if kind == "int64" and value.lstrip("-")[:1].isdigit() else "text"
                raise DataError(
                    f"{self.name!r}, {row}, column {column!r}: {value!r:.60} is no {kind}, which "
                    "dataset.types or the first 8 MiB of the first file say it is. Repair the "
                    f"value, or set dataset.types={{{column}: {wider}}}."
                ) from error
            if not self.name.lower().endswith(ARROW):
                # No delimiter mends bytes that are no text, and JSON lines have none.
                wrong += (
                    f" of the block that begins with row {self._rows}; set dataset.types"
                    if not self.is_text
                    else "; set dataset.encoding"
                    if isinstance(error, UnicodeDecodeError)
                    else "; set dataset.encoding or dataset.delimiter"
                )
            elif isinstance(self._path, str):
                wrong = (
                    f"it is not a table: {other}"
                    if (other := stranger(pa.OSFile(self._path).read(256)))
                    else f"was it cut off? {wrong}"
                )
            raise DataError(
                f"{self.name!r} cannot be read: {wrong}. Repair or replace it."
            ) from error


class Source:
    """Some files with the same columns.

    Args:
        exact: whether no file may have other columns, as none were chosen.

    Attributes:
        schema: of the first file, or of the one for training.
        name: of that file.
        head: of the first file, until it is set to None.
    """

    def __init__(self, files: RecordFiles, text: Csv, exact: bool) -> None:
        self.files, self.text, self._exact, self.head = files, text, exact, None
        self._schemas = dict[int, pa.Schema]()  # so that 8 MiB of a text are looked at once
        # Of one file alone: to open 1,000 files at an address takes a minute, and each is checked
        # when its rows are read.
        self.schema = pa.schema([])
        first = self.open(0)
        self.schema, self.name, self.head = first.schema, first.name, first.head

    def open(self, number: int) -> TableFile:
        """A file; of Parquet at an address, only what is read is fetched."""
        address = self.files.addresses[number]
        # Row groups alone are fetched of Parquet; of other formats all is read anyway.
        file = TableFile(
            self.files.open(number)
            if self.files.is_remote and address.lower().endswith(".parquet")
            else str(self.files.path(number)),
            address,
            self.text,
            self._schemas.get(number),
            None if number else self.head,
        )
        # A CSV does not tell floats that are whole, nor what an empty column has in other files.
        types = {of.name: str(of.type) for of in self.schema} if file.is_text else {}
        for place, of in enumerate(file.schema):
            here, there = str(of.type), types.get(of.name)
            if there and (here == "null" or there == "string" or here + there == "int64double"):
                file.schema = file.schema.set(place, self.schema.field(of.name))
        self._schemas[number] = file.schema
        return file

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """All rows of these columns: the number of the file, and some of its rows.

        Raises:
            DataError: a file is damaged, or has other columns than the first.
        """
        for number in range(len(self.files)):
            for batch in self.checked(number, columns).batches(columns):
                yield number, batch

    def checked(self, number: int, columns: Sequence[str]) -> TableFile:
        """A file, which is refused if `columns` are missing or of other types than in the first."""
        file = self.open(number)
        # A person who names the fields has chosen from what may differ.
        others = {*file.schema.names} ^ {*self.schema.names} if self._exact else set()
        for column in [*columns, *sorted(others.difference(columns))]:
            here, there = (
                schema.field(column).type if column in schema.names else "missing"
                for schema in (file.schema, self.schema)
            )
            if here != there:
                raise DataError(
                    f"{file.name!r}: column {column!r} is {here}, but in {self.name!r} it is "
                    f"{there}. All files need the same columns: write one of them again, choose "
                    "columns that all have (dataset.fields), or set dataset.types of a CSV."
                )
        return file


def files_at(
    root: str, file: str | None, suffixes: Sequence[str], files: Files | None, split: str
) -> RecordFiles:
    """The files of a split: one of any name, or those in a folder or of a pattern."""
    if file is None and not local_file(root).is_file():
        return RecordFiles.of(root, suffixes, files, split)
    address = root if file is None else join(root, file)
    return RecordFiles([address], [address.rpartition("/")[2]], files)


def documents(text: str, by_line: bool, longest: int) -> Iterator[str]:
    """The documents of a text in their order, none of white space alone."""
    # All of a short rest, which no backtracking (`+`) searches; else up to the last mark in the
    # second half, so documents stay long and sentences whole; else just so many characters.
    cut = re.compile(
        "|".join(
            [
                rf".{{1,{longest}}}+\Z",
                *(f".{{{longest // 2},{longest - len(mark)}}}{mark}" for mark in _MARKS),
                f".{{{longest}}}",
            ]
        ),
        re.DOTALL,
    )
    # Not by `splitlines`, which ends lines in the middle of texts: at U+2028, for one.
    for page in re.split("\r\n?|\n", text) if by_line else text.split(PAGE):
        yield from filter(str.strip, cut.findall(page))


def exact(cells: pa.ChunkedArray) -> Any:
    """A column as pandas has it, but whole numbers with gaps as such: as floats, those above 2^53
    would become their neighbours."""
    import pandas as pd

    return (
        pd.arrays.IntegerArray(cells.fill_null(0).to_numpy(), cells.is_null().to_numpy())
        if pa.types.is_integer(cells.type) and cells.null_count
        else cells.to_pandas()
    )
