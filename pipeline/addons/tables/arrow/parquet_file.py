"""One open Parquet file, whose row groups are decoded when they are read.

The rows and bytes in the footer prove nothing: a page of a few bytes may claim 2^31 values, or
repeat one long text of its dictionary a million times. So the headers of the pages, about 30 us for
each MB, are read before Arrow reads a row group. They say what the pages become:

    values of fixed width    values x width
    texts and bytes          as many bytes as their pages, unless a dictionary or common prefixes
                             (DELTA_BYTE_ARRAY) repeat them: then values x the longest there can be

Thrift is read by hand because pyarrow shows no headers of pages. It can go when pyarrow does, or
bounds what it allocates for a row group.

Columns that exceed `limits.expansion` in any case are refused; those that may exceed it by
repetition are read some rows at a time, and counted.

Formats: https://github.com/apache/parquet-format, parquet.thrift, and
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.addons.record_files.expansion import allowed, check_expansion
from penstock.addons.tables.arrow.files import Announce, check_table
from penstock.files.limits import Limits

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from penstock.addons.record_files.remote_bytes import RemoteBytes

# Number of a field -> its bits, for an integer; its wanted fields, for a struct; a list of these,
# for a list of structs.
_Layout = Mapping[int, Any]
_DEPTH = 16  # of structs and lists; Parquet has eight
# Types of Thrift: true, false (both in the field's own byte), a byte, a double; bits of integers.
_FIXED = {1: 0, 2: 0, 3: 1, 7: 8}
_INTEGERS = {4: 16, 5: 32, 6: 64}
_BYTES, _LISTS, _STRUCT = 8, (9, 10), 12

_END = 8  # bytes behind the footer: its length, and b"PAR1"
# Fields by their numbers in parquet.thrift: FileMetaData > RowGroup > ColumnChunk > ColumnMetaData.
_NUMBERS = {5: 64, 7: 64, 9: 64, 11: 64}
_FOOTER = {4: [{1: [{3: _NUMBERS}]}]}

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3  # kinds of pages
_REPEATING = {2, 7, 8}  # encodings PLAIN_DICTIONARY, DELTA_BYTE_ARRAY, RLE_DICTIONARY
_HEADER = 4096  # bytes; nearly all headers are shorter
_LONGEST_HEADER = 16 << 20  # as Arrow's own reader has it
# Of PageHeader: type, sizes, and of each kind of page the number of values and the encoding.
_ABOUT = {1: 32, 2: 32, 4: 32}
_PAGE = {1: 32, 2: 32, 3: 32, 5: _ABOUT, 7: _ABOUT, 8: _ABOUT}


class Chunk(NamedTuple):
    """A column of one row group."""

    values: int  # nulls included
    size: int  # bytes of its pages in the file
    data: int  # where the first page of data begins
    dictionary: int  # where that of the dictionary begins; 0 without one

    @property
    def first(self) -> int:
        """Where it begins."""
        return self.dictionary if 0 < self.dictionary < self.data else self.data


class DecodedSize(NamedTuple):
    """Bytes that a column chunk becomes."""

    least: int  # its pages and its values of fixed width
    most: int  # in memory, at most
    cell: int  # its largest cell, at most; 0 if values have a fixed width


class ParquetFile:
    """As `arrow.files.ArrowFile`.

    Args:
        file: the path of a regular file of this machine, or one at an address.
        name: for messages.
        limits: of its claims.

    Attributes:
        remote: the file at an address.
    """

    def __init__(self, file: str | RemoteBytes, name: str, limits: Limits) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.remote = None if isinstance(file, str) else file
        # Not mapped: a file that becomes shorter is then an error and no fatal signal.
        self._source = pa.OSFile(file) if isinstance(file, str) else pa.PythonFile(file, "r")
        self._file = pq.ParquetFile(self._source)
        self._name, self._limits = name, limits
        self.check_length = None  # what was read lies in memory
        footer = self._file.metadata
        self.schema = self._file.schema_arrow
        self.lengths = [footer.row_group(n).num_rows for n in range(footer.num_row_groups)]

    def read(self, group: int, columns: Sequence[str], announce: Announce) -> tuple[pa.Table, int]:
        import pyarrow as pa

        sizes, packed = self._decoded_sizes(group, columns)
        budget = allowed(packed, self._limits)
        announce(sum(size.least for size in sizes))
        # Arrow's threads would compete with the loader's workers, which divide the work already.
        if sum(size.most for size in sizes) <= budget:
            announce(sum(size.most for size in sizes))
            table = self._file.read_row_group(group, columns=list(columns), use_threads=False)
        else:
            rows = max(1, budget // max(1, sum(size.cell for size in sizes)))
            parts, size = [], 0
            for batch in self._file.iter_batches(rows, [group], list(columns), use_threads=False):
                parts.append(batch)
                size += batch.nbytes
                announce(2 * size)  # and put together, a column at a time
                check_expansion(size, packed, self._limits, f"{self._name!r}, row group {group}")
            table = pa.Table.from_batches(parts) if parts else self.schema.empty_table()
        check_table(table)
        return table, table.nbytes

    def ranges(self, group: int, columns: Sequence[str]) -> list[tuple[int, int]]:
        """The bytes of the file in which columns of a row group lie: starts and stops."""
        chunks = self._chunks[group]
        return [
            (chunk.first, chunk.first + chunk.size)
            for chunk in (chunks[leaf] for name in columns for leaf in self._leaves.get(name, []))
        ]

    def _decoded_sizes(self, group: int, columns: Sequence[str]) -> tuple[list[DecodedSize], int]:
        """Decoded sizes of columns of a row group, and their bytes in the file."""
        schema = self._file.metadata.schema
        sizes, packed = [], 0
        for name in columns:
            for leaf in self._leaves.get(name, []):
                chunk = self._chunks[group][leaf]
                sizes.append(_decoded_size(self._source, chunk, schema.column(leaf)))
                packed += chunk.size
        least = sum(size.least for size in sizes)
        check_expansion(least, packed, self._limits, f"{self._name!r}, row group {group}")
        return sizes, packed

    @cached_property
    def _leaves(self) -> dict[str, list[int]]:
        """Column -> numbers of the stored columns it is made of; a struct of two has two.

        A path joins names by dots, which names may hold as well.
        """
        schema = self._file.metadata.schema
        leaves: dict[str, list[int]] = {name: [] for name in self.schema.names}
        for number in range(len(schema)):
            parts = schema.column(number).path.split(".")
            for name in {".".join(parts[:count]) for count in range(1, len(parts) + 1)}:
                if name in leaves:
                    leaves[name].append(number)
        return leaves

    @cached_property
    def _chunks(self) -> list[list[Chunk]]:
        """The chunks of each row group, in the order of the columns; about 20 us each.

        pyarrow knows them as well, but over a chunk whose size statistics contradict it, its
        `RowGroupMetaData.column` (26.0) ends the whole process by std::terminate; what reads row
        groups does not.
        """
        end = self._source.size() - _END
        length = int.from_bytes(self._source.read_at(4, end), "little")
        if not 0 < length <= end:
            raise ValueError("its footer is damaged")
        try:
            footer, _ = _read_struct(self._source.read_at(length, end - length), 0, _FOOTER)
        except IndexError as error:
            raise ValueError("its footer is cut off") from error
        groups = []
        for group in footer.get(4, []):
            numbers = [chunk.get(3, {}) for chunk in group.get(1, [])]
            groups.append(
                [Chunk(*(chunk.get(field, 0) for field in _NUMBERS)) for chunk in numbers]
            )
        if any(len(group) != self._file.metadata.num_columns for group in groups):
            raise ValueError("a row group has more columns or fewer than the schema")
        return groups


def _decoded_size(source: pa.NativeFile, chunk: Chunk, column: pq.ColumnSchema) -> DecodedSize:
    """The size that the pages of a column chunk claim to become.

    Raises:
        ValueError: the chunk lies outside of the file, or a header cannot be read.
    """
    width = _WIDTHS.get(column.physical_type)
    if column.physical_type == "FIXED_LEN_BYTE_ARRAY":
        width = max(column.length, 0)
    values = repeated = content = largest = 0
    for kind, size, count, encoding in _pages(source, chunk, column.path):
        content += size
        largest = max(largest, size)
        if kind != _DICTIONARY:
            values += count
            repeated += count if encoding in _REPEATING else 0
    if width is not None:
        size = content + values * width
        return DecodedSize(size, size, 0)
    least = content + 4 * values
    return DecodedSize(least, least + repeated * largest, largest)


def _pages(source: pa.NativeFile, chunk: Chunk, name: str) -> Iterator[tuple[int, int, int, int]]:
    """Kind, uncompressed bytes, values and encoding of each page; values 0 if it has none."""
    start = chunk.first
    stop = start + chunk.size
    if not 0 <= start <= stop <= source.size():
        raise ValueError(f"column {name!r} is outside of the file")
    values = 0
    while start < stop and values < chunk.values:
        header, length = _page_header(source, start, stop)
        kind, size, packed = (header.get(field, 0) for field in (1, 2, 3))
        about = header.get({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind, 0), {})
        count, encoding = about.get(1, 0), about.get(4 if kind == _DATA_V2 else 2, 0)
        if min(size, packed, count) < 0 or packed > stop - start - length:
            raise ValueError(f"a page of column {name!r} has an impossible size")
        yield kind, size, count, encoding
        values += count if kind in (_DATA, _DATA_V2) else 0
        start += length + packed


def _page_header(source: pa.NativeFile, start: int, stop: int) -> tuple[dict[int, Any], int]:
    """The wanted fields of the header of the page at `place`, and the header's length."""
    for longest in (_HEADER, _LONGEST_HEADER):
        content = source.read_at(min(longest, stop - start), start)
        try:
            return _read_struct(content, 0, _PAGE)
        except IndexError:
            if len(content) < longest:
                break
    raise ValueError(f"the header of the page at byte {start} is damaged or cut off")


