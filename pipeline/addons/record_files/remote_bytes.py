"""A file at an address, of which the blocks that are read are fetched, and no others.

Blocks have 1 MiB, or as many bytes as a reader says, and are kept in the cache as files are. Cost:
0.1 ms a read beside a block that is in the cache. `blocks` names those that will be read, for the
code that fetches ahead.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from penstock.addons.record_files.positioned_file import spread

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.addons.storage.client import Client


Item = TypeVar("Item")
Result = TypeVar("Result")

_BLOCK = 1 << 20
_AT_ONCE = 16  # requests


def side_by_side(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """`function` of each item in order, several at a time: of what waits for a store."""
    with ThreadPoolExecutor(_AT_ONCE, "penstock-files") as pool:
        return list(pool.map(function, items))


def npy_header(content: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether in Fortran's order, dtype, and the byte at which the numbers begin.

    Args:
        content: what a `.npy` file begins with.

    Raises:
        ValueError: it is no `.npy` file of numbers, times or text.
    """
    file = io.BytesIO(content)
    # Versions 2 and 3 differ in the encoding of field names, which plain arrays lack.
    is_old = np.lib.format.read_magic(file) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if is_old else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return shape, fortran, dtype, file.tell()


class RemoteBytes(io.RawIOBase):
    """The file, open for reading at any position.

    Args:
        remote: access to it.
        address: of the file.
        size: its bytes.
        block: bytes of a block; None: 1 MiB.

    Raises:
        DataError: when bytes are read that cannot be had.
        WholeFilesError: the same, where its server gives whole files alone.
    """

    def __init__(self, remote: Client, address: str, size: int, block: int | None = None) -> None:
        super().__init__()
        self._remote, self._address, self.bytes = remote, address, size
        self._size, self._at = block or _BLOCK, 0

    def blocks(self, ranges: Iterable[tuple[int, int]]) -> list[str]:
        """The addresses of the blocks that hold some ranges of bytes, in order."""
        numbers: dict[int, None] = {}
        for start, stop in sorted(ranges):
            first, last = max(start, 0) // self._size, -(-min(stop, self.bytes) // self._size)
            numbers |= dict.fromkeys(range(first, last))
        return [self._block(number) for number in numbers]

    def fetch_end(self) -> None:
        """Bring the last block, which holds the footer."""
        list(self._contents(self.bytes - 1, self.bytes))

    def at(self, start: int, stop: int) -> bytes:
        """Bytes start .. stop-1, fewer only at the end; for any number of threads."""
        return b"".join(self._contents(start, min(stop, self.bytes)))

    def sample(self, blocks: int, start: int = 0) -> list[bytes]:
        """As `PositionedFile.sample`, of the bytes from `start` on.

        A request for each block, several at a time.
        """
        pieces = [(start + a, start + b) for a, b in spread(self.bytes - start, blocks)]
        return side_by_side(self._piece, pieces)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.bytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        stop = min(self._at + len(view), self.bytes)
        done = 0
        for content in self._contents(self._at, stop):
            view[done : done + len(content)] = content
            done += len(content)
        self._at += done
        return done

    def _block(self, number: int) -> str:
        start = number * self._size
        return self._remote.part(self._address, start, min(start + self._size, self.bytes))

    def _piece(self, piece: tuple[int, int]) -> bytes:
        return self._remote.content(self._remote.part(self._address, *piece))

    def _contents(self, start: int, stop: int) -> Iterator[bytes]:
        while start < stop:
            number, within = divmod(start, self._size)
            count = min(stop - start, self._size - within)
            yield self._remote.content(self._block(number), within, count)
            start += count
