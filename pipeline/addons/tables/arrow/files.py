"""Files of Parquet and Arrow as one table, cut into row groups.

    .parquet            row groups, which are decoded when they are read
    .arrow, .feather    record batches; uncompressed ones are mapped, which costs no memory

Cost: the footer of every file is read once, about 0.2 ms each. Of a Parquet file of 4 MiB and more
at an address no more is fetched before its rows are read; other files at addresses are fetched.
16 bytes a row group are kept, and nothing a row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.addons.record_files.positioned_file import PositionedFile
from penstock.addons.record_files.remote_bytes import RemoteBytes
from penstock.addons.record_files.shard_files import OpenFiles
from penstock.datasets.files import WholeFilesError, stranger
from penstock.errors import DataError
from penstock.files.paths import is_remote
from penstock.order.keys import IntArray
from penstock.terminal import watched

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from penstock.datasets.files import Files

_AT_ONCE = 16  # footers that are fetched
_GROUPS = 4096  # row groups whose blocks are remembered
_LARGE = 4 << 20  # bytes of a file of which parts are fetched
_MAGIC = b"ARROW1"
SUFFIXES = (".parquet", ".arrow", ".feather")


class ArrowFile(Protocol):
    """One open file."""

    schema: pa.Schema
    lengths: list[int]  # rows of each row group

    def read(self, group: int, columns: Sequence[str]) -> tuple[pa.Table, int]:
        """Columns of a row group, and how many bytes of memory they take."""


class ArrowFiles:
    """All row groups of some files, numbered in order.

    Args:
        addresses: of the files, in order.
        files: how to get at them.

    Attributes:
        schema: of the columns, in the first file; `check` compares the others with it.
        bounds: int64[groups + 1], the first row of each row group, and the number of rows.
        classes: label column -> names of its numbers, set by `number_by`; a file that describes
            other numbers for them gets these as it is read.

    Raises:
        DataError: a file is missing, cut off or of another format.
    """

    def __init__(self, addresses: Sequence[str], files: Files) -> None:
        self._files = files
        self._addresses = np.array([os.fsencode(address) for address in addresses])
        self._in_parts = True  # as far as is known
        self._opened = OpenFiles(self._open)
        self._blocks = lru_cache(_GROUPS)(self._blocks_of)
        self._fetch_footers()
        self.schema = self._stored = self._opened[0].schema
        self._others: list[tuple[int, pa.Schema]] = []  # of files whose schema is another
        self.classes: dict[str, Sequence[str]] = {}
        self._schemas: list[pa.Schema] = []  # of each file, with what it says of its columns
        lengths = []
        for number in watched(range(len(addresses)), len(addresses), "reading footers"):
            opened = self._opened[number]
            lengths.append(opened.lengths)
            same = opened.schema.equals(self.schema, check_metadata=True)
            self._schemas.append(self.schema if same else opened.schema)
            if not opened.schema.equals(self.schema):
                self._others.append((number, opened.schema))
        self._first = np.cumsum([0, *map(len, lengths)])  # row group of each file
        flat = [0, *chain.from_iterable(lengths)]
        self.bounds: IntArray = np.cumsum(np.array(flat, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_blocks"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _blocks=lru_cache(_GROUPS)(self._blocks_of))

    def _fetch_footers(self) -> None:
        """Bring the footers of files at addresses, several at a time."""

        def fetch(number: int) -> None:
            file = self._remote(number)
            if file is not None:
                file.fetch_end()

        if is_remote(self.name(0)):
            with suppress(WholeFilesError), ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(fetch, range(len(self._addresses))))

    def _remote(self, number: int) -> RemoteBytes | None:
        """A file of which only parts are fetched."""
        name = self.name(number)
        if not self._in_parts or not is_remote(name) or not name.endswith(".parquet"):
            return None
        size = self._files.remote.look(name).size or 0
        return RemoteBytes(self._files.remote, name, size) if size >= _LARGE else None

    def _open(self, number: int) -> ArrowFile:
        name = self.name(number)
        remote = self._remote(number)
        if remote is not None:
            try:
                return open_file(remote, name)
            except WholeFilesError:
                self._in_parts = False
        return self._files.read(name, lambda path: open_file(path, name))

    def name(self, file: int) -> str:
        """The address of a file, as it was given."""
        return os.fsdecode(self._addresses[file])

    def of_groups(self, groups: IntArray) -> IntArray:
        """The files of row groups, int64[n]."""
        return np.searchsorted(self._first, groups, side="right") - 1

    def addresses_of(self, group: int, columns: tuple[str, ...]) -> tuple[str, ...]:
        """The blocks of a file, or the whole file, to fetch for columns of a row group."""
        return self._blocks(group, columns)

    def _blocks_of(self, group: int, columns: tuple[str, ...]) -> tuple[str, ...]:
        file, within = self._place(group)
        with self.reading(group):
            opened: Any = self._opened[file]  # of Parquet, if it is read in parts
            remote = getattr(opened, "remote", None)
            if remote is None:
                return (self.name(file),)
            return tuple(remote.blocks(opened.ranges(within, columns)))

    def sample(self, file: int, blocks: int) -> tuple[int, list[bytes]]:
        """The size of a file, and as many blocks of 4 KiB of it, evenly spread."""
        remote = self._remote(file)
        if remote is not None:
            return remote.bytes, remote.sample(blocks)
        path = self._files.read(self.name(file), lambda path: PositionedFile(Path(path)))
        return path.size, path.sample(blocks)

    def check(self, columns: Sequence[str], trained: ArrowFiles, whole: bool) -> None:
        """Refuse files whose `columns` are missing or of other types than in the first file.

        Args:
            trained: the files of training, whose first one counts.
            whole: whether no file may have more columns, either, for nobody has chosen.

        Raises:
            DataError: names both files, the column and both types.
        """
        first = trained._stored
        for number, schema in [(0, self._stored), *self._others]:
            others = set(schema.names) ^ set(first.names) if whole else set()
            for column in [*columns, *sorted(others)]:
                here, there = (
                    [of.field(position).type for position in of.get_all_field_indices(column)]
                    for of in (schema, first)
                )
                if len(here) == 1 and here == there:
                    continue
                what = [f"is {of[0]}" if of else "is missing" for of in (here, there)]
                if len(here) > 1:
                    what[0] = f"occurs {len(here)} times"
                raise DataError(
                    f"{self.name(number)!r}: column {column!r} {what[0]}, but in "
                    f"{trained.name(0)!r} it {what[1]}. All files need the same columns: write one "
                    "of them again, take it out, or choose columns that all have (dataset.fields)."
                )

    def read(self, group: int, columns: Sequence[str]) -> tuple[pa.Table, int]:
        """Columns of a row group, and how many bytes of memory they take.

        Raises:
            DataError: the file is damaged.
        """
        file, within = self._place(group)
        with self.reading(group):
            opened = self._opened[file]
            table, size = opened.read(within, columns)
            if columns and table.num_rows != opened.lengths[within]:
                raise ValueError(
                    f"it has {table.num_rows} rows, and the file says {opened.lengths[within]}"
                )
            return self._by_name(table, file), size

    def number_by(self, classes: Mapping[str, Sequence[str]]) -> None:
        """Give the numbers of label columns these names, whatever a file's own numbers are.

        Raises:
            DataError: a file describes a class that is not among them.
        """
        self.classes = dict(classes)
        for file, schema in enumerate(self._schemas):
            for column, names in classes.items() if not file or schema is not self._stored else ():
                own = written_classes(schema, column) or ()
                unknown = [name for name in own if name not in names]
                if unknown:
                    raise DataError(
                        f"{self.name(file)!r}, column {column!r}: it has the class {unknown[0]!r}, "
                        f"and training has {', '.join(names[:10])}. Write the file again with "
                        "these names, or leave its rows out."
                    )

    def _by_name(self, table: pa.Table, file: int) -> pa.Table:
        """A table whose labels have the numbers of `classes`."""
        import pyarrow as pa

        for column, names in self.classes.items():
            own = written_classes(self._schemas[file], column)
            if own in (None, list(names)) or column not in table.column_names:
                continue
            old = table[column].cast(pa.int64()).to_numpy()
            known = (old >= 0) & (old < len(own))
            numbers = np.array([*map(list(names).index, own), -1], np.int64)
            made = numbers[np.where(known, old, -1).astype(np.int64)]
            made = pa.array(made, mask=table[column].is_null().to_numpy())
            table = table.set_column(table.column_names.index(column), column, made)
        return table

    @contextmanager
    def reading(self, group: int) -> Iterator[None]:
        """Turns what pyarrow raises inside into a DataError that names the row group."""
        try:
            yield
        except damage_errors() as error:
            file, within = self._place(group)
            raise DataError(
                f"{self.name(file)!r}, row group {within} cannot be read: {first_line(error)}. "
                "Copy or write the file again."
            ) from error

    def group_name(self, group: int) -> str:
        """A row group for messages: its number in its file, and the file."""
        file, within = self._place(group)
        return f"row group {within} of {self.name(file)!r}"

    def where(self, group: int, row: int, column: str) -> str:
        """A cell for messages: its file, its row in the file from 0, its column."""
        file, _ = self._place(group)
        row += int(self.bounds[group] - self.bounds[self._first[file]])
        return f"{self.name(file)!r}, row {row}, column {column!r}"

    def _place(self, group: int) -> tuple[int, int]:
        """The file of a row group, and its number there."""
        file = int(self.of_groups(np.array(group)))
        return file, group - int(self._first[file])


def written_classes(schema: pa.Schema, column: str) -> list[str] | None:
    """Names of the classes of a label column, if the schema has them."""
    names = features_of(schema).get(column, {}).get("names")
    return [str(name) for name in names] if names and isinstance(names, list) else None


def features_of(schema: pa.Schema) -> dict[str, dict[str, object]]:
    """Column -> its description by Hugging Face's `datasets`; empty if that did not write it."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    features = features if isinstance(features, dict) else {}
    return {name: value for name, value in features.items() if isinstance(value, dict)}


