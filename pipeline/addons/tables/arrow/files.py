"""Files of Parquet and Arrow as one table, cut into row groups.

    .parquet            row groups, which are decoded when they are read
    .arrow, .feather    record batches; uncompressed ones are mapped, which costs no memory

Cost: the footer of every file is read once, about 0.2 ms each. Of a Parquet file of 4 MiB and more
at an address no more is fetched before its rows are read; other files at addresses are fetched.
16 bytes a row group are kept, and nothing a row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.addons.record_files.expansion import FREE
from penstock.addons.record_files.open_files import OpenFiles
from penstock.addons.record_files.remote_bytes import RemoteBytes
from penstock.datasets.files import WholeFilesError
from penstock.datasets.reading.file_kind import stranger
from penstock.datasets.reading.positioned_file import PositionedFile, check_regular
from penstock.errors import DataError
from penstock.files.addresses import is_remote
from penstock.files.limits import Limits
from penstock.order.randomness import IntArray
from penstock.terminal import watched

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.datasets.files import Files

Announce = Callable[[int], None]
_AT_ONCE = 16  # footers that are fetched
_GROUPS = 4096  # row groups whose blocks are remembered
_LARGE = 4 << 20  # bytes of a file of which parts are fetched
SUFFIXES = (".parquet", ".arrow", ".feather")


class ArrowFile(Protocol):
    """One open file."""

    schema: pa.Schema
    lengths: list[int]  # rows of each row group

    @property
    def check_length(self) -> Callable[[], None] | None:
        """Raises DataError if arrays that were read can no longer be touched; 2 us.

        None if they always can. It does not keep the file open.
        """

    def read(self, group: int, columns: Sequence[str], announce: Announce) -> tuple[pa.Table, int]:
        """Columns of a row group, and how many bytes of memory they take.

        Args:
            announce: is called with the bytes that they are going to take, as far as is known, and
                again where it shows that there are more.

        Raises:
            ValueError: it is damaged, or claims more than the limits.
        """


class ArrowFiles:
    """All row groups of some files, numbered in order.

    Args:
        addresses: of the files, in order.
        files: how to get at them.
        limits: what they may claim.

    Attributes:
        schema: of the columns, in the first file; `check` compares the others with it.
        bounds: int64[groups + 1], the first row of each row group, and the number of rows.

    Raises:
        DataError: a file is missing, cut off or of another format.
    """

    def __init__(self, addresses: Sequence[str], files: Files, limits: Limits) -> None:
        self._files, self._limits = files, limits
        self._addresses = np.array([os.fsencode(address) for address in addresses])
        self._in_parts = True  # as far as is known
        self._opened = OpenFiles(self._open)
        self._blocks = lru_cache(_GROUPS)(self._blocks_of)
        self._fetch_footers()
        self.schema = self._stored = self._opened[0].schema
        self._others: list[tuple[int, pa.Schema]] = []  # of files whose schema is another
        lengths = []
        for number in watched(range(len(addresses)), len(addresses), "reading footers"):
            opened = self._opened[number]
            lengths.append(opened.lengths)
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
                return open_file(remote, name, self._limits)
            except WholeFilesError:
                self._in_parts = False
        return self._files.read(name, lambda path: open_file(path, name, self._limits))

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

    def check(self, columns: Sequence[str]) -> None:
        """Refuse files whose `columns` are missing or of other types than in the first file.

        Raises:
            DataError: names the file, the column and both types.
        """
        expected: dict[str, pa.DataType] = {}
        for number, schema in [(0, self._stored), *self._others]:
            for column in columns:
                types = [
                    schema.field(position).type for position in schema.get_all_field_indices(column)
                ]
                if len(types) == 1 and types[0] == expected.setdefault(column, types[0]):
                    continue
                problem = f"is {types[0]}" if types else "is missing"
                if len(types) > 1:
                    problem = f"occurs {len(types)} times"
                problem += f", but in {self.name(0)!r} it is {expected[column]}" if number else ""
                raise DataError(
                    f"{self.name(number)!r}: column {column!r} {problem}. All files need one "
                    "schema: write the file again, or take it out."
                )

    def read(
        self, group: int, columns: Sequence[str], announce: Announce = lambda size: None
    ) -> tuple[pa.Table, int]:
        """Columns of a row group, and how many bytes of memory they take.

        Args:
            announce: see `ArrowFile.read`.

        Raises:
            DataError: the file is damaged.
        """
        file, within = self._place(group)
        with self.reading(group):
            opened = self._opened[file]
            table, size = opened.read(within, columns, announce)
            if columns and table.num_rows != opened.lengths[within]:
                raise ValueError(
                    f"it has {table.num_rows} rows, and the file says {opened.lengths[within]}"
                )
            return table, size

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

    def length_check(self, group: int) -> Callable[[], None] | None:
        """To be called before arrays of a row group are touched; see `ArrowFile`."""
        return self._opened[self._place(group)[0]].check_length

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


def open_file(file: str | RemoteBytes, name: str, limits: Limits) -> ArrowFile:
    """Open a file by its suffix; at an address a Parquet file.

    Raises:
        DataError: it is missing, cut off, not a regular file, of another format than its suffix,
            or claims more than `limits`.
    """
    from penstock.addons.tables.arrow.ipc_file import IpcFile
    from penstock.addons.tables.arrow.parquet_file import ParquetFile

    try:
        opened: ArrowFile
        if not isinstance(file, str):
            size, opened = file.bytes, ParquetFile(file, name, limits)
        else:
            check_regular(file)
            size = Path(file).stat().st_size
            opened = (ParquetFile if name.endswith(".parquet") else IpcFile)(file, name, limits)
        _check_claims(opened, size, name, limits)
        return opened
    except FileNotFoundError as error:
        raise DataError(f"{name!r} is missing.") from error
    except damage_errors() as error:
        raise DataError(f"{name!r} {_complaint(file, error)}") from error


def _check_claims(opened: ArrowFile, size: int, name: str, limits: Limits) -> None:
    from pyarrow import BaseExtensionType

    waiting = list(opened.schema)
    while waiting:
        field = waiting.pop()
        _ = field.name  # raises UnicodeDecodeError, which is better here than when it is used
        kind = field.type.storage_type if isinstance(field.type, BaseExtensionType) else field.type
        waiting += [kind.field(number) for number in range(kind.num_fields)]
    columns = len(opened.schema.names)
    if columns > limits.columns:
        raise DataError(f"{name!r}: {limits.refusal('columns', f'it has {columns} columns')}.")
    for group, rows in enumerate(opened.lengths):
        if rows < 0:
            raise DataError(f"{name!r}, row group {group} claims {rows} rows: it is damaged.")
        if rows > FREE + limits.expansion * size:  # of a type of no bytes, or repeated
            claim = f"row group {group} claims {rows} rows in a file of {size} bytes"
            raise DataError(f"{name!r}: {limits.refusal('expansion', claim)}.")


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
    """Errors of pyarrow, numpy and torch over a damaged file; not MemoryError, see `limits`."""
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


def check_table(table: pa.Table) -> None:
    """Check that the arrays of a table point only at their own memory.

    Arrow's readers check that buffers are there, not what they hold. An offset outside of its
    values is then followed wherever it leads: to memory of something else, returned as text, or to
    a crash. The encoding of texts is not looked at: it cannot lead out of memory, would cost as
    much as reading the texts, and one bad text would take its whole row group along.

    Cost: about 1 ns a row of a column of texts, bytes or lists; nothing for numbers.

    Raises:
        pyarrow.ArrowInvalid: offsets or dictionary indices of a column are out of bounds.
    """
    for column in table.columns:
        for chunk in column.chunks:
            _check_array(chunk)


def _check_array(array: pa.Array) -> None:
    import pyarrow as pa

    array.validate()  # lengths and sizes of buffers, on which all that follows relies
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        _check_array(array.storage)
    elif pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            _check_array(array.field(number))
    elif pa.types.is_dictionary(kind):
        _check_array(array.dictionary)
        # The indices alone: of values of any type, only their number matters.
        blank = pa.nulls(len(array.dictionary))
        pa.DictionaryArray.from_arrays(array.indices, blank, safe=False).validate(full=True)
    elif pa.types.is_string(kind):
        array.view(pa.binary()).validate(full=True)
    elif pa.types.is_large_string(kind):
        array.view(pa.large_binary()).validate(full=True)
    elif pa.types.is_string_view(kind):
        array.view(pa.binary_view()).validate(full=True)
    else:
        array.validate(full=True)


def check_texts(
    cells: pa.ChunkedArray, name: str, column: str, otherwise: str, first: int = 0
) -> None:
    """Refuse a column with a text that is not UTF-8, which Arrow's own files may hold.

    For readers that want whole columns as texts of Python or of pandas.

    Args:
        cells: of the column, from row `first` of the file `name`.
        otherwise: what helps beside mending the text, for the message.

    Raises:
        DataError: names file, row and column.
    """
    import pyarrow as pa

    try:
        cells.validate(full=True)
    except pa.ArrowInvalid as error:
        where, reason = f"{name!r}, column {column!r}", first_line(error)
        row = first
        for cell in _as_bytes(cells):
            try:
                (cell or b"").decode()
            except UnicodeError as undecoded:
                where, reason = f"{name!r}, row {row}, column {column!r}", str(undecoded)
                break
            row += 1
        raise DataError(
            f"{where} is not UTF-8: {reason}. Mend the text, or {otherwise}."
        ) from error


def _as_bytes(cells: pa.ChunkedArray) -> Iterator[bytes | None]:
    """The texts of a column; nothing of a column of anything else."""
    import pyarrow as pa

    binary = {
        pa.string(): pa.binary(),
        pa.large_string(): pa.large_binary(),
        pa.string_view(): pa.binary_view(),
    }
    for chunk in cells.chunks:
        if pa.types.is_dictionary(chunk.type) and chunk.type.value_type in binary:
            texts = chunk.dictionary.view(binary[chunk.type.value_type])
            chunk = pa.DictionaryArray.from_arrays(chunk.indices, texts).dictionary_decode()
        if chunk.type in binary:
            chunk = chunk.view(binary[chunk.type])
        yield from (cell.as_py() if isinstance(cell.as_py(), bytes) else None for cell in chunk)


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
