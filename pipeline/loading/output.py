"""Memory for a batch that is made at once: decoded or gathered into one array.

In a worker process it lies in shared memory, as torch's own collate has it; elsewhere it is reused
when the last tensor that shares it is gone.
"""

from __future__ import annotations

import math
import weakref
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from penstock import torch_internals

Shape = tuple[int, ...]
_MOST_IDLE = 16  # pieces of memory of one size that wait to be reused
_MOST_SIZES = 4


class Output(NamedTuple):
    """Memory for a batch, uninitialised, as an array and as a tensor."""

    array: npt.NDArray[Any]
    tensor: torch.Tensor


# By size. A finalizer may give memory back anywhere, so nothing here takes a lock: each step is
# atomic.
_idle: dict[int, list[npt.NDArray[np.uint8]]] = {}


def allocate(shape: Shape, dtype: np.dtype[Any]) -> Output:
    """Memory for all samples of a batch, uninitialised.

    Fresh memory costs a page fault for every 4 KiB, 0.2 ms a picture of 224 x 224 in float32, where
    decoding it takes 1: outside of workers, that of a batch which is gone is reused.
    """
    size = math.prod(shape) * dtype.itemsize
    memory = torch.empty(0, dtype=torch.uint8)
    if get_worker_info() is not None:
        memory.set_(torch_internals.shared_storage(size))
    else:
        if len(_idle) >= _MOST_SIZES and size not in _idle:
            _idle.clear()
        memory = torch.from_numpy(np.asarray(_Lease(size, _idle.setdefault(size, []))))
    tensor = memory.view(torch.from_numpy(np.empty(0, dtype)).dtype).view(shape)
    return Output(tensor.numpy(), tensor)


class _Lease:
    """Memory that is idle again when the last array or tensor that shares it goes.

    An array could not stand here: a view of a view refers to the array that owns the memory.
    """

    def __init__(self, size: int, idle: list[npt.NDArray[np.uint8]]) -> None:
        del idle[_MOST_IDLE:]
        try:
            memory = idle.pop()
        except IndexError:
            memory = torch.empty(size, dtype=torch.uint8).numpy()  # from a cache line on
        self.__array_interface__ = memory.__array_interface__
        weakref.finalize(self, idle.append, memory).atexit = False
