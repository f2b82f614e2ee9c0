"""A folder of data that is made once, whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import ConfigError, DataError, Problem


def generated_folder(path: Path, write: Callable[[Path], None]) -> Path:
    """Return the folder `path`, which `write(folder)` fills if it is not there yet.

    It is written beside its place and renamed, so nobody ever sees a part of it: not when the
    process is killed, and not when several make it at once (one wins, the others use its folder, so
    `write` has to give the same files every time).

    Raises:
        DataError: the folder cannot be written.
        ConfigError: it is none of this machine.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)):
        reason = f"{str(path)!r} is an address; drawn data is written to a folder of this machine"
        raise ConfigError(Problem("dataset.root", reason))
    if path.is_dir():
        return path
    beside = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        beside.parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir(mode=0o755)  # others may read what was drawn, and not change it
        write(beside)
        _take_place(beside, path)
    except OSError as error:
        raise DataError(
            f"cannot write the data {str(path)!r}: {error.strerror or error}. "
            "Set dataset.root to a folder that can be written."
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return path


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
