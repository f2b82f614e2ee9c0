"""A batch in a file: plain arrays that are mapped where they lie, and a header.

    prefix     a word, the file's size, the number of arrays, the header's length, a checksum
    sizes      of the arrays, uint64 each
    header     what `plain_batch` says of the batch
    arrays     bytes, each from a multiple of 64 on

The checksum covers everything before the arrays, on which all places and types depend. Their own
bytes have none: crc32 of 38 MB takes 7 ms, five times as long as mapping and reading them, and has
nothing to find. A file gets its name when it is whole, and no run reads what it left before a crash
of the machine.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from penstock.addons.plain_batches.plain_batch import Bytes, Encoded, decode
from penstock.errors import DataError
from penstock.files.disk import write
from penstock.files.regular_file import regular_descriptor
from penstock.loading.batch import Batch
from penstock.loading.workers.channel import MappedFile
from penstock.order.streams import End

_PREFIX = struct.Struct("<8sQII")
_CHECKSUM = struct.Struct("<I")
_HEAD = _PREFIX.size + _CHECKSUM.size
_WORD = b"PENSTSB1"
_LINE = 64  # bytes
_LONGEST = 64 << 20  # bytes before the arrays


class DamagedError(DataError):
    """A file holds no batch; the message says why."""


def write_batch(descriptor: int, encoded: Encoded) -> int:
    """Write a batch to an open file, in place of what is there; its size in bytes.

    Raises:
        OSError: there is no space left, for example.
    """
    header, arrays = encoded
    sizes = struct.pack(f"<{len(arrays)}Q", *(array.nbytes for array in arrays))
    at = _HEAD + len(sizes) + len(header)
    *starts, size = _places(at, [array.nbytes for array in arrays])
    prefix = _PREFIX.pack(_WORD, size, len(arrays), len(header))
    check = zlib.crc32(header, zlib.crc32(sizes, zlib.crc32(prefix)))
    parts: list[bytes | memoryview] = [prefix + _CHECKSUM.pack(check) + sizes + header]
    for start, array in zip(starts, arrays, strict=True):
        parts += [bytes(start - at), array.data]
        at = start + array.nbytes
    parts.append(bytes(size - at))
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    write(descriptor, parts)
    return size


def read_batch(path: Path, address: tuple[int, int], sent: bool, most: int) -> Batch | End:
    """The batch in a file, or the end of a stream in its place; its tensors lie in the file.

    Args:
        address: of the batch that it has to be.
        sent: the batch goes to another process.
        most: bytes that the file may have: what is mapped is memory once it is looked at.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        DamagedError: it holds something else.
    """
    descriptor, size = regular_descriptor(path)
    try:
        if size > most:
            raise ValueError(f"it has {size} bytes, and all batches together may have {most}")
        result = decode(*_mapped(descriptor, size, sent))
    except (DataError, ValueError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from error
    finally:
        os.close(descriptor)
    if not isinstance(result, (Batch, End)) or result.request.address != address:
        raise DamagedError(f"{path} is damaged: it is not batch {address}")
    return result


def _mapped(descriptor: int, size: int, sent: bool) -> tuple[bytes, list[Bytes]]:
    """The header, and the arrays in memory."""
    start = os.pread(descriptor, _HEAD, 0)
    if len(start) < _HEAD or not start.startswith(_WORD):
        raise ValueError("it does not begin as a batch does")
    _, total, count, long = _PREFIX.unpack(start[: _PREFIX.size])
    end = _HEAD + 8 * count + long
    if total != size or end > min(size, _LONGEST):
        raise ValueError(f"it has {size} bytes, and should have {max(total, end)}")
    rest = os.pread(descriptor, end - _HEAD, _HEAD)
    check = zlib.crc32(rest, zlib.crc32(start[: _PREFIX.size]))
    if len(rest) < end - _HEAD or _CHECKSUM.unpack(start[_PREFIX.size :]) != (check,):
        raise ValueError("its checksum differs")
    sizes = struct.unpack(f"<{count}Q", rest[: 8 * count])
    *starts, stop = _places(end, sizes)
    if stop != size:
        raise ValueError("its arrays do not fill it")
    file = MappedFile(descriptor, size, sent)
    arrays = [
        np.frombuffer(file, np.uint8, length, start)
        for start, length in zip(starts, sizes, strict=True)
    ]
    return rest[8 * count :], arrays


def _places(head: int, sizes: Sequence[int]) -> list[int]:
    """Where each array begins, and the size of the file."""
    places = [-(-head // _LINE) * _LINE]
    for size in sizes:
        places.append(-(-(places[-1] + size) // _LINE) * _LINE)
    return places
