"""What samples and datasets say of themselves: names of fields; the table, the facts and the
classes of a dataset, and rows that a filter has left of one.

Transforms, objectives, digests and packs know fields by name, so a sample that is no dict is named
right after it was read, which costs 1 us:

    dict, or another mapping      by its own keys
    (x, y), [x, y]                by position: `data.fields`, or the usual names
    named tuple                   by its own names
    a tensor, number, text ...    one field, the first name
    a Pillow picture in any       a torchvision Image, uint8 [C, H, W], as for our own datasets

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

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from penstock.errors import ConfigError, DataError, Problem
from penstock.order.keys import IntArray

KEPT = " kept="  # in a fingerprint: the dataset's own stands before it
Columns = dict[str, npt.NDArray[Any]]
Restore = Callable[[Mapping[str, Any]], Any]
_MODES = ("L", "RGB", "I;16", "I", "F")  # of pictures that are kept; others become RGB


class Fields:
    """Names for the positions of samples.

    Args:
        names: of all positions; None takes the usual ones.
        usual: names of the first positions; further ones are called field_2, field_3 ...
    """

    def __init__(
        self, names: Sequence[str] | None = None, usual: Sequence[str] = ("input", "target")
    ) -> None:
        self.names, self.usual = tuple(names or ()), tuple(usual)
        if len(set(self.names)) != len(self.names):
            reason = f"got {', '.join(self.names)}; every position needs a name of its own"
            raise ConfigError(Problem("data.fields", reason))

    def of(self, count: int) -> tuple[str, ...]:
        """The names of `count` positions."""
        names = (self.names or self.usual)[:count]
        return names + tuple(f"field_{number}" for number in range(len(names), count))

    def named(self, sample: Any) -> dict[str, Any]:
        """A sample, or what a person's collate function gives, as a dict of its fields.

        Raises:
            DataError: it has another number of positions than there are names; or it is None.
        """
        if isinstance(sample, Mapping):
            return {name: _value(value) for name, value in sample.items()}
        if sample is None:
            raise DataError("the sample is None; a dataset gives a dict, a tuple or a tensor")
        values = sample if isinstance(sample, (tuple, list)) else (sample,)
        # A named tuple's own names beat those of the configuration, which are for bare positions.
        names = getattr(sample, "_fields", self.names) or self.of(len(values))
        if len(names) == 1 != len(values):
            values = (sample,)  # the name is that of the whole
        if len(names) != len(values):
            raise DataError(
                f"a sample or batch has {len(values)} positions, and data.fields or "
                f"data.batch_fields names {len(names)} ({', '.join(names)})"
            )
        return {name: _value(value) for name, value in zip(names, values, strict=True)}


NAMELESS = Fields()


def restorer(sample: Any) -> Restore | None:
    """A function that makes a sample of this one's kind of fields; None if it is a mapping.

    Fields that transforms have added come last. Where a named tuple cannot hold them, the sample
    stays a dict.
    """
    kind = type(sample)
    if hasattr(kind, "_fields"):
        return lambda fields: kind(**fields) if kind._fields == (*fields,) else dict(fields)
    if isinstance(sample, Mapping):
        return None
    made = list if kind is list else tuple
    whole = not isinstance(sample, (tuple, list)) or len(sample) != 1
    return lambda fields: (
        next(iter(fields.values())) if whole and len(fields) == 1 else made(fields.values())
    )


def _value(value: object) -> Any:
    """A field's value; of a Pillow picture its pixels."""
    pillow = sys.modules.get("PIL.Image")  # without that module no value is a picture
    if pillow is None or not isinstance(value, pillow.Image):
        return value
    from torchvision.transforms.v2.functional import to_image

    return to_image(value if value.mode in _MODES else value.convert("RGB"))


class OwnCollate:
    """A person's collate function, called as torch calls a `collate_fn`.

    It takes samples as the dataset returns them; fields of its batch are named like those of a
    sample.

    Args:
        function: a list of samples -> a batch: a dict, a tuple, a tensor; with `one`, a sample -> a
            batch.
        one: automatic batching is off (`batch.size=null`).
    """

    def __init__(
        self, function: Callable[[Any], object], fields: Fields, one: bool = False
    ) -> None:
        self.function, self.fields, self.one = function, fields, one

    def __call__(self, samples: Sequence[Any]) -> Mapping[str, Any]:
        return self.fields.named(self.function(samples[0] if self.one else samples))


class SomeRows:
    """Some rows of a map-style dataset, as a map-style dataset.

    It keeps the dataset's other attributes (`classes`, `facts`, `columns`, `draws` ...).

    Attributes:
        dataset: with all of its rows.
        rows: the dataset's own number of each row, ascending: int64[rows].
        reasons: how many rows filters have left out, by why.
        fingerprint_with: the dataset's fingerprint -> it, `KEPT`, and a fingerprint of `rows`.
    """

    dataset: Any
    rows: IntArray
    reasons: dict[str, int]
    fingerprint_with: Callable[[object], str]


def unfiltered(dataset: object) -> Any:
    """The dataset with all of its rows."""
    return dataset.dataset if isinstance(dataset, SomeRows) else dataset


def unfiltered_fingerprint(dataset: object, fingerprint: str) -> str:
    """The fingerprint of `unfiltered(dataset)`, given that of `dataset`."""
    return fingerprint.rpartition(KEPT)[0] if isinstance(dataset, SomeRows) else fingerprint


def gathers_rows(dataset: Any) -> bool:
    """Whether a dataset reads many rows at once, by `__getitems__`; Subset has one in any case."""
    return (
        gathers_rows(dataset.dataset)
        if isinstance(dataset, Subset)
        else hasattr(dataset, "__getitems__")
    )


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
        # A column that one part lacks has no values for its rows.
        shared = [name for name in parts[0] if all(name in part for part in parts)]
        return {name: np.concatenate([part[name] for part in parts]) for name in shared}
    if isinstance(dataset, TensorDataset):
        named = zip(fields.of(len(dataset.tensors)), dataset.tensors, strict=True)
        return {name: tensor.cpu().numpy() for name, tensor in named if tensor.ndim == 1}
    # Only arrays: a method or a list of the same name means something else.
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
        # Some datasets have a method `labels`, or one value for all rows.
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
        # -1 marks unlabelled rows in several of torchvision's datasets; then nothing is guessed.
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
        # Parts that number their classes in different ways have none together.
        return names[0] if all(classes == names[0] for classes in names) else []
    classes = getattr(dataset, "classes", None)
    return [str(name) for name in classes] if isinstance(classes, (list, tuple)) else []
