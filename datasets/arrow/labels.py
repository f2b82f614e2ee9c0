"""Classes of label columns, found in the files, and their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipeline.datasets.arrow.columns import Column, is_text, written_classes
from pipeline.datasets.arrow.files import ArrowFiles, in_one_piece
from pipeline.errors import DataError
from pipeline.files.limits import Limits
from pipeline.order.randomness import IntArray

if TYPE_CHECKING:
    import pyarrow as pa


def find_classes(
    files: ArrowFiles, labels: Sequence[Column], given: Sequence[str] | None, limits: Limits
) -> dict[str, list[str]]:
    """Names of the classes of each label field.

    They are those `given` (for the first label), those that the schema names, or what is in the
    columns: texts in the order of their letters, "0" up to the largest number.

    Cost: nothing where they are known; else the label columns are read once.
    """
    found = {}
    for place, column in enumerate(labels):
        known = given if place == 0 and given is not None else None
        known = known or written_classes(files.schema, column.name)
        found[column.field] = list(known) if known else _in_files(files, column, limits)
        if len(found[column.field]) > limits.classes:
            count = f"it has {len(found[column.field])} classes"
            raise _too_many(files, column, limits, count)
    return found


def _too_many(files: ArrowFiles, column: Column, limits: Limits, found: str) -> DataError:
    refusal = limits.refusal("classes", found)
    return DataError(f"{files.name(0)!r}, column {column.name!r}: {refusal}.")


def _in_files(files: ArrowFiles, column: Column, limits: Limits) -> list[str]:
    names: set[str] = set()
    largest = -1
    for group in range(len(files)):
        values = _different(files, group, column)
        if values and isinstance(values[0], str):
            names.update(values)
        elif values:
            largest = max(largest, *map(int, values))
        if max(len(names), largest + 1) > limits.classes:
            found = f"label {largest}" if largest >= 0 else f"{len(names)} different labels"
            raise _too_many(files, column, limits, f"{files.group_name(group)} has {found}")
    if not names and largest < 0:
        raise DataError(
            f"{files.name(0)!r}, column {column.name!r}: there are no labels in it. Name the "
            "classes with dataset.classes, or take another column in dataset.fields."
        )
    return sorted(names) if names else [str(number) for number in range(largest + 1)]


def _different(files: ArrowFiles, group: int, column: Column) -> list[str] | list[int]:
    """The values that occur in a row group; nulls left out."""
    table, _ = files.read(group, [column.name])
    with files.reading(group):
        array = plain_labels(in_one_piece(table, column.name))
        return [value for value in array.unique().to_pylist() if value is not None]


def plain_labels(array: pa.Array) -> pa.Array:
    """Labels as strings or integers, whatever they are stored as."""
    import pyarrow as pa

    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(pa.string() if is_text(array.type) else pa.int64())


def label_codes(array: pa.Array, classes: Sequence[str]) -> IntArray:
    """Places of a column's values in `classes`, int64[n]; -1 where it is none of them, or null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    labels = plain_labels(array)
    if is_text(labels.type):
        labels = pc.index_in(labels, value_set=pa.array(list(classes), pa.string()))
    filled = labels.cast(pa.int64()).fill_null(-1)
    codes = np.array(filled.to_numpy(zero_copy_only=False), dtype=np.int64)
    return np.where(codes < len(classes), np.maximum(codes, -1), -1)
