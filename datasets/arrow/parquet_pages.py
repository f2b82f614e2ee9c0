"""What the pages of a Parquet file become when they are decoded, told before Arrow allocates it.

The footer says how many rows and bytes a column has, but nothing holds it to that: a page of a few
bytes may claim 2^31 values, or repeat one long text of its dictionary a million times. What counts
stands in the pages' own headers, which are read here without the pages: about 30 us each, and pages
have about 1 MB.

    values of fixed width    values x width
    texts and bytes          as many bytes as their pages, unless a dictionary or common prefixes
                             (DELTA_BYTE_ARRAY) repeat them: then values x the longest there can be

Format: https://github.com/apache/parquet-format, parquet.thrift.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.datasets.arrow.parquet_footer import Chunk
from pipeline.datasets.arrow.thrift import read_struct

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3  # kinds of pages
_REPEATING = {2, 7, 8}  # encodings PLAIN_DICTIONARY, DELTA_BYTE_ARRAY, RLE_DICTIONARY
_HEADER = 4096  # bytes; nearly all headers are shorter
_LONGEST_HEADER = 16 << 20  # as Arrow's own reader has it
# Of PageHeader: type, sizes, and of each kind of page the number of values and the encoding.
_ABOUT = {1: 32, 2: 32, 4: 32}
_WANTED = {1: 32, 2: 32, 3: 32, 5: _ABOUT, 7: _ABOUT, 8: _ABOUT}


@dataclass(frozen=True)
class Claim:
    """What a column chunk becomes.

    Attributes:
        least: bytes that its pages and its values of fixed width take in any case.
        most: bytes in memory, at most.
        cell: bytes of its largest cell, at most; 0 if its values have a fixed width.
    """

    least: int
    most: int
    cell: int


def claim_of(source: pa.NativeFile, chunk: Chunk, column: pq.ColumnSchema) -> Claim:
    """What the pages of a column chunk claim.

    Args:
        source: the file.
        chunk: from its footer.
        column: from its schema.

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
        return Claim(size, size, 0)
    least = content + 4 * values
    return Claim(least, least + repeated * largest, largest)


def _pages(source: pa.NativeFile, chunk: Chunk, name: str) -> list[tuple[int, int, int, int]]:
    """Kind, uncompressed bytes, values and encoding of each page; values 0 if it has none."""
    place = chunk.data
    if 0 < chunk.dictionary < place:
        place = chunk.dictionary
    stop = place + chunk.size
    if not 0 <= place <= stop <= source.size():
        raise ValueError(f"column {name!r} lies outside of the file")
    found, values = [], 0
    while place < stop and values < chunk.values:
        header, length = _header(source, place, stop)
        kind, size, packed = (header.get(field) or 0 for field in (1, 2, 3))
        about = header.get({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind, 0)) or {}
        count, encoding = about.get(1) or 0, about.get(4 if kind == _DATA_V2 else 2) or 0
        if min(size, packed, count) < 0 or packed > stop - place - length:
            raise ValueError(f"a page of column {name!r} has an impossible size")
        found.append((kind, size, count, encoding))
        values += count if kind in (_DATA, _DATA_V2) else 0
        place += length + packed
    return found


def _header(source: pa.NativeFile, place: int, stop: int) -> tuple[dict[int, Any], int]:
    """What counts of the header of the page at `place`, and the header's length."""
    for longest in (_HEADER, _LONGEST_HEADER):
        content = source.read_at(min(longest, stop - place), place)
        try:
            return read_struct(content, 0, _WANTED)
        except IndexError:
            if len(content) < longest:
                break
    raise ValueError(f"the header of the page at byte {place} is damaged or cut off")
