"""`.npy` files: mapped ones, and the layout of one whose beginning alone is at hand."""

from __future__ import annotations

import io
import math
import os
from typing import Any

import numpy as np
import numpy.typing as npt


def map_npy(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """The array in a `.npy` file, mapped read-only; raises OSError or ValueError."""
    mapped: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
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
