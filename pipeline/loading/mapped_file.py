"""Files mapped into private memory, whose tensors can be sent to another process uncopied.

Pages that nobody writes to are shared by all processes that map the file. Who writes gets a copy of
the page, so that no consumer of a batch can change it for the others. Cost: 20 us a file, then a
page fault for every 64 KiB that is read (1.4 ms for 38 MB).
"""

from __future__ import annotations

import mmap
import os
import weakref

import numpy as np
import torch


class MappedFile(mmap.mmap):
    """A file in memory.

    Attributes:
        descriptor: of the file, if it may be sent; else -1. Closed with the mapping.
        address: of its first byte.
    """

    descriptor: int
    address: int

    def __new__(cls, descriptor: int, size: int, sent: bool = False) -> MappedFile:
        """Map `size` bytes, more than none; `sent` keeps the descriptor, else its owner does.

        Raises:
            OSError, ValueError: it is shorter, or cannot be mapped.
        """
        made = super().__new__(cls, descriptor, size, access=mmap.ACCESS_COPY)
        made.descriptor = os.dup(descriptor) if sent else -1
        made.address = np.frombuffer(made, np.uint8).ctypes.data
        if sent:
            weakref.finalize(made, os.close, made.descriptor).atexit = False
            _sent.add(made)
        return made

    def storage(self, start: int, size: int) -> torch.UntypedStorage:
        """A part of it, which keeps it mapped."""
        part = torch.frombuffer(self, dtype=torch.uint8, offset=start, count=size)
        return part.untyped_storage()


_sent: weakref.WeakSet[MappedFile] = weakref.WeakSet()


def file_of(storage: torch.UntypedStorage) -> tuple[MappedFile, int] | None:
    """The file that may be sent in place of `storage`, and the place of its first byte there."""
    start = storage.data_ptr()
    for file in list(_sent):
        if file.address <= start and start + storage.nbytes() <= file.address + len(file):
            return file, start - file.address
    return None
