"""Where rows lie in a file of tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.datasets.reading.data_file import DataFile
from penstock.datasets.reading.fingerprint import Part
from penstock.errors import DataError
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
