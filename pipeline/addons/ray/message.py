"""A result on its way from an actor: bytes if it is small, else bytes and its large arrays.

Ray hands bytes on as they are, which takes half the time of anything that it has to pickle. Large
arrays go beside them, into the object store, where the loader reads them without a copy.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import DataError

Bytes = npt.NDArray[np.uint8]
Kind = Literal["plain", "pickled", "error"]
_KINDS: tuple[Kind, ...] = ("plain", "pickled", "error")
_SMALL = 16 << 10  # bytes; what is smaller is copied, and a consumer may keep it for long
_PLACE = 16  # arrays begin at multiples of so many bytes, as torch's kernels like it


class Made(NamedTuple):
    """The answer of an actor to a request.

    Attributes:
        kind: "plain": a header of plain_batch, and its arrays. "pickled": `header` is the pickled
            result, and the only array says why. "error": `header` is a pickled wrapper of an error.
    """

    kind: Kind
    header: bytes
    arrays: Sequence[Bytes]

    @property
    def size(self) -> int:
        return len(self.header) + sum(array.nbytes for array in self.arrays)


def pack(made: Made) -> bytes | list[bytes | Bytes]:
    """The value that an actor returns."""
    small = [array.nbytes if array.nbytes <= _SMALL else -1 for array in made.arrays]
    sizes = np.array([_KINDS.index(made.kind), len(made.header), len(small), *small], np.int64)
    kept = [array.tobytes() for array in made.arrays if array.nbytes <= _SMALL]
    pieces = [sizes.tobytes(), made.header, *kept]
    prefix = b"".join(part for piece in pieces for part in (piece, bytes(-len(piece) % _PLACE)))
    large = [array for array in made.arrays if array.nbytes > _SMALL]
    return [prefix, *large] if large else prefix


def unpack(value: bytes | Sequence[bytes | Bytes]) -> Made:
    """The value that `pack` got; its small arrays may be written to.

    Raises:
        DataError: its pieces are not where it says.
    """
    prefix, *large = (value,) if isinstance(value, bytes) else value
    memory = np.frombuffer(bytearray(prefix), np.uint8)
    there = len(memory)
    kind, header, count = memory[:24].view(np.int64).tolist() if there >= 24 else (-1, 0, 0)
    if not 0 <= kind < len(_KINDS) or not 0 <= count <= there // 8 or not 0 <= header <= there:
        raise DataError(f"a message from Ray of {there} bytes does not begin as a result does")
    sizes = memory[24 : 24 + 8 * count].view(np.int64).tolist()
    start = _after(24 + 8 * count)
    text = memory[start : start + header].tobytes()
    start += _after(header)
    arrays, others = [], iter(large)
    for size in sizes:
        array = memory[start : start + size] if size >= 0 else next(others, None)
        if array is None or 0 <= size != len(array):
            raise DataError(f"a message from Ray of {there} bytes, {len(large)} arrays, is cut off")
        arrays.append(np.asarray(array))
        start += _after(max(size, 0))
    return Made(_KINDS[kind], text, arrays)


def _after(size: int) -> int:
    return size + -size % _PLACE


class StoreMemory:
    """Arrays of one loader; `most` bytes of them may be in the store.

    Attributes:
        held: bytes in the store that somebody still used at the last call.
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
            piece = bisect_right(self._mapped, (start, 2**64)) - 1
            if piece >= 0 and start + array.nbytes <= self._mapped[piece][1]:
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
