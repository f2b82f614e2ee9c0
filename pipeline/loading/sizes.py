"""How many bytes samples, batches and other values take."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from penstock.loading import output_buffers
from penstock.loading.encoded import EncodedImage

_TENSORS = (torch.Tensor, np.ndarray)


def nbytes(value: Any) -> int:
    """Bytes of a value with all that is in it; 0.2 us a tensor, and as much for each other object.

    Of objects of other classes only tensors, arrays, texts, numbers and containers are known.
    """
    total = 0
    waiting = [value]  # no recursion: JSON may be nested as deeply as the interpreter allows
    while waiting:
        item = waiting.pop()
        kind = type(item)
        if kind is torch.Tensor or kind is np.ndarray or isinstance(item, _TENSORS):
            total += item.nbytes
        elif isinstance(item, (list, tuple, set)):
            total += sys.getsizeof(item)
            waiting += item
        elif isinstance(item, Mapping):
            total += sys.getsizeof(item) if kind is dict else 0
            waiting += item.values()
        elif isinstance(item, bytes):
            total += len(item)
        elif isinstance(item, (str, int, float)):
            total += sys.getsizeof(item)
        elif isinstance(item, EncodedImage):
            total += len(item.content)
            waiting += [value for value in vars(item).values() if isinstance(value, torch.Tensor)]
        elif hasattr(item, "getbands") and hasattr(item, "size"):  # a Pillow image
            total += item.size[0] * item.size[1] * len(item.getbands())
    return total


def leaves(value: object) -> int:
    """Values in the lists and mappings that a value is made of; 0 for one that is neither."""
    total, waiting = 0, [value]
    while waiting:
        inside = waiting.pop()
        if isinstance(inside, Mapping):
            inside = inside.values()
        elif not isinstance(inside, (list, tuple)):
            continue
        total += len(inside)
        waiting += inside
    return total


def held(sample: object, reserved: int) -> int:
    """Bytes that a sample keeps in memory, of which `reserved` were asked for to make it.

    A part of a picture that was cut out without a copy keeps the whole picture. A row of what the
    dataset holds in memory keeps that too, but was not made for the batch: nothing was reserved.
    """
    size = nbytes(sample)
    if size >= reserved:
        return size
    values = sample.values() if isinstance(sample, Mapping) else (sample,)
    return max(size, min(reserved, sum(map(_whole, _arrays(values)))))


def _arrays(values: Iterable[object]) -> Iterable[object]:
    return (value for value in values if isinstance(value, _TENSORS))


def _whole(value: Any) -> int:
    """Bytes of the memory that a tensor or an array lies in."""
    if isinstance(value, torch.Tensor):
        if output_buffers.is_row(value):
            return value.nbytes
        return value.untyped_storage().nbytes()
    while isinstance(value.base, np.ndarray):
        value = value.base
    return int(value.nbytes)
