"""Size and orientation of a JPEG file from its markers, without decoding; 16 us with EXIF."""

from __future__ import annotations

import re
import struct
from contextlib import suppress
from typing import NamedTuple

_SCAN, _APP1 = 0xDA, 0xE1
_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended and progressive, by Huffman codes
# Other frames, a beginning or an end in the middle, and a scan ahead of the frame.
_REFUSED = {0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0), 0xD8, 0xD9, _SCAN}
_ORIENTATION = 0x0112
# A marker and the length of its segment, behind padding and markers that have no length. It does
# not backtrack (`*+`), however much padding a file has.
_SEGMENT = re.compile(rb"(?:\xff(?=\xff)|\xff[\x01\xd0-\xd7])*+\xff([^\x00\xff])(..)", re.DOTALL)
_EXIF = re.compile(rb"(\xff\xe1..)Exif\0\0", re.DOTALL)


class JpegHeader(NamedTuple):
    """The size of a JPEG file.

    Attributes:
        width, height: of the upright picture, in pixels.
        orientation: of EXIF, 1 to 8; 1 if there is none.
    """

    width: int
    height: int
    orientation: int


def jpeg_header(content: bytes) -> JpegHeader | None:
    """The header of a JPEG file; None for files that the decoders here do not support.

    Supported: 8 bits, one or three colours, Huffman codes (sequential or progressive), and the mark
    of the end as the last two bytes.
    """
    if content[:2] != b"\xff\xd8" or content[-2:] != b"\xff\xd9":
        return None
    size, orientation, at = (0, 0), 0, 2
    while match := _SEGMENT.match(content, at):
        marker, length = match[1][0], int.from_bytes(match[2], "big")
        if marker == _SCAN and all(size):
            return JpegHeader(*(size if orientation < 5 else size[::-1]), orientation or 1)
        at = match.end() - 2 + length
        segment = content[match.end() : at]
        if marker in _REFUSED or length < 2:
            return None
        if marker in _FRAMES:
            if any(size) or len(segment) < 6 or segment[0] != 8 or segment[5] not in (1, 3):
                return None
            size = segment[3] << 8 | segment[4], segment[1] << 8 | segment[2]
        elif marker == _APP1 and not orientation and segment.startswith(b"Exif\0\0"):
            orientation = _orientation(segment[6:])
    return None


def without_exif(content: bytes) -> bytes:
    """A JPEG file that every decoder gives as it is stored; another file as it is."""
    return _EXIF.sub(rb"\1None\0\0", content) if content.startswith(b"\xff\xd8") else content


def _orientation(tiff: bytes) -> int:
    """The orientation in a TIFF structure; 1 if there is no valid one."""
    with suppress(struct.error, KeyError):
        order = {b"II*\0": "<", b"MM\0*": ">"}[tiff[:4]]
        (first,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, first)
        for entry in range(first + 2, first + 2 + 12 * count, 12):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIHxx", tiff, entry)
            if tag == _ORIENTATION:
                return value if kind == 3 and 1 <= value <= 8 else 1
    return 1
