"""Samples that are written where their batch will be, so that stacking them copies nothing.

    with output.batch(64):           fetch: so many samples of one batch follow
        row = output.allocate_row((3, 224, 224), np.float32)
        ...                                         a transform writes its sample into each
        output.contiguous_view(rows)     collate: [64, 3, 224, 224] if they lie in order

Everything is per thread, and a row that does not fit is a tensor of its own. In a worker process
the batch lies in shared memory, as torch's own collate has it, unless it is written to a file
(`own_memory`); elsewhere its memory is reused when the last tensor that shares it is gone.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from penstock import torch_internals

Shape = tuple[int, ...]
_MOST_IDLE = 16  # pieces of memory of one size that wait to be reused
_LOOKED_AT = 32  # uses after which one that waited all the while is given up
_MOST_SIZES = 4
_LINE = 64  # bytes


class OutputRow(NamedTuple):
    """Memory for one sample, uninitialised, as an array and as a tensor."""

    array: npt.NDArray[Any]
    tensor: torch.Tensor


class _Block(threading.local):
    """The memory of this thread's current batch."""

    rows: int = 0
    taken: int = 0
    tensor: torch.Tensor | None = None
    outputs: list[OutputRow]
    is_own: bool = False


class _Idle:
    """Pieces of memory of one size that wait to be reused.

    All come back when an epoch ends, and most are needed at once when the next begins; one that
    stays unused for long is given up. A finalizer may give back anywhere, so nothing here takes a
    lock: each step is atomic, and a count that is off by one does no harm.
    """

    def __init__(self) -> None:
        self._pieces: list[npt.NDArray[np.uint8]] = []
        self._uses = 0
        self._spare = 0  # never needed since the last look

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        self._spare = min(self._spare, len(self._pieces) - 1)
        self._uses += 1
        with suppress(IndexError):
            if self._uses >= _LOOKED_AT:
                if self._spare > 0:
                    self._pieces.pop()
                self._uses, self._spare = 0, len(self._pieces)
            return self._pieces.pop()
        # Fresh memory that begins at a cache line, as vectors like it best.
        memory = np.empty(size + _LINE, np.uint8)
        start = -memory.ctypes.data % _LINE
        return memory[start : start + size]

    def __len__(self) -> int:
        return len(self._pieces)

    def put(self, piece: npt.NDArray[np.uint8]) -> None:
        if len(self._pieces) < _MOST_IDLE:
            self._pieces.append(piece)


_current = _Block()
_idle: dict[int, _Idle] = {}
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
        _current.rows, _current.tensor, _current.outputs = 0, None, []


@contextmanager
def own_memory() -> Iterator[None]:
    """Let batches of this thread lie in its process's own memory, also in a worker."""
    _current.is_own = True
    try:
        yield
    finally:
        _current.is_own = False


def allocate_row(shape: Shape, dtype: type[np.generic]) -> OutputRow:
    """The next row of the batch at hand, where there is one and it has this shape and type."""
    if _current.rows > 1 and _current.tensor is None:
        array, _current.tensor = allocate((_current.rows, *shape), np.dtype(dtype))
        _current.outputs = list(map(OutputRow, array, _current.tensor.unbind(0)))
    number = _current.taken
    if number < _current.rows and _current.tensor is not None:
        row = _current.outputs[number]
        if row.array.shape == shape and row.array.dtype == dtype:
            _current.taken = number + 1
            return row
    array = np.empty(shape, dtype)
    return OutputRow(array, torch.from_numpy(array))


def contiguous_view(values: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The rows as one tensor without a copy, if they are consecutive rows of the batch at hand."""
    block, first = _current.tensor, values[0]
    if block is None or first.shape != block.shape[1:] or first.dtype != block.dtype:
        return None
    step = first.numel() * first.element_size()
    start, begin = first.data_ptr(), block.data_ptr()
    if not step or start < begin or start + step * len(values) > begin + step * len(block):
        return None
    for row, value in enumerate(values):
        if value.data_ptr() != start + row * step or not value.is_contiguous():
            return None
    row, rest = divmod(start - begin, step)
    return None if rest else block[row : row + len(values)]


def allocate(shape: Shape, dtype: np.dtype[Any]) -> OutputRow:
    """Memory for all samples of a batch, uninitialised.

    Fresh memory costs a page fault for every 4 KiB, 0.2 ms a picture of 224 x 224 in float32, where
    decoding it takes 1: outside of workers, that of a batch which is gone is reused.
    """
    size = math.prod(shape) * dtype.itemsize
    if _current.is_own or _reuses or get_worker_info() is None:
        idle = _idle.get(size)
        if idle is None:
            if len(_idle) >= _MOST_SIZES:
                _idle.clear()
            idle = _idle.setdefault(size, _Idle())
        memory = idle.take(size)
        lease = _Lease(memory)
        weakref.finalize(lease, idle.put, memory).atexit = False
        array = np.asarray(lease).view(dtype).reshape(shape)
        return OutputRow(array, torch.from_numpy(array))
    kind = torch.from_numpy(np.empty(0, dtype))
    shared = torch_internals.shared_storage(size)
    tensor = kind.new_empty(0).set_(shared, 0, shape)  # type: ignore[call-overload]
    return OutputRow(tensor.numpy(), tensor)


class _Lease:
    """Goes when the last array or tensor that shares its memory goes.

    An array could not stand here: a view of a view refers to the array that owns the memory.
    """

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self.__array_interface__ = memory.__array_interface__