def _read_struct(
    content: bytes, at: int, layout: _Layout, depth: int = 0
) -> tuple[dict[int, Any], int]:
    """The wanted fields of the struct at `at` in Thrift's compact protocol, and where it ends.

    A field of another type than the wanted one is left out. Numbers are cut to their width as Arrow
    does: a walk that differed from Arrow's own would miss what it reads. About 0.7 us a field.

    Raises:
        IndexError: `content` ends before the struct does.
        ValueError: it is not a struct.
    """
    fields: dict[int, Any] = {}
    number = 0
    while content[at]:
        kind, step = content[at] & 15, content[at] >> 4
        at += 1
        if step:
            number += step
        else:
            number, at = _integer(content, at, 16)
        value, at = _value(content, at, kind, layout.get(number), depth)
        if value is not None:
            fields[number] = value
    return fields, at + 1


def _value(content: bytes, at: int, kind: int, layout: Any, depth: int) -> tuple[Any, int]:
    """A value, None unless it is of the wanted type, and where it ends."""
    if kind in _INTEGERS:
        value, at = _integer(content, at, _INTEGERS[kind])
        return value if layout == _INTEGERS[kind] else None, at
    if kind in _FIXED:
        return None, at + _FIXED[kind]
    if kind == _BYTES:
        length, at = _varint(content, at)
        if at + length > len(content):
            raise IndexError
        return None, at + length
    if depth >= _DEPTH:
        raise ValueError("its structs are nested too deeply")
    if kind == _STRUCT:
        inner = layout if isinstance(layout, Mapping) else None
        fields, at = _read_struct(content, at, inner or {}, depth + 1)
        return None if inner is None else fields, at
    if kind in _LISTS:
        return _read_list(content, at, layout[0] if isinstance(layout, list) else None, depth + 1)
    raise ValueError(f"it has a field of type {kind}")


def _read_list(content: bytes, at: int, layout: Any, depth: int) -> tuple[list[Any] | None, int]:
    count, kind = content[at] >> 4, content[at] & 15
    at += 1
    if count == 15:
        count, at = _varint(content, at)
    if count > len(content) - at:  # each entry has a byte at least
        raise IndexError
    values = []
    for _ in range(count):
        value, at = (None, at + 1) if kind in (1, 2) else _value(content, at, kind, layout, depth)
        if layout is not None:
            values.append(value)
    return None if layout is None or kind != _STRUCT else values, at


def _integer(content: bytes, at: int, bits: int) -> tuple[int, int]:
    value, at = _varint(content, at)
    value &= (1 << bits) - 1
    return (value >> 1) ^ -(value & 1), at


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while content[at] & 128:
        value |= (content[at] & 127) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise ValueError("a number in it is too long")
    return value | content[at] << shift, at + 1
