"""The table, the facts and the classes of a dataset.

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
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from penstock.errors import DataError
from penstock.loading.fields import Fields
from penstock.order.plan import length_of
from penstock.terminal import watched

if TYPE_CHECKING:
    import pandas as pd


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


def table_of(dataset: object, fields: Fields | None = None) -> pd.DataFrame | None:
    """A row per sample: `dataset.metadata`, or by torch's conventions; None without any."""
    table = getattr(dataset, "metadata", None)
    if hasattr(table, "columns"):
        return table
    columns = columns_of(dataset, fields or Fields())
    lengths = lengths_of(dataset)
    if lengths is not None:
        columns = {"length": lengths, **columns}
    if not columns:
        return None
    import pandas as pd

    return pd.DataFrame(columns)


def lengths_of(dataset: Any) -> npt.NDArray[Any] | None:
    """The lengths of a dataset's rows that it tells without a table; None where it does not.

    Raises:
        DataError: they are not whole numbers, one a row.
    """
    if isinstance(dataset, SomeRows):
        whole = lengths_of(dataset.dataset)
        return None if whole is None else dataset.column(whole)
    if isinstance(dataset, Subset):
        whole, rows = lengths_of(dataset.dataset), np.asarray(dataset.indices, dtype=np.int64)
        return None if whole is None else whole[rows]
    if isinstance(dataset, ConcatDataset):
        columns = [column for column in map(lengths_of, dataset.datasets) if column is not None]
        return np.concatenate(columns) if len(columns) == len(dataset.datasets) else None
    lengths = getattr(dataset, "lengths", None)
    if not all(hasattr(lengths, name) for name in ("dtype", "__len__", "__getitem__")):
        return None
    lengths = np.asarray(lengths)
    if lengths.dtype.kind not in "iu" or len(lengths) != len(dataset):
        raise DataError(
            f"{type(dataset).__name__}.lengths has {len(lengths)} values of type {lengths.dtype}; "
            f"it must have a whole number for each of {len(dataset)} rows (docs/own_dataset.md)"
        )
    return lengths


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


def with_token_lengths(table: Any, dataset: Any, steps: Mapping[str, Any]) -> Any:
    """A table whose `length` counts tokens, where a step of the transforms makes them of a text.

    The texts come from `dataset.text_lengths`, or from the column of the table that the step reads.
    """
    tokenizer = tokenizer_of(steps)
    if table is None or tokenizer is None:
        return table
    if hasattr(dataset, "text_lengths"):
        return table.assign(length=dataset.text_lengths(tokenizer.length, tokenizer.counting))
    if tokenizer.field in table.columns:
        texts = table[tokenizer.field]
        shown = watched(texts, len(texts), "counting tokens")
        return table.assign(length=[tokenizer.length(text) for text in shown])
    return table


def table_for(
    columns: set[str], dataset: Any, fields: Fields, steps: Mapping[str, Any]
) -> Columns | pd.DataFrame | None:
    """The facts by which a sampler chooses rows: a dataset's table, or its lengths alone.

    Args:
        columns: names of those that it reads.
        steps: transforms of samples, one of which may count tokens.
    """
    if columns == {"length"} and tokenizer_of(steps) is None:
        lengths = lengths_of(dataset)
        if lengths is not None:
            return {"length": lengths}
    table = table_of(dataset, fields)
    return with_token_lengths(table, dataset, steps) if "length" in columns else table


def tokenizer_of(steps: Mapping[str, Any]) -> Any:
    """The step that makes tokens of a text; None without one."""
    return next((step for step in steps.values() if hasattr(step, "counting")), None)


def facts_of(dataset: object, fields: Fields | None = None) -> dict[str, int]:
    """Numbers that models and metrics ask for: num_classes, num_outputs, num_features ..."""
    own = getattr(dataset, "facts", None)
    if isinstance(own, Mapping):
        return dict(own)
    facts: dict[str, int] = {}
    count = _class_count(dataset, fields or Fields())
    if count:
        facts |= {"num_classes": count, "num_outputs": count}
    whole = _whole(dataset)
    tensors: Sequence[torch.Tensor] = whole.tensors if isinstance(whole, TensorDataset) else ()
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


def _class_count(dataset: object, fields: Fields) -> int:
    names = classes_of(dataset)
    if names:
        return len(names)
    dataset = _whole(dataset)
    count = getattr(dataset, "num_classes", None)
    if isinstance(count, int) and not isinstance(count, bool):
        return count
    if hasattr(dataset, "metadata"):  # a dataset of our kind, without classes
        return 0
    columns = columns_of(dataset, fields)
    labels = columns.get("label", next(reversed(columns.values()), None) if columns else None)
    if labels is None or not len(labels) or not np.issubdtype(labels.dtype, np.integer):
        return 0
    return int(labels.max()) + 1 if labels.min() >= 0 else 0


def columns_of(dataset: Any, fields: Fields) -> Columns:
    """Columns of the table by name: one number or text a sample."""
    if isinstance(dataset, SomeRows):
        whole = columns_of(dataset.dataset, fields)
        return {name: np.asarray(dataset.column(values)) for name, values in whole.items()}
    if isinstance(dataset, Subset):
        rows = np.asarray(dataset.indices, dtype=np.int64)
        return {name: column[rows] for name, column in columns_of(dataset.dataset, fields).items()}
    if isinstance(dataset, ConcatDataset):
        parts = [columns_of(part, fields) for part in dataset.datasets]
        shared = [name for name in parts[0] if all(name in part for part in parts)]
        return {name: np.concatenate([part[name] for part in parts]) for name in shared}
    if isinstance(dataset, TensorDataset):
        names = fields.of(len(dataset.tensors))
        columns = zip(names, dataset.tensors, strict=True)
        return {name: tensor.cpu().numpy() for name, tensor in columns if tensor.ndim == 1}
    for values in (getattr(dataset, name, None) for name in _LABELS):
        if not isinstance(values, (list, tuple, np.ndarray, torch.Tensor)):
            continue
        with suppress(TypeError, ValueError):  # of unequal lengths
            labels = np.asarray(values)
            if labels.ndim == 1 and labels.dtype.kind in "iuUbf" and len(labels) == len(dataset):
                return {"label": labels}
    return {}
