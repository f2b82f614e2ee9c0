"""Samples to a batch: stack equal shapes, pad unequal lengths, or keep a list.

A collate function takes the samples of one share (list of dicts with the same fields) and gives a
dict of batched fields. What cannot be put together raises `Mismatch`, to which fetch adds the rows
of the dataset. The stacking itself is torch's `default_collate`: in a worker process it writes
straight into shared memory.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate, default_convert

from pipeline.loading import output_buffers
from pipeline.loading.encoded import EncodedImage

Sample = Mapping[str, Any]


class Mismatch(Exception):
    """Two samples that do not fit into one batch.

    Attributes:
        field: the field in which they differ.
        rows: their places among the samples that were to be collated.
        reason: how they differ, e.g. the two shapes.
    """

    def __init__(self, field: str, rows: tuple[int, int], reason: str) -> None:
        super().__init__(f"field {field!r}: {reason}")
        self.field, self.rows, self.reason = field, rows, reason


class Stack:
    """Every field stacked along a new first dimension.

    Tensors and arrays of equal shape give [B, ...], numbers a tensor [B], strings a list; nested
    dicts and lists are stacked inside.
    """

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        return {field: _stack(field, values) for field, values in _columns(samples).items()}


class Pad:
    """Fields of unequal length padded at their end to the longest of the batch; others stacked.

    A field `x` of shapes [T_i, ...] becomes [B, max T, ...], and `x_lengths` (int64[B], as
    `pack_padded_sequence` takes it) is added.

    Args:
        fields: the fields to pad; None takes every array of one dimension or more.
        value: what stands in the padding.
        sort: order the batch by descending length of the first of `fields`; fetch keeps positions
            and indices in step.
    """

    def __init__(
        self, fields: Sequence[str] | None = None, value: float = 0.0, sort: bool = False
    ) -> None:
        self.fields = None if fields is None else tuple(fields)
        self.value = value
        self.sort = sort

    def order(self, samples: Sequence[Sample]) -> list[int] | None:
        """The rows in the order in which the batch will hold them; None leaves them."""
        if not self.sort:
            return None
        padded = self._names(_columns(samples))
        if not padded:
            return None
        lengths = [len(sample[padded[0]]) for sample in samples]
        return sorted(range(len(samples)), key=lambda row: -lengths[row])

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        batch: dict[str, Any] = {}
        columns = _columns(samples)
        padded = self._names(columns)
        for name, values in columns.items():
            if name in padded:
                batch[name], batch[f"{name}_lengths"] = self._pad(name, values)
            else:
                batch[name] = _stack(name, values)
        return batch

    def _names(self, columns: Mapping[str, list[Any]]) -> list[str]:
        return _to_pad(columns, self.fields, 1)

    def _pad(self, name: str, values: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        tensors = [plain(torch.as_tensor(value)) for value in values]
        for row, tensor in enumerate(tensors):
            if tensor.ndim == 0 or tensor.shape[1:] != tensors[0].shape[1:]:
                raise Mismatch(name, (0, row), _shapes(tensors[0], tensor) + " beyond the length")
        lengths = torch.tensor([len(tensor) for tensor in tensors])
        padded = torch.nn.utils.rnn.pad_sequence(
            tensors, batch_first=True, padding_value=self.value
        )
        return padded, lengths


class PadTime:
    """Fields whose last dimension is time padded at its end to the longest of the batch; the
    others stacked.

    A field `x` of shapes [..., T_i], as audio [C, T] and features [bands, frames] are, becomes
    [B, ..., max T], and `x_lengths` (int64[B]) is added.

    Args:
        fields: the fields to pad; None takes every tensor of two dimensions or more.
        value: what stands in the padding.
    """

    def __init__(self, fields: Sequence[str] | None = None, value: float = 0.0) -> None:
        self.fields = None if fields is None else tuple(fields)
        self.value = value

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        columns = _columns(samples)
        batch: dict[str, Any] = {}
        for name in self._names(columns):
            batch[name], batch[f"{name}_lengths"] = self._pad(name, columns.pop(name))
        return batch | {name: _stack(name, values) for name, values in columns.items()}

    def _names(self, columns: Mapping[str, list[Any]]) -> list[str]:
        return _to_pad(columns, self.fields, 2)

    def _pad(self, name: str, values: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        tensors = [plain(torch.as_tensor(value)) for value in values]
        first = tensors[0]
        for row, tensor in enumerate(tensors):
            if tensor.ndim == 0 or tensor.shape[:-1] != first.shape[:-1]:
                raise Mismatch(name, (0, row), _shapes(first, tensor) + " before the last, time")
        lengths = torch.tensor([tensor.shape[-1] for tensor in tensors])
        size = (len(tensors), *first.shape[:-1], int(lengths.max()))
        padded = first.new_full(size, self.value)
        for row, tensor in enumerate(tensors):
            padded[row, ..., : tensor.shape[-1]] = tensor
        return padded, lengths


class List:
    """Every field as a plain list of the samples' values; nothing is stacked."""

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        return _columns(samples)


