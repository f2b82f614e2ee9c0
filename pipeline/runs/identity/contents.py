"""Hashes of the contents of files, each computed once.

`<cache_dir>/fingerprints` keeps them by device, inode, size, mtime and ctime, which no program can
set. Cost: about 1 GB/s and thread the first time, then a `stat` a file.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from penstock.distributed.world import usable_cpus
from penstock.errors import PenstockError
from penstock.files.disk import write_atomically
from penstock.files.locks import lock, lock_beside
from penstock.terminal import progress

_log = logging.getLogger(__name__)

UNREADABLE = "unreadable"
SETTLED = 2.0  # seconds: the coarsest clock of a file system (FAT's)
_RECORD = struct.Struct("<QQQqq16s")  # device, inode, size, two times, hash
_FILE = struct.Struct("<QQ")  # of those, the first
_HEAD = 8 + 16  # a word and the hash of all records
_WORD = b"PENSTFP1"
_AT_ONCE = 1000  # files that a thread takes at a time
_CHUNK = 1 << 20  # bytes

Kept = dict[bytes, bytes]  # the first two of a record -> the record


def digests(paths: Sequence[str], cache_dir: str | Path, settled: float = SETTLED) -> list[str]:
    """The hash of each file's content, 32 hex digits; UNREADABLE for an unreadable file.

    Args:
        cache_dir: keeps hashes, if it is writable.
        settled: age in seconds of a file from which on its hash is kept.
    """
    # Hashes are kept together with those of the same folder.
    folder = os.path.commonpath({str(Path(path).parent.absolute()) for path in paths})
    name = hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest()
    file = Path(cache_dir).expanduser().absolute() / "fingerprints" / f"files-{name}.bin"
    looks = _looks(paths)
    hashes = _known(looks, _read(file))
    if all(digest is not None for digest in hashes):
        return [digest or "" for digest in hashes]
    with ExitStack() as stack:
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            stack.enter_context(lock(lock_beside(file), "hashes the same files"))
        except (OSError, PenstockError) as error:
            message = "%s cannot be used: %s; each start hashes all files"
            _log.warning(message, file.parent, error)
        kept = _read(file)
        hashes = _known(looks, kept)
        unknown = [row for row, digest in enumerate(hashes) if digest is None]
        before = time.time_ns() - int(settled * 1e9)
        try:
            for row, record in zip(unknown, _hashed(paths, looks, unknown), strict=True):
                hashes[row] = record[-16:].hex() if record else UNREADABLE
                if record and max(_RECORD.unpack(record)[3:5]) < before:
                    kept[record[: _FILE.size]] = record
        finally:
            _write(file, kept)  # also what was done before Ctrl-C
    return [digest or "" for digest in hashes]


def _looks(paths: Sequence[str]) -> list[bytes | None]:
    """A record without hash of each file; None for anything else."""

    def look(path: str) -> bytes | None:
        try:
            status = Path(path).stat()
        except (OSError, ValueError):
            return None
        return _packed(status) if stat.S_ISREG(status.st_mode) else None

    starts = range(0, len(paths), _AT_ONCE)
    with ThreadPoolExecutor(usable_cpus()) as pool:
        parts = pool.map(lambda start: [*map(look, paths[start : start + _AT_ONCE])], starts)
        return list(chain.from_iterable(parts))


def _packed(status: os.stat_result) -> bytes:
    times = status.st_mtime_ns, status.st_ctime_ns
    return _RECORD.pack(status.st_dev, status.st_ino, status.st_size, *times, b"")[:-16]


def _known(looks: Sequence[bytes | None], kept: Mapping[bytes, bytes]) -> list[str | None]:
    """The kept hashes; None for the others."""
    hashes: list[str | None] = []
    for look in looks:
        record = b"" if look is None else kept.get(look[: _FILE.size], b"")
        same = look is not None and record[:-16] == look
        hashes.append(UNREADABLE if look is None else record[-16:].hex() if same else None)
    return hashes


def _hashed(
    paths: Sequence[str], looks: Sequence[bytes | None], rows: Sequence[int]
) -> Iterator[bytes]:
    """The record of each file of `rows`; empty for one that cannot be read."""
    sizes = [_RECORD.unpack((looks[row] or b"") + bytes(16))[2] for row in rows]
    files = "1 file" if len(rows) == 1 else f"{len(rows)} files"
    hashing = _Hashing()
    with (
        progress(f"hashing {files} once", sum(sizes), "bytes") as show,
        ThreadPoolExecutor(usable_cpus()) as pool,
    ):
        try:
            results = [pool.submit(hashing.record, paths[row]) for row in rows]
            for count, result in enumerate(results):
                while not result.done():
                    show(hashing.bytes_done, f"{count} of {files}")
                    wait([result], 0.1)
                yield result.result()
        finally:  # after Ctrl-C the threads end with their current MiB
            hashing.stopped = True
            pool.shutdown(wait=False, cancel_futures=True)


class _Hashing:
    """Hashes files in threads, until it is stopped.

    Attributes:
        bytes_done: of all files; a display's number, which threads may miscount.
    """

    def __init__(self) -> None:
        self.bytes_done, self.stopped = 0, False

    def record(self, path: str) -> bytes:
        """The record of a file; empty if it cannot be read."""
        try:
            # One that became a pipe meanwhile does not keep this waiting.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
            with open(descriptor, "rb", buffering=0) as file:
                before = os.fstat(descriptor)
                if not stat.S_ISREG(before.st_mode):
                    return b""
                digest, buffer = hashlib.blake2b(digest_size=16), bytearray(_CHUNK)
                view = memoryview(buffer)
                while not self.stopped and (count := file.readinto(buffer)):
                    digest.update(view[:count])
                    self.bytes_done += count
            return b"" if self.stopped else _packed(before) + digest.digest()
        except OSError:
            return b""


def _read(file: Path) -> Kept:
    """The kept records; none if the file is damaged."""
    try:
        data = file.read_bytes()
    except OSError:
        return {}
    body = data[_HEAD:]
    if data[:_HEAD] != _WORD + _check(body) or len(body) % _RECORD.size:
        return {}
    records = (body[at : at + _RECORD.size] for at in range(0, len(body), _RECORD.size))
    return {record[: _FILE.size]: record for record in records}


def _write(file: Path, kept: Kept) -> None:
    body = b"".join(kept.values())
    try:
        write_atomically(file, _WORD + _check(body) + body)
    except PenstockError as error:
        _log.warning("hashes of files are not kept: %s", error)


def _check(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()
