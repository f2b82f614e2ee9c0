"""The common part of token files: each row is a span of the file's numbers.

These are mapped. Of files of 4 MiB and more at an address the blocks of 64 KiB that are read are
fetched, and kept as files are.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.addons.record_files.positioned_file import spread
from penstock.addons.record_files.remote_bytes import RemoteBytes, npy_header
from penstock.datasets.files import DataFile, FolderFile, WholeFilesError
from penstock.datasets.reading.base import Part
from penstock.errors import DataError
from penstock.order.keys import IntArray

if TYPE_CHECKING:
    from penstock.addons.stores.remote_files import RemoteFiles

_LARGE = 4 << 20  # bytes of a file of which blocks are fetched
_BLOCK = 1 << 16  # bytes; rows have some kilobytes
_HEADER = 1 << 12  # bytes; numpy's own hardly has more


class TokenFile(Protocol):
    """Rows of tokens in one file.

    Attributes:
        name: relative to the root.
        count: rows.
        total: tokens in the file.
        dtype: of the tokens, as they are stored.
    """

    name: str
    count: int
    total: int
    dtype: np.dtype[Any]

    def __str__(self) -> str: ...

    @property
    def tokens(self) -> npt.NDArray[Any] | RemoteNumbers:
        """All tokens of the file, mapped or at their address."""

    def spans(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """The first token of each row, and one past its last: int64[n] each, as stored."""

    def fingerprint_parts(self, sized: bool) -> list[Part]: ...

    def data_files(self) -> Iterable[DataFile]: ...


def checked_spans(file: TokenFile, rows: IntArray) -> tuple[IntArray, IntArray]:
    """`file.spans(rows)`; raises DataError for rows that do not lie in the file."""
    starts, stops = file.spans(rows)
    wrong = (starts < 0) | (stops < starts) | (stops > file.total)
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(
            f"{str(file)!r}, row {int(rows[row])} of the file: its index places it at tokens "
            f"{int(starts[row])} to {int(stops[row])}, and the file has {file.total}. The index is "
            "damaged, or of another file: write both again."
        )
    return starts, stops


class RemoteNumbers:
    """Numbers of one type in a file at an address, of which what is read is fetched.

    Args:
        file: at an address.
        remote: access to it.
        size: bytes of the file.
        dtype: of the numbers.
        start: byte of the first.
        count: of the numbers.
    """

    def __init__(
        self,
        file: FolderFile,
        remote: RemoteFiles,
        size: int,
        dtype: np.dtype[Any],
        start: int,
        count: int,
    ) -> None:
        self.file, self.remote, self.dtype, self.size = file, remote, dtype, count
        self._bytes, self._start = size, start

    @classmethod
    def of(cls, file: FolderFile, dtype: np.dtype[Any] | None) -> RemoteNumbers | None:
        """A large file at an address.

        None for any other, one that its server does not give in parts, and one that is not sound:
        mapping it says why.

        Args:
            dtype: None for a `.npy` file, which says it.
        """
        remote = file.folder.remote_files
        size = 0 if remote is None else int(file.folder.sizes([file.name])[0])
        if remote is None or size < _LARGE:
            return None
        start = 0
        try:
            head = RemoteBytes(remote, str(file), size, _BLOCK).at(0, _HEADER)
            if dtype is None:
                shape, _, dtype, start = npy_header(head)
                return cls(file, remote, size, dtype, start, *shape) if len(shape) == 1 else None
        except (WholeFilesError, ValueError):
            return None
        return (
            None
            if size % dtype.itemsize
            else cls(file, remote, size, dtype, 0, size // dtype.itemsize)
        )

    def __len__(self) -> int:
        return self.size

    def gather(self, into: IntArray, places: IntArray, firsts: IntArray, counts: IntArray) -> None:
        """Write the numbers of each row to its place."""
        source, width = self._source, self.dtype.itemsize
        for at, first, count in zip(places.tolist(), firsts.tolist(), counts.tolist(), strict=True):
            start = self._start + first * width
            content = source.at(start, start + count * width)
            into[at : at + count] = np.frombuffer(content, self.dtype)

    def blocks(self, first: int, stop: int) -> list[str]:
        """The addresses of the blocks that hold some of the numbers."""
        width = self.dtype.itemsize
        return self._source.blocks([(self._start + first * width, self._start + stop * width)])

    def sample(self, blocks: int) -> list[bytes]:
        """That many blocks of 4 KiB of the numbers, evenly spread."""
        return self._source.sample(blocks, self._start)

    @property
    def _source(self) -> RemoteBytes:
        return RemoteBytes(self.remote, str(self.file), self._bytes, _BLOCK)


def samples_of(content: npt.NDArray[Any] | RemoteNumbers, blocks: int = 64) -> list[bytes]:
    """That many blocks of 4 KiB, evenly spread; all of a smaller file."""
    if isinstance(content, RemoteNumbers):
        return content.sample(blocks)
    content = content.view(np.uint8) if len(content) else np.empty(0, np.uint8)
    return [content[start:stop].tobytes() for start, stop in spread(len(content), blocks)]


class MappedNumbers:
    """All of a file's numbers of one type, mapped; a copy sent to a worker maps the file again.

    Args:
        file: at an address, it is fetched whole first.
        key: the configuration key that names it, for messages.
        dtype: of the numbers, in the file's own byte order.

    Raises:
        DataError: the file is missing or not regular, or its size is no multiple of a number's.
    """

    def __init__(self, file: FolderFile, key: str, dtype: np.dtype[Any]) -> None:
        self.file, self.key, self.dtype = file, key, dtype
        self._array: npt.NDArray[Any] | None = None
        self.size = len(self.array)  # numbers

    @property
    def array(self) -> npt.NDArray[Any]:
        """The numbers, read-only; only pages that are accessed are read."""
        if self._array is None:
            self._array = self.file.read(self._map)
        return self._array

    def _map(self, path: str) -> npt.NDArray[Any]:
        name, width = f"{self.key}: {str(self.file)!r}", self.dtype.itemsize
        try:
            with Path(path).open("rb") as file:
                size = file.seek(0, 2)
                if size % width:
                    raise DataError(
                        f"{name} has {size} bytes, no multiple of the {width} bytes of a number "
                        f"({self.dtype.name}): it was cut off, or its type is another one."
                    )
                if self._array is None and size // width != getattr(self, "size", size // width):
                    raise DataError(
                        f"{name} has changed while it was in use. Let nothing write to the data of "
                        "a run, and restart the run."
                    )
                if not size:  # cannot be mapped
                    return np.empty(0, self.dtype)
                # A plain array: every slice of a memmap makes an object of that slow class.
                return np.memmap(file, self.dtype, "r").view(np.ndarray)
        except OSError as error:
            raise DataError(f"{name} cannot be read: {error.strerror}.") from error

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_array": None}
