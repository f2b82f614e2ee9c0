"""Class labels in a `.npy` file, and the names of the classes beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from datasets.reading.folder import File
from datasets.reading.mapped_array import MappedArray
from pipeline.errors import DataError
from pipeline.randomness import IntArray


def read_labels(labels: MappedArray, key: str) -> IntArray:
    """Labels as int64[N], each 0 or more; raises DataError for anything else."""
    name = repr(str(labels.path))
    if labels.dtype.kind not in "bui" or len(labels.shape) != 1:
        raise DataError(
            f"{key}: {name} is {labels.dtype} {labels.shape}; labels are integers, one a row."
        )
    values = np.array(labels.array, dtype=np.int64)
    if int(values.min()) < 0:
        row = int(np.argmax(values < 0))
        raise DataError(f"{key}: {name}, row {row}: label {values[row]}; labels start at 0.")
    return values


def class_names(file: File, labels: IntArray) -> list[str]:
    """A name a line from `file`, or "0", "1" ... when there is no such file."""
    count = int(labels.max()) + 1
    if not file.exists():
        return [str(number) for number in range(count)]
    names = file.read(lambda path: Path(path).read_text(encoding="utf-8")).split("\n")
    while names and not names[-1].strip():
        names.pop()
    if len(names) < count:
        raise DataError(
            f"dataset.classes: {str(file)!r} names {len(names)} classes, but there is a label "
            f"{count - 1}. Give it a line for each of 0 to {count - 1}."
        )
    return [name.strip() for name in names]
