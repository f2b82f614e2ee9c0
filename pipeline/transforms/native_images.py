"""Calls of the extension modules: a batch's regions of JPEG files or of decoded pictures.

Each is one call of C without Python's lock, which reports the row in progress; 30 us a batch beside
the work on pixels.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.files.encoded import StoredPictures
from penstock.loading import worker_status
from penstock.transforms.crops import Crops
from penstock.transforms.jpeg_header import JpegHeader

Pixels = npt.NDArray[Any]
Normal = tuple[tuple[float, ...], tuple[float, ...]]  # scale and bias of each channel, of bytes

AS_IT_IS: Normal = ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0))


@cache
def jpeg() -> Any:
    """The module `penstock.native.jpeg`, or None where it was not built."""
    return _module("jpeg")


@cache
def pixels() -> Any:
    """The module `penstock.native.pixels`, or None where it was not built."""
    return _module("pixels")


def _module(name: str) -> object:
    try:
        return importlib.import_module(f"penstock.native.{name}")
    except ImportError:
        return None


def decode(
    contents: Sequence[bytes],
    headers: Sequence[JpegHeader],
    crops: Crops,
    target: Pixels,
    reduce: bool,
    normal: Normal | None = None,
    channels_last: bool = False,
) -> npt.NDArray[np.bool_]:
    """Decode a region of each file into `target`, uint8 or float32 [B, 3, height, width].

    Args:
        reduce: let the DCT decode at 1/2, 1/4 or 1/8 where that still covers the result.
        normal: for float32.
        channels_last: the target is uint8 [B, height, width, 3].

    Returns:
        bool [B]: whether the file could be decoded, and was complete as far as it was read.
    """
    facts = np.empty((len(contents), 4), np.int64)
    facts[:, :3], facts[:, 3] = headers, crops.flips
    outcomes = np.empty(len(contents), np.int64)
    jpeg().decode(
        contents,
        target,
        facts,
        crops.regions,
        crops.inside,
        channels_last,
        reduce,
        normal or AS_IT_IS,
        worker_status.place(),
        outcomes,
    )
    return outcomes == 0


def crop_resize(
    pictures: StoredPictures, crops: Crops, target: Pixels, normal: Normal | None = None
) -> bool:
    """Resample a region of each picture into `target`, uint8 or float32 [B, 3, height, width].

    Returns:
        False if C does not support the sizes of the pictures and the result.
    """
    facts = np.empty((len(target), 4), np.int64)
    facts[:, 0], facts[:, 1], facts[:, 2] = pictures.starts, pictures.heights, pictures.widths
    facts[:, 3] = crops.flips
    try:
        pixels().crop_resize(
            pictures.pixels,
            target,
            facts,
            crops.regions,
            crops.inside,
            False,
            normal or AS_IT_IS,
            worker_status.place(),
        )
    except ValueError:
        return False
    return True
