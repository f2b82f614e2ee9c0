"""What files of tokens have in common: their numbers are mapped, and rows lie at spans of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.datasets.reading.fingerprint import DataFile, Part
from penstock.datasets.reading.folder import FolderFile
from penstock.errors import DataError
from penstock.files.regular_file import open_regular
from penstock.order.randomness import IntArray


class TokenFile(Protocol):
    """Rows of tokens in one file.

    Attributes:
        name: relative to the root.
        count: rows.
        total: tokens in the file.
        dtype: of the tokens, as they are stored.
    """

    name: str
    count: int
    total: int
    dtype: np.dtype[Any]

    def __str__(self) -> str: ...

    @property
    def tokens(self) -> npt.NDArray[Any]:
        """All tokens of the file, mapped."""

    def spans(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """The first token of each row, and one past its last: int64[n] each, as stored."""

    def fingerprint_parts(self, sized: bool) -> list[Part]: ...

    def data_files(self) -> Iterable[DataFile]: ...


def checked_spans(file: TokenFile, rows: IntArray) -> tuple[IntArray, IntArray]:
    """`file.spans(rows)`; raises DataError for rows that do not lie in the file."""
    starts, stops = file.spans(rows)
    wrong = (starts < 0) | (stops < starts) | (stops > file.total)
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(
            f"{str(file)!r}, row {int(rows[row])} of the file: it is said to be at tokens "
            f"{int(starts[row])} to {int(stops[row])}, and the file has {file.total}. The index is "
            "damaged, or of another file: write both again."
        )
    return starts, stops


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

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_array": None}
