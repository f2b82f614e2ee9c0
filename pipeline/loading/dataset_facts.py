"""What a dataset tells of itself: its table, its facts, its classes.

A dataset of ours says so by `metadata`, `facts` and `classes`. Datasets that were written for torch
say the same in other words, which are understood here:

    labels        `targets`, `labels` or `_labels` (torchvision), one-dimensional tensors of a
                  `TensorDataset`: columns of the table, from which samplers choose rows
    classes       `classes`, `num_classes`, or the largest label: `num_classes`, `num_outputs`
    features      the first tensor of a `TensorDataset`: `num_features`

`Subset` and `ConcatDataset` tell what they are made of. No sample is read for any of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from pipeline.loading.named_fields import Fields

if TYPE_CHECKING:
    import pandas as pd

_LABELS = ("targets", "labels", "_labels")
Columns = dict[str, npt.NDArray[Any]]


def table_of(dataset: Any, fields: Fields | None = None) -> pd.DataFrame | None:
    """A row per sample: `dataset.metadata`, or what torch's conventions tell; None without any.

    Args:
        fields: names for the tensors of a `TensorDataset`.
    """
    table = getattr(dataset, "metadata", None)
    if hasattr(table, "columns"):
        return table
    columns = _columns(dataset, fields or Fields())
    if not columns:
        return None
    import pandas as pd

    return pd.DataFrame(columns)


def with_token_lengths(table: Any, dataset: Any, steps: Mapping[str, Any]) -> Any:
    """A table whose `length` counts tokens, where a step of the transforms makes them of a text.

    Batches are padded to the longest row, and what stands in a row then is tokens. The texts come
    from `dataset.text_lengths`, or from the column of the table that the step reads.
    """
    tokenizer = tokenizer_of(steps)
    if table is None or tokenizer is None:
        return table
    if hasattr(dataset, "text_lengths"):
        return table.assign(length=dataset.text_lengths(tokenizer.length, tokenizer.counting))
    if tokenizer.field in table.columns:
        return table.assign(length=[tokenizer.length(text) for text in table[tokenizer.field]])
    return table


def tokenizer_of(steps: Mapping[str, Any]) -> Any:
    """The step that makes tokens of a text; None without one."""
    return next((one for one in steps.values() if hasattr(one, "counting")), None)


def facts_of(dataset: Any, fields: Fields | None = None) -> dict[str, int]:
    """What models and metrics ask for by name: num_classes, num_outputs, num_features ..."""
    own = getattr(dataset, "facts", None)
    if isinstance(own, Mapping):
        return dict(own)
    facts: dict[str, int] = {}
    count = _class_count(dataset, fields or Fields())
    if count:
        facts |= {"num_classes": count, "num_outputs": count}
    tensors = _tensors(dataset)
    if tensors and tensors[0].ndim > 1:
        facts["num_features"] = tensors[0][0].numel()
    if len(tensors) > 1 and tensors[-1].is_floating_point():
        facts["num_outputs"] = tensors[-1][0].numel()
    return facts


def classes_of(dataset: Any) -> list[str]:
    """Names of the classes by number; empty where nobody tells them."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    if isinstance(dataset, ConcatDataset):
        found = [classes_of(one) for one in dataset.datasets]
        return found[0] if all(one == found[0] for one in found) else []
    classes = getattr(dataset, "classes", None)
    return [str(one) for one in classes] if isinstance(classes, (list, tuple)) else []


def _class_count(dataset: Any, fields: Fields) -> int:
    names = classes_of(dataset)
    if names:
        return len(names)
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    told = getattr(dataset, "num_classes", None)
    if isinstance(told, int) and not isinstance(told, bool):
        return told
    if hasattr(dataset, "metadata"):  # a dataset of our kind, which has not told of any classes
        return 0
    columns = _columns(dataset, fields)
    labels = columns.get("label", next(reversed(columns.values()), None) if columns else None)
    if labels is None or not len(labels) or not np.issubdtype(labels.dtype, np.integer):
        return 0
    return int(labels.max()) + 1 if labels.min() >= 0 else 0


def _columns(dataset: Any, fields: Fields) -> Columns:
    """Columns of the table by name: one number or text a sample."""
    if isinstance(dataset, Subset):
        rows = np.asarray(dataset.indices, dtype=np.int64)
        return {name: column[rows] for name, column in _columns(dataset.dataset, fields).items()}
    if isinstance(dataset, ConcatDataset):
        parts = [_columns(one, fields) for one in dataset.datasets]
        shared = [name for name in parts[0] if all(name in part for part in parts)]
        return {name: np.concatenate([part[name] for part in parts]) for name in shared}
    tensors = _tensors(dataset)
    if tensors:
        names = fields.of(len(tensors))
        return {name: one.cpu().numpy() for name, one in zip(names, tensors, strict=True)
                if one.ndim == 1}  # fmt: skip
    for name in _LABELS:
        labels = _one_a_sample(getattr(dataset, name, None), dataset)
        if labels is not None:
            return {"label": labels}
    return {}


def _tensors(dataset: Any) -> tuple[torch.Tensor, ...]:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return tuple(dataset.tensors) if isinstance(dataset, TensorDataset) else ()


def _one_a_sample(values: Any, dataset: Any) -> npt.NDArray[Any] | None:
    if not isinstance(values, (list, tuple, np.ndarray, torch.Tensor)):
        return None
    try:
        found = np.asarray(values)
    except (TypeError, ValueError):  # of unequal lengths
        return None
    fits = found.ndim == 1 and found.dtype.kind in "iuUbf" and len(found) == len(dataset)
    return found if fits else None
