"""The claims of an image file, read from its bytes before any decoder sees them.

    JPEG    the frame, EXIF data, the number of scans
    PNG     the header, the number of frames, compressed texts
    WebP    the canvas and the picture
    GIF     the canvas, every frame
    TIFF    every page (`tiff_directory`)

Decoders allocate the size in a header, so a file of 1 KB can ask for 16 GB. For other formats
`reading.image` checks the header that Pillow reads. Cost: 2 us for JPEG; a step for each part.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from penstock.datasets.reading.tiff_directory import TiffDirectory, check_exif
from penstock.transforms.jpeg_header import scans_too_often

PNG = b"\x89PNG\r\n\x1a\n"
_MOST_PARTS = 100_000
_MOST_EXIF = 256  # parts of 64 KiB
# Chunks of a PNG with compressed texts and profiles, which do not affect its pixels.
_TEXTS = (b"zTXt", b"iTXt", b"tEXt", b"iCCP", b"sPLT")
_FRAMES = frozenset(
    {0xC0, 0xC1, 0xC2, 0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)}
)
_BARE = frozenset({0x00, 0x01, *range(0xD0, 0xD8)})  # markers without a length
_NOTED = _BARE | {0xD9, 0xDA, 0xE1, 0xE2, 0xFF}


class Claim(NamedTuple):
    """The pixels that a decoder would decode.

    Attributes:
        width, height: of the largest frame, in pixels.
        frames: pictures in the file.
        weight: pixels of all of them.
        texts: start and end of each chunk of a PNG with compressed texts or profiles.
    """

    width: int
    height: int
    frames: int
    weight: int
    texts: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        times = f" in each of {self.frames} frames" if self.frames > 1 else ""
        return f"{self.width} x {self.height} pixels{times}"


def claim_of(content: bytes, most: int) -> Claim | None:
    """The claims of a file; None if its format is unknown here, or it has no header.

    Args:
        most: pixels that a picture may have.

    Raises:
        ValueError: no valid file makes such claims, or its checksums are wrong.
    """
    if content.startswith(b"\xff\xd8"):
        return _jpeg(content, most)
    if content.startswith(PNG):
        return _png(content)
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return _webp(content)
    if content.startswith(b"GIF8"):
        return _gif(content)
    if content[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        pages = []
        for page in TiffDirectory(content).pages():
            pages.append(page)
            _check_parts(len(pages))
        if not pages:
            return None
        largest = max(pages, key=lambda page: page.weight)
        total = sum(page.weight for page in pages)
        return Claim(largest.width, largest.height, len(pages), total)
    if content[4:8] == b"ftyp" and b"Exif" in content:
        _check_any_exif(content)
    return None


def _jpeg(content: bytes, most: int) -> Claim | None:
    """Walks the markers as libjpeg does, which skips anything between them."""
    at, last, parts = 2, len(content) - 10, 0
    exif: list[bytes] = []
    while 0 <= (at := content.find(b"\xff", at)) <= last:
        marker = content[at + 1]
        if marker in _FRAMES:
            height = content[at + 5] << 8 | content[at + 6]
            width = content[at + 7] << 8 | content[at + 8]
            if exif:
                check_exif(b"".join(exif))
            pixels = width * height
            if pixels <= most and scans_too_often(content, pixels, most):
                raise ValueError(f"it scans its {width} x {height} pixels too often")
            return Claim(width, height, 1, pixels)
        length = content[at + 2] << 8 | content[at + 3]
        if marker in _NOTED:
            if marker in _BARE:
                length = 0
            elif marker == 0xFF:  # markers may be padded
                at += 1
                continue
            elif marker in (0xD9, 0xDA):  # the end, or a scan before any frame
                return None
            elif marker == 0xE1 and content.startswith(b"Exif\0\0", at + 4):
                exif.append(content[at + 10 : at + 2 + length])  # Pillow joins several parts
                if len(exif) > _MOST_EXIF:
                    raise ValueError(f"it has more than {_MOST_EXIF} parts of EXIF data")
            elif marker == 0xE2 and content.startswith(b"MPF\0", at + 4):
                check_exif(content[at + 8 : at + 2 + length])
        at += length + 2 if length > 2 or marker in _BARE else 4
        parts += 1
        if parts >= _MOST_PARTS:
            _check_parts(parts)
    return None


def _png(content: bytes) -> Claim:
    """Walks the chunks up to the last one; checks the checksums, about 1 GB/s."""
    view, at = memoryview(content), len(PNG)
    frames, parts = 0, 0
    texts: list[tuple[int, int]] = []
    while at + 12 <= len(view):
        kind, end = bytes(view[at + 4 : at + 8]), at + 12 + int.from_bytes(view[at : at + 4], "big")
        if end > len(view):
            break
        if zlib.crc32(view[at + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise ValueError(f"the checksum of its part {kind!r} at byte {at} does not match")
        if kind in _TEXTS:
            texts.append((at, end))
        elif kind == b"fcTL":
            frames += 1
        elif kind == b"eXIf":
            check_exif(content[at + 8 : end - 4])
        elif kind == b"IEND":
            width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
            frames = max(frames, 1)
            return Claim(width, height, frames, width * height * frames, tuple(texts))
        at, parts = end, parts + 1
        _check_parts(parts)
    raise ValueError("it ends before its last part")


def _webp(content: bytes) -> Claim | None:
    """The largest of the canvas and of every picture in it."""
    at, frames, parts, found = 12, 0, 0, (0, 0)
    while at + 8 <= len(content):
        kind, length = content[at : at + 4], int.from_bytes(content[at + 4 : at + 8], "little")
        body = content[at + 8 : at + 8 + min(length, 32)]
        if kind == b"VP8X":
            size = _number(body, 4, 3) + 1, _number(body, 7, 3) + 1
        elif kind == b"ANMF":
            size = _number(body, 6, 3) + 1, _number(body, 9, 3) + 1
            frames += 1
        elif kind == b"VP8 ":
            size = _number(body, 6, 2) & 0x3FFF, _number(body, 8, 2) & 0x3FFF
        elif kind == b"VP8L":
            bits = _number(body, 1, 4)
            size = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        else:
            size = 0, 0
            if kind == b"EXIF":
                check_exif(content[at + 8 : at + 8 + length])
        found = max(found, size, key=lambda sides: sides[0] * sides[1])
        at, parts = at + 8 + length + length % 2, parts + 1
        _check_parts(parts)
    return Claim(*found, max(frames, 1), found[0] * found[1] * max(frames, 1)) if parts else None


def _gif(content: bytes) -> Claim:
    canvas = _number(content, 6, 2), _number(content, 8, 2)
    at, frames, largest = 13 + _colours(content, 10), 0, canvas
    while at < len(content):
        if content[at] == 0x21:
            at = _past_blocks(content, at + 2)
        elif content[at] == 0x2C:
            frame = _number(content, at + 5, 2), _number(content, at + 7, 2)
            largest = max(largest, frame, key=lambda sides: sides[0] * sides[1])
            frames += 1
            at = _past_blocks(content, at + 11 + _colours(content, at + 9))
        else:  # the end, or something after which no decoder continues
            break
    frames = max(frames, 1)
    return Claim(*largest, frames, largest[0] * largest[1] * frames)


def _colours(content: bytes, at: int) -> int:
    """Bytes of the table of colours that the flags at a place announce."""
    flags = _number(content, at, 1)
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _past_blocks(content: bytes, at: int) -> int:
    while at < len(content) and content[at]:
        at += content[at] + 1
    return at + 1


def _check_any_exif(content: bytes) -> None:
    for start in (b"II*\0", b"MM\0*"):
        at, found = content.find(start), 0
        while at >= 0:
            check_exif(content[at:])
            at, found = content.find(start, at + 1), found + 1
            if found > _MOST_EXIF:
                raise ValueError(f"it has more than {_MOST_EXIF} headers of EXIF data")


def _check_parts(count: int) -> None:
    if count >= _MOST_PARTS:
        raise ValueError(f"it has more than {_MOST_PARTS} parts")


def _number(content: bytes, start: int, width: int) -> int:
    return int.from_bytes(content[start : start + width], "little")
