"""One open Parquet file, whose row groups are decoded when they are read.

The rows and bytes in the footer prove nothing: a page of a few bytes may claim 2^31 values, or
repeat one long text of its dictionary a million times. So the headers of the pages, about 30 us for
each MB, are read before Arrow reads a row group. They say what the pages become:

    values of fixed width    values x width
    texts and bytes          as many bytes as their pages, unless a dictionary or common prefixes
                             (DELTA_BYTE_ARRAY) repeat them: then values x the longest there can be

What exceeds `limits.expansion` in any case is refused; what may exceed it by repetition is read a
part of the rows at a time, and counted.

Format: https://github.com/apache/parquet-format, parquet.thrift.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.datasets.arrow.files import check_table
from pipeline.datasets.arrow.thrift import read_struct
from pipeline.datasets.reading.expansion import allowed, check_expansion
from pipeline.files.limits import Limits

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

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


class DecodedSize(NamedTuple):
    """Bytes that a column chunk becomes."""

    least: int  # its pages and its values of fixed width
    most: int  # in memory, at most
    cell: int  # its largest cell, at most; 0 if values have a fixed width


class ParquetFile:
    """As `arrow.files.ArrowFile`.

    Args:
        path: of this machine; a regular file.
        name: for messages.
        limits: what it may claim.
    """

    def __init__(self, path: str, name: str, limits: Limits) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        # Not mapped: a file that becomes shorter is then an error and no fatal signal.
        self._source = pa.OSFile(path)
        self._file = pq.ParquetFile(self._source)
        self._name, self._limits = name, limits
        self.check_length = None  # what was read lies in memory
        footer = self._file.metadata
        self.schema = self._file.schema_arrow
        self.lengths = [footer.row_group(n).num_rows for n in range(footer.num_row_groups)]

    def read(self, group: int, columns: Sequence[str]) -> tuple[pa.Table, int]:
        sizes, packed = self._decoded_sizes(group, columns)
        budget = allowed(packed, self._limits)
        # Arrow's threads would compete with the loader's workers, which divide the work already.
        if sum(size.most for size in sizes) <= budget:
            table = self._file.read_row_group(group, columns=list(columns), use_threads=False)
        else:
            rows = max(1, budget // max(1, sum(size.cell for size in sizes)))
            table = self._in_parts(group, columns, rows, packed)
        check_table(table)
        return table, table.nbytes

    def _decoded_sizes(self, group: int, columns: Sequence[str]) -> tuple[list[DecodedSize], int]:
        """What columns of a row group become, and their bytes in the file."""
        schema = self._file.metadata.schema
        sizes, packed = [], 0
        for name in columns:
            for place in self._leaves.get(name, []):
                chunk = self._chunks[group][place]
                sizes.append(_decoded_size(self._source, chunk, schema.column(place)))
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
        found: dict[str, list[int]] = {name: [] for name in self.schema.names}
        for number in range(len(schema)):
            parts = schema.column(number).path.split(".")
            for name in {".".join(parts[:count]) for count in range(1, len(parts) + 1)}:
                if name in found:
                    found[name].append(number)
        return found

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
            footer, _ = read_struct(self._source.read_at(length, end - length), 0, _FOOTER)
        except IndexError as error:
            raise ValueError("its footer is cut off") from error
        groups = []
        for group in footer.get(4, []):
            numbers = [chunk.get(3, {}) for chunk in group.get(1, [])]
            groups.append([Chunk(*(one.get(field, 0) for field in _NUMBERS)) for one in numbers])
        if any(len(group) != self._file.metadata.num_columns for group in groups):
            raise ValueError("a row group has more columns or fewer than the schema")
        return groups

    def _in_parts(self, group: int, columns: Sequence[str], rows: int, packed: int) -> pa.Table:
        import pyarrow as pa

        parts, size = [], 0
        for batch in self._file.iter_batches(rows, [group], list(columns), use_threads=False):
            parts.append(batch)
            size += batch.nbytes
            check_expansion(size, packed, self._limits, f"{self._name!r}, row group {group}")
        return pa.Table.from_batches(parts) if parts else self._file.schema_arrow.empty_table()


def _decoded_size(source: pa.NativeFile, chunk: Chunk, column: pq.ColumnSchema) -> DecodedSize:
    """What the pages of a column chunk claim to become.

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
    place = chunk.data
    if 0 < chunk.dictionary < place:
        place = chunk.dictionary
    stop = place + chunk.size
    if not 0 <= place <= stop <= source.size():
        raise ValueError(f"column {name!r} lies outside of the file")
    values = 0
    while place < stop and values < chunk.values:
        header, length = _page_header(source, place, stop)
        kind, size, packed = (header.get(field, 0) for field in (1, 2, 3))
        about = header.get({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind, 0), {})
        count, encoding = about.get(1, 0), about.get(4 if kind == _DATA_V2 else 2, 0)
        if min(size, packed, count) < 0 or packed > stop - place - length:
            raise ValueError(f"a page of column {name!r} has an impossible size")
        yield kind, size, count, encoding
        values += count if kind in (_DATA, _DATA_V2) else 0
        place += length + packed


def _page_header(source: pa.NativeFile, place: int, stop: int) -> tuple[dict[int, Any], int]:
    """The wanted fields of the header of the page at `place`, and the header's length."""
    for longest in (_HEADER, _LONGEST_HEADER):
        content = source.read_at(min(longest, stop - place), place)
        try:
            return read_struct(content, 0, _PAGE)
        except IndexError:
            if len(content) < longest:
                break
    raise ValueError(f"the header of the page at byte {place} is damaged or cut off")
