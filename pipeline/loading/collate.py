"""Samples to a batch: stack equal shapes, pad unequal lengths, or keep a list.

A collate function takes the samples of one share (dicts with the same fields) and gives a dict of
batched fields, or raises `Mismatch`. torch's `default_collate` stacks, in a worker process straight
into shared memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
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

    takes_gathered = True
    dim, least = 0, 1  # what is padded; dimensions of a field that is, where none are named

    def __init__(
        self, fields: Sequence[str] | None = None, value: float = 0.0, sort: bool = False
    ) -> None:
        self.fields = None if fields is None else tuple(fields)
        self.value, self.sort = value, sort

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        return self._batch(columns(samples), stack)

    def together(self, gathered: Mapping[str, Any]) -> dict[str, Any]:
        """The same of fields that were gathered; see `Stack.together`."""
        return self._batch(gathered, even)

    def order(self, samples: Sequence[Sample]) -> list[int] | None:
        """The rows in the order in which the batch will hold them; None leaves them."""
        padded = self._padded(columns(samples)) if self.sort else ()
        if not padded:
            return None
        lengths = [torch.as_tensor(sample[padded[0]]).shape[self.dim] for sample in samples]
        return sorted(range(len(samples)), key=lambda row: -lengths[row])

    def _batch(
        self, by_field: Mapping[str, Any], other: Callable[[str, Any], Any]
    ) -> dict[str, Any]:
        padded, batch = self._padded(by_field), dict[str, Any]()
        for name, values in by_field.items():
            if name not in padded:
                batch[name] = other(name, values)
                continue
            if isinstance(values, Tensor) and values.ndim > 1:  # gathered, of one length
                lengths = torch.full((len(values),), values.shape[1])
                batch[name] = values
            elif isinstance(values, Ragged):
                lengths = values.lengths
                batch[name] = self._scattered(*values)
            else:
                rows = [plain(torch.as_tensor(value)) for value in values]
                lengths = self._lengths(name, rows)
                batch[name] = self._filled(rows, lengths)
            batch[f"{name}_lengths"] = lengths
        return batch

    def _padded(self, by_field: Mapping[str, Any]) -> Sequence[str]:
        """The fields to pad."""
        if self.fields is None:  # the first of `Ragged` has as many dimensions as its rows
            return [n for n, v in by_field.items() if getattr(v[0], "ndim", 0) >= self.least]
        for name in set(self.fields) - by_field.keys():
            known = ", ".join(by_field)
            raise Mismatch(name, (0, 0), f"to be padded, but the samples have only {known}")
        return self.fields

    def _lengths(self, name: str, rows: Sequence[Tensor]) -> Tensor:
        shapes = [[*row.shape] for row in rows]
        lengths = [shape.pop(self.dim) if shape else -1 for shape in shapes]
        for row, shape in enumerate(shapes):
            if shape != shapes[0] or lengths[row] < 0:
                reason = f"{_shapes(rows[0], rows[row])} in more than their length"
                raise Mismatch(name, (0, row), reason)
        return torch.tensor(lengths)

    def _filled(self, rows: list[Tensor], lengths: Tensor) -> Tensor:
        return pad_sequence(rows, batch_first=True, padding_value=self.value)

    def _scattered(self, values: Tensor, lengths: Tensor) -> Tensor:
        """The same of rows that lie end to end, a tenth of the time for small ones."""
        inner, longest = values.shape[1:], int(lengths.max())
        there = torch.arange(longest) < lengths[:, None]
        there = there.reshape(*there.shape, *[1] * len(inner))
        # Not by `padded[there] = values`, which takes several times as long.
        padded = values.new_full((len(lengths), longest, *inner), self.value)
        return padded.masked_scatter_(there, values)


class PadTime(Pad):
    """The same where time is the last dimension, as of audio [C, T] and features [bands, frames].

    A field `x` of shapes [..., T_i] becomes [B, ..., max T]. Where no fields are named, those of
    two dimensions or more are padded.
    """

    dim, least = -1, 2

    def _filled(self, rows: list[Tensor], lengths: Tensor) -> Tensor:
        shape = (len(rows), *rows[0].shape[:-1], int(lengths.max()))
        padded = rows[0].new_full(shape, self.value)
        for row, values in enumerate(rows):
            padded[row, ..., : values.shape[-1]] = values
        return padded


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
    fields = samples[0].keys()
    for row, sample in enumerate(samples):
        if sample.keys() != fields:
            reason = f"samples have the fields {sorted(fields)} and {sorted(sample)}"
            raise Mismatch(min(fields ^ sample.keys()), (0, row), reason)
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
        values = [plain(value) for value in values]
        view = contiguous_view(values)
        return default_collate(values) if view is None else view
    try:
        return default_collate(values)
    except (TypeError, RuntimeError) as error:
        reason = f"a {type(first).__name__} cannot be stacked; turn it into a tensor or number"
        unequal = isinstance(error, RuntimeError)  # lists inside
        raise Mismatch(field, (0, 0), str(error) if unequal else reason) from error


def joined(parts: Sequence[Any], order: IntArray) -> Any:
    """Parts of a field that were gathered as one, then row `order[0]` first ...

    Raises:
        DataError: they are of different types or shapes.
    """
    kind = type(parts[0])
    if any(type(part) is not kind for part in parts):
        raise DataError("parts of a field are of different types")
    if kind is list:
        rows = [row for part in parts for row in part]
        return [rows[row] for row in order.tolist()]
    tensors = [part.values if kind is Ragged else part for part in parts]
    if len({(tensor.dtype, tensor.shape[1:]) for tensor in tensors}) > 1:
        raise DataError("parts of a field are of different types or shapes")
    places = order
    if kind is Ragged:
        lengths = torch.cat([part.lengths for part in parts]).numpy()
        starts, lengths = (np.cumsum(lengths) - lengths)[order], lengths[order]
        shifts = starts - (np.cumsum(lengths) - lengths)
        places = np.arange(lengths.sum()) + np.repeat(shifts, lengths)
    # By index_select: an index in brackets takes threads, and three times the time.
    values = torch.cat(tensors).index_select(0, torch.from_numpy(places))
    return Ragged(values, torch.from_numpy(lengths)) if kind is Ragged else values


def even(field: str, values: Any) -> Any:
    """A field that was gathered; raises Mismatch if its rows have different lengths."""
    if not isinstance(values, Ragged):
        return values
    length = int(values.lengths[0])
    if (values.lengths != length).any():
        raise Mismatch(field, (0, 0), "its rows have different lengths")
    return values.values.reshape(len(values.lengths), length, *values.values.shape[1:])


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
        kind = type(value)
        if isinstance(value, EncodedImage):
            kinds[name] = "image"
        elif tv_tensors is not None and isinstance(value, tv_tensors.BoundingBoxes):
            kinds[name] = f"boxes/{value.format.value.lower()}"
        elif tv_tensors and kind in (tv_tensors.Image, tv_tensors.Mask, tv_tensors.KeyPoints):
            kinds[name] = kind.__name__.lower()
    return kinds
