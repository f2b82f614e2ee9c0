"""Files of data, opened without waiting and read without surprise.

A name in a dataset may lead to a FIFO or a device, which keep a reader waiting for ever, or to a
file that claims a terabyte. Every reader opens its files here: only a regular file is opened, also
through links, and it is read only after its size was compared with what the reader allows. Cost: 1
us over the system's own opening.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from pipeline.errors import DataError
from pipeline.files.limits import DEFAULT, Limits

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class IrregularFileError(OSError):
    """What is opened is a FIFO, a socket or a device; `strerror` says which."""


def regular_descriptor(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Open a regular file for reading: its descriptor, which the caller closes, and its size.

    Raises:
        IrregularFileError, IsADirectoryError: it is something else.
        OSError: it is missing, or may not be read, or its name is none.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket cannot be opened at all
            _check_kind(Path(path).stat(), path)
        raise
    except ValueError as error:
        raise OSError(0, f"the name is none ({error})", repr(path)) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        _check_kind(status, path)
    return descriptor, status.st_size


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """A regular file, or a link to one, to be read; errors as for `regular_descriptor`."""
    return open(regular_descriptor(path)[0], "rb")


def _check_kind(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise IrregularFileError(0, f"it is {kind}, not a file", os.fspath(path))


def size_of(path: str | os.PathLike[str]) -> int:
    """Bytes of a regular file; -1 of whatever else, so that one bad file hides no other."""
    try:
        status = os.stat(path)  # noqa: PTH116  (once a sample; a Path costs more than that)
    except (OSError, ValueError):
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def read_regular(path: str | os.PathLike[str], limits: Limits = DEFAULT) -> bytes:
    """All of a regular file, of at most `limits.record_bytes`.

    Raises:
        DataError: it is larger; the message begins with "it has".
        OSError: as for `regular_descriptor`.
    """
    descriptor, size = regular_descriptor(path)
    try:
        if size > limits.record_bytes:
            raise DataError(f"it has {limits.refusal('record_bytes', f'{size} bytes')}")
        content = os.read(descriptor, size)
        while len(content) < size:  # a signal, or cut off meanwhile
            more = os.read(descriptor, size - len(content))
            if not more:
                break
            content += more
        return content
    finally:
        os.close(descriptor)
