"""Regions of JPEG files and of decoded pictures, by torchvision and Pillow.

Crops at whole pixels are resized by torch, others by Pillow, which can also let the DCT decode at
1/2, 1/4 or 1/8.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torchvision.io  # noqa: F401  (registers torch.ops.image)
from torch.nn.functional import interpolate

from penstock.transforms.crops import Crop
from penstock.transforms.jpeg_header import JpegHeader

Pixels = npt.NDArray[Any]
Sides = tuple[int, int]  # height and width


def decode(
    content: bytes, header: JpegHeader, crop: Crop, size: Sides, reduce: bool
) -> Pixels | None:
    """A region of a JPEG file, uint8 [3, *size]; None if the file cannot be decoded.

    Args:
        reduce: let the DCT decode smaller where that still covers the result.
    """
    rows, columns = size
    divisor = 1  # the divisor of the DCT
    while (
        reduce
        and divisor < 8
        and crop.right - crop.left >= columns * divisor * 2
        and crop.bottom - crop.top >= rows * divisor * 2
    ):
        divisor *= 2
    try:
        if crop.inside and divisor == 1:
            data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            return _cut(torch.ops.image.decode_jpeg(data, 3, True), crop, size)
        return _with_pillow(content, header, crop, size, divisor)
    except (RuntimeError, OSError, SyntaxError, ValueError):
        return None


def resize(pixels: torch.Tensor, crop: Crop, size: Sides) -> Pixels:
    """A region of a picture, uint8 [3, H, W] to [3, *size]."""
    from PIL import Image

    if crop.inside:
        return _cut(pixels, crop, size)
    whole = np.ascontiguousarray(pixels.permute(1, 2, 0).numpy())
    return _resized(Image.fromarray(whole), crop, size)


def _with_pillow(content: bytes, header: JpegHeader, crop: Crop, size: Sides, most: int) -> Pixels:
    from PIL import ImageOps
    from PIL.JpegImagePlugin import JpegImageFile

    with JpegImageFile(io.BytesIO(content)) as image:
        image.decodermaxblock = len(content)  # all at once, without copies of parts
        if most > 1:
            image.draft(None, (image.width // most, image.height // most))
        divisor = image.decoderconfig[0] if image.decoderconfig else 1
        upright: Any = image
        if header.orientation != 1:
            upright = ImageOps.exif_transpose(image)
        # To convert RGB to RGB would copy all of it.
        coloured = upright if upright.mode == "RGB" else upright.convert("RGB")
        return _resized(coloured, crop, size, divisor)


def _resized(image: Any, crop: Crop, size: Sides, divisor: int = 1) -> Pixels:
    """A part of a Pillow image that was decoded at 1 / `divisor`: [3, *size]."""
    from PIL import Image

    left, top, right, bottom = (side / divisor for side in crop[:4])
    right, bottom = min(right, image.width), min(bottom, image.height)
    if crop.inside:
        x, y = int(left), int(top)
        image = image.crop((x, y, -int(-right // 1), -int(-bottom // 1)))
        left, top, right, bottom = left - x, top - y, right - x, bottom - y
    box = (left, top, right, bottom)
    resized = image.resize(size[::-1], Image.Resampling.BILINEAR, box=box)
    return np.asarray(resized).transpose(2, 0, 1)[:, :, :: -1 if crop.flip else 1]


def _cut(pixels: torch.Tensor, crop: Crop, size: Sides) -> Pixels:
    """A crop at whole pixels, resized by torch."""
    left, top, right, bottom = map(int, crop[:4])
    # numpy copies in this thread; torch would use others, and waiting for them costs more than all
    # the rest.
    part = np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()[top:bottom, left:right])
    channels_last = torch.from_numpy(part).permute(2, 0, 1)[None]
    resized = interpolate(channels_last, size, mode="bilinear", antialias=True)
    return resized[0].numpy()[:, :, :: -1 if crop.flip else 1]
