"""Folders of data that are made once, by one process, and appear whole or not at all."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_path

from penstock.errors import ConfigError, DataError, Problem
from penstock.files.locks import lock, lock_beside
from penstock.files.paths import is_remote

VARIABLE = "PENSTOCK_CACHE"


@contextmanager
def generated_data(
    root: str | None, kind: str, name: str, write: Callable[[Path], None]
) -> Iterator[str]:
    """The folder `root`/`name`, which `write(folder)` fills if it is not there yet.

    Without a root it lies in `kind` of the user's cache, which all checkouts share: PENSTOCK_CACHE,
    or ~/.cache/penstock on Linux (XDG_CACHE_HOME) and the system's own place elsewhere. A DataError
    inside of the context says that the data can be made again.

    Raises:
        DataError: the folder cannot be written.
        ConfigError: `root` is an address.
    """
    if root and is_remote(root):
        reason = f"{root!r} is an address; drawn data is written to a folder of this machine"
        raise ConfigError(Problem("dataset.root", reason))
    cache = Path(os.environ.get(VARIABLE) or user_cache_path("penstock", False))
    parent = Path(root) if root is not None else cache.absolute() / kind
    folder = parent.expanduser() / name

    def announced(made: Path) -> None:
        message = "making the data of %s in %s, once; later runs read it"
        logging.getLogger(__name__).info(message, kind, folder)
        write(made)

    generated_folder(folder, announced, f"dataset.root (or {VARIABLE})")
    try:
        yield str(folder)
    except DataError as error:
        raise DataError(f"{error} Or delete {str(folder)!r}, and it is made again.") from error


def generated_folder(
    path: Path,
    write: Callable[[Path], None],
    key: str,
    is_there: Callable[[Path], bool] = Path.is_dir,
) -> None:
    """Fill the folder `path` by `write(folder)` if it is not there yet.

    It is written beside its place and renamed, so nobody sees a part of it, even if the process is
    killed. Of several processes, such as the ranks of a run, one writes and the others wait. Where
    the file system has no locks, all write: `write` must give the same files every time.

    Args:
        key: of the configuration, for messages.
        is_there: whether the folder is there, and of use; another is made anew.

    Raises:
        DataError: the folder cannot be written.
    """
    if is_there(path):
        return
    beside = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock(lock_beside(path), f"writes {path}"):
            if not is_there(path):
                shutil.rmtree(path, ignore_errors=True)
                beside.mkdir()
                write(beside)
                beside.rename(path)
            # Whoever still waits for the lock finds the folder there. After an error it stays.
            lock_beside(path).unlink(missing_ok=True)
    except OSError as error:
        if not is_there(path):  # else another process was first
            raise DataError(
                f"cannot write the data {str(path)!r}: {error.strerror or error}. Set {key} to a "
                "folder that can be written."
            ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
