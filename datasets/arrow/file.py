"""One open file of Parquet or Arrow: its schema, its row groups, and how to read one.

.parquet            row groups; what is read of them is decoded
.arrow, .feather    record batches; uncompressed ones are mapped, which costs no memory
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from datasets.reading.file_kind import stranger
from pipeline.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".parquet", ".arrow", ".feather")


class ArrowFile(Protocol):
    """One open file."""

    schema: pa.Schema
    lengths: list[int]  # rows of each row group

    def read(self, group: int, columns: Sequence[str]) -> tuple[pa.Table, int]:
        """Columns of a row group, and how many bytes of memory they take."""
        ...


def open_file(path: str, name: str) -> ArrowFile:
    """Open a file by its suffix.

    Raises:
        DataError: it is missing, cut off, or not what its suffix says.
    """
    try:
        return _ParquetFile(path) if name.endswith(".parquet") else _IpcFile(path)
    except FileNotFoundError as error:
        raise DataError(f"{name!r} is missing.") from error
    except (OSError, ValueError) as error:  # pyarrow's errors are of these kinds
        raise DataError(f"{name!r} {_complaint(path, error)}") from error


def _complaint(path: str, error: Exception) -> str:
    with open(path, "rb") as file:
        start = file.read(256)
    other = stranger(start)
    if other is not None:
        return f"is no table: {other}. Replace it or take it out of the data."
    if start.startswith((b"PAR1", b"ARROW1")):
        return (
            f"was cut off or damaged ({first_line(error)}): what its last bytes should say is "
            "not there. Copy or write it again."
        )
    return f"cannot be read as its suffix says ({first_line(error)}). Rename or replace it."


def first_line(error: Exception) -> str:
    return str(error).split("\n")[0].rstrip(".") or type(error).__name__


class _ParquetFile:
    def __init__(self, path: str) -> None:
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(path, memory_map=True)
        footer = self._file.metadata
        self.schema = self._file.schema_arrow
        self.lengths = [footer.row_group(n).num_rows for n in range(footer.num_row_groups)]

    def read(self, group: int, columns: Sequence[str]) -> tuple[pa.Table, int]:
        # Arrow's threads would compete with the loader's workers, which divide the work already.
        table = self._file.read_row_group(group, columns=list(columns), use_threads=False)
        return table, table.nbytes


class _IpcFile:
    """Arrow's file format, or its stream format, which Hugging Face's `datasets` writes.

    Of a stream, the headers of all batches are read when it is opened.
    """

    def __init__(self, path: str) -> None:
        import pyarrow as pa

        self._source = pa.memory_map(path)
        self._readers: dict[tuple[str, ...], Any] = {}
        self._stream: list[pa.RecordBatch] | None = None
        try:
            self.schema = pa.ipc.open_file(self._source).schema
        except pa.ArrowInvalid:
            self._source.seek(0)
            self._stream = _mapped_batches(pa.ipc.open_stream(self._source))
            self._source.seek(0)
            self.schema = pa.ipc.open_stream(self._source).schema
            self.lengths = [batch.num_rows for batch in self._stream]
        else:
            reader = self._reader(self.schema.names[:1])
            count = reader.num_record_batches
            self.lengths = [reader.get_batch(number).num_rows for number in range(count)]

    def _reader(self, columns: Sequence[str]) -> Any:
        """A reader that decompresses `columns` alone."""
        import pyarrow as pa

        key = tuple(columns)
        if key not in self._readers:
            places = [self.schema.get_field_index(name) for name in columns]
            options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
            self._readers[key] = pa.ipc.open_file(self._source, options=options)
        return self._readers[key]

    def read(self, group: int, columns: Sequence[str]) -> tuple[pa.Table, int]:
        import pyarrow as pa

        if self._stream is not None:
            batch = self._stream[group]
        else:
            batch = self._reader(columns).get_batch(group)
        return pa.Table.from_batches([batch.select(list(columns))]), _own_bytes(batch)


def _mapped_batches(reader: Any) -> list[pa.RecordBatch]:
    batches = []
    for batch in reader:
        if _own_bytes(batch):
            raise ValueError("a compressed stream, of which one row cannot be had alone; write it "
                             "in Arrow's file format, or as Parquet")  # fmt: skip
        batches.append(batch)
    return batches


def _own_bytes(batch: pa.RecordBatch) -> int:
    """Bytes of a batch that are not pages of the mapped file."""
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer]
    return sum(buffer.size for buffer in buffers if buffer.parent is None)
