"""The cache on disk of files at addresses: blocks of 256 KiB, whichever were needed.

    <folder>/ab/<hash>-<name>        a sparse file of the size of one version of a file
    <folder>/ab/<hash>-<name>.crc    uint32 for each block: its crc32, or 0 where it is not there

A block is written before its checksum, and readers compare the two. So there are no locks, no
flushes and no temporary files: two processes that fetch the same block write the same bytes, and
what a crash of the machine has torn is fetched again. A cache that is full admits nothing more:
where each row comes once an epoch, no other rule downloads less. What no run has read since this
one began makes room.

Only the standard library is imported here, since the process that fetches begins with this.
Cost: 20 us to open a file, 5 us a read of a block that was checked before, 0.1 ms to check one.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

BLOCK = 1 << 18
_OPEN = 64  # files that a process keeps open
_RECENT = 60.0  # seconds in which somebody may be about to open what was touched
_UNIT = 512  # bytes that `st_blocks` counts


class Object(NamedTuple):
    """One version of a file at an address; `entry` is its name in the cache."""

    address: str
    size: int
    version: str
    entry: str

    @classmethod
    def of(cls, address: str, size: int, version: str, endpoint: str = "") -> Object:
        """The object; another endpoint is another store."""
        text = "\0".join([endpoint, address, version, str(size)])
        key = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        name = re.sub(r"[^A-Za-z0-9._-]", "_", address.rpartition("/")[2])[-64:]
        return cls(address, size, version, f"{key[:2]}/{key}-{name}")

    def blocks(self, start: int, stop: int) -> range:
        """The blocks that bytes start .. stop-1 lie in."""
        return range(start // BLOCK, -(-min(stop, self.size) // BLOCK))

    def bounds(self, block: int) -> tuple[int, int]:
        """Where a block begins and ends."""
        return block * BLOCK, min((block + 1) * BLOCK, self.size)


class CachedFile:
    """An object's files in the cache, open in this process; used by any number of threads.

    Args:
        path: of its data.
        size: its bytes.
        flags: of `os.open`; O_CREAT makes the files if they are missing.

    Raises:
        OSError: they are missing, or cannot be made.
    """

    _data = _sums = -1

    def __init__(self, path: Path, size: int, flags: int) -> None:
        if flags & os.O_CREAT:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._data = os.open(path, flags, 0o644)
        self._sums = os.open(f"{path}.crc", flags, 0o644)
        if flags & os.O_CREAT and os.fstat(self._data).st_size != size:
            os.ftruncate(self._data, size)
        self._checked = bytearray(-(-size // BLOCK))

    def __del__(self) -> None:
        for descriptor in (self._data, self._sums):
            if descriptor >= 0:
                os.close(descriptor)

    def is_deleted(self) -> bool:
        """Whether somebody has deleted it, to whom this process would write in vain."""
        return os.fstat(self._data).st_nlink == 0

    def has(self, block: int) -> bool:
        """Whether a block is there; its content may prove to be torn."""
        return os.pread(self._sums, 4, 4 * block) not in (b"", bytes(4))

    def read(self, start: int, stop: int) -> bytes | None:
        """Bytes start .. stop-1; None if a block of them is missing or torn."""
        blocks = range(start // BLOCK, -(-stop // BLOCK))
        for block in blocks:
            if not self._checked[block]:
                content = os.pread(self._data, BLOCK, block * BLOCK)
                if os.pread(self._sums, 4, 4 * block) != _sum_of(content):
                    return None
                self._checked[block] = 1
                if len(blocks) == 1:
                    return content[start - block * BLOCK : stop - block * BLOCK]
        return os.pread(self._data, stop - start, start)

    def write(self, block: int, content: bytes | memoryview) -> None:
        """Keep a block."""
        if os.pwrite(self._data, content, block * BLOCK) < len(content):
            raise OSError("the disk took a part of a block")
        os.pwrite(self._sums, _sum_of(content), 4 * block)


def _sum_of(content: bytes | memoryview) -> bytes:
    return (zlib.crc32(content) or 1).to_bytes(4, "little")  # 0 says that there is no block


class BlockCache:
    """The cache. Only the process that fetches writes, counts and makes room.

    Args:
        folder: of the cache; made when something is kept.
        limit: bytes on the disk, which several runs together may exceed for a minute.
        writes: whether this process fetches.
    """

    def __init__(self, folder: Path, limit: int = 0, writes: bool = False) -> None:
        self.folder, self.limit = folder, limit
        self._flags = os.O_RDWR if writes else os.O_RDONLY
        self._open: dict[str, CachedFile] = {}  # the longest unused first
        self._began = time.time()
        self._used = 0
        self._stale: list[tuple[float, int, str]] = []  # last use, bytes, path; the oldest last

    def opened(self, item: Object, create: bool = False) -> CachedFile | None:
        """The files of an object; None where there are none."""
        # No lock, which a fork could copy locked: a thread that comes between opens it again.
        file = self._open.pop(item.entry, None)
        if file is None or file.is_deleted():
            path = self.folder / item.entry
            try:
                file = CachedFile(path, item.size, self._flags | (os.O_CREAT if create else 0))
                os.utime(path)  # in use: it makes no room
            except (FileNotFoundError, PermissionError):
                if create:
                    raise
                return None
        self._open[item.entry] = file
        if len(self._open) > _OPEN:
            with suppress(RuntimeError, StopIteration):
                self._open.pop(next(iter(self._open)), None)
        return file

    def admits(self, size: int) -> bool:
        """Whether there is room for so many more bytes, which then belong to the caller."""
        while self._used + size > self.limit and self._stale:
            used, bytes_of, path = self._stale.pop()
            with suppress(OSError):
                if Path(path).stat().st_mtime == used:
                    Path(path).unlink()
                    Path(f"{path}.crc").unlink()
                    self._used -= bytes_of
        if self._used + size > self.limit:
            return False
        self._used += size
        return True

    def count(self) -> None:
        """Look at all that is there: what it takes, and what no run has used since this began."""
        used, stale = 0, []
        for folder in self.folder.glob("[0-9a-f][0-9a-f]"):
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    status = entry.stat()
                    size = status.st_blocks * _UNIT
                    used += size
                    if entry.name.endswith(".crc"):
                        continue
                    if status.st_mtime < self._began - _RECENT:
                        stale.append((status.st_mtime, size, entry.path))
        self._used, self._stale = used, sorted(stale, reverse=True)
