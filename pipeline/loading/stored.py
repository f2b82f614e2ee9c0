"""Decoded pictures where they lie, so that a transform copies only what it takes of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


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

    @classmethod
    def of(cls, picture: npt.NDArray[np.uint8]) -> StoredPictures:
        """One picture, contiguous [H, W, C]."""
        return cls(picture, np.zeros(1, np.int64), *np.array(picture.shape)[:, None])
