"""Samples to a batch: stack equal shapes, pad unequal lengths, or keep a list.

A collate function takes the samples of one share (dicts with the same fields) and gives a dict of
batched fields, or raises `Mismatch`. torch's `default_collate` stacks, in a worker process straight
into shared memory.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate, default_convert

from penstock.errors import DataError
from penstock.loading.encoded import EncodedImage
from penstock.loading.output import contiguous_view
from penstock.order.keys import IntArray

Sample = Mapping[str, Any]


class Mismatch(Exception):
    """Two samples, by their places, that do not fit into one batch, and why: in which field."""

    def __init__(self, field: str, rows: tuple[int, int], reason: str) -> None:
        super().__init__(f"field {field!r}: {reason}")
        self.field, self.rows, self.reason = field, rows, reason


class Ragged(NamedTuple):
    """Values of unequal lengths of a batch, as a dataset with `fetch_batch` gives them.

    Attributes:
        values: [sum of lengths, ...], those of the first row, then of the second ...
        lengths: int64[B].
    """

    values: Tensor
    lengths: Tensor


class Stack:
    """Every field stacked along a new first dimension.

    Tensors and arrays of equal shape give [B, ...], numbers a tensor [B], strings a list; nested
    dicts and lists are stacked inside.
    """

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        return {field: stack(field, values) for field, values in columns(samples).items()}

    def together(self, gathered: Mapping[str, Any]) -> dict[str, Any]:
        """The same of fields that were gathered: tensors [B, ...], `Ragged`, and lists of texts."""
        return {field: even(field, values) for field, values in gathered.items()}


class _Padding:
    """Pads fields whose lengths differ, and stacks the others."""

    least: int  # dimensions of a field that is padded where none are named

    def __init__(self, fields: Sequence[str] | None = None, value: float = 0.0) -> None:
        self.fields = None if fields is None else tuple(fields)
        self.value = value

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        batch: dict[str, Any] = {}
        by_field = columns(samples)
        padded = self._names(by_field)
        for name, values in by_field.items():
            if name in padded:
                tensors = [plain(torch.as_tensor(value)) for value in values]
                batch[name], batch[f"{name}_lengths"] = self._padded(name, tensors)
            else:
                batch[name] = stack(name, values)
        return batch

    def _names(self, by_field: Mapping[str, list[object]]) -> list[str]:
        if self.fields is None:
            return [
                name
                for name, values in by_field.items()
                if getattr(values[0], "ndim", 0) >= self.least
            ]
        for name in self.fields:
            if name not in by_field:
                known = ", ".join(by_field)
                raise Mismatch(name, (0, 0), f"to be padded, but the samples have only {known}")
        return list(self.fields)

    def _padded(self, name: str, tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class Pad(_Padding):
    """Fields of unequal length padded at their end to the longest of the batch; others stacked.

    A field `x` of shapes [T_i, ...] becomes [B, max T, ...], and `x_lengths` (int64[B], as
    `pack_padded_sequence` takes it) is added.

    Args:
        fields: the fields to pad; None takes every array of one dimension or more.
        value: what stands in the padding.
        sort: order the batch by descending length of the first of `fields`; fetch keeps positions
            and indices in step.
    """

    least = 1
    takes_gathered = True

    def __init__(
        self, fields: Sequence[str] | None = None, value: float = 0.0, sort: bool = False
    ) -> None:
        super().__init__(fields, value)
        self.sort = sort

    def together(self, gathered: Mapping[str, Any]) -> dict[str, Any]:
        """The same of fields that were gathered, in the order of the rows; see `Stack.together`."""
        if self.sort:
            raise Mismatch("", (0, 0), "rows are sorted by their samples")
        batch: dict[str, Any] = {}
        for name in self.fields or ():
            values = gathered.get(name)
            if not isinstance(values, Ragged) and getattr(values, "ndim", 0) < 2:
                raise Mismatch(name, (0, 0), "cannot be padded")
        for name, values in gathered.items():
            if isinstance(values, list) or (
                name not in self.fields if self.fields is not None else _is_scalar(values)
            ):
                batch[name] = even(name, values)
            elif isinstance(values, Ragged):
                batch[name], batch[f"{name}_lengths"] = self._filled(*values)
            else:
                lengths = torch.full((len(values),), values.shape[1])
                batch[name], batch[f"{name}_lengths"] = values, lengths
        return batch

    def _filled(self, values: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        longest = int(lengths.max())
        shape = (len(lengths), longest, *values.shape[1:])
        there = (torch.arange(longest) < lengths[:, None]).reshape(
            *shape[:2], *[1] * (len(shape) - 2)
        )
        # Not by `padded[there] = values`, which takes several times as long.
        return values.new_full(shape, self.value).masked_scatter_(there, values), lengths

    def order(self, samples: Sequence[Sample]) -> list[int] | None:
        """The rows in the order in which the batch will hold them; None leaves them."""
        padded = self._names(columns(samples)) if self.sort else []
        if not padded:
            return None
        lengths = [len(sample[padded[0]]) for sample in samples]
        return sorted(range(len(samples)), key=lambda row: -lengths[row])

    def _padded(self, name: str, tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
        for row, tensor in enumerate(tensors):
            if tensor.ndim == 0 or tensor.shape[1:] != tensors[0].shape[1:]:
                raise Mismatch(name, (0, row), _shapes(tensors[0], tensor) + " beyond the length")
        lengths = torch.tensor([len(tensor) for tensor in tensors])
        pad = torch.nn.utils.rnn.pad_sequence
        return pad(tensors, batch_first=True, padding_value=self.value), lengths


class PadTime(_Padding):
    """Fields whose last dimension is time padded at its end to the longest of the batch; the
    others stacked.

    A field `x` of shapes [..., T_i], as audio [C, T] and features [bands, frames] are, becomes
    [B, ..., max T], and `x_lengths` (int64[B]) is added.

    Args:
        fields: the fields to pad; None takes every tensor of two dimensions or more.
        value: what stands in the padding.
    """

    least = 2

    def _padded(self, name: str, tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
        first = tensors[0]
        for row, tensor in enumerate(tensors):
            if tensor.ndim == 0 or tensor.shape[:-1] != first.shape[:-1]:
                raise Mismatch(name, (0, row), _shapes(first, tensor) + " before the last, time")
        lengths = torch.tensor([tensor.shape[-1] for tensor in tensors])
        padded = first.new_full((len(tensors), *first.shape[:-1], int(lengths.max())), self.value)
        for row, tensor in enumerate(tensors):
            padded[row, ..., : tensor.shape[-1]] = tensor
        return padded, lengths


class List:
    """Every field as a plain list of the samples' values; nothing is stacked."""

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        return columns(samples)


