"""Files that are replaced as a whole or not at all, and locks on what is being written.

A crash at any moment leaves the old file or the new one. Writers lock their files, so locking a
file shows whether it is a leftover of a killed writer or in progress: process ids are reused, and
mean nothing on another machine. Cost: that of a flush, 1 to 50 ms by disk.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from filelock import FileLock, Timeout

from penstock.errors import PenstockError
from penstock.files import data as plain_json
from penstock.files.data import LONGEST_LINE

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LEFTOVER = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.tmp")
_BLOCK = 1 << 16
HELD = "writing"  # the file that is locked for a folder in progress

_FILES = "as many files are open as this process may have (ulimit -n). Raise that limit"
_CAUSES = {
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.ENOSPC: "the disk is full. Free some space there, or move run_dir to another disk",
    errno.EDQUOT: "the disk quota is used up. Free some space, or move run_dir to another disk",
    errno.EFBIG: "the file is larger than this process may write (ulimit -f). Raise that limit",
    errno.EROFS: "the disk is read-only. Move run_dir or cache_dir to another one",
    errno.EACCES: "no permission. Make its folder writable, or move run_dir or cache_dir elsewhere",
    errno.EPERM: "no permission. Make its folder writable, or move run_dir or cache_dir elsewhere",
    errno.ENOENT: "its folder is gone. Put it back, or move run_dir or cache_dir elsewhere",
}


class DiskError(PenstockError):
    """A file or folder cannot be written; the message names it, why, and what to do."""


class NotOwnError(PenstockError):
    """A file that is to be replaced is none that was made here; the message names it."""

    exit_code = 2


def private_folder(path: Path) -> Path:
    """`path`, made for this user alone if it is not there."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def refuse(path: Path, error: OSError, kind: type[PenstockError] = DiskError) -> NoReturn:
    """Raise `kind` instead of an OSError about writing `path`."""
    cause = _CAUSES.get(error.errno or 0, f"{error.strerror or error}. Check the disk")
    raise kind(f"{path} cannot be written: {cause}; what was there before is whole") from error


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the content of `path` with `data`, as `replacing` does; raises DiskError."""
    with replacing(path) as descriptor:
        write(descriptor, [data])


def replace_own(path: Path, data: bytes, made: re.Pattern[bytes]) -> None:
    """Replace the content of `path` as `write_atomically` does, unless it is somebody else's file.

    Args:
        made: matches the beginning of such a file that was made here; see `check_replaceable`.
    """
    check_replaceable(path, made)
    write_atomically(path, data)


def check_replaceable(path: Path, made: re.Pattern[bytes]) -> None:
    """Raise NotOwnError unless nothing is at `path`, or a file whose first 64 KiB match `made`."""
    if not os.path.lexists(path):
        return
    with path.open("rb") as file:
        if made.match(file.read(_BLOCK)):
            return
    raise NotOwnError(
        f"{path} exists, and Penstock has not made it; nothing was written "
        "to it. Move it away, or write to another place"
    )


@contextmanager
def replacing(path: Path, kind: type[PenstockError] = DiskError) -> Iterator[int]:
    """A descriptor of a new file that takes the place of `path` when the context ends.

    If the context raises or the disk refuses, `path` is as it was, and nothing else remains.

    Raises:
        kind: instead of an OSError.
    """
    hidden = beside(path)
    hold = None
    try:
        # Again if somebody took the file for a leftover before it was locked.
        while hold is None or not hold.is_on(hidden):
            if hold is not None:
                hold.release()
            hold = Hold.take(hidden, os.O_RDWR | os.O_CREAT)
        yield hold.descriptor
        os.fsync(hold.descriptor)
        hidden.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        refuse(path, error, kind)
    finally:
        with suppress(OSError):
            hidden.unlink(missing_ok=True)
        if hold is not None:
            hold.release()


def prepare(folder: Path, kind: type[PenstockError] = DiskError) -> None:
    """Make a folder to write to, or delete the leftovers in it; raises `kind` if it cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse(folder, error, kind)
    remove_leftovers(folder)


def write(descriptor: int, parts: Iterable[bytes | memoryview]) -> None:
    """Write all bytes of all parts; other threads run meanwhile."""
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view) :]


def beside(path: Path) -> Path:
    """A new hidden name in the same folder, which `remove_leftovers` recognizes."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def sync_folder(folder: Path) -> None:
    """Flush a rename to the disk; does nothing where folders cannot be opened (Windows)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Hold:
    """An exclusive lock on an open file; it ends with `release` or with this process.

    Forked children close the files that their parent locked, so that they don't keep the lock when
    it dies. On a disk without locks, every lock succeeds.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def take(cls, path: Path, flags: int = os.O_RDWR) -> Hold | None:
        """Open and lock `path`; None if it is locked already."""
        with _opening:
            descriptor = os.open(path, flags, 0o666)
            _held.add(descriptor)
            hold = cls(descriptor)
            if not _lock(descriptor):
                hold.release()
                return None
        return hold

    def is_on(self, path: Path) -> bool:
        """Whether `path` is still the locked file."""
        try:
            return os.path.samestat(path.stat(), os.fstat(self.descriptor))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Unlock; a second time does nothing."""
        with _opening:
            if self.descriptor in _held:
                _held.discard(self.descriptor)
                os.close(self.descriptor)
            self.descriptor = -1


