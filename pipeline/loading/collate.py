"""Samples to a batch: stack equal shapes, pad unequal lengths, or keep a list.

A collate function takes the samples of one share (dicts with the same fields) and gives a dict of
batched fields, or raises `Mismatch`. torch's `default_collate` stacks, in a worker process straight
into shared memory. One with `together` also takes fields that the dataset has gathered: tensors
[B, ...], `Ragged`, and lists of texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate, default_convert

from penstock.errors import DataError
from penstock.loading.encoded import EncodedImage
from penstock.order.keys import IntArray

Sample = Mapping[str, Any]


class Mismatch(DataError):
    """Two samples, by their places, that do not fit into one batch, and why: in which field."""

    def __init__(self, field: str, rows: tuple[int, int], reason: str) -> None:
        super().__init__(
            f"cannot be put together with the others of its batch: field {field!r}: {reason}. "
            "Resize in a transform, or choose another collate (collate=pad for unequal lengths, "
            "collate=list to stack nothing)"
        )
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
        return self.together(columns(samples))

    def together(self, by_field: Mapping[str, Any]) -> dict[str, Any]:
        """Collate the values of each field."""
        return {field: stack(field, values) for field, values in by_field.items()}


class Pad(Stack):
    """Fields of unequal length padded at their end to the longest of the batch; others stacked.

    A field `x` of shapes [T_i, ...] becomes [B, max T, ...], and `x_lengths` (int64[B], as
    `pack_padded_sequence` takes it with `enforce_sorted=False`) is added.

    Args:
        fields: the fields to pad; None takes every array of one dimension or more.
        value: what stands in the padding.
    """

    takes_gathered = True
    # The dimension that is padded; how many a field has that is, where none are named.
    dim, least = 0, 1

    def __init__(self, fields: Sequence[str] | None = None, value: float = 0.0) -> None:
        self.fields, self.value = fields, value

    def together(self, by_field: Mapping[str, Any]) -> dict[str, Any]:
        """Collate the values of each field."""
        fields, batch = self.fields, dict[str, Any]()
        if fields is None:  # the first of `Ragged` has as many dimensions as its rows
            fields = [n for n, v in by_field.items() if getattr(v[0], "ndim", 0) >= self.least]
        # A name that was mistyped would otherwise leave its field unpadded, and stacking fails
        # later.
        for name in set(fields) - by_field.keys():
            reason = f"to be padded, but the samples have only {', '.join(by_field)}"
            raise Mismatch(name, (0, 0), reason)
        for name, values in by_field.items():
            if name in fields:
                batch[name], batch[f"{name}_lengths"] = self._padded(name, values)
            else:
                batch[name] = stack(name, values)
        return batch

    def _padded(self, name: str, values: Any) -> tuple[Tensor, Tensor]:
        """Values [B, max T, ...], and their lengths."""
        if isinstance(values, Ragged):
            flat, counts = values
            inner = flat.shape[1:]
            taken = torch.arange(int(counts.max())) < counts[:, None]
            padded = flat.new_full((*taken.shape, *inner), self.value)
            # Not by `padded[taken] = flat`, which takes several times as long.
            padded.masked_scatter_(taken.reshape(*taken.shape, *[1] * len(inner)), flat)
            return padded, counts
        if isinstance(values, Tensor) and values.ndim > 1:  # gathered, of one length
            return values, torch.full((len(values),), values.shape[1])
        rows = [plain(torch.as_tensor(value)) for value in values]
        shapes = [[*row.shape] or [-1] for row in rows]
        lengths = [shape.pop(self.dim) for shape in shapes]
        for row, shape in enumerate(shapes):
            if shape != shapes[0] or lengths[row] < 0:
                reason = f"{_differ(rows[0], rows[row])} in more than their length"
                raise Mismatch(name, (0, row), reason)
        first = [row.movedim(self.dim, 0) for row in rows]
        padded = pad_sequence(first, batch_first=True, padding_value=self.value)
        padded = padded.movedim(1, self.dim if self.dim < 0 else self.dim + 1).contiguous()
        return padded, torch.tensor(lengths)


class PadTime(Pad):
    """The same where time is the last dimension, as of audio [C, T] and features [bands, frames].

    A field `x` of shapes [..., T_i] becomes [B, ..., max T]. Where no fields are named, those of
    two dimensions or more are padded.
    """

    dim, least = -1, 2


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


def stack(field: str, values: Any) -> Any:
    """The values of one field, as `Stack` puts them together; raises Mismatch."""
    if isinstance(values, Tensor):
        return values
    if isinstance(values, Ragged):
        length = int(values.lengths[0])
        if (values.lengths != length).any():
            raise Mismatch(field, (0, 0), "its rows have different lengths")
        return values.values.reshape(len(values.lengths), length, *values.values.shape[1:])
    first = values[0]
    kind, shape = type(first), getattr(first, "shape", None)
    for row, value in enumerate(values):
        if type(value) is not kind or getattr(value, "shape", None) != shape:
            raise Mismatch(field, (0, row), _differ(first, value))
    if kind is EncodedImage:  # for a batch transform that decodes
        return values
    if isinstance(first, Tensor):
        values = [plain(value) for value in values]
    try:
        return default_collate(values)
    except (TypeError, RuntimeError) as error:  # lists inside, or what is no number
        raise Mismatch(field, (0, 0), str(error)) from error


def joined(parts: Sequence[Any], order: IntArray) -> Any:
    """Parts of a field that were gathered as one, then row `order[0]` first ...

    Raises:
        DataError: they have unequal lengths, or other types or shapes; torch.cat would make them
            alike, as no batch of samples is.
    """
    if all(isinstance(part, list) for part in parts):
        rows = [row for part in parts for row in part]
        return [rows[row] for row in order.tolist()]
    forms = {
        (type(part), getattr(part, "dtype", None), getattr(part, "shape", ())[1:]) for part in parts
    }
    if len(forms) > 1 or not isinstance(parts[0], Tensor):
        raise DataError("parts of a field have unequal lengths, or different types or shapes")
    # By index_select: an index in brackets takes threads, and three times the time.
    return torch.cat([*parts]).index_select(0, torch.from_numpy(order))


def _differ(first: Any, other: Any) -> str:
    return (
        f"shapes {list(first.shape)} and {list(other.shape)} differ"
        if type(first) is type(other)
        else f"types {type(first).__name__}, {type(other).__name__}"
    )


def kinds_of(sample: Any) -> dict[str, str]:
    """The kinds of those fields of a sample that have a type of torchvision's, by name.

    "image", "mask", "keypoints", or "boxes/" and their format ("boxes/xyxy").
    """
    fields = sample.items() if isinstance(sample, Mapping) else ()
    return {name: kind for name, value in fields if (kind := _kind(value))}


def _kind(value: Any) -> str:
    kind = type(value)
    # By names: importing torchvision takes seconds, and most data does without.
    if not kind.__module__.startswith("torchvision.tv_tensors"):
        return "image" if kind is EncodedImage else ""
    if kind.__name__ == "BoundingBoxes":
        return f"boxes/{value.format.value.lower()}"
    return kind.__name__.lower() if kind.__name__ in ("Image", "Mask", "KeyPoints") else ""
