"""Opening regular files only: a FIFO or a device would keep a reader waiting for ever.

Every reader of data opens its files here. Cost: 1 us more than `os.open`.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import DataError

if TYPE_CHECKING:
    from penstock.files.limits import Limits

KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class IrregularFileError(OSError):
    """The path is a FIFO, a socket or a device; `strerror` says which."""


def regular_descriptor(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Open a regular file for reading: its descriptor, which the caller closes, and its size.

    Raises:
        IrregularFileError, IsADirectoryError: it is something else.
        OSError: it is missing, may not be read, or its name is not valid.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket cannot be opened at all
            _check_kind(Path(path).stat(), path)
        raise
    except ValueError as error:
        raise OSError(0, f"the name is not valid ({error})", repr(path)) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        _check_kind(status, path)
    return descriptor, status.st_size


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """A regular file, or a link to one, open for reading; errors as for `regular_descriptor`."""
    return open(regular_descriptor(path)[0], "rb")


class TooLargeError(ValueError):
    """A file is larger than any of its kind that is ours; the message does not name it."""


def read_bounded(path: str | os.PathLike[str], most: int) -> bytes:
    """All of a file that is known to be small: of a run's folder, which anybody may have made.

    Raises:
        TooLargeError: it has more than `most` bytes; it is not read.
        OSError: as for `regular_descriptor`.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > most else file.read(most + 1)
    if len(content) > most or size > most:  # it may have grown meanwhile
        unit, letter = next((unit, letter) for unit, letter in _UNITS if most >= unit)
        claim = f"{max(size, len(content))} bytes"
        raise TooLargeError(f"it is larger than {most // unit} {letter}: it has {claim}")
    return content


def _check_kind(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        kind = KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise IrregularFileError(0, f"it is {kind}, not a file", os.fspath(path))


def size_of(path: str | os.PathLike[str]) -> int:
    """Bytes of a regular file; -1 for anything else, so that a bad file does not hide others."""
    try:
        status = os.stat(path)  # noqa: PTH116  (once a sample; a Path costs more than that)
    except (OSError, ValueError):
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def read_regular(path: str | os.PathLike[str], limits: Limits | None = None) -> bytes:
    """All of a regular file, of at most `limits.record_bytes` (None: by default).

    Raises:
        DataError: it is larger; the message begins with "it has".
        OSError: as for `regular_descriptor`.
    """
    if limits is None:
        from penstock.files.limits import DEFAULT  # imports pydantic

        limits = DEFAULT
    descriptor, size = regular_descriptor(path)
    try:
        if size > limits.record_bytes:
            raise DataError(f"it has {limits.refusal('record_bytes', f'{size} bytes')}")
        content = os.read(descriptor, size)
        while len(content) < size:  # after a signal, or where the file was cut off meanwhile
            more = os.read(descriptor, size - len(content))
            if not more:
                break
            content += more
        return content
    finally:
        os.close(descriptor)
