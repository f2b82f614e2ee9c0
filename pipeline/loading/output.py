"""Samples that are written where their batch will be, so that stacking them copies nothing.

    with output.batch(64):                   fetch: so many samples of one batch follow
        row = output.allocate_row((3, 224, 224), np.float32)
        ...                                  a transform writes its sample into each
        output.contiguous_view(rows)         collate: [64, 3, 224, 224] if they lie in order

Everything is per thread, and a row that does not fit is a tensor of its own. In a worker process
the batch lies in shared memory, as torch's own collate has it; elsewhere its memory is reused when
the last tensor that shares it is gone.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from penstock import torch_internals

Shape = tuple[int, ...]
_MOST_IDLE = 16  # pieces of memory of one size that wait to be reused
_MOST_SIZES = 4


class OutputRow(NamedTuple):
    """Memory for one sample, uninitialised, as an array and as a tensor."""

    array: npt.NDArray[Any]
    tensor: torch.Tensor


class _Block(threading.local):
    """The memory of this thread's current batch, and its free rows, the last one first."""

    rows: int = 0
    tensor: torch.Tensor | None = None
    free: Any = ()


_current = _Block()
# By size. A finalizer may give memory back anywhere, so nothing here takes a lock: each step is
# atomic.
_idle: dict[int, list[npt.NDArray[np.uint8]]] = {}


@contextmanager
def batch(rows: int) -> Iterator[None]:
    """Let the next `rows` samples of this thread share a batch."""
    _current.rows, _current.tensor, _current.free = rows, None, ()
    try:
        yield
    finally:
        _current.rows, _current.tensor, _current.free = 0, None, ()


def allocate_row(shape: Shape, dtype: type[np.generic]) -> OutputRow:
    """The next row of the batch at hand, where there is one and it has this shape and type."""
    if _current.rows > 1 and _current.tensor is None:
        array, _current.tensor = allocate((_current.rows, *shape), np.dtype(dtype))
        _current.free = list(map(OutputRow, array, _current.tensor.unbind(0)))[::-1]
    free = _current.free
    if free and free[-1].array.shape == shape and free[-1].array.dtype == dtype:
        return free.pop()
    array = np.empty(shape, dtype)
    return OutputRow(array, torch.from_numpy(array))


def contiguous_view(values: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The rows as one tensor without a copy, if they are consecutive rows of the batch at hand."""
    block, first = _current.tensor, values[0]
    if block is None or first.shape != block.shape[1:] or first.dtype != block.dtype:
        return None
    start, step = first.data_ptr(), first.nbytes or 1
    row, rest = divmod(start - block.data_ptr(), step)
    if rest or not 0 <= row <= len(block) - len(values):
        return None
    starts = range(start, start + step * len(values), step)
    alike = all(
        v.data_ptr() == at and v.is_contiguous() for v, at in zip(values, starts, strict=True)
    )
    return block[row : row + len(values)] if alike else None


def allocate(shape: Shape, dtype: np.dtype[Any]) -> OutputRow:
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
    return OutputRow(tensor.numpy(), tensor)


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
