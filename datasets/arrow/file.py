"""One open file of Parquet or Arrow: its schema, its row groups, and how to read one.

.parquet            row groups; what is read of them is decoded
.arrow, .feather    record batches; uncompressed ones are mapped, which costs no memory
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pipeline.datasets.reading.expansion import FREE
from pipeline.datasets.reading.file_kind import stranger
from pipeline.datasets.reading.positioned_file import check_regular
from pipeline.errors import DataError
from pipeline.files.limits import Limits

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".parquet", ".arrow", ".feather")


class ArrowFile(Protocol):
    """One open file."""

    schema: pa.Schema
    lengths: list[int]  # rows of each row group
    # Raises DataError if arrays that were read cannot be touched any longer; 2 us.
    check_length: Callable[[], None]

    def read(self, group: int, columns: Sequence[str]) -> tuple[pa.Table, int]:
        """Columns of a row group, and how many bytes of memory they take.

        Raises:
            ValueError: it is damaged, or claims more than the limits.
        """
        ...


def open_file(path: str, name: str, limits: Limits) -> ArrowFile:
    """Open a file by its suffix.

    Raises:
        DataError: it is missing, cut off, no regular file, not what its suffix says, or claims more
            than `limits`.
    """
    from pipeline.datasets.arrow.ipc_file import IpcFile
    from pipeline.datasets.arrow.parquet_file import ParquetFile

    try:
        check_regular(path)
        kind = ParquetFile if name.endswith(".parquet") else IpcFile
        opened: ArrowFile = kind(path, name, limits)
        _check_names(opened.schema)
        _check_claims(opened, Path(path).stat().st_size, name, limits)
        return opened
    except FileNotFoundError as error:
        raise DataError(f"{name!r} is missing.") from error
    except damage_errors() as error:
        raise DataError(f"{name!r} {_complaint(path, error)}") from error


def _check_names(schema: pa.Schema) -> None:
    """Raise UnicodeDecodeError unless every name of a field is text, however deep it lies."""
    waiting = list(schema)
    while waiting:
        field = waiting.pop()
        _ = field.name
        kind = getattr(field.type, "storage_type", field.type)
        waiting += [kind.field(number) for number in range(kind.num_fields)]


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


def damage_errors() -> tuple[type[Exception], ...]:
    """What pyarrow, numpy and torch raise over a damaged file.

    Memory that is not there is the machine's: what a file may claim is checked before.
    """
    from pyarrow import lib

    return (
        OSError, EOFError, ValueError, LookupError, OverflowError, RuntimeError,
        lib.ArrowTypeError, lib.ArrowCapacityError, lib.ArrowSerializationError,
    )  # fmt: skip


def _check_claims(opened: ArrowFile, size: int, name: str, limits: Limits) -> None:
    columns = len(opened.schema.names)  # which raises ValueError for names that are no UTF-8
    if columns > limits.columns:
        raise DataError(f"{name!r}: {limits.refusal('columns', f'it has {columns} columns')}.")
    for group, rows in enumerate(opened.lengths):
        if rows < 0:
            raise DataError(f"{name!r}, row group {group} claims {rows} rows: it is damaged.")
        if rows > FREE + limits.expansion * size:  # of a type of no bytes, or repeated
            found = f"row group {group} claims {rows} rows in a file of {size} bytes"
            raise DataError(f"{name!r}: {limits.refusal('expansion', found)}.")