def open_file(file: str | RemoteBytes, name: str) -> ArrowFile:
    """Open a file by its suffix; at an address a Parquet file.

    Raises:
        DataError: it is missing, cut off, not a regular file, or of another format than its suffix.
    """
    try:
        if isinstance(file, str) and not name.endswith(".parquet"):
            return IpcFile(file)
        return ParquetFile(file)
    except FileNotFoundError as error:
        raise DataError(f"{name!r} is missing.") from error
    except damage_errors() as error:
        raise DataError(f"{name!r} {_complaint(file, error)}") from error


class ParquetFile:
    """An `ArrowFile` of Parquet.

    Args:
        file: the path of a regular file of this machine, or one at an address.

    Attributes:
        remote: the file at an address.
    """

    def __init__(self, file: str | RemoteBytes) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.remote = None if isinstance(file, str) else file
        # Not mapped: a file that becomes shorter is then an error and no fatal signal.
        self._file = pq.ParquetFile(
            pa.OSFile(file) if isinstance(file, str) else pa.PythonFile(file, "r")
        )
        footer = self._file.metadata
        self.schema = self._file.schema_arrow
        self.lengths = [footer.row_group(n).num_rows for n in range(footer.num_row_groups)]

    def read(self, group: int, columns: Sequence[str]) -> tuple[pa.Table, int]:
        # Arrow's threads would compete with the loader's workers, which divide the work already.
        table = self._file.read_row_group(group, columns=list(columns), use_threads=False)
        table.validate()
        return table, table.nbytes

    def ranges(self, group: int, columns: Sequence[str]) -> list[tuple[int, int]]:
        """The bytes of the file in which columns of a row group lie: starts and stops."""
        row_group = self._file.metadata.row_group(group)
        found = []
        for number in range(row_group.num_columns):
            chunk = row_group.column(number)
            path = chunk.path_in_schema
            if any(path == name or path.startswith(f"{name}.") for name in columns):
                data, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset or 0
                start = dictionary if 0 < dictionary < data else data
                found.append((start, start + chunk.total_compressed_size))
        return found