def is_locked(path: Path) -> bool:
    """Whether a process holds `path`; False where there is no such file, or no locks.

    For some microseconds the question shares the lock, so a `Hold.take` meanwhile gets None.
    """
    if fcntl is None:
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:  # this disk has no locks, if it is of another kind
        return isinstance(error, BlockingIOError)
    finally:
        os.close(descriptor)
    return False


def is_leftover(path: Path) -> bool:
    """Whether a killed writer has left `path`, or a live one writes to it."""
    return _LEFTOVER.fullmatch(path.name) is not None


def remove_leftovers(folder: Path) -> list[Path]:
    """Delete what killed writers left in `folder`, and nothing that is still written to."""
    removed = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if not is_leftover(path):
            continue
        with suppress(OSError):  # somebody else was faster, or has the right to
            held = path / HELD if path.is_dir() and not path.is_symlink() else path
            hold = Hold.take(held) if held.exists() else None
            if hold is None and held.exists():
                continue
            discard(path)
            if hold is not None:
                hold.release()
            removed.append(path)
    return removed


def discard(path: Path) -> None:
    """Delete a file, or a folder, which is renamed first so that nobody sees half of it."""
    if not path.is_dir() or path.is_symlink():
        path.unlink()
        return
    if not is_leftover(path):
        path = path.rename(beside(path))
    shutil.rmtree(path)


def append(path: Path, lines: Iterable[str]) -> None:
    """Add lines to a file, all of them or none; they survive a crash of this process.

    Raises:
        DiskError: they cannot be written.
    """
    data = "".join(f"{line}\n" for line in lines).encode()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        size = os.fstat(descriptor).st_size
        try:
            write(descriptor, [data])
        except OSError:
            os.ftruncate(descriptor, size)
            raise
        finally:
            os.close(descriptor)
    except OSError as error:
        refuse(path, error)


def cut(path: Path, keep: Callable[[Any], bool]) -> int:
    """Drop the records of a .jsonl file after the last one that `keep` accepts.

    A record that a killed process wrote in part is dropped, too. Only what is dropped is read, and
    a block.

    Returns:
        The number of bytes dropped.

    Raises:
        DiskError: the file cannot be written, or has a line that is too long.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDWR), "rb+") as file:
            size = file.seek(0, os.SEEK_END)
            lines = _lines_backwards(path, file, size)
            kept = (end for line, end in lines if _accepted(line, keep))
            end = next(kept, 0)
            if end < size:
                file.truncate(end)
                os.fsync(file.fileno())
    except FileNotFoundError:
        return 0
    except OSError as error:
        refuse(path, error)
    return size - end


def _lines_backwards(path: Path, file: BinaryIO, size: int) -> Iterator[tuple[bytes, int]]:
    """Whole lines, the last one first, each with its end in the file."""
    data, start, stop = b"", size, 0  # data[:stop] lies at `start` and is not yielded yet
    while True:
        end = data.rfind(b"\n", 0, stop)
        begin = data.rfind(b"\n", 0, max(end, 0))
        if begin < 0 and start > 0:
            if stop > LONGEST_LINE:
                raise DiskError(
                    f"{path} is damaged: it has a line of more than "
                    f"{LONGEST_LINE >> 20} MiB. Delete it"
                )
            more = min(start, max(stop, _BLOCK))
            start -= more
            file.seek(start)
            data = file.read(more) + data[:stop]
            stop += more
        elif end < 0:
            return
        else:
            yield data[begin + 1 : end], start + end + 1
            stop = begin + 1


def _accepted(line: bytes, keep: Callable[[Any], bool]) -> bool:
    try:
        return keep(plain_json.parse(line))
    except (ValueError, KeyError, TypeError, OverflowError):  # written in part
        return False


_opening = threading.RLock()
_held: set[int] = set()


def _lock(descriptor: int) -> bool:
    """Lock a file; False if somebody else has."""
    if fcntl is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # this disk has no locks, if it is of another kind
            return not isinstance(error, BlockingIOError)
    return True


def _in_forked_child() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()
    _opening.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_in_forked_child
    )


_log = logging.getLogger(__name__)


@contextmanager
def one_writer(path: Path, work: str, wait: bool = True) -> Iterator[Path]:
    """Hold the lock of `path`, a hidden file beside it, which is yielded.

    Where the file system has no locks, nothing is held.

    Args:
        path: a file or folder, in a folder that exists.
        work: what its holder does, for the message of those who wait: "packs the data".

    Raises:
        TimeoutError: another process holds the lock, and `wait` is false.
        OSError: the lock cannot be made.
    """
    lock_path = path.with_name(f".{path.name}.lock")
    lock = FileLock(lock_path, mode=0o600)
    try:
        with suppress(NotImplementedError):
            try:
                lock.acquire(timeout=0)
            except Timeout:
                if not wait:
                    raise
                _log.info("waiting for another process that %s", work)
                lock.acquire()
        yield lock_path
    finally:
        lock.release()
