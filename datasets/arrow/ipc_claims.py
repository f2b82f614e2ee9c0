"""What messages of Arrow's IPC format claim, told before Arrow allocates it.

A compressed buffer begins with the number of bytes that it becomes, which Arrow believes. pyarrow
does not show these numbers; they stand in flatbuffers, of which the few fields that lead to them
are read here. pyarrow has verified the flatbuffers before.

Format: https://arrow.apache.org/docs/format/Columnar.html, "Serialization and Interprocess
Communication (IPC)", and Message.fbs and File.fbs, which it names.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from pipeline.datasets.reading.expansion import check_expansion
from pipeline.files.limits import Limits

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC = b"ARROW1"
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3  # of the union MessageHeader
# How compression was written before it was part of the format; Arrow still reads it.
_OLD_COMPRESSION = b"ARROW:experimental_compression"


def check_dictionaries(source: pa.NativeFile, name: str, limits: Limits) -> None:
    """Refuse dictionaries of a file that would become too large; errors as `check_batch`."""
    for number, place in enumerate(_blocks(source, 2)):
        _check(_message_at(source, place), f"{name!r}, dictionary {number}", limits)


def check_batch(source: pa.NativeFile, number: int, name: str, limits: Limits) -> None:
    """Refuse a record batch of a file that would become too large when it is decompressed.

    Raises:
        DataError: it exceeds `limits.expansion`.
        ValueError: the file is damaged.
    """
    places = _blocks(source, 3)
    if number >= len(places):
        raise ValueError("its footer has no such batch")
    _check(_message_at(source, places[number]), name, limits)


def _check(message: pa.Message, name: str, limits: Limits) -> None:
    claimed = _uncompressed_bytes(message)
    packed = message.body.size if message.body is not None else 0
    check_expansion(claimed or 0, packed, limits, name)


def is_compressed(message: pa.Message) -> bool:
    """Whether a message holds compressed buffers."""
    return _uncompressed_bytes(message) is not None


def _uncompressed_bytes(message: pa.Message) -> int | None:
    """What the buffers of a message say they become; None if they are not compressed."""
    metadata = message.metadata.to_pybytes()
    try:
        batch = _record_batch(metadata)
        if batch is None or (batch.table(3) is None and _OLD_COMPRESSION not in metadata):
            return None
        body = memoryview(message.body) if message.body is not None else memoryview(b"")
        total = 0
        for start, length in batch.structs(2, "<qq"):
            if length >= 8:
                total += max(0, *struct.unpack_from("<q", body, start))
        return total
    except (struct.error, IndexError) as error:
        raise ValueError(f"a message of it is damaged ({error})") from error


def _record_batch(metadata: bytes) -> _Table | None:
    root = _root(metadata)
    kind, header = root.byte(1), root.table(2)
    if kind == _DICTIONARY_BATCH and header is not None:
        return header.table(1)
    return header if kind == _RECORD_BATCH else None


def _blocks(source: pa.NativeFile, field: int) -> list[int]:
    """Where the messages of a file lie: of dictionaries (field 2 of the footer) or batches (3)."""
    size = source.size()
    try:
        (length,) = struct.unpack("<i", source.read_at(4, size - len(_MAGIC) - 4))
        footer = source.read_at(length, size - len(_MAGIC) - 4 - length)
        return [start for start, _, _ in _root(footer).structs(field, "<qixxxxq")]
    except (struct.error, IndexError, OSError) as error:
        raise ValueError(f"its footer is damaged ({error})") from error


def _message_at(source: pa.NativeFile, place: int) -> pa.Message:
    import pyarrow as pa

    if not 0 <= place < source.size():
        raise ValueError(f"a batch lies at byte {place}, outside of the file")
    source.seek(place)
    return pa.ipc.read_message(source)


def _root(content: bytes) -> _Table:
    return _Table(content, *struct.unpack_from("<I", content, 0))


class _Table:
    """A table of a flatbuffer; fields by number."""

    def __init__(self, content: bytes, place: int) -> None:
        self._content, self._place = content, place
        (back,) = struct.unpack_from("<i", content, place)
        self._fields = place - back
        if self._fields < 0:
            raise IndexError("a table outside of its flatbuffer")
        (self._end,) = struct.unpack_from("<H", content, self._fields)

    def _field(self, number: int) -> int | None:
        if 4 + 2 * number >= self._end:
            return None
        (offset,) = struct.unpack_from("<H", self._content, self._fields + 4 + 2 * number)
        return self._place + offset if offset else None

    def byte(self, number: int) -> int:
        place = self._field(number)
        return 0 if place is None else self._content[place]

    def table(self, number: int) -> _Table | None:
        place = self._field(number)
        return None if place is None else _Table(self._content, self._follow(place))

    def structs(self, number: int, layout: str) -> list[tuple[int, ...]]:
        """A vector of structs."""
        place = self._field(number)
        if place is None:
            return []
        start = self._follow(place)
        (count,) = struct.unpack_from("<I", self._content, start)
        size = struct.calcsize(layout)
        content = self._content[start + 4 : start + 4 + count * size]
        if len(content) < count * size:
            raise IndexError("a vector outside of its flatbuffer")
        return list(struct.iter_unpack(layout, content))

    def _follow(self, place: int) -> int:
        (offset,) = struct.unpack_from("<I", self._content, place)
        return place + int(offset)
