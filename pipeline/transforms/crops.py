"""Crops as functions of a sample's key and the picture's size, known before anything is decoded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field

from penstock.errors import ConfigError, Problem
from penstock.files.limits import Count, Fraction, PositiveFloat
from penstock.order.keys import KeyArray, as_uniform, hash64_each

Sizes = npt.NDArray[np.int64]


def _ordered(bounds: Sequence[float]) -> Sequence[float]:
    if bounds[0] > bounds[1]:
        raise ValueError("expected [least, largest]")
    return bounds


# Arguments of steps; a configuration's are checked by these annotations (config/targets.py).
_Both = Field(min_length=2, max_length=2)
Size = Count | Annotated[Sequence[Count], _Both]  # one side, or [height, width], in pixels
Range = Annotated[Sequence[float], _Both, AfterValidator(_ordered)]  # [least, largest]
Shares = Annotated[Sequence[Fraction], _Both, AfterValidator(_ordered)]
Distance = Annotated[float, Field(ge=0)]  # to both sides
Ratios = Annotated[Sequence[PositiveFloat], _Both, AfterValidator(_ordered)]

_TRIES = 10


class Crops(NamedTuple):
    """Parts of several pictures.

    Attributes:
        regions: left, top, right and bottom of each in pixels, float64 [B, 4]; fractions where it
            is not cut at pixels.
        flips: whether to mirror it, bool [B].
        inside: whether only the pixels inside count when it is resized, as after cutting it out.
    """

    regions: npt.NDArray[np.float64]
    flips: npt.NDArray[np.bool_]
    inside: bool


def side_lengths(size: Size) -> tuple[int, int]:
    """Height and width of a result."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


class RandomAreaCrop:
    """Parts of random area and shape, as torchvision's RandomResizedCrop draws them.

    Its numbers are `uniform_at(key, n)`: number 0 flips; try t takes the numbers 1 + 4 t .. 4 + 4 t
    for area, aspect ratio, left and top. After ten tries that do not fit, it is the middle, as near
    to the allowed shapes as the picture lets it be. Cost: 2 us a picture, and 80 us a call.

    Args:
        scale: share of the picture's area.
        ratio: width by height; its logarithm is drawn evenly.
        flip: probability to mirror it.
    """

    draws = True

    def __init__(self, scale: Shares, ratio: Ratios, flip: Fraction) -> None:
        self.scale, self.ratio, self.flip = scale, ratio, flip

    def __call__(self, keys: KeyArray, widths: Sizes, heights: Sizes) -> Crops:
        """The crops of the samples with these keys; each argument is [B]."""
        draws = as_uniform(hash64_each(keys[:, None], range(1 + 4 * _TRIES)))
        tries = draws[:, 1:].reshape(len(keys), _TRIES, 4)
        wide, high, area = widths[:, None], heights[:, None], (widths * heights)[:, None]
        low, most = map(math.log, self.ratio)
        share = self.scale[0] + (self.scale[1] - self.scale[0]) * tries[..., 0]
        # numpy's exp differs in the last bit from one processor to another.
        logarithms = (low + (most - low) * tries[..., 1]).ravel().tolist()
        ratio = np.array([math.exp(logarithm) for logarithm in logarithms]).reshape(share.shape)
        across = np.rint(np.sqrt(area * share * ratio))
        down = np.rint(np.sqrt(area * share / ratio))
        fits = (across > 0) & (across <= wide) & (down > 0) & (down <= high)
        left = np.floor((wide - across + 1) * tries[..., 2])
        top = np.floor((high - down + 1) * tries[..., 3])
        boxes = np.stack([left, top, left + across, top + down], axis=-1)
        # All tries of all pictures are evaluated at once; the first that fits is taken.
        regions = boxes[np.arange(len(keys)), fits.argmax(axis=1)]
        across = np.clip(np.rint(heights * self.ratio[1]), 1, widths)
        down = np.clip(np.rint(widths / self.ratio[0]), 1, heights)
        left, top = (widths - across) // 2, (heights - down) // 2
        middle = np.stack([left, top, left + across, top + down], axis=-1)
        regions = np.where(fits.any(axis=1)[:, None], regions, middle)
        return Crops(regions, draws[:, 0] < self.flip, inside=True)


class CenterCrop:
    """The middle of each picture, as if that were resized first and cropped then.

    Args:
        size: (height, width) of the crop; None: the whole picture.
        resize: length of the picture's shorter side before; None fits the crop into the picture.
    """

    draws = False

    def __init__(self, size: tuple[int, int] | None = None, resize: int | None = None) -> None:
        self.size, self.resize = size, resize
        if size is not None and resize is not None and resize < max(size):
            raise ConfigError(
                Problem("resize", f"got {resize}, but {max(size)} pixels are to be cut out of it")
            )

    def __call__(self, keys: KeyArray, widths: Sizes, heights: Sizes) -> Crops:
        """The crops of pictures; each argument is [B], and `keys` is not used."""
        across, down = widths.astype(np.float64), heights.astype(np.float64)
        if self.size is not None:
            rows, columns = self.size
            unit = np.minimum(widths / columns, heights / rows)
            if self.resize is not None:
                unit = np.minimum(widths, heights) / self.resize
            across, down = np.minimum(columns * unit, across), np.minimum(rows * unit, down)
        left, top = (widths - across) / 2, (heights - down) / 2
        regions = np.stack([left, top, left + across, top + down], axis=-1)
        return Crops(regions, np.zeros(len(widths), bool), inside=False)
