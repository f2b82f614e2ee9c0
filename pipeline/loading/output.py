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
_LINE = 64  # bytes


class OutputRow(NamedTuple):
    """Memory for one sample, uninitialised, as an array and as a tensor."""

    array: npt.NDArray[Any]
    tensor: torch.Tensor


class _Block(threading.local):
    """The memory of this thread's current batch, and how many rows of it are taken."""

    rows: int = 0
    taken: int = 0
    tensor: torch.Tensor | None = None
    outputs: Sequence[OutputRow] = ()


_current = _Block()
# By size. A finalizer may give memory back anywhere, so nothing here takes a lock: each step is
# atomic.
_idle: dict[int, list[npt.NDArray[np.uint8]]] = {}
_reuses = False  # also in a worker


def reuse() -> None:
    """Reuse memory although this process is a worker: its batches leave it as copies."""
    global _reuses
    _reuses = True


@contextmanager
def batch(rows: int) -> Iterator[None]:
    """Let the next `rows` samples of this thread share a batch."""
    _current.rows, _current.taken, _current.tensor = rows, 0, None
    try:
        yield
    finally:
        _current.rows, _current.tensor, _current.outputs = 0, None, ()


def allocate_row(shape: Shape, dtype: type[np.generic]) -> OutputRow:
    """The next row of the batch at hand, where there is one and it has this shape and type."""
    if _current.rows > 1 and _current.tensor is None:
        array, _current.tensor = allocate((_current.rows, *shape), np.dtype(dtype))
        _current.outputs = list(map(OutputRow, array, _current.tensor.unbind(0)))
    if _current.taken < len(_current.outputs):
        row = _current.outputs[_current.taken]
        if row.array.shape == shape and row.array.dtype == dtype:
            _current.taken += 1
            return row
    array = np.empty(shape, dtype)
    return OutputRow(array, torch.from_numpy(array))


def contiguous_view(values: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The rows as one tensor without a copy, if they are consecutive rows of the batch at hand."""
    block, first = _current.tensor, values[0]
    if block is None or first.shape != block.shape[1:] or first.dtype != block.dtype:
        return None
    step, start = first.nbytes, first.data_ptr()
    row, rest = divmod(start - block.data_ptr(), step) if step else (0, 1)
    if rest or not 0 <= row <= len(block) - len(values):
        return None
    for number, value in enumerate(values):
        if value.data_ptr() != start + number * step or not value.is_contiguous():
            return None
    return block[row : row + len(values)]


def allocate(shape: Shape, dtype: np.dtype[Any]) -> OutputRow:
    """Memory for all samples of a batch, uninitialised.

    Fresh memory costs a page fault for every 4 KiB, 0.2 ms a picture of 224 x 224 in float32, where
    decoding it takes 1: outside of workers, that of a batch which is gone is reused.
    """
    size = math.prod(shape) * dtype.itemsize
    if not _reuses and get_worker_info() is not None:
        shared = torch_internals.shared_storage(size)
        kind = torch.from_numpy(np.empty(0, dtype))
        tensor = kind.new_empty(0).set_(shared, 0, shape)  # type: ignore[call-overload]
        return OutputRow(tensor.numpy(), tensor)
    if len(_idle) >= _MOST_SIZES and size not in _idle:
        _idle.clear()
    array = np.asarray(_Lease(size, _idle.setdefault(size, []))).view(dtype).reshape(shape)
    return OutputRow(array, torch.from_numpy(array))


class _Lease:
    """Memory that is idle again when the last array or tensor that shares it goes.

    An array could not stand here: a view of a view refers to the array that owns the memory.
    """

    def __init__(self, size: int, idle: list[npt.NDArray[np.uint8]]) -> None:
        del idle[_MOST_IDLE:]
        try:
            memory = idle.pop()
        except IndexError:
            # Fresh memory that begins at a cache line, as vectors like it best.
            memory = np.empty(size + _LINE, np.uint8)
            start = -memory.ctypes.data % _LINE
            memory = memory[start : start + size]
        self.__array_interface__ = memory.__array_interface__
        weakref.finalize(self, idle.append, memory).atexit = False
