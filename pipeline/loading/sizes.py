"""How many bytes samples, batches and other values take."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

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
