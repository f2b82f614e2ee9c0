"""One open file of Arrow's own format, or of its stream format.

Hugging Face's `datasets` writes streams; the headers of all batches of one are read when it is
opened. Files are mapped, so that an uncompressed batch takes no memory but its touched pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.datasets.arrow.ipc_claims import check_batch, check_dictionaries, is_compressed
from pipeline.datasets.arrow.soundness import check_table
from pipeline.errors import DataError
from pipeline.files.limits import Limits

if TYPE_CHECKING:
    import pyarrow as pa


class IpcFile:
    """As `arrow.file.ArrowFile`.

    Args:
        path: of this machine; a regular file.
        name: what messages call it.
        limits: what it may claim.
    """

    def __init__(self, path: str, name: str, limits: Limits) -> None:
        import pyarrow as pa

        self._name, self._limits = name, limits
        self._source = pa.memory_map(path)
        self.check_length = MappedLength(path, name).check
        self._readers: dict[tuple[str, ...], Any] = {}
        self._stream: list[pa.RecordBatch] | None = None
        try:
            self.schema = pa.ipc.open_file(self._source).schema
        except pa.ArrowInvalid:
            self._open_stream()
        else:
            check_dictionaries(self._source, name, limits)
            reader = self._reader(self.schema.names[:1])
            self.lengths = [
                self._batch(reader, number).num_rows for number in range(reader.num_record_batches)
            ]

    def _open_stream(self) -> None:
        import pyarrow as pa

        self._source.seek(0)
        _check_stream(pa.ipc.MessageReader.open_stream(self._source))
        self._source.seek(0)
        reader = pa.ipc.open_stream(self._source)
        self.schema = reader.schema
        self._stream = list(reader)
        self.lengths = [batch.num_rows for batch in self._stream]

    def _reader(self, columns: Sequence[str]) -> Any:
        """A reader that decompresses `columns` alone."""
        import pyarrow as pa

        key = tuple(columns)
        if key not in self._readers:
            places = [self.schema.get_field_index(name) for name in columns]
            options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
            self._readers[key] = pa.ipc.open_file(self._source, options=options)
        return self._readers[key]

    def _batch(self, reader: Any, number: int) -> pa.RecordBatch:
        where = f"{self._name!r}, row group {number}"
        check_batch(self._source, number, where, self._limits)
        return reader.get_batch(number)

    def read(self, group: int, columns: Sequence[str]) -> tuple[pa.Table, int]:
        import pyarrow as pa

        self.check_length()
        if self._stream is not None:
            batch = self._stream[group]
        else:
            batch = self._batch(self._reader(columns), group)
        table = pa.Table.from_batches([batch.select(list(columns))])
        check_table(table)
        return table, _own_bytes(batch)


class MappedLength:
    """Whether a mapped file still has its length: touching pages that are gone is fatal.

    Between this and the touch a moment remains; nothing may write to the data of a run. The path
    is asked, since a descriptor for each row group that is held would be too many. A file that was
    deleted or replaced stays mapped as it was.
    """

    def __init__(self, path: str, name: str) -> None:
        self._path, self._name = path, name
        self._inode, self._size = self._status() or (0, 0)

    def check(self) -> None:
        """Raise DataError if the file has become shorter."""
        status = self._status()
        if status is not None and status[0] == self._inode and status[1] < self._size:
            raise DataError(
                f"{self._name!r} has become shorter while it was in use. Let nothing write to the "
                "data of a run, and start the run again."
            )

    def _status(self) -> tuple[int, int] | None:
        try:
            status = Path(self._path).stat()
        except OSError:
            return None
        return status.st_ino, status.st_size


def _check_stream(messages: Iterator[pa.Message]) -> None:
    for message in messages:
        if is_compressed(message):
            raise ValueError("a compressed stream, of which one row cannot be had alone; write it "
                             "in Arrow's file format, or as Parquet")  # fmt: skip


def _own_bytes(batch: pa.RecordBatch) -> int:
    """Bytes of a batch that are not pages of the mapped file."""
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer]
    return sum(buffer.size for buffer in buffers if buffer.parent is None)
