"""Whole files of data, of at most `limits.record_bytes`, and their sizes."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import DataError

if TYPE_CHECKING:
    from penstock.files.limits import Limits


def size_of(path: str | os.PathLike[str]) -> int:
    """Bytes of a regular file; -1 for anything else, so that a bad file does not hide others."""
    try:
        status = os.stat(path)  # noqa: PTH116  (once a sample; a Path costs more than that)
    except (OSError, ValueError):
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def read_regular(path: str | os.PathLike[str], limits: Limits | None = None) -> bytes:
    """All of a file, of at most `limits.record_bytes` (None: by default).

    Raises:
        DataError: it is larger; the message begins with "it has".
        OSError: it is missing, a folder, or may not be read, or its name is not valid.
    """
    if limits is None:
        from penstock.files.limits import DEFAULT  # imports pydantic

        limits = DEFAULT
    try:
        with Path(path).open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size > limits.record_bytes:
                raise DataError(f"it has {limits.refusal('record_bytes', f'{size} bytes')}")
            return file.readall()
    except ValueError as error:
        raise OSError(0, f"the name is not valid ({error})", repr(path)) from error
