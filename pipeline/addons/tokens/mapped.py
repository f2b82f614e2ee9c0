"""Numbers in a file without a header, or behind one that says how many there are, mapped."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.datasets.reading.folder import FolderFile
from penstock.errors import DataError
from penstock.files.regular_file import open_regular


class MappedNumbers:
    """All of a file's numbers of one type, mapped; a copy sent to a worker maps the file again.

    Args:
        file: at an address, it is fetched whole first.
        key: the configuration key that names it, for messages.
        dtype: of the numbers, in the file's own byte order.

    Raises:
        DataError: the file is missing or not regular, or its size is no multiple of a number's.
    """

    def __init__(self, file: FolderFile, key: str, dtype: np.dtype[Any]) -> None:
        self.file, self.key, self.dtype = file, key, dtype
        self._array: npt.NDArray[Any] | None = None
        self.size = len(self.array)  # numbers

    @property
    def array(self) -> npt.NDArray[Any]:
        """The numbers, read-only; only pages that are accessed are read."""
        if self._array is None:
            self._array = self.file.read(self._map)
        return self._array

    def _map(self, path: str) -> npt.NDArray[Any]:
        name, width = f"{self.key}: {str(self.file)!r}", self.dtype.itemsize
        try:
            with open_regular(path) as file:
                size = file.seek(0, 2)
                if size % width:
                    raise DataError(
                        f"{name} has {size} bytes, no multiple of the {width} bytes of a number "
                        f"({self.dtype.name}): it was cut off, or its type is another one."
                    )
                if self._array is None and size // width != getattr(self, "size", size // width):
                    raise DataError(
                        f"{name} has changed while it was in use. Let nothing write to the data of "
                        "a run, and restart the run."
                    )
                if not size:  # cannot be mapped
                    return np.empty(0, self.dtype)
                # A plain array: every slice of a memmap makes an object of that slow class.
                return np.memmap(file, self.dtype, "r").view(np.ndarray)
        except OSError as error:
            raise DataError(f"{name} cannot be read: {error.strerror}.") from error

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_array": None}
