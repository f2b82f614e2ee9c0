"""A result on its way from an actor: bytes if it is small, else bytes and its large arrays.

Ray hands bytes on as they are, which takes half the time of anything that it has to pickle. Large
arrays go beside them, into the object store, where the loader reads them without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import DataError

Bytes = npt.NDArray[np.uint8]
Kind = Literal["plain", "pickled", "error"]
_KINDS: tuple[Kind, ...] = ("plain", "pickled", "error")
_SMALL = 16 << 10  # bytes; what is smaller is copied, and a consumer may keep it for long
_PLACE = 16  # arrays begin at multiples of so many bytes, as torch's kernels like it


class Made(NamedTuple):
    """What an actor has made of a request.

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
    """What an actor returns."""
    small = [array.nbytes if array.nbytes <= _SMALL else -1 for array in made.arrays]
    sizes = np.array([_KINDS.index(made.kind), len(made.header), len(small), *small], np.int64)
    kept = [array.tobytes() for array in made.arrays if array.nbytes <= _SMALL]
    pieces = [sizes.tobytes(), made.header, *kept]
    prefix = b"".join(part for one in pieces for part in (one, bytes(-len(one) % _PLACE)))
    large = [array for array in made.arrays if array.nbytes > _SMALL]
    return [prefix, *large] if large else prefix


def unpack(value: bytes | Sequence[bytes | Bytes]) -> Made:
    """What `pack` was given; small arrays may be written to.

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
        one = memory[start : start + size] if size >= 0 else next(others, None)
        if one is None or 0 <= size != len(one):
            raise DataError(f"a message from Ray of {there} bytes, {len(large)} arrays, is cut off")
        arrays.append(np.asarray(one))
        start += _after(max(size, 0))
    return Made(_KINDS[kind], text, arrays)


def _after(size: int) -> int:
    return size + -size % _PLACE
