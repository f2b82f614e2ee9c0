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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from penstock.errors import DataError
from penstock.loading.fields import Fields
from penstock.order.plan import length_of
from penstock.terminal import watched

_LABELS = ("targets", "labels", "_labels")
Columns = dict[str, npt.NDArray[Any]]


class SomeRows(ABC):
    """Some rows of a map-style dataset, as a map-style dataset.

    It keeps the dataset's other attributes (`classes`, `facts`, `columns`, `draws` ...).

    Attributes:
        dataset: with all of its rows.
        reasons: how many rows filters have left out, by why.
    """

    dataset: Any
    reasons: dict[str, int]

    @abstractmethod
    def row(self, index: int) -> int:
        """The row of the dataset that has number `index` here; raises IndexError."""

    @abstractmethod
    def places(self, rows: Sequence[int]) -> dict[int, int]:
        """Those of the dataset's `rows` that are held, by their number here."""

    @abstractmethod
    def column(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The values of these rows in a column of all rows."""

    @abstractmethod
    def told(self, fingerprint: Any) -> str:
        """A fingerprint of the dataset, followed by which rows are held."""

    @abstractmethod
    def untold(self, fingerprint: str) -> str:
        """The fingerprint of the dataset in one that `told` has given."""


def unfiltered(dataset: object) -> Any:
    """The dataset with all of its rows."""
    return dataset.dataset if isinstance(dataset, SomeRows) else dataset


def unfiltered_fingerprint(dataset: object, fingerprint: str) -> str:
    """The fingerprint of `unfiltered(dataset)`, given that of `dataset`."""
    return dataset.untold(fingerprint) if isinstance(dataset, SomeRows) else fingerprint


def own_row(dataset: object, index: int) -> int | None:
    """The dataset's own number of a row, where a filter has given it another one; else None."""
    return dataset.row(index) if isinstance(dataset, SomeRows) else None


def sample_name(index: int, row: int | None) -> str:
    """A sample for messages, by `own_row`: "17", or "17 (row 23 of the dataset)"."""
    return str(index) if row is None else f"{index} (row {row} of the dataset)"


def columns_of(dataset: Any, fields: Fields | None = None) -> Columns:
    """The columns of the table that a dataset tells without one: `length` and labels, by name.

    Raises:
        DataError: `lengths` are not whole numbers, one a row.
    """
    if isinstance(dataset, SomeRows):
        whole = columns_of(dataset.dataset, fields)
        return {name: dataset.column(values) for name, values in whole.items()}
    if isinstance(dataset, Subset):
        rows = np.asarray(dataset.indices, dtype=np.int64)
        return {name: column[rows] for name, column in columns_of(dataset.dataset, fields).items()}
    if isinstance(dataset, ConcatDataset):
        parts = [columns_of(part, fields) for part in dataset.datasets]
        shared = [name for name in parts[0] if all(name in part for part in parts)]
        return {name: np.concatenate([part[name] for part in parts]) for name in shared}
    if isinstance(dataset, TensorDataset):
        tensors = dict(
            zip((fields or Fields()).of(len(dataset.tensors)), dataset.tensors, strict=True)
        )
        return {name: tensor.cpu().numpy() for name, tensor in tensors.items() if tensor.ndim == 1}
    columns: Columns = {}
    lengths: Any = getattr(dataset, "lengths", None)
    if all(hasattr(lengths, name) for name in ("dtype", "__len__", "__getitem__")):
        if lengths.dtype.kind not in "iu" or len(lengths) != len(dataset):
            raise DataError(
                f"{type(dataset).__name__}.lengths has {len(lengths)} values of type "
                f"{lengths.dtype}; it must have a whole number for each of {len(dataset)} rows "
                "(docs/own_dataset.md)"
            )
        columns["length"] = np.asarray(lengths)
    for values in (getattr(dataset, name, None) for name in _LABELS):
        if isinstance(values, (list, tuple, np.ndarray, torch.Tensor)):
            with suppress(TypeError, ValueError):  # of unequal lengths
                labels = np.asarray(values)
                if (
                    labels.ndim == 1
                    and labels.dtype.kind in "iuUbf"
                    and len(labels) == len(dataset)
                ):
                    return {**columns, "label": labels}
    return columns


def table_of(dataset: object, fields: Fields | None = None) -> Any:
    """A row per sample: `dataset.metadata`, or a pandas table of `columns_of`; None without any."""
    table = getattr(dataset, "metadata", None)
    if hasattr(table, "columns"):
        return table
    columns = columns_of(dataset, fields)
    if not columns:
        return None
    import pandas as pd

    return pd.DataFrame(columns)


def table_for(names: set[str], dataset: Any, fields: Fields, steps: Mapping[str, Any]) -> Any:
    """The facts by which rows are chosen: a dataset's table, or its lengths alone.

    Where a step of the transforms makes tokens of a text, `length` counts these. The texts come
    from `dataset.text_lengths`, or from the column of the table that the step reads.

    Args:
        names: of the columns that are read.
        steps: transforms of samples.
    """
    tokenizer = tokenizer_of(steps) if "length" in names else None
    if tokenizer is None and names == {"length"}:
        columns = columns_of(dataset, fields)
        if "length" in columns:  # no pandas, which takes half a second to import
            return columns
    table = table_of(dataset, fields)
    if table is None or tokenizer is None:
        return table
    if hasattr(dataset, "text_lengths"):
        return table.assign(length=dataset.text_lengths(tokenizer.length, tokenizer.counting))
    if tokenizer.field not in table.columns:
        return table
    texts = watched(table[tokenizer.field], len(table), "counting tokens")
    return table.assign(length=[tokenizer.length(text) for text in texts])


def tokenizer_of(steps: Mapping[str, Any]) -> Any:
    """The step that makes tokens of a text; None without one."""
    return next((step for step in steps.values() if hasattr(step, "counting")), None)


def facts_of(dataset: object, fields: Fields | None = None) -> dict[str, int]:
    """Numbers that models and metrics ask for: num_classes, num_outputs, num_features ..."""
    own = getattr(dataset, "facts", None)
    if isinstance(own, Mapping):
        return dict(own)
    whole: Any = _whole(dataset)
    count = len(classes_of(dataset)) or getattr(whole, "num_classes", None)
    if type(count) is not int:
        columns = {} if hasattr(whole, "metadata") else columns_of(whole, fields)
        columns.pop("length", None)
        labels = columns.get("label", next(reversed(columns.values()), np.empty(0)))
        counts = labels.size and labels.dtype.kind in "iu" and labels.min() >= 0
        count = int(labels.max()) + 1 if counts else 0
    facts = {"num_classes": count, "num_outputs": count} if count else {}
    tensors = whole.tensors if isinstance(whole, TensorDataset) else ()
    if tensors and tensors[0].ndim > 1:
        facts["num_features"] = tensors[0][0].numel()
    if len(tensors) > 1 and tensors[-1].is_floating_point():
        facts["num_outputs"] = tensors[-1][0].numel()
    return facts


def classes_of(dataset: object) -> list[str]:
    """Names of the classes by number; empty where they are unknown."""
    dataset = _whole(dataset)
    if isinstance(dataset, ConcatDataset):
        names = [classes_of(part) for part in dataset.datasets]
        return names[0] if all(classes == names[0] for classes in names) else []
    classes = getattr(dataset, "classes", None)
    return [str(name) for name in classes] if isinstance(classes, (list, tuple)) else []


def _whole(dataset: object) -> object:
    """The dataset that a `Subset` is of, or whose rows are filtered."""
    while isinstance(dataset, (Subset, SomeRows)):
        dataset = dataset.dataset
    return dataset


def row_counts(dataset: Any) -> list[tuple[str, int | None]]:
    """Class name and length of a dataset and of those inside of it."""
    inside: list[Any] = []
    if isinstance(dataset, (SomeRows, Subset)):
        inside = [dataset.dataset]
    elif isinstance(dataset, ConcatDataset):
        inside = dataset.datasets
    elif isinstance(sources := getattr(dataset, "sources", None), Mapping):
        inside = [*sources.values()]
    own = (type(dataset).__name__, length_of(dataset))
    return [own, *(entry for part in inside for entry in row_counts(part))]