class IpcFile:
    """An `ArrowFile` of Arrow's own format, or of its stream format, which `datasets` writes.

    Files are mapped, so that an uncompressed batch takes no memory but its touched pages. The
    batches of a stream are read when it is opened.
    """

    def __init__(self, path: str) -> None:
        import pyarrow as pa

        source = pa.memory_map(path)
        try:
            self._file = pa.ipc.open_file(source)
        except pa.ArrowInvalid:
            if source.read_at(len(_MAGIC), 0) == _MAGIC:
                raise
            source.seek(0)
            stream = pa.ipc.open_stream(source)
            self.schema, self._batches = stream.schema, list(stream)
            self.lengths = [batch.num_rows for batch in self._batches]
            return
        self.schema, self._batches = self._file.schema, []
        self._source, self._readers = source, dict[tuple[str, ...], Any]()
        count = self._file.num_record_batches
        self._compressed = count > 0 and _in_memory(self._file.get_batch(0)) > 0
        first = self.schema.names[:1]
        self.lengths = [self._batch(number, first).num_rows for number in range(count)]

    def _batch(self, number: int, columns: Sequence[str]) -> Any:
        if self._batches:
            return self._batches[number]
        # Chosen columns are copied from the file first, which uncompressed ones need not be.
        if not self._compressed:
            return self._file.get_batch(number)
        import pyarrow as pa

        reader = self._readers.get(tuple(columns))
        if reader is None:
            places = [self.schema.get_field_index(name) for name in columns]
            options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
            reader = self._readers[tuple(columns)] = pa.ipc.open_file(self._source, options=options)
        return reader.get_batch(number)

    def read(self, group: int, columns: Sequence[str]) -> tuple[pa.Table, int]:
        import pyarrow as pa

        batch = self._batch(group, columns).select(list(columns))
        batch.validate()
        return pa.Table.from_batches([batch]), _in_memory(batch)


