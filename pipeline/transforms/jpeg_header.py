"""Size and orientation of a JPEG file from its markers, without decoding; about 8 us."""

from __future__ import annotations

import re
from typing import NamedTuple

_START, _END, _SCAN, _APP1 = 0xD8, 0xD9, 0xDA, 0xE1
_PLAIN = (0xC0, 0xC1, 0xC2)  # frames: baseline, extended and progressive, by Huffman
_OTHER = frozenset({0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)})
_BARE = frozenset({0x01, *range(0xD0, 0xD8)})  # markers without a length
_ORIENTATION = 0x0112
_MOST_MARKERS = 1000
_EXIF = re.compile(rb"\xff\xe1(..)Exif\0\0", re.DOTALL)


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
    size: tuple[int, int] | None = None
    orientation: int | None = None
    at = 2
    last = len(content) - 4
    for _ in range(_MOST_MARKERS):
        if at > last or content[at] != 0xFF:
            return None
        marker = content[at + 1]
        if marker == 0xFF:  # markers may be padded
            at += 1
            continue
        if marker in _BARE:
            at += 2
            continue
        length = content[at + 2] << 8 | content[at + 3]
        if marker in _OTHER or marker in (_START, _END) or length < 2:
            return None
        if marker == _SCAN:
            if size is None:
                return None
            width, height = size if (orientation or 1) < 5 else size[::-1]
            return JpegHeader(width, height, orientation or 1)
        if marker in _PLAIN:
            frame = content[at + 4 : at + 2 + length]
            if size is not None or len(frame) < 6 or frame[0] != 8 or frame[5] not in (1, 3):
                return None
            size = frame[3] << 8 | frame[4], frame[1] << 8 | frame[2]
            if not all(size):
                return None
        elif marker == _APP1 and orientation is None and content[at + 4 : at + 10] == b"Exif\0\0":
            orientation = _orientation(content[at + 10 : at + 2 + length])
        at += 2 + length
    return None


def without_exif(content: bytes) -> bytes:
    """A JPEG file that every decoder gives as it is stored; another file as it is."""
    while content.startswith(b"\xff\xd8") and (segment := _EXIF.search(content)):
        end = segment.start() + 2 + int.from_bytes(segment[1], "big")
        content = content[: segment.start()] + content[end:]
    return content


def _orientation(tiff: bytes) -> int:
    """The orientation in a TIFF structure; 1 if there is no valid one."""
    order = {b"II*\0": "little", b"MM\0*": "big"}.get(tiff[:4])
    if order is None:
        return 1

    def number(start: int, width: int) -> int:
        return int.from_bytes(tiff[start : start + width], order)  # type: ignore[arg-type]

    first = number(4, 4)
    for entry in range(first + 2, first + 2 + 12 * number(first, 2), 12):
        if entry + 12 > len(tiff):
            return 1
        if number(entry, 2) == _ORIENTATION:
            value = number(entry + 8, 2) if number(entry + 2, 2) == 3 else 1
            return value if 1 <= value <= 8 else 1
    return 1
