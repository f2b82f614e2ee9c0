"""Regions of JPEG files and of decoded pictures by the extension modules, or by Pillow and torch.

A call of C works on a batch without Python's lock and reports the row in progress; 30 us a batch
beside the work on pixels. All three work in integers, so every processor gives the same bytes; from
one to another they differ by a grey level.
"""

from __future__ import annotations

import importlib
import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.nn.functional import interpolate

from penstock.loading import worker_status
from penstock.loading.encoded import StoredPictures
from penstock.transforms.crops import Crops

Pixels = npt.NDArray[Any]
Normal = tuple[tuple[float, ...], tuple[float, ...]]  # scale and bias of each channel, of bytes

AS_IT_IS: Normal = ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0))


@cache  # Python would look for a missing module at each import
def module(name: str) -> Any:
    """The module `penstock.native.<name>` ("jpeg" or "pixels"); None where it was not built."""
    try:
        return importlib.import_module(f"penstock.native.{name}")
    except ImportError:
        return None


def crop_resize(
    pictures: StoredPictures, crops: Crops, target: Pixels, normal: Normal | None = None
) -> bool:
    """Resample a region of each picture into `target`, uint8 or float32 [B, 3, height, width].

    Returns:
        False if C does not support the sizes of the pictures and the result.
    """
    try:
        module("pixels").crop_resize(
            pictures.pixels,
            target,
            np.stack(
                [pictures.starts, pictures.heights, pictures.widths, crops.flips], axis=1
            ).astype(np.int64),
            crops.regions,
            crops.inside,
            False,
            normal or AS_IT_IS,
            worker_status.place(),
        )
    except ValueError:
        return False
    return True


def resized(
    images: torch.Tensor, crops: Crops, size: tuple[int, int], native: bool = True
) -> torch.Tensor:
    """A region of each picture, uint8 [B, C, H, W] to [B, C, *size], antialiased and bilinear.

    Args:
        native: by C where it was built.
    """
    count, channels, height, width = images.shape
    out = np.empty((count, channels, *size), np.uint8)
    # numpy copies in this thread; torch would use others, and waiting for them costs more.
    frames = np.ascontiguousarray(images.movedim(1, -1).numpy())
    if native and channels == 3 and module("pixels") is not None:  # C has no other pictures
        starts = np.arange(count) * (height * width * channels)
        stored = StoredPictures(frames, starts, *np.full((3, count), [[height], [width], [3]]))
        if crop_resize(stored, crops, out):
            return torch.from_numpy(out)
    for row, frame in enumerate(frames):
        if crops.inside:
            # torch resizes bytes whose channels lie together by integers, as Pillow does, in a
            # fifth of the time, but cuts only at whole pixels.
            left, top, right, bottom = crops.regions[row].astype(int)
            part = torch.from_numpy(np.ascontiguousarray(frame[top:bottom, left:right]))
            made = interpolate(part.movedim(-1, 0)[None], size, mode="bilinear", antialias=True)
            out[row] = (made[0].flip(-1) if crops.flips[row] else made[0]).numpy()
        else:
            out[row] = with_pillow(Image.fromarray(frame), crops, row, size).transpose(2, 0, 1)
    return torch.from_numpy(out)


def with_pillow(
    image: Image.Image, crops: Crops, row: int, size: tuple[int, int], divisor: int = 1
) -> Pixels:
    """One of the crops of a Pillow image, resized: uint8 [*size] or [*size, C].

    Args:
        divisor: the image is the picture at 1 / divisor.
    """
    left, top, right, bottom = (crops.regions[row] / divisor).tolist()
    x, y = (int(left), int(top)) if crops.inside else (0, 0)
    if crops.inside:  # cut out first, so that the filter sees no pixel beside the region
        image = image.crop((x, y, math.ceil(right), math.ceil(bottom)))
    box = (left - x, top - y, right - x, bottom - y)
    pixels = np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR, box=box))
    return pixels[:, ::-1] if crops.flips[row] else pixels
