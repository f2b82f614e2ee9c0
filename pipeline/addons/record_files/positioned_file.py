"""Local files: reading them at given places, and keeping them open."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.errors import DataError


def blocks_of_each(files: int, most: int = 64) -> int:
    """Blocks of each file that a fingerprint is made of: 64 of all together, two at least.

    From a store, each is a request.
    """
    return max(2, min(most, 64 // max(files, 1)))


def spread(size: int, blocks: int) -> list[tuple[int, int]]:
    """Where that many blocks of 4 KiB of a file begin and end, evenly spread; all of a smaller."""
    if size <= 4096 * blocks:
        return [(0, size)]
    starts = [(size - 4096) * number // (blocks - 1) for number in range(blocks)]
    return [(start, start + 4096) for start in starts]


class PositionedFile:
    """A file as it was when this object was made.

    Reads are `pread`, so readers share no position: a forked worker uses the inherited descriptor,
    and a copy sent to a spawned one opens the file again. Nothing is mapped, so the data doesn't
    stay in the process. Cost: about 2 us for a cached read. POSIX only.

    Raises:
        DataError: the file is missing or not regular, may not be read, or has changed since.
    """

    _descriptor = -1

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = self._open()
        status = os.fstat(self._descriptor)
        self.size, self.mtime_ns = status.st_size, status.st_mtime_ns  # bytes, ns

    def read(self, start: int, stop: int) -> bytes:
        """Bytes start .. stop-1."""
        content = os.pread(self.descriptor, stop - start, start)
        while len(content) < stop - start:  # a signal, or more than the 2 GiB of one call
            more = os.pread(self.descriptor, stop - start - len(content), start + len(content))
            if not more:
                raise self._changed()
            content += more
        return content

    def sample(self, blocks: int) -> list[bytes]:
        """That many blocks of 4 KiB, evenly spread; all of a smaller file."""
        return [self.read(start, stop) for start, stop in spread(self.size, blocks)]

    def check_unchanged(self) -> None:
        """Raise DataError if the file has been written to or replaced."""
        try:
            status = self.path.stat()
        except OSError:
            raise self._changed() from None
        if (status.st_size, status.st_mtime_ns) != (self.size, self.mtime_ns):
            raise self._changed()

    @property
    def descriptor(self) -> int:
        """Open in this process."""
        if self._descriptor < 0:
            self._descriptor = self._open()
            self.check_unchanged()
        return self._descriptor

    def _open(self) -> int:
        try:
            with self.path.open("rb") as file:
                return os.dup(file.fileno())
        except OSError as error:
            raise DataError(
                f"{str(self.path)!r} ({self.path.absolute()}) cannot be read: {error.strerror}."
            ) from error

    def _changed(self) -> DataError:
        return DataError(
            f"{str(self.path)!r} has changed while it was in use. Let nothing write to the data of "
            "a run, and restart the run."
        )

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_descriptor": -1}

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
