"""Files that are replaced as a whole or not at all, and files that only grow.

A crash at any moment leaves the old file or the new one: content is written to a hidden file in the
same folder, flushed, and renamed. Cost: that of a flush, 1 to 50 ms by disk.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from penstock.errors import PenstockError

# What a killed writer has left, or a live one writes to.
LEFTOVER = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.tmp")
_CAUSES = {
    errno.EMFILE: "as many files are open as this process may have (ulimit -n). Raise that limit",
    errno.ENFILE: "as many files are open as this machine may have. Close some",
    errno.ENOSPC: "the disk is full. Free some space there, or move run_dir to another disk",
    errno.EDQUOT: "the disk quota is used up. Free some space, or move run_dir to another disk",
    errno.EFBIG: "the file is larger than this process may write (ulimit -f). Raise that limit",
    errno.EROFS: "the disk is read-only. Move run_dir or cache_dir to another one",
    errno.EACCES: "no permission. Make its folder writable, or move run_dir or cache_dir elsewhere",
    errno.EPERM: "no permission. Make its folder writable, or move run_dir or cache_dir elsewhere",
    errno.EEXIST: "a file has this name. Move it away, or choose another run_dir or cache_dir",
    errno.ENOTDIR: "a file is among its folders. Choose another run_dir or cache_dir",
    errno.ENOENT: "its folder is gone. Put it back, or move run_dir or cache_dir elsewhere",
}


class DiskError(PenstockError):
    """A file or folder cannot be written; the message names it, why, and what to do."""


@contextmanager
def writing(path: Path, kind: type[PenstockError] = DiskError) -> Iterator[None]:
    """Raise `kind`, which says what to do, instead of an OSError about `path`."""
    try:
        yield
    except OSError as error:
        raise kind(
            f"{path} cannot be written: "
            + _CAUSES.get(error.errno or 0, f"{error.strerror or error}. Check the disk")
            + "; what was there before is whole"
        ) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the content of `path` with `data`, as `replacing` does; raises DiskError."""
    with replacing(path) as file:
        file.write(data)


@contextmanager
def replacing(path: Path, kind: type[PenstockError] = DiskError) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the context ends.

    If the context raises or the disk refuses, `path` is as it was, and nothing else remains.

    Raises:
        kind: instead of an OSError.
    """
    hidden = temporary_name(path)
    try:
        with writing(path, kind):
            with hidden.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            # After the flush: a crash in between would otherwise leave an empty file under the
            # name.
            hidden.replace(path)
            sync_folder(path.parent)
    finally:
        with suppress(OSError):
            hidden.unlink(missing_ok=True)


def temporary_name(path: Path) -> Path:
    """A new hidden name in the same folder, which `prepare` recognizes."""
    return path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")


def prepare(folder: Path, kind: type[PenstockError] = DiskError, idle: float = 600.0) -> None:
    """Make a folder to write to, and delete what killed writers left in it.

    Args:
        idle: seconds since the last write to what is deleted. 0 where nobody else writes: a process
            id in the name would tell nothing, since ids are reused, and differ between machines.

    Raises:
        kind: it cannot be made.
    """
    with writing(folder, kind):
        folder.mkdir(parents=True, exist_ok=True)
    for path in (one for one in folder.iterdir() if LEFTOVER.fullmatch(one.name)):
        with suppress(OSError):  # somebody else was faster, or has the right to
            if path.lstat().st_mtime <= time.time() - idle:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def sync_folder(folder: Path) -> None:
    """Flush a rename to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def append(path: Path, lines: Iterable[str]) -> None:
    """Add lines to a file, all of them or none; they survive a crash of this process.

    Raises:
        DiskError: they cannot be written.
    """
    data = "".join(f"{line}\n" for line in lines).encode()
    with writing(path), path.open("ab", buffering=0) as file:
        # A file opened with "ab" stands at its end.
        size = file.tell()
        try:
            while data:
                data = data[file.write(data) :]
        except OSError:
            # A full disk keeps a part of a line; the next record would be joined to it.
            file.truncate(size)
            raise


def cut(path: Path, keep: Callable[[Any], bool]) -> None:
    """Drop the records of a .jsonl file after the last one that `keep` accepts.

    A record that a killed process wrote in part is dropped, too. The file is read whole, and its
    records are parsed from the end, up to the one that stays.

    Raises:
        DiskError: the file cannot be written.
    """
    with writing(path), suppress(FileNotFoundError), path.open("rb+") as file:
        lines = file.readlines()
        while lines:
            with suppress(ValueError, KeyError, TypeError):  # a line that was written in part
                if lines[-1].endswith(b"\n") and keep(json.loads(lines[-1])):
                    break
            lines.pop()
        file.truncate(sum(map(len, lines)))
        os.fsync(file.fileno())
