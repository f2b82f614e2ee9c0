"""The claims of a TIFF file, or of EXIF data, which has the same form.

Decoders read every tag of a directory into memory. Tags may overlap, so a directory of 60,000 that
each claim the whole file asks for 60,000 times its size. Cost: 1 us a tag.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

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
    place: int  # of its values


class TiffDirectory:
    """The directories of a TIFF structure; each is read once, so loops end.

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
            for place in (self._value(tags, number) for number in _BELOW):
                if place and place not in seen:
                    seen.add(place)
                    self._tags(place)
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
            place = at + 4 + self._long
            if size > self._long:
                place = self._number(place, self._long)
                self._claimed += min(size, max(len(self._content) - place, 0))
                self._numbers += 0 if kind in _AS_BYTES else min(values, len(self._content))
            tags[number] = _Tag(kind, values, place)
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
        kind, count, place = tags[number]
        letter = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q", 18: "Q"}.get(kind)
        if letter is None:
            return []
        width = struct.calcsize(f"={letter}")
        there = max(len(self._content) - place, 0) // width
        wanted = min(count if most is None else most, count, there)
        return list(struct.unpack_from(f"{self._order}{wanted}{letter}", self._content, place))

    def _number(self, start: int, width: int) -> int:
        order = "little" if self._order == "<" else "big"
        return int.from_bytes(self._content[start : start + width], order)  # type: ignore[arg-type]


def check_exif(exif: bytes) -> None:
    """Raise ValueError if EXIF data, from its first byte, claims far more than its size."""
    for _ in TiffDirectory(exif.removeprefix(b"Exif\0\0")).pages():
        pass
