"""Class labels in a `.npy` file, and the names of the classes beside it."""

from __future__ import annotations

import numpy as np

from penstock.datasets.reading.mapped_array import MappedArray
from penstock.datasets.reading.root import FolderFile
from penstock.errors import DataError
from penstock.files.data import read_file
from penstock.files.limits import DEFAULT, Limits
from penstock.order.keys import IntArray


def read_labels(labels: MappedArray, key: str, limits: Limits = DEFAULT) -> IntArray:
    """Labels as int64[N]; DataError unless all are integers from 0 to below `limits.classes`."""
    name = f"{key}: {str(labels.path)!r}"
    if labels.dtype.kind not in "bui" or len(labels.shape) != 1:
        raise DataError(
            f"{name} is {labels.dtype} {labels.shape}; labels must be integers, one a row."
        )
    stored = np.array(labels.array, dtype=np.int64)
    lowest, highest = int(stored.argmin()), int(stored.argmax())
    if stored[lowest] < 0:
        raise DataError(f"{name}, row {lowest}: label {stored[lowest]}; labels start at 0.")
    where = f"{name}, row {highest}: label {stored[highest]}"
    check_classes(int(stored[highest]) + 1, where, limits)
    return stored


def check_classes(count: int, where: str, limits: Limits) -> None:
    """Raise DataError for more classes than `limits.classes`; `where` begins the message."""
    if count > limits.classes:
        raise DataError(f"{where} makes {limits.refusal('classes', f'{count} classes')}.")


def class_names(file: FolderFile, labels: IntArray, limits: Limits = DEFAULT) -> list[str]:
    """A name a line from `file`, or "0", "1" ... if it is missing."""
    count = int(labels.max()) + 1
    if not file.exists():
        return [str(number) for number in range(count)]
    try:
        names = file.read(lambda path: read_file(path, limits)).decode("utf-8").rstrip().split("\n")
    except (OSError, UnicodeDecodeError, DataError) as error:
        raise DataError(
            f"dataset.classes: {str(file)!r} cannot be read: {error}. Give it a name a line, in "
            "UTF-8."
        ) from error
    if len(names) < count:
        raise DataError(
            f"dataset.classes: {str(file)!r} names {len(names)} classes, but there is a label "
            f"{count - 1}. Give it a line for each of 0 to {count - 1}."
        )
    return [name.strip() for name in names]
