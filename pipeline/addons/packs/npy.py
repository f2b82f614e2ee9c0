"""`.npy` files that are written row by row, past the system's cache.

Going through the cache costs more than the device does: a third of a millisecond of CPU time for a
picture of 196 KB (docs/benchmarks.md), and it evicts the pages of others.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from pathlib import Path

import numpy as np

from penstock.addons.packs.fields import Numbers

_HEADER = 256  # bytes; room for a shape that is known only at the end
_PIECE = 4 << 20  # bytes; a multiple of every device's blocks
_CLOSED = -1


class NpyStream:
    """A `.npy` file that is written row by row; takes 4 MiB of memory.

    Args:
        path: of the file, which must not exist.
        dtype: of the numbers.
    """

    def __init__(self, path: Path, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self._file = path.open("xb", buffering=0)
        self._direct: int | None = None  # the same file past the cache; opened for the first piece
        self._path = path
        self._piece = mmap.mmap(-1, _PIECE)  # whole pages, as devices need them
        self._bytes = np.frombuffer(self._piece, np.uint8)
        self._filled = _HEADER
        self._written = 0

    def append(self, numbers: Numbers) -> None:
        """Add numbers."""
        rest = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)
        while rest.size:
            stop = min(self._filled + rest.size, _PIECE)
            count = stop - self._filled
            self._bytes[self._filled : stop] = rest[:count]
            self._filled, rest = stop, rest[count:]
            if stop == _PIECE:
                self._write(self._past_the_cache())
                self._written += _PIECE
                self._filled = 0

    def finish(self, shape: tuple[int, ...]) -> None:
        """Write the header, flush the file to the disk and close it."""
        self._write(0)
        fields = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        start = np.lib.format.MAGIC_PREFIX + bytes([1, 0]) + struct.pack("<H", _HEADER - 10)
        os.pwrite(self._file.fileno(), start + repr(fields).encode().ljust(_HEADER - 11) + b"\n", 0)
        os.fsync(self._file.fileno())
        self.close()

    def close(self) -> None:
        """Close the file as it is."""
        self._file.close()
        if self._direct not in (None, _CLOSED):
            os.close(self._direct)
        self._direct = _CLOSED

    def _past_the_cache(self) -> int:
        """Write the piece to the device; returns the number of bytes that it took."""
        if self._direct is None:
            self._direct = _open_direct(self._path)
        if self._direct == _CLOSED:
            return 0
        try:
            return os.pwrite(self._direct, self._piece, self._written)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a device with blocks of another kind
                raise
            return 0

    def _write(self, start: int) -> None:
        with memoryview(self._piece) as piece:
            while start < self._filled:
                offset = self._written + start
                start += os.pwrite(self._file.fileno(), piece[start : self._filled], offset)


def _open_direct(path: Path) -> int:
    """A descriptor that writes past the cache; _CLOSED where drive or system cannot."""
    flag = getattr(os, "O_DIRECT", 0)
    try:
        return os.open(path, os.O_WRONLY | flag) if flag else _CLOSED
    except OSError:
        return _CLOSED
