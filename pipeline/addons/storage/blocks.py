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


class Object(NamedTuple):
    """One version of a file at an address; `entry` is its name in the cache."""

    address: str
    size: int
    version: str
    entry: str

    @classmethod
    def of(cls, address: str, size: int, version: str, endpoint: str = "") -> Object:
        """The object; another endpoint is another store."""
        key = hashlib.blake2b(
            "\0".join([endpoint, address, version, str(size)]).encode("utf-8", "surrogateescape"),
            digest_size=16,
        ).hexdigest()
        name = re.sub(r"[^A-Za-z0-9._-]", "_", address.rpartition("/")[2])[-64:]
        return cls(address, size, version, f"{key[:2]}/{key}-{name}")

    def blocks(self, start: int, stop: int) -> range:
        """The blocks that bytes start .. stop-1 lie in."""
        return range(start // BLOCK, -(-min(stop, self.size) // BLOCK))

    def bounds(self, block: int) -> tuple[int, int]:
        """Where a block begins and ends."""
        return block * BLOCK, min((block + 1) * BLOCK, self.size)


class _CachedFile:
    """An object's files in the cache, open in this process; used by any number of threads.

    Args:
        path: of its data.
        size: its bytes.
        create: make the files if they are missing.

    Raises:
        OSError: they are missing, or cannot be made.
    """

    data = sums = -1  # descriptors

    def __init__(self, path: Path, size: int, create: bool) -> None:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.truncate(size)  # sparse: a block takes room when it is written
        self.data = os.open(path, os.O_RDWR)
        self.sums = os.open(f"{path}.crc", os.O_RDWR | os.O_CREAT, 0o644)
        os.utime(path)  # in use: it makes no room
        # A block is compared with its sum once in each process that reads it.
        self._checked = bytearray(-(-size // BLOCK))

    def __del__(self) -> None:
        for descriptor in (self.data, self.sums):
            if descriptor >= 0:
                os.close(descriptor)

    def read(self, start: int, stop: int) -> bytes | None:
        blocks = range(start // BLOCK, -(-stop // BLOCK))
        for block in blocks:
            if not self._checked[block]:
                content = os.pread(self.data, BLOCK, block * BLOCK)
                if os.pread(self.sums, 4, 4 * block) != _sum_of(content):
                    return None
                self._checked[block] = 1
                if len(blocks) == 1:
                    return content[start - block * BLOCK : stop - block * BLOCK]
        return os.pread(self.data, stop - start, start)

    def write(self, block: int, content: bytes | memoryview) -> None:
        if os.pwrite(self.data, content, block * BLOCK) < len(content):
            raise OSError("the disk took a part of a block")
        # After the data, so that a crash between the two leaves no block.
        os.pwrite(self.sums, _sum_of(content), 4 * block)


def _sum_of(content: bytes | memoryview) -> bytes:
    return (zlib.crc32(content) or 1).to_bytes(4, "little")  # 0 says that there is no block


class BlockCache:
    """The cache, which all processes of a machine may share. Only fetchers make room.

    Args:
        folder: of the cache; made when something is kept.
        limit: bytes on the disk, which several runs together may exceed for a minute.

    Attributes:
        used: bytes on the disk.
    """

    def __init__(self, folder: Path, limit: int = 0) -> None:
        self.folder, self.limit = folder, limit
        self._open: dict[str, _CachedFile] = {}  # the longest unused first
        self._began = time.time()
        self.used = 0
        self._stale: list[tuple[float, int, str]] = []  # last use, bytes, path; the oldest last

    def path(self, item: Object) -> Path:
        """Where the content of an object is, as far as it was kept."""
        return self.folder / item.entry

    def has(self, item: Object, block: int) -> bool:
        """Whether a block was kept; its content may prove to be torn."""
        with suppress(OSError):
            return os.pread(self._file(item).sums, 4, 4 * block) not in (b"", bytes(4))
        return False

    def read(self, item: Object, start: int, stop: int) -> bytes | None:
        """Bytes start .. stop-1 of an object; None if a block of them is missing or torn."""
        with suppress(OSError):
            return self._file(item).read(start, stop)
        return None

    def missing(self, item: Object) -> list[int]:
        """The blocks of an object that the cache lacks; of an empty one the first, if it has no
        file."""
        return [
            block
            for block in item.blocks(0, item.size) or range(1)
            if self.read(item, *item.bounds(block)) is None
        ]

    def write(self, item: Object, block: int, content: bytes | memoryview) -> None:
        """Keep a block.

        Raises:
            OSError: the disk is full, or the folder cannot be written.
        """
        self._file(item, create=True).write(block, content)

    def _file(self, item: Object, create: bool = False) -> _CachedFile:
        # No lock, which a fork could copy locked: a thread that comes between opens it again.
        file = self._open.pop(item.entry, None)
        # If another run has made room of it, what is written to it now would be lost.
        if file is None or os.fstat(file.data).st_nlink == 0:
            file = _CachedFile(self.path(item), item.size, create)
        self._open[item.entry] = file
        if len(self._open) > _OPEN:
            with suppress(RuntimeError, StopIteration):
                self._open.pop(next(iter(self._open)), None)
        return file

    def refusal(self, error: OSError) -> str:
        """A message about what `write` has raised."""
        return (
            f"the cache of remote files, {str(self.folder)!r}, cannot be written: "
            f"{error.strerror or error}. Make room there, or set files.cache_dir to another disk."
        )

    @property
    def is_full(self) -> bool:
        """Whether there is no room for one more block, and nothing makes any."""
        return self.used + BLOCK > self.limit and not self._stale

    def admits(self, size: int) -> bool:
        """Whether there is room for so many more bytes, which then belong to the caller."""
        while self.used + size > self.limit and self._stale:
            # A run that has begun to use it since the count keeps it open, and fetches again later.
            _, bytes_of, path = self._stale.pop()
            with suppress(OSError):
                Path(path).unlink()
                Path(f"{path}.crc").unlink()
                self.used -= bytes_of
        # Nothing that this run has read is removed for what it reads now: see above.
        if self.used + size > self.limit:
            return False
        self.used += size
        return True

    def count(self) -> None:
        """Look at all that is there: what it takes, and what no run has used since this began."""
        used, stale = 0, []
        for path in self.folder.glob("[0-9a-f][0-9a-f]/*"):
            with suppress(OSError):  # another run makes room of it
                status = path.stat()
                size = status.st_blocks * 512
                used += size
                # Somebody may be about to open what was touched in the minute before.
                if path.suffix != ".crc" and status.st_mtime < self._began - 60:
                    stale.append((status.st_mtime, size, str(path)))
        self.used, self._stale = used, sorted(stale, reverse=True)
