"""Files that are on the disk whole or not at all, and whose they are.

    replacing          1. write to a file beside, 2. flush it, 3. rename it, 4. flush the folder
    Hold               a lock of the operating system's, gone with its process, however that ends
    remove_leftovers   delete what killed writers left behind
    append, cut        lines of a file of records: add some, drop the last ones

A crash at any moment leaves the old file or the new one. What is being written is held, so that
leftovers can be told from files under way by trying to hold them: numbers of processes are used
again, and mean nothing on another machine. Cost: that of a flush, 1 to 50 ms by disk.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from pipeline.errors import PenstockError
from pipeline.files import plain_json
from pipeline.files.own_files import NotOwnError, open_own

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LEFTOVER = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.tmp")
_BLOCK = 1 << 16
LONGEST_LINE = 16 << 20  # bytes of one record
HELD = "writing"  # the file that is held for a folder under way

_CAUSES = {
    errno.ENOSPC: "the disk is full. Free some space there, or let run_dir lie on another disk",
    errno.EDQUOT: "the disk quota is used up. Free some space, or let run_dir lie on another disk",
    errno.EFBIG: "the file is larger than this process may write (ulimit -f). Raise that limit",
    errno.EROFS: "it lies on a read-only disk. Let run_dir lie on another one",
    errno.EACCES: "no permission. Make its folder writable, or let run_dir lie elsewhere",
    errno.EPERM: "no permission. Make its folder writable, or let run_dir lie elsewhere",
    errno.ENOENT: "its folder is gone. Put it back, or let run_dir lie elsewhere",
}


class DiskError(PenstockError):
    """Something cannot be written; the message names it, says why, and what to do."""


def refuse(path: Path, error: OSError, kind: type[PenstockError] = DiskError) -> NoReturn:
    """Raise `kind` in place of an error of the operating system's about writing `path`."""
    cause = _CAUSES.get(error.errno or 0, f"{error.strerror or error}. See to the disk")
    raise kind(f"{path} cannot be written: {cause}; what was there before is whole") from error


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` on the disk, and then in one step in the place of what `path` held.

    Raises:
        DiskError: it cannot be written.
    """
    with replacing(path) as descriptor:
        write(descriptor, [data])


@contextmanager
def replacing(path: Path, kind: type[PenstockError] = DiskError) -> Iterator[int]:
    """A file descriptor to write to; what was written takes the place of `path`.

    If the context raises or the disk refuses, `path` is as it was, and nothing else remains.

    Raises:
        kind: in place of an OSError.
    """
    hidden = beside(path)
    hold = None
    try:
        hold = _new_file(hidden)
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


def _new_file(path: Path) -> Hold:
    """Make and hold `path`; again if somebody took it for a leftover before it was held."""
    while True:
        hold = Hold.take(path, os.O_RDWR | os.O_CREAT)
        if hold is not None and hold.is_on(path):
            return hold
        if hold is not None:
            hold.release()


def prepare(folder: Path, kind: type[PenstockError] = DiskError) -> None:
    """Make a folder to write to, or clear away what killed writers left in it.

    Raises:
        kind: it cannot be made.
    """
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
    """A hidden name in the same folder that nobody has; `remove_leftovers` knows it."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def sync_folder(folder: Path) -> None:
    """Bring a rename to the disk; where folders cannot be opened (Windows) there is no way to."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Hold:
    """An exclusive lock on an open file; it ends with `release` or with this process.

    Forked children close what their parent holds, so that they do not go on holding it when it
    dies. Where a disk knows no locks, everything can be held.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def take(cls, path: Path, flags: int = os.O_RDWR, linked: bool = False) -> Hold | None:
        """Open `path` and hold it; None if somebody else does.

        Args:
            linked: allow that the file has other names, for what is not written to.

        Raises:
            NotOwnError: it is no file of this user's own.
            OSError: as of os.open.
        """
        with _opening:
            descriptor = open_own(path, flags, linked=linked)
            _held.add(descriptor)
            hold = cls(descriptor)
            if not _lock(descriptor):
                hold.release()
                return None
        return hold

    def is_on(self, path: Path) -> bool:
        """Whether `path` is still the file that is held."""
        try:
            return os.path.samestat(path.stat(), os.fstat(self.descriptor))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let go; a second time does nothing."""
        with _opening:
            if self.descriptor in _held:
                _held.discard(self.descriptor)
                os.close(self.descriptor)
            self.descriptor = -1


def remove_leftovers(folder: Path) -> list[Path]:
    """Delete what killed writers left in `folder`, and nothing that is still written to."""
    removed = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if not _LEFTOVER.fullmatch(path.name):
            continue
        with suppress(OSError, NotOwnError):  # somebody else was faster, or has the right to
            if _remove_unless_held(path):
                removed.append(path)
    return removed


def _remove_unless_held(path: Path) -> bool:
    held = path / HELD if path.is_dir() and not path.is_symlink() else path
    hold = Hold.take(held, linked=True) if held.exists() else None
    if hold is None and held.exists():
        return False
    discard(path)
    if hold is not None:
        hold.release()
    return True


def discard(path: Path) -> None:
    """Delete a file, or a folder in such a way that nothing ever sees half of it."""
    if not path.is_dir() or path.is_symlink():
        path.unlink()
        return
    if not _LEFTOVER.fullmatch(path.name):
        path = path.rename(beside(path))
    shutil.rmtree(path)


def append(path: Path, lines: Iterable[str]) -> None:
    """Add lines to a file, all of them or none; they survive a crash of this process.

    Raises:
        DiskError: they cannot be written.
        NotOwnError: `path` is no file of this user's own.
    """
    data = "".join(f"{line}\n" for line in lines).encode()
    try:
        descriptor = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
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
    """Drop the last records of a .jsonl file back to the last one that `keep` accepts.

    What a killed process wrote half is dropped, too. Reads only what it drops, and a block.

    Returns:
        How many bytes were dropped.

    Raises:
        DiskError: the file cannot be written, or holds a line without an end.
        NotOwnError: it is no file of this user's own.
    """
    try:
        with os.fdopen(open_own(path, os.O_RDWR), "rb+") as file:
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
    """Whole lines, the last one first, and where in the file each ends."""
    data, start, stop = b"", size, 0  # data[:stop] is what lies at `start` and was not yielded
    while True:
        end = data.rfind(b"\n", 0, stop)
        begin = data.rfind(b"\n", 0, max(end, 0))
        if begin < 0 and start > 0:
            if stop > LONGEST_LINE:
                raise DiskError(f"{path} is damaged: it has a line of more than "
                                f"{LONGEST_LINE >> 20} MiB. Delete it")  # fmt: skip
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
    except (ValueError, KeyError, TypeError, OverflowError):  # written half
        return False


_opening = threading.RLock()
_held: set[int] = set()


def _lock(descriptor: int) -> bool:
    """Whether nobody else holds the file, which is held from now on."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # this disk knows no locks
        return True
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