def _in_memory(batch: pa.RecordBatch) -> int:
    """Bytes of the buffers of a batch that are no pages of a mapped file: those have a parent."""
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer]
    return sum(buffer.size for buffer in buffers if buffer.parent is None)


def _complaint(file: str | RemoteBytes, error: Exception) -> str:
    with open(file, "rb") if isinstance(file, str) else file as opened:
        opened.seek(0)
        start = opened.read(256) or b""
    other = stranger(start)
    if other is not None:
        return f"is not a table: {other}. Replace it or take it out of the data."
    if start.startswith((b"PAR1", b"ARROW1")):
        return (
            f"was cut off or damaged ({first_line(error)}): its footer is missing. Copy or write "
            "it again."
        )
    return f"cannot be read as its suffix says ({first_line(error)}). Rename or replace it."


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type."""
    return str(error).split("\n")[0].rstrip(".") or type(error).__name__


def damage_errors() -> tuple[type[Exception], ...]:
    """Errors of pyarrow, numpy and torch over a damaged file; not MemoryError."""
    from pyarrow import lib

    return (
        OSError,
        EOFError,
        ValueError,
        LookupError,
        OverflowError,
        RuntimeError,
        lib.ArrowTypeError,
        lib.ArrowCapacityError,
        lib.ArrowSerializationError,
    )


def check_texts(cells: pa.ChunkedArray, name: str, column: str, otherwise: str) -> None:
    """Refuse a column with a text that is not UTF-8, which Arrow's own files may hold.

    For readers that want whole columns as texts of Python or of pandas.

    Args:
        cells: of the column of the file `name`.
        otherwise: what helps beside mending the text, for the message.

    Raises:
        DataError: names file and column.
    """
    import pyarrow as pa

    try:
        cells.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{name!r}, column {column!r} is not UTF-8: {first_line(error)}. Mend the text, or "
            f"{otherwise}."
        ) from error


def in_one_piece(table: pa.Table, column: str) -> pa.Array:
    """A column of a row group as one array; extension types as their storage, tensors excepted."""
    import pyarrow as pa

    array = table.column(column)
    if array.num_chunks > 1:
        array = array.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # of one chunk, which combining would copy
        if array.num_chunks > 1:
            raise DataError(
                f"column {column!r} has more than 2 GiB in one row group. Write the files again "
                "with smaller row groups; about 64 MiB are good to read."
            )
        array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    wrapped = isinstance(array, pa.ExtensionArray)
    return array.storage if wrapped and not isinstance(array, pa.FixedShapeTensorArray) else array


def empty(kind: pa.DataType) -> pa.Array:
    """An array of no values, as `in_one_piece` gives columns of this type."""
    import pyarrow as pa

    if not isinstance(kind, pa.BaseExtensionType):
        return pa.array([], kind)
    storage = pa.array([], kind.storage_type)
    tensors = isinstance(kind, pa.FixedShapeTensorType)
    return pa.ExtensionArray.from_storage(kind, storage) if tensors else storage


def exact_frame(table: pa.Table) -> pd.DataFrame:
    """A table as pandas has it, but whole numbers with gaps as such: as floats, those above 2^53
    would become their neighbours."""
    import pandas as pd
    import pyarrow as pa

    frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
    for field in table.schema:
        cells = table[field.name]
        if pa.types.is_integer(field.type) and cells.null_count:
            gaps = cells.is_null().to_numpy()
            frame[field.name] = pd.arrays.IntegerArray(cells.fill_null(0).to_numpy(), gaps)
    return frame
