"""Memory of Ray's object store as arrays that may be written to.

Ray hands out read-only views. Each batch has one reader, and the store is mapped for writing, so a
consumer may work on its batch in place, as it can on one of a worker process, without a copy. That
is looked up in /proc: where it is not so, batches are copied.

A view keeps the whole result in the store, so results are copied once a consumer keeps more of them
than the loader may have there.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class StoreMemory:
    """Arrays of one loader; `most` bytes of them may be in the store.

    Attributes:
        held: bytes in the store that somebody still uses, as of the last call.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0
        # What finalizers have to tell, which may run anywhere, so without a lock.
        self._gone: deque[int] = deque()
        self._mapped: list[tuple[int, int]] = []

    def own(self, arrays: Sequence[Bytes]) -> list[Bytes]:
        """The arrays of one result, to be written to."""
        while self._gone:
            self.held -= self._gone.pop()
        size = sum(array.nbytes for array in arrays if not array.flags.writeable)
        stays = self.held + size <= self._most
        return [self._one(array, stays) for array in arrays]

    def _one(self, array: Bytes, stays: bool) -> Bytes:
        if array.flags.writeable:
            return array
        if not stays or not self._is_writable(array):
            return array.copy()
        self.held += array.nbytes
        lease = _Lease(array)
        weakref.finalize(lease, self._gone.append, array.nbytes).atexit = False
        return np.asarray(lease)

    def _is_writable(self, array: Bytes) -> bool:
        start = array.ctypes.data
        for again in (False, True):
            place = bisect_right(self._mapped, (start, 2**64)) - 1
            if place >= 0 and start + array.nbytes <= self._mapped[place][1]:
                return True
            if not again:
                self._mapped = _writable_memory()
        return False


class _Lease:
    """Goes when the last array or tensor that shares its memory goes."""

    def __init__(self, array: Bytes) -> None:
        self._array = array  # the view that Ray gave, which keeps the object
        known = array.__array_interface__
        self.__array_interface__: dict[str, Any] = {**known, "data": (known["data"][0], False)}


def _writable_memory() -> list[tuple[int, int]]:
    """Where this process may write: start and end of each piece, in order."""
    try:
        with open("/proc/self/maps") as file:
            pieces = [line.split(maxsplit=2)[:2] for line in file]
    except OSError:
        return []
    ends = [piece.split("-") for piece, allowed in pieces if allowed.startswith("rw")]
    return sorted((int(start, 16), int(end, 16)) for start, end in ends)
