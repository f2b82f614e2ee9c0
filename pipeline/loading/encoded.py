"""An image file that is not decoded yet, so that a transform may decode only a part of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing it takes seconds, and bytes do without
    from torchvision import tv_tensors


@dataclass(frozen=True)
class EncodedImage:
    """The bytes of an image file.

    Attributes:
        name: its path or address, for messages.
        decoder: content, name -> uint8 [3, H, W], upright. Raises DataError over a bad file.
        most_pixels: `limits.pixels`; whoever decodes without `decoder` refuses a header that
            claims more.
    """

    content: bytes
    name: str
    decoder: Callable[[bytes, str], tv_tensors.Image]
    most_pixels: int

    def decode(self) -> tv_tensors.Image:
        """All of its pixels: uint8 [3, H, W], upright."""
        return self.decoder(self.content, self.name)
