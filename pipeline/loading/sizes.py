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
        one = waiting.pop()
        kind = type(one)
        if kind is torch.Tensor or kind is np.ndarray or isinstance(one, _TENSORS):
            total += one.nbytes
        elif isinstance(one, (list, tuple, set)):
            total += sys.getsizeof(one)
            waiting += one
        elif isinstance(one, Mapping):
            total += sys.getsizeof(one) if kind is dict else 0
            waiting += one.values()
        elif isinstance(one, bytes):
            total += len(one)
        elif isinstance(one, (str, int, float)):
            total += sys.getsizeof(one)
        elif isinstance(one, EncodedImage):
            total += len(one.content)
            waiting += [value for value in vars(one).values() if isinstance(value, torch.Tensor)]
        elif hasattr(one, "getbands") and hasattr(one, "size"):  # a Pillow image
            total += one.size[0] * one.size[1] * len(one.getbands())
    return total


def leaves(value: Any) -> int:
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


def held(sample: Any, reserved: int) -> int:
    """Bytes that a sample keeps in memory, of which `reserved` were asked for to make it.

    A part of a picture that was cut out without a copy keeps the whole picture. A row of what the
    dataset holds in memory keeps that too, but was not made for the batch: nothing was reserved.
    """
    size = nbytes(sample)
    if size >= reserved:
        return size
    values = sample.values() if isinstance(sample, Mapping) else (sample,)
    return max(size, min(reserved, sum(map(_whole, _arrays(values)))))


def _arrays(values: Iterable[Any]) -> Iterable[Any]:
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