class Single:
    """A share of one sample as it is, for samples that are batches; arrays become tensors.

    Only without automatic batching (`batch.size=null`).
    """

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        return {name: default_convert(value) for name, value in samples[0].items()}


def plain(value: Tensor) -> Tensor:
    """A tensor without torchvision's type on it (Image, KeyPoints ...); the data is shared."""
    return value.as_subclass(Tensor) if type(value) is not Tensor else value


def columns(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """The values of each field, sample by sample; raises Mismatch where fields differ."""
    fields = list(samples[0])
    for row, sample in enumerate(samples):
        differing = set(fields) ^ set(sample)
        if differing:
            reason = f"samples have the fields {sorted(fields)} and {sorted(sample)}"
            raise Mismatch(sorted(differing)[0], (0, row), reason)
    return {field: [sample[field] for sample in samples] for field in fields}


def stack(field: str, values: list[Any]) -> Any:
    """The values of one field, as `Stack` puts them together."""
    first = values[0]
    for row, value in enumerate(values):
        if type(value) is not type(first):
            raise Mismatch(field, (0, row), f"types {type(first).__name__}, {type(value).__name__}")
        if hasattr(value, "shape") and value.shape != first.shape:
            raise Mismatch(field, (0, row), _shapes(first, value))
    if isinstance(first, EncodedImage):  # for a batch transform that decodes
        return values
    if isinstance(first, Tensor):
        rows = values if type(first) is Tensor else [value.as_subclass(Tensor) for value in values]
        view = contiguous_view(rows)
        if view is not None:
            return view
        return default_collate(rows)
    try:
        return default_collate(values)
    except TypeError as error:
        reason = f"a {type(first).__name__} cannot be stacked; turn it into a tensor or number"
        raise Mismatch(field, (0, 0), reason) from error
    except RuntimeError as error:
        raise Mismatch(field, (0, 0), str(error)) from error


def joined(parts: Sequence[Any], order: IntArray) -> Any:
    """Parts of a field that were gathered as one, then row `order[0]` first ...

    Raises:
        DataError: they are of different types or shapes.
    """
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        raise DataError("parts of a field are of different types")
    if isinstance(first, list):
        flat = [value for part in parts for value in part]
        return [flat[row] for row in order.tolist()]
    tensors = [part.values if isinstance(part, Ragged) else part for part in parts]
    if any((t.dtype, t.shape[1:]) != (tensors[0].dtype, tensors[0].shape[1:]) for t in tensors):
        raise DataError("parts of a field are of different types or shapes")
    # By index_select: an index in brackets takes threads, and three times the time.
    values = torch.cat(tensors)
    if not isinstance(first, Ragged):
        return values.index_select(0, torch.from_numpy(order))
    lengths = torch.cat([part.lengths for part in parts]).numpy()
    starts = (np.cumsum(lengths) - lengths)[order]
    lengths = lengths[order]
    places = np.arange(len(values)) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    picked = values.index_select(0, torch.from_numpy(places))
    return Ragged(picked, torch.from_numpy(lengths))


def even(field: str, values: Any) -> Any:
    """A field that was gathered; raises Mismatch if its rows have different lengths."""
    if not isinstance(values, Ragged):
        return values
    length = int(values.lengths[0])
    if (values.lengths != length).any():
        raise Mismatch(field, (0, 0), "its rows have different lengths")
    return values.values.reshape(len(values.lengths), length, *values.values.shape[1:])


def _is_scalar(values: Tensor | Ragged) -> bool:
    return isinstance(values, Tensor) and values.ndim < 2


def _shapes(first: Any, other: Any) -> str:
    return f"shapes {list(first.shape)} and {list(other.shape)} differ"


def kinds_of(sample: Any) -> dict[str, str]:
    """The kinds of those fields of a sample that have a type of torchvision's, by name.

    "image", "mask", "keypoints", or "boxes/" and their format ("boxes/xyxy").
    """
    # Where nobody has imported it, which takes seconds, there is nothing of its types.
    tv_tensors: Any = sys.modules.get("torchvision.tv_tensors")
    kinds: dict[str, str] = {}
    for name, value in sample.items() if isinstance(sample, Mapping) else ():
        if isinstance(value, EncodedImage):
            kinds[name] = "image"
        elif type(value) is Tensor or tv_tensors is None:
            continue
        elif isinstance(value, tv_tensors.BoundingBoxes):
            kinds[name] = f"boxes/{value.format.value.lower()}"
        elif type(value) in (tv_tensors.Image, tv_tensors.Mask, tv_tensors.KeyPoints):
            kinds[name] = type(value).__name__.lower()
    return kinds
