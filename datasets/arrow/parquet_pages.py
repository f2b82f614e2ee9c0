"""What the pages of a Parquet file become when they are decoded, told before Arrow allocates it.

The footer says how many rows and bytes a column has, but nothing holds it to that: a page of a few
bytes may claim 2^31 values, or repeat one long text of its dictionary a million times. What counts
stands in the pages' own headers, which are read here without the pages: about 30 us each, and pages
have about 1 MB.

    values of fixed width    values x width
    texts and bytes          as many bytes as their pages, unless a dictionary or common prefixes
                             (DELTA_BYTE_ARRAY) repeat them: then values x the longest there can be

Format: https://github.com/apache/parquet-format, parquet.thrift, in Thrift's compact protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3  # kinds of pages
_REPEATING = {2, 7, 8}  # encodings PLAIN_DICTIONARY, DELTA_BYTE_ARRAY, RLE_DICTIONARY
_HEADER = 4096  # bytes; nearly all headers are shorter
_LONGEST_HEADER = 16 << 20  # as Arrow's own reader has it
_DEPTH = 8  # of structs in a header; the format has three


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


def claim_of(source: pa.NativeFile, chunk: pq.ColumnChunkMetaData, type_length: int) -> Claim:
    """What the pages of a column chunk claim.

    Args:
        source: the file.
        chunk: from its footer.
        type_length: bytes of a value of type FIXED_LEN_BYTE_ARRAY.

    Raises:
        ValueError: the chunk lies outside of the file, or a header cannot be read.
    """
    width = _WIDTHS.get(chunk.physical_type)
    if chunk.physical_type == "FIXED_LEN_BYTE_ARRAY":
        width = max(type_length, 0)
    values = repeated = content = largest = 0
    for kind, size, count, encoding in _pages(source, chunk):
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


def _pages(source: pa.NativeFile, chunk: pq.ColumnChunkMetaData) -> list[tuple[int, int, int, int]]:
    """Kind, uncompressed bytes, values and encoding of each page; values 0 if it has none."""
    place = chunk.data_page_offset
    first = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
    if first is not None and 0 < first < place:
        place = first
    stop = place + chunk.total_compressed_size
    if not 0 <= place <= stop <= source.size():
        raise ValueError(f"column {chunk.path_in_schema!r} lies outside of the file")
    found, values = [], 0
    while place < stop and values < chunk.num_values:
        header, length = _header(source, place, stop)
        kind, size, packed = (_number(header, field) for field in (1, 2, 3))
        about = header.get({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind, 0))
        about = about if isinstance(about, dict) else {}
        count, encoding = _number(about, 1), _number(about, 4 if kind == _DATA_V2 else 2)
        if min(size, packed, count) < 0 or packed > stop - place - length:
            raise ValueError(f"a page of column {chunk.path_in_schema!r} has an impossible size")
        found.append((kind, size, count, encoding))
        values += count if kind in (_DATA, _DATA_V2) else 0
        place += length + packed
    return found


def _number(fields: dict[int, Any], field: int) -> int:
    """A number of a struct; as in Arrow, a field of another type counts for nothing."""
    value = fields.get(field)
    return value if type(value) is int else 0


def _header(source: pa.NativeFile, place: int, stop: int) -> tuple[dict[int, Any], int]:
    """The header of the page at `place`, field -> value, and its length."""
    for longest in (_HEADER, _LONGEST_HEADER):
        content = source.read_at(min(longest, stop - place), place)
        try:
            return _struct(content, 0, 0)
        except IndexError:
            if len(content) < longest:
                break
    raise ValueError(f"the header of the page at byte {place} is damaged or cut off")


def _struct(content: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """A struct of Thrift's compact protocol, and where it ends; IndexError at the end of bytes."""
    if depth > _DEPTH:
        raise ValueError("its structs are nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while content[at]:
        kind, step = content[at] & 15, content[at] >> 4
        at += 1
        if step:
            number += step
        else:
            number, at = _integer(content, at, 32)
        fields[number], at = _value(content, at, kind, depth)
    return fields, at + 1


def _value(content: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):  # true and false, in the field's own byte
        return kind == 1, at
    if kind in (4, 5, 6):
        return _integer(content, at, 64 if kind == 6 else 32)
    if kind == 12:
        return _struct(content, at, depth + 1)
    if kind == 8:  # a string or bytes
        length, at = _varint(content, at)
        if at + length > len(content):
            raise IndexError
        return None, at + length
    if kind in (3, 7):  # a byte, a double
        return None, at + (1 if kind == 3 else 8)
    raise ValueError(f"a page's header has a field of type {kind}")


def _integer(content: bytes, at: int, bits: int) -> tuple[int, int]:
    value, at = _varint(content, at)
    value &= (1 << bits) - 1  # as Arrow does: a walk that differed from its own would miss pages
    return (value >> 1) ^ -(value & 1), at


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while content[at] & 128:
        value |= (content[at] & 127) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise ValueError("a number in a page's header is too long")
    return value | content[at] << shift, at + 1
