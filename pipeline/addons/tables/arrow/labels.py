"""Classes of label columns, found in the files, and their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.addons.tables.arrow.columns import TableField, is_text, written_classes
from penstock.addons.tables.arrow.files import ArrowFiles, in_one_piece
from penstock.errors import DataError
from penstock.files.limits import Limits
from penstock.order.randomness import IntArray
from penstock.terminal import watched

if TYPE_CHECKING:
    import pyarrow as pa


def find_classes(
    files: ArrowFiles, labels: Sequence[TableField], classes: Sequence[str] | None, limits: Limits
) -> dict[str, list[str]]:
    """Names of the classes of each label field.

    They are `classes` (for the first label), those in the schema, or the values of the columns:
    texts in alphabetical order, "0" up to the largest number.

    Cost: nothing where they are known; else the label columns are read once.

    Raises:
        DataError: a column has no label, or more classes than `limits.classes`.
    """
    classes_of = {}
    for number, label in enumerate(labels):
        known = (classes if number == 0 else None) or written_classes(files.schema, label.column)
        names = list(known) if known else _in_files(files, label.column, limits)
        _check_count(files, label.column, limits, len(names), f"it has {len(names)} classes")
        classes_of[label.name] = names
    return classes_of


def _check_count(files: ArrowFiles, column: str, limits: Limits, count: int, claim: str) -> None:
    if count > limits.classes:
        refusal = limits.refusal("classes", claim)
        raise DataError(f"{files.name(0)!r}, column {column!r}: {refusal}.")


def _in_files(files: ArrowFiles, column: str, limits: Limits) -> list[str]:
    names: set[str] = set()
    largest = -1
    for group in watched(range(len(files)), len(files), f"looking for classes in {column}"):
        table, _ = files.read(group, [column])
        with files.reading(group):
            unique = _different(in_one_piece(table, column)).to_pylist()
        values = [value for value in unique if value is not None]
        if values and isinstance(values[0], str):
            names.update(values)
        elif values:
            largest = max(largest, *map(int, values))
        claim = f"label {largest}" if largest >= 0 else f"{len(names)} different labels"
        claim = f"{files.group_name(group)} has {claim}"
        _check_count(files, column, limits, max(len(names), largest + 1), claim)
    if not names and largest < 0:
        raise DataError(
            f"{files.name(0)!r}, column {column!r}: there are no labels in it. Name the classes "
            "with dataset.classes, or take another column in dataset.fields."
        )
    return sorted(names) if names else [str(number) for number in range(largest + 1)]


def _different(array: pa.Array) -> pa.Array:
    """The labels that there are in a column."""
    import pyarrow as pa

    if not pa.types.is_dictionary(array.type):
        return _plain_labels(array).unique()
    # Not of the decoded column, in which every row has the whole text.
    return _plain_labels(array.dictionary.take(array.indices.unique())).unique()


def _plain_labels(array: pa.Array) -> pa.Array:
    """Labels as strings or integers."""
    import pyarrow as pa

    return array.cast(pa.string() if is_text(array.type) else pa.int64())


def label_codes(array: pa.Array, classes: Sequence[str]) -> IntArray:
    """Places of a column's values in `classes`, int64[n]; -1 where it is none of them, or null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        codes = np.append(label_codes(array.dictionary, classes), -1)  # -1: of nulls
        return codes[array.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)]
    labels = _plain_labels(array)
    if is_text(labels.type):
        labels = pc.index_in(labels, value_set=pa.array(list(classes), pa.string()))
    filled = labels.cast(pa.int64()).fill_null(-1)
    codes = np.array(filled.to_numpy(zero_copy_only=False), dtype=np.int64)
    return np.where(codes < len(classes), np.maximum(codes, -1), -1)
