"""One open file of Arrow's own format, or of its stream format.

Hugging Face's `datasets` writes streams; the headers of all batches of one are read when it is
opened. Files are mapped, so that an uncompressed batch takes no memory but its touched pages.

A compressed buffer begins with the number of bytes that it becomes, which Arrow believes. pyarrow
does not show these numbers, so they are read here before Arrow allocates them. They lie in
flatbuffers, which pyarrow has verified before. Reading these by hand can go when pyarrow shows the
numbers, or bounds what it allocates.

Format: https://arrow.apache.org/docs/format/Columnar.html, "Serialization and Interprocess
Communication (IPC)", and Message.fbs and File.fbs, which it names.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.addons.record_files.expansion import check_expansion
from penstock.addons.tables.arrow.files import Announce, check_table
from penstock.errors import DataError
from penstock.files.limits import Limits

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC = b"ARROW1"
_CONTINUES = -1  # before the length of a message; older streams have the length alone
_DICTIONARIES, _BATCHES = 2, 3  # fields of the footer
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3  # of the union MessageHeader
# How compression was written before it was part of the format; Arrow still reads it.
_OLD_COMPRESSION = b"ARROW:experimental_compression"


class IpcFile:
    """As `arrow.files.ArrowFile`.

    Args:
        path: of this machine; a regular file.
        name: for messages.
        limits: of its claims.
    """

    def __init__(self, path: str, name: str, limits: Limits) -> None:
        import pyarrow as pa

        self._name, self._limits = name, limits
        self._source = pa.memory_map(path)
        self.check_length = partial(_check_length, Path(path), name, Path(path).stat())
        self._readers: dict[tuple[str, ...] | None, Any] = {}
        self._stream: list[pa.RecordBatch] | None = None
        try:
            self.schema = pa.ipc.open_file(self._source).schema
        except pa.ArrowInvalid:
            if self._source.read_at(len(_MAGIC), 0) == _MAGIC:
                raise
            self._stream = self._read_stream()
            self.lengths = [batch.num_rows for batch in self._stream]
            return
        for number, start in enumerate(_places(self._source, _DICTIONARIES)):
            self._check_message(start, f"dictionary {number}")
        count = self._reader(None).num_record_batches
        batches = (self._batch(self.schema.names[:1], number) for number in range(count))
        self.lengths = [batch.num_rows for batch in batches]

    def _read_stream(self) -> list[pa.RecordBatch]:
        import pyarrow as pa

        self._source.seek(0)
        messages = pa.ipc.MessageReader.open_stream(self._source)
        while (message := self._next(messages)) is not None:
            if _uncompressed_bytes(message) is not None:
                raise ValueError(
                    "a compressed stream, of which one row cannot be read alone; write it in "
                    "Arrow's file format, or as Parquet"
                )
        self._source.seek(0)
        reader = pa.ipc.open_stream(self._source)
        self.schema = reader.schema
        return list(reader)

    def _next(self, messages: pa.MessageReader) -> pa.Message | None:
        """The next message of a stream; None: its end."""
        self._check_metadata(self._source.tell())
        try:
            return messages.read_next_message()
        except StopIteration:
            return None

    def _check_metadata(self, start: int) -> None:
        """Raise ValueError if a message claims more metadata than a record may have bytes.

        Arrow makes room for as many as it claims.
        """
        head = self._source.read_at(8, start).ljust(8, b"\0")
        first, second = struct.unpack("<2i", head)
        claimed = second if first == _CONTINUES else first
        if claimed > self._limits.record_bytes:
            what = self._limits.refusal("record_bytes", f"{claimed} bytes of metadata")
            raise ValueError(f"a message at byte {start} claims {what}")

    def _reader(self, columns: Sequence[str] | None) -> Any:
        """A reader that decompresses `columns` alone; None: all of them, without copying any."""
        import pyarrow as pa

        key = None if columns is None else tuple(columns)
        if key not in self._readers:
            places = None
            if columns is not None:
                places = [self.schema.get_field_index(name) for name in columns]
            options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
            self._readers[key] = pa.ipc.open_file(self._source, options=options)
        return self._readers[key]

    def _batch(
        self, columns: Sequence[str], number: int, announce: Announce = lambda size: None
    ) -> pa.RecordBatch:
        places = _places(self._source, _BATCHES)
        if number >= len(places):
            raise ValueError("its footer has no such batch")
        # Of all columns, which are more than those that are decompressed.
        unpacked = self._check_message(places[number], f"row group {number}")
        announce(unpacked)
        # Chosen columns are copied from the file first, which uncompressed ones need not be.
        return self._reader(columns if unpacked else None).get_batch(number)

    def _check_message(self, start: int, what: str) -> int:
        """The bytes that a message becomes when it is decompressed.

        Raises:
            DataError: it exceeds `limits.expansion`.
            ValueError: the file is damaged.
        """
        import pyarrow as pa

        if not 0 <= start < self._source.size():
            raise ValueError(f"a batch lies at byte {start}, outside of the file")
        self._check_metadata(start)
        self._source.seek(start)
        message = pa.ipc.read_message(self._source)
        packed = message.body.size if message.body is not None else 0
        unpacked = _uncompressed_bytes(message) or 0
        check_expansion(unpacked, packed, self._limits, f"{self._name!r}, {what}")
        return unpacked

    def read(self, group: int, columns: Sequence[str], announce: Announce) -> tuple[pa.Table, int]:
        import pyarrow as pa

        self.check_length()
        if self._stream is not None:
            batch = self._stream[group]
        else:
            batch = self._batch(columns, group, announce)
        table = pa.Table.from_batches([batch.select(list(columns))])
        check_table(table)
        buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer]
        # Buffers with a parent are pages of the mapped file.
        return table, sum(buffer.size for buffer in buffers if buffer.parent is None)


def _check_length(path: Path, name: str, before: os.stat_result) -> None:
    """Raise DataError if a file has become shorter: touching mapped pages that are gone is fatal.

    Between this and the touch a moment remains; nothing may write to the data of a run. The path is
    asked, since a descriptor for each row group in the cache would be too many. A file that was
    deleted or replaced stays mapped as it was.
    """
    try:
        now = path.stat()
    except OSError:
        return
    if now.st_ino == before.st_ino and now.st_size < before.st_size:
        raise DataError(
            f"{name!r} has become shorter while it was in use. Let nothing write to the data of a "
            "run, and start the run again."
        )


def _uncompressed_bytes(message: pa.Message) -> int | None:
    """The bytes that the buffers of a message claim to become; None if not compressed."""
    metadata = message.metadata.to_pybytes()
    try:
        root = _root(metadata)
        kind, batch = root.byte(1), root.table(2)
        if kind == _DICTIONARY_BATCH and batch is not None:
            batch = batch.table(1)
        elif kind != _RECORD_BATCH:
            return None
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


def _places(source: pa.NativeFile, field: int) -> list[int]:
    """Where the messages of a file lie that a field of the footer lists."""
    end = source.size() - len(_MAGIC) - 4
    try:
        (length,) = struct.unpack("<i", source.read_at(4, end))
        footer = source.read_at(length, end - length)
        return [start for start, _, _ in _root(footer).structs(field, "<qixxxxq")]
    except (struct.error, IndexError, OSError) as error:
        raise ValueError(f"its footer is damaged ({error})") from error


def _root(content: bytes) -> _Table:
    return _Table(content, *struct.unpack_from("<I", content, 0))


class _Table:
    """A table of a flatbuffer; fields by number."""

    def __init__(self, content: bytes, start: int) -> None:
        self._content, self._place = content, start
        (back,) = struct.unpack_from("<i", content, start)
        self._fields = start - back
        if self._fields < 0:
            raise IndexError("a table outside of its flatbuffer")
        (self._end,) = struct.unpack_from("<H", content, self._fields)

    def _field(self, number: int) -> int | None:
        if 4 + 2 * number >= self._end:
            return None
        (offset,) = struct.unpack_from("<H", self._content, self._fields + 4 + 2 * number)
        return self._place + offset if offset else None

    def byte(self, number: int) -> int:
        start = self._field(number)
        return 0 if start is None else self._content[start]

    def table(self, number: int) -> _Table | None:
        start = self._field(number)
        return None if start is None else _Table(self._content, self._follow(start))

    def structs(self, number: int, layout: str) -> list[tuple[int, ...]]:
        """A vector of structs."""
        start = self._field(number)
        if start is None:
            return []
        start = self._follow(start)
        (count,) = struct.unpack_from("<I", self._content, start)
        size = struct.calcsize(layout)
        content = self._content[start + 4 : start + 4 + count * size]
        if len(content) < count * size:
            raise IndexError("a vector outside of its flatbuffer")
        return list(struct.iter_unpack(layout, content))

    def _follow(self, start: int) -> int:
        (offset,) = struct.unpack_from("<I", self._content, start)
        return start + int(offset)
