"""Locks on files, which end with the process that has them, however it ends.

A lock shows whether somebody is still at work: a process id would not, since ids are reused and
mean nothing on another machine. On a disk without locks, every lock succeeds.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from io import FileIO
from pathlib import Path

_locked: list[FileIO] = []


def lock(path: Path, work: str = "") -> FileIO:
    """Open and lock `path`, which is made if it is not there; closing the file unlocks it.

    Args:
        work: what the holder of such a lock does, said to those who wait for it: "packs the data".

    Raises:
        BlockingIOError: somebody else has it, and there is no `work` to wait for.
        OSError: the file cannot be opened.
    """
    file = FileIO(path, "ab+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if work:
            logging.getLogger(__name__).info("waiting for another process that %s", work)
        time.sleep(0.01)  # perhaps somebody only asks whether it is locked
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if work else fcntl.LOCK_NB))
        except BlockingIOError:
            file.close()
            raise
    except OSError:  # this disk has no locks
        pass
    _locked[:] = [*(other for other in _locked if not other.closed), file]
    return file


def lock_beside(path: Path) -> Path:
    """The hidden file that is locked for a file or folder while it is made."""
    return path.with_name(f".{path.name}.lock")


def is_locked(path: Path) -> bool:
    """Whether a process has locked `path`; for some microseconds the question shares the lock."""
    try:
        with FileIO(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def _unlock_in_child() -> None:
    while _locked:
        _locked.pop().close()


# A forked child would share the lock, and keep it when its parent dies.
os.register_at_fork(after_in_child=_unlock_in_child)
