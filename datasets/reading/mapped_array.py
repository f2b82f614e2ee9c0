"""A `.npy` file that is read in place, a few rows at a time, and its numbers as torch has them."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.datasets.reading.fingerprint import DataFile, Part
from penstock.datasets.reading.root import FolderFile
from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Limits


class MappedArray:
    """Numbers in a `.npy` file, mapped; at an address, the whole file is fetched first.

    Cost: about 0.1 ms whatever the size. Processes on one machine share the pages; a copy sent to a
    worker opens the file again.

    Args:
        path: the file.
        key: the configuration key that names it, for messages.
        limits: `record_bytes` of a row.

    Attributes:
        path: the file; `str(path)` is its path or address.
        shape, dtype: of the whole array.

    Raises:
        DataError: the file is missing, cut short, not a `.npy` file, has rows that are too large,
            or holds Python objects (a pickle, which is never opened) or anything but numbers.
    """

    def __init__(self, path: FolderFile, key: str, limits: Limits = DEFAULT) -> None:
        self.path, self._key = path, key
        self.shape, self.dtype = self.array.shape, self.array.dtype
        row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        if row_bytes > limits.record_bytes:
            refusal = limits.refusal("record_bytes", f"rows of {row_bytes} bytes")
            raise DataError(f"{key}: {str(path)!r} has {refusal}.")

    def __len__(self) -> int:
        return self.shape[0]

    @cached_property
    def array(self) -> npt.NDArray[Any]:
        """The whole array, read-only; only accessed pages are read."""
        name = f"{self._key}: {str(self.path)!r}"
        try:
            array: npt.NDArray[Any] = self.path.read(lambda path: np.load(path, mmap_mode="r"))
        except OSError as error:
            raise DataError(f"{name} cannot be read: {error.strerror}.") from error
        except (ValueError, EOFError) as error:
            wrong = f"is not a .npy file of numbers ({error}); write it with numpy.save."
            raise DataError(f"{name} {wrong}") from error
        if array.dtype.kind not in "biuf":
            raise DataError(f"{name} holds {array.dtype}; save numbers with numpy.save.")
        if array.ndim == 0 or len(array) == 0:
            raise DataError(f"{name} has the shape {array.shape}: it has no rows.")
        return array

    def __getstate__(self) -> dict[str, object]:
        # A pickled map would hold all of the array.
        return {name: value for name, value in self.__dict__.items() if name != "array"}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """Shape, dtype and, if `sized`, 1024 blocks of 4 KiB, evenly spread, else the name."""
        if not sized:
            return [str(self.shape), self.dtype.str, self.path.name]
        return [str(self.shape), self.dtype.str, *self.path.read(_blocks)]

    def data_file(self) -> DataFile:
        """The file, for hashing its content."""
        return self.path.folder.data_file(self.path.name)


def _blocks(path: str) -> list[Part]:
    """The size of a file, and 1024 blocks of 4 KiB of it, evenly spread; all of a smaller one."""
    with Path(path).open("rb") as file:
        size = file.seek(0, 2)
        starts = range(0, size, max(-(-size // 1024), 4096))
        return [size, *(file.read(4096) for start in starts if file.seek(start) >= 0)]


def plain_numbers(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy of numbers that torch has a type for: floats as float32, wide unsigned ones signed.

    Raises:
        ValueError: the values are not numbers.
    """
    kind, width = values.dtype.kind, values.dtype.itemsize
    if kind not in "biuf":
        raise ValueError(f"it holds {values.dtype}, not numbers")
    if kind == "f" or (kind == "u" and width > 1):
        return values.astype(np.float32 if kind == "f" else np.int32 if width == 2 else np.int64)
    return values.astype(values.dtype.newbyteorder("="))


def not_finite(values: npt.NDArray[Any]) -> list[int] | None:
    """The place of the first float that is NaN or infinite; None if there is none."""
    if values.dtype.kind != "f" or (finite := np.isfinite(values)).all():
        return None
    return [int(number) for number in np.unravel_index(finite.argmin(), finite.shape)]
