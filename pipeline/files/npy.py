"""`.npy` files, mapped after a check of the header.

`numpy.load` would allocate what a header claims, and follow it into a pickle.
"""

from __future__ import annotations

import io
import math
import os
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.files.regular_file import regular_descriptor

_LONGEST_HEADER = 1 << 16  # bytes; numpy's own are shorter than 10,000 where they hold numbers


def map_npy(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """The array in a `.npy` file, mapped read-only; an empty one, which cannot be mapped, is new.

    Raises:
        OSError: the file is missing, not a regular file, or may not be read.
        ValueError: it is not a complete `.npy` file of numbers, times or text.
    """
    descriptor, size = regular_descriptor(path)
    with open(descriptor, "rb") as file:
        shape, fortran, dtype, start = npy_layout(file.read(_LONGEST_HEADER), size)
        order: Literal["F", "C"] = "F" if fortran else "C"
        if not math.prod(shape):
            return np.empty(shape, dtype, order)
        mapped: npt.NDArray[Any] = np.memmap(file, dtype, "r", start, shape, order)
        return mapped


def npy_layout(content: bytes, size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether in Fortran's order, dtype, and the byte at which the numbers begin.

    Args:
        content: what a `.npy` file begins with.
        size: bytes of the whole file.

    Raises:
        ValueError: as for `map_npy`.
    """
    shape, fortran, dtype, start = _header(content)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if dtype.kind == "V" or not dtype.itemsize:
        raise ValueError(f"it holds {dtype}, not numbers")
    if any(side < 0 or isinstance(side, bool) for side in shape):
        raise ValueError(f"its shape is {shape}")
    claimed = math.prod(shape) * dtype.itemsize
    if claimed > size - start:
        raise ValueError(f"it is shorter than its header says: {size} of {start + claimed}")
    return shape, fortran, dtype, start


def _header(content: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order and dtype of the header that a file begins with, and its length."""
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        width = 2 if version == (1, 0) else 4
        start = file.tell() + width
        start += int.from_bytes(content[file.tell() : start], "little")
        if start > len(content) and len(content) == _LONGEST_HEADER:
            raise ValueError(f"its header claims {start} bytes")
        # Versions 2 and 3 differ in the encoding of field names, which plain arrays lack.
        old = version == (1, 0)
        read = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
        return *read(file), start
    except ValueError as error:
        raise ValueError(str(error).split("\n")[0]) from error
    except Exception as error:  # of numpy's parser
        raise ValueError(f"its header cannot be read: {type(error).__name__}: {error}") from error
