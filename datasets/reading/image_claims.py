"""What an image file claims to be, read from its bytes before any decoder sees them.

    JPEG    the frame, EXIF data, the number of scans
    PNG     the header, the number of frames; texts that are only decompressed
    WebP    the canvas and the picture
    GIF     the canvas, every frame
    TIFF    every page (`tiff_directory`)

Decoders allocate what a header asks for, so a file of 1 KB can ask for 16 GB. Of other formats
Pillow's own header is asked (`reading.image`). Cost: 2 us for JPEG; a step for each part of a file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

from pipeline.datasets.reading.tiff_directory import TiffDirectory, check_exif
from pipeline.transforms.jpeg_header import scans_too_often

PNG = b"\x89PNG\r\n\x1a\n"
_MOST_PARTS = 100_000
_MOST_EXIF = 256  # parts of 64 KiB
# Parts of a PNG that hold compressed texts and profiles, which say nothing of its pixels.
_TEXTS = (b"zTXt", b"iTXt", b"tEXt", b"iCCP", b"sPLT")
_FRAMES = frozenset({0xC0, 0xC1, 0xC2, 0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC),
                     *range(0xCD, 0xD0)})  # fmt: skip
_BARE = frozenset({0x00, 0x01, *range(0xD0, 0xD8)})  # markers without a length
_NOTED = _BARE | {0xD9, 0xDA, 0xE1, 0xE2, 0xFF}


class Claim(NamedTuple):
    """What is to be decoded.

    Attributes:
        width, height: of the largest frame, in pixels.
        frames: pictures in the file.
        weight: pixels of all of them.
        texts: there are compressed texts or profiles beside them.
    """

    width: int
    height: int
    frames: int
    weight: int
    texts: bool = False

    def __str__(self) -> str:
        times = f" in each of {self.frames} frames" if self.frames > 1 else ""
        return f"{self.width} x {self.height} pixels{times}"


def claim_of(content: bytes, most: int) -> Claim | None:
    """What a file claims; None if it is of no format that is known here, or has no header.

    Args:
        most: pixels that a picture may have.

    Raises:
        ValueError: it claims what no sound file does.
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
        return _tiff(content)
    if content[4:8] == b"ftyp" and b"Exif" in content:
        _check_any_exif(content)
    return None


def _jpeg(content: bytes, most: int) -> Claim | None:
    """Walks the markers as libjpeg does, which passes over whatever stands between them."""
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
                raise ValueError(f"it goes over its {width} x {height} pixels again and again")
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
            else:
                _note_exif(content[at + 4 : at + 2 + length], marker, exif)
        at += length + 2 if length > 2 or marker in _BARE else 4
        parts += 1
        if parts >= _MOST_PARTS:
            _check_parts(parts)
    return None


def _note_exif(body: bytes, marker: int, exif: list[bytes]) -> None:
    """Add EXIF data to what there was before it: Pillow joins what lies in several parts."""
    if marker == 0xE1 and body.startswith(b"Exif\0\0"):
        exif.append(body[6:])
        if len(exif) > _MOST_EXIF:
            raise ValueError(f"it has more than {_MOST_EXIF} parts of EXIF data")
    elif marker == 0xE2 and body.startswith(b"MPF\0"):
        check_exif(body[4:])


def png_parts(content: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Kind, start and end of each part up to the last; checks the checksums, about 1 GB/s.

    Raises:
        ValueError: a checksum does not fit, or the file is cut off.
    """
    view, at = memoryview(content), len(PNG)
    for number in range(len(content)):
        if at + 12 > len(view):
            break
        length = int.from_bytes(view[at : at + 4], "big")
        kind, end = bytes(view[at + 4 : at + 8]), at + 12 + length
        if end > len(view):
            break
        if zlib.crc32(view[at + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise ValueError(f"the checksum of its part {kind!r} at byte {at} does not fit")
        yield kind, at, end
        if kind == b"IEND":
            return
        if number >= _MOST_PARTS:
            _check_parts(number)
        at = end
    raise ValueError("it ends before its last part")


def _png(content: bytes) -> Claim:
    frames, texts = 0, False
    for kind, start, end in png_parts(content):
        if kind in _TEXTS:
            texts = True
        elif kind == b"fcTL":
            frames += 1
        elif kind == b"eXIf":
            check_exif(content[start + 8 : end - 4])
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    return Claim(width, height, max(frames, 1), width * height * max(frames, 1), texts)


def without_texts(content: bytes) -> bytes:
    """A PNG without its texts and profiles, which a decoder would decompress and keep."""
    cuts = [(start, end) for kind, start, end in _headers(content) if kind in _TEXTS]
    kept, at = [], 0
    for start, end in cuts:
        kept.append(content[at:start])
        at = end
    return b"".join([*kept, content[at:]])


def _headers(content: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The same as `png_parts` of a file that was checked."""
    at = len(PNG)
    while at + 12 <= len(content):
        end = at + 12 + int.from_bytes(content[at : at + 4], "big")
        yield content[at + 4 : at + 8], at, end
        at = end


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
        else:  # the end, or what no decoder goes on after
            break
    frames = max(frames, 1)
    return Claim(*largest, frames, largest[0] * largest[1] * frames)


def _colours(content: bytes, at: int) -> int:
    """Bytes of the table of colours that the byte at a place speaks of."""
    flags = _number(content, at, 1)
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _past_blocks(content: bytes, at: int) -> int:
    while at < len(content) and content[at]:
        at += content[at] + 1
    return at + 1


def _tiff(content: bytes) -> Claim | None:
    pages = []
    for page in TiffDirectory(content).pages():
        pages.append(page)
        _check_parts(len(pages))
    if not pages:
        return None
    largest = max(pages, key=lambda page: page.weight)
    total = sum(page.weight for page in pages)
    return Claim(largest.width, largest.height, len(pages), total)


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
