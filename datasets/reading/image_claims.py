"""The claims of an image file, read from its bytes before any decoder sees them.

    JPEG    the frame, EXIF data, the number of scans
    PNG     the header, the number of frames, compressed texts
    WebP    the canvas and the picture
    GIF     the canvas, every frame
    TIFF    every page, and EXIF data, which has the same form

Decoders allocate the size in a header, so a file of 1 KB can ask for 16 GB. For other formats
`reading.image` checks the header that Pillow reads. Cost: 2 us for JPEG; a step for each part, and
1 us a tag of a TIFF.

All of this is read by hand because Pillow, libjpeg and tifffile read or allocate before they can be
asked; it can go when they take limits on pixels, frames, scans and tags.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

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
        pages: list[Page] = []
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
    at, frames, parts, largest = 12, 0, 0, (0, 0)
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
        largest = max(largest, size, key=lambda sides: sides[0] * sides[1])
        at, parts = at + 8 + length + length % 2, parts + 1
        _check_parts(parts)
    return (
        Claim(*largest, max(frames, 1), largest[0] * largest[1] * max(frames, 1)) if parts else None
    )


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
        at, headers = content.find(start), 0
        while at >= 0:
            check_exif(content[at:])
            at, headers = content.find(start, at + 1), headers + 1
            if headers > _MOST_EXIF:
                raise ValueError(f"it has more than {_MOST_EXIF} headers of EXIF data")


def _check_parts(count: int) -> None:
    if count >= _MOST_PARTS:
        raise ValueError(f"it has more than {_MOST_PARTS} parts")


def _number(content: bytes, start: int, width: int) -> int:
    return int.from_bytes(content[start : start + width], "little")


_SIZES = {3: 2, 4: 4, 5: 8, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}  # by type
_AS_BYTES = (1, 2, 7)  # types that stay text or bytes; others become a Python number each
_MOST_TAGS = 1 << 20
_MOST_NUMBERS = 1 << 21
_SLACK = 1 << 20  # bytes
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _CHANNELS = 256, 257, 258, 259, 277
_STRIPS, _STRIP_BYTES, _TILE_WIDTH, _TILE_HEIGHT, _TILES, _TILE_BYTES = 273, 279, 322, 323, 324, 325
_BELOW = (34665, 34853, 40965)  # directories of EXIF, GPS and interoperability
_FULL_PIXEL = 64  # bits of a pixel that counts as one


class Page(NamedTuple):
    """One picture of a file.

    Attributes:
        width, height: in pixels.
        weight: decoded pixels; one of more than 8 bytes counts as several.
        compression: its number in TIFF.
        pieces: where each strip or tile begins, and its bytes.
    """

    width: int
    height: int
    weight: int
    compression: int
    pieces: tuple[tuple[int, int], ...]


class _Tag(NamedTuple):
    kind: int
    values: int
    start: int  # of its values


class TiffDirectory:
    """The directories of a TIFF structure; each is read once, so loops end.

    Decoders read every tag of a directory into memory. Tags may overlap, so a directory of 60,000
    that each claim the whole file asks for 60,000 times its size.

    Raises:
        ValueError: its tags claim far more than its size.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._order = {b"II": "<", b"MM": ">"}.get(content[:2], "")
        big = bool(self._order) and self._number(2, 2) == 43
        self._long, self._counts, self._entry = (8, 8, 20) if big else (4, 2, 12)
        self._claimed = self._numbers = self._seen = 0

    def pages(self) -> Iterator[Page]:
        """Every picture, in the order of the file."""
        if not self._order:
            return
        at = self._number(8 if self._long == 8 else 4, self._long)
        seen: set[int] = set()
        while at and at not in seen and at + self._counts <= len(self._content):
            seen.add(at)
            tags, at = self._tags(at)
            for below in (self._value(tags, number) for number in _BELOW):
                if below and below not in seen:
                    seen.add(below)
                    self._tags(below)
            width, height = self._value(tags, _WIDTH), self._value(tags, _HEIGHT)
            bits = (self._value(tags, _BITS) or 1) * (self._value(tags, _CHANNELS) or 1)
            tile = self._value(tags, _TILE_WIDTH) * self._value(tags, _TILE_HEIGHT)
            weight = max(width * height, tile) * max(bits, _FULL_PIXEL) // _FULL_PIXEL
            starts, sizes = (_TILES, _TILE_BYTES) if _TILES in tags else (_STRIPS, _STRIP_BYTES)
            pieces = zip(self._values(tags, starts), self._values(tags, sizes), strict=False)
            yield Page(width, height, weight, self._value(tags, _COMPRESSION), tuple(pieces))

    def _tags(self, at: int) -> tuple[dict[int, _Tag], int]:
        """The tags of a directory, and the place of the next directory."""
        count, at = self._number(at, self._counts), at + self._counts
        tags = {}
        for _ in range(count):
            if at + self._entry > len(self._content):
                break
            number, kind = self._number(at, 2), self._number(at + 2, 2)
            values = self._number(at + 4, self._long)
            size = values * _SIZES.get(kind, 1)
            start = at + 4 + self._long
            if size > self._long:
                start = self._number(start, self._long)
                self._claimed += min(size, max(len(self._content) - start, 0))
                self._numbers += 0 if kind in _AS_BYTES else min(values, len(self._content))
            tags[number] = _Tag(kind, values, start)
            at += self._entry
            self._seen += 1
            if (
                self._claimed > 2 * len(self._content) + _SLACK
                or self._numbers > _MOST_NUMBERS
                or self._seen > _MOST_TAGS
            ):
                raise ValueError(
                    f"its tags claim {self._claimed} bytes and {self._numbers} numbers, but there "
                    f"are {len(self._content)} bytes"
                )
        return tags, self._number(at, self._long)

    def _value(self, tags: dict[int, _Tag], number: int) -> int:
        return next(iter(self._values(tags, number, 1)), 0)

    def _values(self, tags: dict[int, _Tag], number: int, most: int | None = None) -> list[int]:
        if number not in tags:
            return []
        kind, count, start = tags[number]
        letter = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q", 18: "Q"}.get(kind)
        if letter is None:
            return []
        width = struct.calcsize(f"={letter}")
        there = max(len(self._content) - start, 0) // width
        most_read = min(count if most is None else most, count, there)
        return list(struct.unpack_from(f"{self._order}{most_read}{letter}", self._content, start))

    def _number(self, start: int, width: int) -> int:
        order = "little" if self._order == "<" else "big"
        return int.from_bytes(self._content[start : start + width], order)  # type: ignore[arg-type]


def check_exif(exif: bytes) -> None:
    """Raise ValueError if EXIF data, from its first byte, claims far more than its size."""
    for _ in TiffDirectory(exif.removeprefix(b"Exif\0\0")).pages():
        pass
