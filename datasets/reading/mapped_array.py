"""A `.npy` file that is read in place, a few rows at a time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.datasets.reading.fingerprint import DataFile, Part
from penstock.datasets.reading.folder import FolderFile, LocalFolder
from penstock.datasets.reading.positioned_file import PositionedFile
from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Limits


class MappedArray:
    """Numbers in a `.npy` file, mapped; at an address, the whole file is fetched first.

    Cost: about 0.1 ms whatever the size. Processes on one machine share the pages; a copy sent to a
    worker opens the file again.

    Args:
        path: the file, or the path of one on this machine.
        key: the configuration key that names it, for messages.
        limits: `record_bytes` of a row.

    Attributes:
        path: the file; `str(path)` is its path or address.
        shape, dtype: of the whole array.
        row_bytes: of each row.

    Raises:
        DataError: the file is missing, not regular, cut short, not a `.npy` file, has rows that are
            too large, or holds Python objects (a pickle, which is never opened) or anything but
            numbers.
    """

    def __init__(self, path: FolderFile | Path, key: str, limits: Limits = DEFAULT) -> None:
        file = FolderFile(LocalFolder(path.parent), path.name) if isinstance(path, Path) else path
        self.path = file
        self._map: npt.NDArray[Any] | None = _opened(file, key)
        self.shape, self.dtype = self._map.shape, self._map.dtype
        self.row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        if self.row_bytes > limits.record_bytes:
            refusal = limits.refusal("record_bytes", f"rows of {self.row_bytes} bytes")
            raise DataError(f"{key}: {str(file)!r} has {refusal}.")

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def array(self) -> npt.NDArray[Any]:
        """The whole array, read-only; only accessed pages are read."""
        if self._map is None:
            self._map = _opened(self.path, "dataset.root")
        return self._map

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_map": None}  # a pickled map would hold all of the array

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """Shape, dtype and, if `sized`, 1024 blocks of 4 KiB, evenly spread, else the name."""
        if not sized:
            return [str(self.shape), self.dtype.str, self.path.name]
        size, blocks = self.path.read(_blocks)
        return [str(self.shape), self.dtype.str, size, *blocks]

    def data_file(self) -> DataFile:
        """The file, for hashing its content."""
        return self.path.folder.data_file(self.path.name)


def _blocks(path: str) -> tuple[int, list[bytes]]:
    file = PositionedFile(Path(path))
    return file.size, file.sample(1024)


def _mapped(path: str) -> npt.NDArray[Any]:
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _opened(file: FolderFile, key: str) -> npt.NDArray[Any]:
    name = f"{key}: {str(file)!r}"
    try:
        array: npt.NDArray[Any] = file.read(_mapped)
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror}.") from error
    except (ValueError, EOFError) as error:
        wrong = str(error)
        if "Python objects" in wrong:
            wrong = (
                "holds Python objects, which are pickled and may run any code when they are read; "
                "save an array of numbers instead."
            )
        elif "shorter than" in wrong:
            wrong = "is shorter than its header says: it was cut off; copy or write it again."
        elif "not numbers" in wrong:
            wrong = f"cannot be used: {wrong}; save numbers with numpy.save."
        else:
            wrong = f"is not a .npy file ({wrong}); write it with numpy.save."
        raise DataError(f"{name} {wrong}") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} holds {array.dtype}; save numbers with numpy.save.")
    if array.ndim == 0 or len(array) == 0:
        raise DataError(f"{name} has the shape {array.shape}: it has no rows.")
    return array


def plain_numbers(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy of numbers that torch has a type for: floats as float32, wide unsigned ones signed.

    Raises:
        ValueError: the values are not numbers.
    """
    kind, width = values.dtype.kind, values.dtype.itemsize
    if kind == "f":
        return values.astype(np.float32)
    if kind == "u" and width > 1:
        return values.astype(np.int32 if width == 2 else np.int64)
    if kind not in "biu":
        raise ValueError(f"it holds {values.dtype}, not numbers")
    return values.astype(values.dtype.newbyteorder("="))


def not_finite(values: npt.NDArray[Any]) -> list[int] | None:
    """The place of the first float that is NaN or infinite; None if there is none."""
    if values.dtype.kind != "f":
        return None
    finite = np.isfinite(values)
    if finite.all():
        return None
    position = np.unravel_index(finite.argmin(), finite.shape)
    return [int(number) for number in position]


def plain_tensor(values: npt.NDArray[Any]) -> torch.Tensor:
    """`plain_numbers` as a tensor.

    Raises:
        ValueError: the values are not numbers, or one of them is not finite.
    """
    position = not_finite(values)
    if position is not None:
        at = position[0] if len(position) == 1 else position
        raise ValueError(f"value {at} is {values[tuple(position)]}, which is not finite")
    return torch.from_numpy(plain_numbers(values))
