"""The table, the facts and the classes of a dataset, and rows that a filter has left of one.

A dataset of Penstock's gives them as `metadata`, `facts` and `classes`. Of torch's conventions are
known:

    labels        `targets`, `labels` or `_labels` (torchvision), one-dimensional tensors of a
                  `TensorDataset`: columns of the table, from which samplers choose rows
    lengths       `lengths` (docs/own_dataset.md): a column of the table as well
    classes       `classes`, `num_classes`, or the largest label: `num_classes`, `num_outputs`
    features      the first tensor of a `TensorDataset`: `num_features`

`Subset` and `ConcatDataset` are looked into. No sample is read for any of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from penstock.errors import DataError
from penstock.loading.fields import NAMELESS, Fields
from penstock.order.keys import IntArray

KEPT = " kept="  # in a fingerprint: the dataset's own stands before it
Columns = dict[str, npt.NDArray[Any]]


class SomeRows(ABC):
    """Some rows of a map-style dataset, as a map-style dataset.

    It keeps the dataset's other attributes (`classes`, `facts`, `columns`, `draws` ...).

    Attributes:
        dataset: with all of its rows.
        rows: the dataset's own number of each row, ascending: int64[rows].
        reasons: how many rows filters have left out, by why.
    """

    dataset: Any
    rows: IntArray
    reasons: dict[str, int]

    @abstractmethod
    def fingerprint_with(self, fingerprint: object) -> str:
        """The dataset's fingerprint, `KEPT`, and a fingerprint of `rows`."""


def unfiltered(dataset: object) -> Any:
    """The dataset with all of its rows."""
    return dataset.dataset if isinstance(dataset, SomeRows) else dataset


def unfiltered_fingerprint(dataset: object, fingerprint: str) -> str:
    """The fingerprint of `unfiltered(dataset)`, given that of `dataset`."""
    return fingerprint.rpartition(KEPT)[0] if isinstance(dataset, SomeRows) else fingerprint


def own_row(dataset: object, index: int) -> int | None:
    """The dataset's own number of a row, where a filter has given it another one; else None."""
    return int(dataset.rows[index]) if isinstance(dataset, SomeRows) else None


def sample_name(index: int, row: int | None) -> str:
    """A sample for messages, by `own_row`: "17", or "17 (row 23 of the dataset)"."""
    return str(index) if row is None else f"{index} (row {row} of the dataset)"


def columns_of(dataset: Any, fields: Fields = NAMELESS) -> Columns:
    """The columns of the table that a dataset tells without one: `length` and labels, by name.

    Raises:
        DataError: `lengths` are not whole numbers, one a row.
    """
    if isinstance(dataset, (Subset, SomeRows)):
        rows = dataset.rows if isinstance(dataset, SomeRows) else np.array(dataset.indices, int)
        return {name: column[rows] for name, column in columns_of(dataset.dataset, fields).items()}
    if isinstance(dataset, ConcatDataset):
        parts = [columns_of(part, fields) for part in dataset.datasets]
        shared = [name for name in parts[0] if all(name in part for part in parts)]
        return {name: np.concatenate([part[name] for part in parts]) for name in shared}
    if isinstance(dataset, TensorDataset):
        named = zip(fields.of(len(dataset.tensors)), dataset.tensors, strict=True)
        return {name: tensor.cpu().numpy() for name, tensor in named if tensor.ndim == 1}
    lengths: Any = getattr(dataset, "lengths", None)
    if hasattr(lengths, "dtype") and (
        lengths.dtype.kind not in "iu" or len(lengths) != len(dataset)
    ):
        raise DataError(
            f"{type(dataset).__name__}.lengths has {len(lengths)} values of type "
            f"{lengths.dtype}; it must have a whole number for each of {len(dataset)} rows "
            "(docs/own_dataset.md)"
        )
    columns = {"length": np.asarray(lengths)} if hasattr(lengths, "dtype") else {}
    for name in ("targets", "labels", "_labels"):
        values: Any = getattr(dataset, name, None)
        listed = isinstance(values, (list, tuple, np.ndarray, torch.Tensor))
        first = np.asarray(values[:1]) if listed and len(values) == len(dataset) else np.empty(())
        if first.ndim == 1 and first.dtype.kind in "iuUbf":
            return {**columns, "label": np.asarray(values)}
    return columns


def table_of(dataset: object, fields: Fields = NAMELESS) -> Any:
    """A row per sample: `dataset.metadata`, or a pandas table of `columns_of`; None without any."""
    table = getattr(dataset, "metadata", None)
    if hasattr(table, "columns"):
        return table
    columns = columns_of(dataset, fields)
    if not columns:
        return None
    import pandas as pd

    return pd.DataFrame(columns)


def table_for(names: set[str], dataset: Any, fields: Fields) -> Any:
    """The facts by which rows are chosen: a dataset's table, or its lengths alone.

    Args:
        names: of the columns that are read.
    """
    columns = columns_of(dataset, fields) if names == {"length"} else {}
    # Without pandas, which takes half a second to import.
    return columns if "length" in columns else table_of(dataset, fields)


def facts_of(dataset: Any, fields: Fields = NAMELESS) -> dict[str, int]:
    """Numbers that models and metrics ask for: num_classes, num_outputs, num_features ..."""
    if isinstance(getattr(dataset, "facts", None), Mapping):
        return dict(dataset.facts)
    if isinstance(dataset, (Subset, SomeRows)):
        return facts_of(dataset.dataset, fields)
    tensors = dataset.tensors if isinstance(dataset, TensorDataset) else ()
    columns = {} if hasattr(dataset, "metadata") else columns_of(dataset, fields)
    labels = columns.get("label", np.asarray(tensors[-1] if tensors else ()))
    count = len(classes_of(dataset)) or getattr(dataset, "num_classes", None) or 0
    if not count and labels.ndim == 1 and labels.size and labels.dtype.kind in "iu":
        count = int(labels.max()) + 1 if labels.min() >= 0 else 0
    facts = {"num_classes": count, "num_outputs": count} if count else {}
    if tensors and tensors[0].ndim > 1:
        facts["num_features"] = tensors[0][0].numel()
    if len(tensors) > 1 and tensors[-1].is_floating_point():
        facts["num_outputs"] = tensors[-1][0].numel()
    return facts


def classes_of(dataset: object) -> list[str]:
    """Names of the classes by number; empty where they are unknown."""
    if isinstance(dataset, (Subset, SomeRows)):
        return classes_of(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        names = [classes_of(part) for part in dataset.datasets]
        return names[0] if all(classes == names[0] for classes in names) else []
    classes = getattr(dataset, "classes", None)
    return [str(name) for name in classes] if isinstance(classes, (list, tuple)) else []
