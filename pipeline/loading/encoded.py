"""Pictures before a transform: image files that are not decoded yet, so that it may decode only a
part of one, and decoded ones where they lie, so that it copies only what it takes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# What this process's readers have lost of files, by kind, with a file that shows it: `Fetch` adds
# them to the warnings of batches.
notices: dict[str, str] = {}
TURNED = (
    "image {!r} is turned as its EXIF says: places (boxes, masks, points) that were measured on "
    'the stored picture are not where they were; for these set dataset.reader="pillow as stored"'
)


@dataclass(frozen=True)
class EncodedImage:
    """The bytes of an image file.

    Attributes:
        name: its path or address, for messages.
        decoder: content, name -> torchvision's Image, uint8 [3, H, W], upright. Raises DataError
            over a bad file.
        most_pixels: `limits.pixels`; code that decodes without `decoder` leaves a header that
            claims more to it, to be refused.
    """

    content: bytes
    name: str
    decoder: Callable[[bytes, str], Any]
    most_pixels: int

    def decode(self) -> Any:
        """All of its pixels: uint8 [3, H, W], upright."""
        return self.decoder(self.content, self.name)


@dataclass(frozen=True)
class StoredPictures:
    """The pictures of a batch.

    Attributes:
        pixels: uint8, contiguous; each picture is [height, width, channels] somewhere in it.
        starts, heights, widths, channels: int64 [B]; `starts` in bytes.
    """

    pixels: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    heights: npt.NDArray[np.int64]
    widths: npt.NDArray[np.int64]
    channels: npt.NDArray[np.int64]
