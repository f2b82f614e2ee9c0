"""Where the column chunks of a Parquet file lie, read from its footer.

pyarrow knows this as well, but over a chunk whose size statistics contradict it, its
`RowGroupMetaData.column` (26.0) ends the whole process by std::terminate; what reads row groups
does not. So the few numbers that are needed are read here.

Format: as in `arrow.parquet_pages`. Cost: about 20 us a chunk, once a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.datasets.arrow.thrift import read_struct

if TYPE_CHECKING:
    import pyarrow as pa

_END = 8  # bytes behind the footer: its length, and b"PAR1"
# Fields by their numbers in parquet.thrift: FileMetaData > RowGroup > ColumnChunk > ColumnMetaData.
_NUMBERS = {5: 64, 7: 64, 9: 64, 11: 64}
_WANTED = {4: {1: {3: _NUMBERS}}}


class Chunk(NamedTuple):
    """A column of one row group.

    Attributes:
        values: how many there are, nulls included.
        size: bytes of its pages in the file.
        data: where the first page of data begins.
        dictionary: where that of the dictionary begins; 0 without one.
    """

    values: int
    size: int
    data: int
    dictionary: int


def row_groups(source: pa.NativeFile, columns: int) -> list[list[Chunk]]:
    """The chunks of each row group, in the order of the columns.

    Args:
        columns: how many each row group has.

    Raises:
        ValueError: the footer is damaged.
    """
    end = source.size() - _END
    length = int.from_bytes(source.read_at(4, end), "little")
    if not 0 < length <= end:
        raise ValueError("its footer is damaged")
    try:
        footer, _ = read_struct(source.read_at(length, end - length), 0, _WANTED)
    except IndexError as error:
        raise ValueError("its footer is cut off") from error
    groups = [[_chunk(one) for one in group.get(1) or []] for group in footer.get(4) or []]
    if any(len(group) != columns for group in groups):
        raise ValueError("a row group has more columns or fewer than the schema")
    return groups


def _chunk(fields: dict[int, Any]) -> Chunk:
    numbers = fields.get(3) or {}
    return Chunk(*(numbers.get(field) or 0 for field in _NUMBERS))
