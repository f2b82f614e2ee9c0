"""A folder of data that is made once, by one process, whole or not at all.

Unless a person names another place it lies in the cache of this machine's user, so that every
checkout and working folder shares it: ~/.cache/penstock on Linux (XDG_CACHE_HOME), the system's own
place elsewhere, and PENSTOCK_CACHE in the place of either.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from pipeline.errors import ConfigError, DataError, Problem
from pipeline.files.own_files import check_own, own_folder

VARIABLE = "PENSTOCK_CACHE"

_log = logging.getLogger(__name__)


def generated_root(root: str | None, name: str) -> Path:
    """The folder that generated data goes to: `root`, or `name` in the user's cache.

    Raises:
        DataError: the cache cannot be made.
        NotOwnError: it belongs to another user, or everybody can write to it.
    """
    if root is not None:
        return Path(root).expanduser()
    given = os.environ.get(VARIABLE)
    cache = Path(given).expanduser().absolute() if given else user_cache_path("penstock", False)
    with _explained(cache):
        return own_folder(own_folder(cache, link=True) / name)


def generated_folder(path: Path, write: Callable[[Path], None]) -> Path:
    """Return the folder `path`, which `write(folder)` fills if it is not there yet.

    It is written beside its place and renamed, so nobody ever sees a part of it, also when the
    process is killed. Of several processes that want it at once, such as the ranks of a run, one
    writes and the others wait. Where the file system has no locks, all write; `write` has to give
    the same files every time.

    Raises:
        DataError: the folder cannot be written.
        ConfigError: it is none of this machine.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)):
        reason = f"{str(path)!r} is an address; drawn data is written to a folder of this machine"
        raise ConfigError(Problem("dataset.root", reason))
    if path.is_dir():
        return path
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path):
            if not path.is_dir():
                _make(path, write)
    return path


def _make(path: Path, write: Callable[[Path], None]) -> None:
    beside = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        beside.mkdir(mode=0o755)  # others may read what was drawn, and not change it
        write(beside)
        _take_place(beside, path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock of a folder that is to be made, if there can be one."""
    place = path.with_name(f".{path.name}.lock")
    if os.path.lexists(place):
        check_own(place)
    lock = FileLock(place, mode=0o600)
    try:
        with suppress(NotImplementedError):  # a file system without locks
            try:
                lock.acquire(timeout=0)
            except Timeout:
                _log.info("waiting for another process that draws %s", path)
                lock.acquire()
        yield
        # Whoever still waits for this file finds the folder there. After an error it stays.
        place.unlink(missing_ok=True)
    finally:
        lock.release()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write the data {str(path)!r}: {error.strerror or error}. Set dataset.root (or "
            f"{VARIABLE}) to a folder that can be written."
        ) from error


@contextmanager
def reading_generated(path: Path) -> Iterator[None]:
    """Add to the errors of reading what helps with data that can be made again."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{error} Or delete {str(path)!r}, and it is made again.") from error


def _take_place(beside: Path, path: Path) -> None:
    try:
        beside.rename(path)
    except OSError:
        if not path.is_dir():  # otherwise another process was first
            raise
