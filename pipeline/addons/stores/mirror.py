"""Parts of a large file at their own places in one sparse file of the cache.

    <folder>/mirrors/<entry>    a header, the parts that are there, and a record of each of them

A file for each part has to be made, flushed and named; here a request's parts are flushed and noted
together. But a mirror is evicted whole. So what fetches ahead keeps parts like this only where all
files of the dataset fit into half of the cache, and while there is free room.

1. A part is claimed by a lock on its bytes, which ends with its process; readers wait for it.
2. Its bytes are reserved in the header, and written to the disk before its record is: what a crash
   leaves is not read.

Only on Linux, and on the disks of this machine: a network drive could show a record to another
computer before it shows the bytes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.addons.stores.request_gate import unusable
from penstock.errors import DataError

if TYPE_CHECKING:
    from penstock.addons.stores.file_cache import FileCache
    from penstock.addons.stores.parts import Part

_HEADER = struct.Struct("<8sQ")  # magic; bytes that are there or reserved
_MAGIC = b"penmirr1"
_RECORD = struct.Struct("<QQL")  # start and end of a part, checksum of these
_LOCK = struct.Struct("hhqqi")  # struct flock of 64-bit Linux, less its last padding
_FIRST = 4096  # where the bytes of the file begin
_LOCAL = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
_EVER = 1 << 62  # bytes
_FRESH = 1.0  # seconds in which a use is not noted again
# Other systems have no locks of an open file, or not under these names.
_SET, _WAIT, _ASK = (getattr(fcntl, f"F_OFD_{name}", 0) for name in ("SETLK", "SETLKW", "GETLK"))


def are_possible(folder: Path) -> bool:
    """Whether a cache may have mirrors."""
    return bool(_SET) and _LOCK.size == 28 and _file_system(folder.resolve()) in _LOCAL


def is_at(descriptor: int, path: str | Path) -> bool:
    """Whether an open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def size_of(path: str) -> int:
    """The bytes that a mirror takes: on the disk, or reserved by those who fill it now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        taken = os.fstat(descriptor).st_blocks * 512
        header = os.pread(descriptor, _HEADER.size, 0)
        if len(header) == _HEADER.size and _is_locked(descriptor, _FIRST, _EVER):
            taken = max(taken, _HEADER.unpack(header)[1])
        return taken
    finally:
        os.close(descriptor)


class Mirror:
    """The mirror of one version of a file, for one process.

    Args:
        cache: where it lies.
        entry: its name there, also as an attribute.
        size: bytes of the file.
    """

    def __init__(self, cache: FileCache, entry: str, size: int) -> None:
        self._cache, self.entry = cache, entry
        self.path = f"{cache.folder}/mirrors/{entry}"
        self._log = _FIRST + size  # where records begin
        self._opened: _Opened | None = None
        self._used = 0.0

    def read(self, part: Part, start: int, count: int) -> bytes | None:
        """Some bytes of a part; None if it is not there.

        A part that another process is fetching is waited for.
        """
        opened = self._opened
        if opened is None or not opened.has(part):
            opened = self._refreshed()
            if opened is None or not (opened.has(part) or self._comes(opened, part)):
                return None
        content = os.pread(opened.descriptor, count, _FIRST + part.start + start)
        if len(content) != count:
            return None
        now = time.monotonic()
        if now - self._used > _FRESH:
            self._used = now
            with suppress(OSError):  # evicted, or on a read-only disk
                os.utime(self.path, follow_symlinks=False)
        return content

    def has(self, part: Part) -> bool:
        """Whether a part is there."""
        opened = self._refreshed()
        return opened is not None and opened.has(part)

    @contextmanager
    def claimed(self, parts: Sequence[Part]) -> Iterator[MirrorClaim | None]:
        """Those of some parts that are neither there nor in the hands of others, to be filled.

        None where there is no free room for them.
        """
        descriptor = self._file()
        claim = MirrorClaim(self._cache, self.path, descriptor, self._log)
        try:
            free = [part for part in parts if _locked(descriptor, *_place(part))]
            opened = self._refreshed()
            claim.parts = [part for part in free if opened is None or not opened.has(part)]
            size = sum(part.end - part.start for part in claim.parts)
            yield claim if not size or self._cache.reserved(claim, size) else None
        finally:
            claim.close()

    def _refreshed(self) -> _Opened | None:
        """The open file, with all records; None if there is none."""
        opened = self._opened
        try:
            if opened is None or not is_at(opened.descriptor, self.path):
                opened = self._opened = _Opened(self.path, self._log)
            opened.refresh()
        except FileNotFoundError:
            self._opened = None
        return self._opened

    def _comes(self, opened: _Opened, part: Part) -> bool:
        """Wait for the process that is fetching a part; whether the part came."""
        if not _is_locked(opened.descriptor, *_place(part)):
            return False
        descriptor = os.open(self.path, os.O_RDONLY)  # with locks of its own
        try:
            _lock(descriptor, _WAIT, fcntl.F_RDLCK, *_place(part))
            _lock(descriptor, _SET, fcntl.F_UNLCK, *_place(part))
        finally:
            os.close(descriptor)
        opened.refresh()
        return opened.has(part)

    def _file(self) -> int:
        """A descriptor of the file, which is made if need be."""
        with suppress(FileNotFoundError):
            descriptor = os.open(self.path, os.O_RDWR)
            if self._is_sound(descriptor):
                return descriptor
            os.close(descriptor)
        self._cache.own("mirrors")
        with self._cache.ledger():
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            if not self._is_sound(descriptor):
                # Another file: whoever has this one open knows of parts that it does not have.
                os.close(descriptor)
                Path(self.path).unlink()
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
                os.ftruncate(descriptor, self._log)
                os.pwrite(descriptor, _HEADER.pack(_MAGIC, 0), 0)
            return descriptor

    def _is_sound(self, descriptor: int) -> bool:
        """Whether an open file has a header, and was not cut off before its records."""
        begins = os.pread(descriptor, _HEADER.size, 0)[:8] == _MAGIC
        return begins and os.fstat(descriptor).st_size >= self._log


class MirrorClaim:
    """Parts of a mirror that are being fetched.

    Attributes:
        parts: to be written.
        beyond: as that of `PartialFile`.
    """

    def __init__(self, cache: FileCache, path: str, descriptor: int, log: int) -> None:
        self._cache, self._path = cache, path
        self._descriptor, self._log = descriptor, log
        self._reserved = 0
        self.parts: list[Part] = []
        self.beyond: int | None = None

    def grow(self, more: int) -> None:
        """Note reserved bytes, where others see them."""
        with self._records():
            self._add(more)
        self._reserved += more

    def write(self, part: Part, data: memoryview) -> None:
        """Write one of the parts.

        Raises:
            UnreachableError: it cannot be written.
        """
        assert len(data) == part.end - part.start
        try:
            while data:
                end = _FIRST + part.end
                data = data[os.pwrite(self._descriptor, data, end - len(data)) :]
        except OSError as error:
            raise unusable(self._cache.folder, error) from error

    def flush(self) -> None:
        """Write all to the disk."""
        os.fdatasync(self._descriptor)

    def commit(self) -> None:
        """Record the parts, all of which are written and flushed."""
        records = [_RECORD.pack(start, end, _checksum(start, end)) for _, start, end in self.parts]
        with self._records():
            first = self._log
            # A crash may have left a part of a record.
            count = (os.fstat(self._descriptor).st_size - first) // _RECORD.size
            if count < 0:
                raise DataError(f"{self._path!r} was cut off")
            os.pwrite(self._descriptor, b"".join(records), first + count * _RECORD.size)
        self._reserved = 0

    def close(self) -> None:
        """Let go of all parts, recorded or not."""
        try:
            # A mirror that was evicted meanwhile has taken its reservations with it.
            if self._reserved and is_at(self._descriptor, self._path):
                with self._records():
                    self._add(-self._reserved)
                self._cache.give_back(self._reserved)
        finally:
            # By closing alone, a copy in a process that was forked meanwhile would hold the locks.
            _lock(self._descriptor, _SET, fcntl.F_UNLCK, 0, 0)
            os.close(self._descriptor)

    def _add(self, more: int) -> None:
        header = os.pread(self._descriptor, _HEADER.size, 0)
        if len(header) == _HEADER.size:  # else it was cut off
            magic, taken = _HEADER.unpack(header)
            os.pwrite(self._descriptor, _HEADER.pack(magic, max(0, taken + more)), 0)

    @contextmanager
    def _records(self) -> Iterator[None]:
        _lock(self._descriptor, _WAIT, fcntl.F_WRLCK, 0, _FIRST)
        try:
            yield
        finally:
            _lock(self._descriptor, _SET, fcntl.F_UNLCK, 0, _FIRST)


class _Opened:
    """A mirror that is open for reading, until nobody refers to it."""

    def __init__(self, path: str, log: int) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)
        self._ends: dict[int, int] = {}  # start -> end of each part that is there
        self._read, self._most = log, log - _FIRST

    def __del__(self) -> None:
        with suppress(AttributeError):
            os.close(self.descriptor)

    def has(self, part: Part) -> bool:
        return self._ends.get(part.start, -1) >= part.end

    def refresh(self) -> None:
        """Read the records that are new; any number of threads may do so."""
        start = self._read
        more = os.fstat(self.descriptor).st_size - start
        if more < _RECORD.size:
            return
        content = os.pread(self.descriptor, more // _RECORD.size * _RECORD.size, start)
        for first, end, checksum in _RECORD.iter_unpack(content):
            if checksum == _checksum(first, end) and first < end <= self._most:
                self._ends[first] = max(end, self._ends.get(first, -1))
        self._read = start + len(content)


def _checksum(start: int, end: int) -> int:
    return zlib.crc32(b"%d %d" % (start, end))


def _place(part: Part) -> tuple[int, int]:
    return _FIRST + part.start, _FIRST + part.end


def _lock(descriptor: int, command: int, kind: int, start: int, end: int) -> int:
    """Set or ask for a lock on the bytes of an open file; the kind of the answer."""
    record = _LOCK.pack(kind, os.SEEK_SET, start, end - start, 0)
    answer: int = _LOCK.unpack(fcntl.fcntl(descriptor, command, record)[: _LOCK.size])[0]
    return answer


def _locked(descriptor: int, start: int, end: int) -> bool:
    """Lock bytes for writing, unless others have."""
    try:
        _lock(descriptor, _SET, fcntl.F_WRLCK, start, end)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def _is_locked(descriptor: int, start: int, end: int) -> bool:
    """Whether another open file has a lock on some of the bytes, for writing."""
    return _lock(descriptor, _ASK, fcntl.F_RDLCK, start, end) == fcntl.F_WRLCK


def _file_system(folder: Path, mounts: str = "/proc/self/mounts") -> str:
    """The kind of file system that a folder is on, or will be; empty if that is not known."""
    kind, longest = "", -1
    with suppress(OSError), open(mounts, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            _, escaped, name, *_ = line.split()
            point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), escaped)
            if folder.is_relative_to(point) and len(point) >= longest:
                kind, longest = name, len(point)
    return kind
