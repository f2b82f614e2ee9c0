"""Pictures before a transform: image files that are not decoded yet, so that it may decode only a
part of one, and decoded ones where they lie, so that it copies only what it takes of them; and
memory for what becomes of them: a batch that is made at once, in one array.

In a worker process that memory is shared, as torch's own collate has it; elsewhere it is reused
when the last tensor that shares it is gone.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from penstock import torch_internals

Shape = tuple[int, ...]
_MOST_IDLE, _MOST_SIZES = 16, 4  # pieces of memory that wait to be reused, and their sizes
_LINE = 64  # bytes of a cache line
# What this process's readers have lost of files, by kind, with a file that shows it: `Fetch` adds
# them to the warnings of batches.
notices: dict[str, str] = {}
TURNED = (
    "image {!r} is turned as its EXIF says: places (boxes, masks, points) that were measured on "
    'the stored picture are not where they were; for these set dataset.reader="pillow as stored"'
)


@dataclass(frozen=True)
class EncodedImage:
    """The bytes of an image file.

    Attributes:
        name: its path or address, for messages.
        decoder: content, name -> torchvision's Image, uint8 [3, H, W], upright. Raises DataError
            over a bad file.
        most_pixels: `limits.pixels`; code that decodes without `decoder` leaves a header that
            claims more to it, to be refused.
    """

    content: bytes
    name: str
    decoder: Callable[[bytes, str], Any]
    most_pixels: int

    def decode(self) -> Any:
        """All of its pixels: uint8 [3, H, W], upright."""
        return self.decoder(self.content, self.name)


@dataclass(frozen=True)
class StoredPictures:
    """The pictures of a batch.

    Attributes:
        pixels: uint8, contiguous; each picture is [height, width, channels] somewhere in it.
        starts, heights, widths, channels: int64 [B]; `starts` in bytes.
    """

    pixels: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    heights: npt.NDArray[np.int64]
    widths: npt.NDArray[np.int64]
    channels: npt.NDArray[np.int64]


# By size. A finalizer may give memory back anywhere, so nothing here takes a lock: each step is
# atomic.
_idle: dict[int, list[npt.NDArray[np.uint8]]] = {}


def allocate(shape: Shape, dtype: np.dtype[Any]) -> torch.Tensor:
    """Memory for all samples of a batch, uninitialised.

    Fresh memory costs a page fault for every 4 KiB, 0.2 ms a picture of 224 x 224 in float32, where
    decoding it takes 1: outside of workers, that of a batch which is gone is reused.
    """
    size = math.prod(shape) * dtype.itemsize
    if get_worker_info() is not None:
        memory = torch.empty(0, dtype=torch.uint8).set_(torch_internals.shared_storage(size))
    else:
        if len(_idle) >= _MOST_SIZES and size not in _idle:
            _idle.clear()
        memory = torch.from_numpy(np.asarray(_Lease(size, _idle.setdefault(size, []))))
    return memory.view(torch.from_numpy(np.empty(0, dtype)).dtype).view(shape)


class _Lease:
    """Memory that is idle again when the last array or tensor that shares it goes.

    An array could not stand here: a view of a view refers to the array that owns the memory.
    """

    def __init__(self, size: int, idle: list[npt.NDArray[np.uint8]]) -> None:
        del idle[_MOST_IDLE:]
        try:
            memory = idle.pop()
        except IndexError:
            # From a cache line on. NumPy, unlike torch, asks for huge pages: fewer faults, and a
            # tenth of the time less where stored pictures are only resized.
            fresh = np.empty(size + _LINE, np.uint8)
            memory = fresh[-fresh.ctypes.data % _LINE :][:size]
        self.__array_interface__ = memory.__array_interface__
        weakref.finalize(self, idle.append, memory).atexit = False
