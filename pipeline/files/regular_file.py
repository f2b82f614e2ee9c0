"""Whole files of data, of at most `limits.record_bytes`, and their sizes."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import DataError

if TYPE_CHECKING:
    from penstock.files.limits import Limits
import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt


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


def map_npy(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """The array in a `.npy` file, mapped read-only; raises OSError or ValueError."""
    try:
        mapped: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except EOFError as error:  # of an empty file
        raise ValueError(str(error)) from None
    return mapped


def npy_layout(content: bytes, size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether in Fortran's order, dtype, and the byte at which the numbers begin.

    Args:
        content: what a `.npy` file begins with.
        size: bytes of the whole file.

    Raises:
        ValueError: it is not a complete `.npy` file of numbers, times or text.
    """
    file = io.BytesIO(content)
    old = np.lib.format.read_magic(file) == (1, 0)
    # Versions 2 and 3 differ in the encoding of field names, which plain arrays lack.
    read = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    claimed = file.tell() + math.prod(shape) * dtype.itemsize
    if claimed > size:
        raise ValueError(f"it is shorter than its header says: {size} of {claimed}")
    return shape, fortran, dtype, file.tell()