class Single:
    """A share of one sample as it is, for samples that are batches; arrays become tensors.

    Only without automatic batching (`batch.size=null`).
    """

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        return {name: default_convert(value) for name, value in samples[0].items()}


def plain(value: torch.Tensor) -> torch.Tensor:
    """A tensor without torchvision's type on it (Image, KeyPoints ...); the data is shared."""
    return value.as_subclass(torch.Tensor) if type(value) is not torch.Tensor else value


def _to_pad(
    columns: Mapping[str, list[Any]], fields: tuple[str, ...] | None, least: int
) -> list[str]:
    """Names of the fields to pad; where none were given, those of `least` dimensions or more."""
    if fields is None:
        return [name for name, values in columns.items() if getattr(values[0], "ndim", 0) >= least]
    for name in fields:
        if name not in columns:
            known = ", ".join(columns)
            raise Mismatch(name, (0, 0), f"to be padded, but the samples have only {known}")
    return list(fields)


def _columns(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    fields = list(samples[0])
    for row, sample in enumerate(samples):
        differing = set(fields) ^ set(sample)
        if differing:
            reason = f"samples have the fields {sorted(fields)} and {sorted(sample)}"
            raise Mismatch(sorted(differing)[0], (0, row), reason)
    return {field: [sample[field] for sample in samples] for field in fields}


def _stack(field: str, values: list[Any]) -> Any:
    first = values[0]
    for row, value in enumerate(values):
        if type(value) is not type(first):
            raise Mismatch(field, (0, row), f"types {type(first).__name__}, {type(value).__name__}")
        if hasattr(value, "shape") and value.shape != first.shape:
            raise Mismatch(field, (0, row), _shapes(first, value))
    if isinstance(first, EncodedImage):  # for a batch transform that decodes
        return values
    if isinstance(first, torch.Tensor):
        rows = [plain(value) for value in values]
        written = output_buffers.contiguous_view(rows)
        return default_collate(rows) if written is None else written
    try:
        return default_collate(values)
    except TypeError as error:
        reason = f"a {type(first).__name__} cannot be stacked; turn it into a tensor or number"
        raise Mismatch(field, (0, 0), reason) from error
    except RuntimeError as error:
        raise Mismatch(field, (0, 0), str(error)) from error


def _shapes(first: Any, other: Any) -> str:
    return f"shapes {list(first.shape)} and {list(other.shape)} differ"


def kinds_of(sample: Any) -> dict[str, str]:
    """What the fields of a sample are, of those that have a type of torchvision's.

    "image", "mask", "keypoints", or "boxes/" and their format ("boxes/xyxy"), by name of the field.
    """
    if not isinstance(sample, Mapping):
        return {}
    kinds = {name: _kind(value) for name, value in sample.items()}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _kind(value: Any) -> str | None:
    if isinstance(value, EncodedImage):
        return "image"
    # Where nobody has imported it, which takes seconds, there is nothing of its types.
    tv_tensors: Any = sys.modules.get("torchvision.tv_tensors")
    if tv_tensors is None:
        return None
    if isinstance(value, tv_tensors.BoundingBoxes):
        return f"boxes/{value.format.value.lower()}"
    names = {
        tv_tensors.Image: "image", tv_tensors.Mask: "mask", tv_tensors.KeyPoints: "keypoints",
    }  # fmt: skip
    return names.get(type(value))
