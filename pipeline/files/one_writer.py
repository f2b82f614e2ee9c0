"""Work that one process does while others wait for its result, such as making a cached file.

Beside `disk`, as importing filelock takes 35 ms, which most commands do without.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

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
