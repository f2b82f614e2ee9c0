"""Crops as functions of a sample's key and the picture's size, known before anything is decoded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError, Problem
from penstock.order.keys import KeyArray, as_uniform, hash64_each, uniform_at

Sizes = npt.NDArray[np.int64]

_TRIES = 10
_AT_ONCE = 3  # of them, for many pictures; few need more


class Crop(NamedTuple):
    """A part of a picture, in pixels; fractions where it is not cut at pixels.

    Attributes:
        flip: mirror it.
        inside: whether only the pixels inside count when it is resized, as after cutting it out.
    """

    left: float
    top: float
    right: float
    bottom: float
    flip: bool = False
    inside: bool = True


class Crops(NamedTuple):
    """Parts of several pictures.

    Attributes:
        regions: left, top, right and bottom of each, float64 [B, 4].
        flips: whether to mirror it, bool [B].
        inside: as for a `Crop`, for all of them.
    """

    regions: npt.NDArray[np.float64]
    flips: npt.NDArray[np.bool_]
    inside: bool

    @classmethod
    def of(cls, crops: Sequence[Crop], inside: bool) -> Crops:
        regions = np.array([crop[:4] for crop in crops], np.float64).reshape(-1, 4)
        return cls(regions, np.array([crop.flip for crop in crops], bool), inside)


def side_lengths(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width of a result, from one side or both; otherwise a ConfigError."""
    sides = [size, size] if isinstance(size, int) else list(size)
    if len(sides) != 2 or min(sides) < 1:
        raise ConfigError(Problem("size", f"got {size!r}, expected a side or [height, width]"))
    return int(sides[0]), int(sides[1])


class RandomAreaCrop:
    """A part of random area and shape, as torchvision's RandomResizedCrop draws it; 8 us.

    Its numbers are `uniform_at(key, n)`: number 0 flips; try t takes the numbers 1 + 4 t .. 4 + 4 t
    for area, aspect ratio, left and top.

    Args:
        scale: share of the picture's area, [least, largest].
        ratio: width by height, [least, largest]; its logarithm is drawn evenly.
        flip: probability to mirror it.
    """

    draws = True

    def __init__(self, scale: Sequence[float], ratio: Sequence[float], flip: float) -> None:
        self.scale = _interval(scale, "scale")
        self.ratio = _interval(ratio, "ratio")
        if self.scale[1] > 1:
            raise ConfigError(Problem("scale", f"got {list(scale)}, expected shares of at most 1"))
        if not 0 <= flip <= 1:
            raise ConfigError(Problem("flip", f"got {flip}, expected a probability from 0 to 1"))
        self.flip = flip

    def __call__(self, key: int, width: int, height: int) -> Crop:
        """The crop of a picture of `width` by `height` pixels."""
        flip = uniform_at(key, 0) < self.flip
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for number in range(1, 1 + 4 * _TRIES, 4):
            share = self.scale[0] + (self.scale[1] - self.scale[0]) * uniform_at(key, number)
            ratio = math.exp(low + (high - low) * uniform_at(key, number + 1))
            across = round(math.sqrt(width * height * share * ratio))
            down = round(math.sqrt(width * height * share / ratio))
            if 0 < across <= width and 0 < down <= height:
                left = int((width - across + 1) * uniform_at(key, number + 2))
                top = int((height - down + 1) * uniform_at(key, number + 3))
                return Crop(left, top, left + across, top + down, flip)
        return self._central(width, height, flip)

    def many(self, keys: KeyArray, widths: Sizes, heights: Sizes) -> Crops:
        """The crops of pictures, the same as one by one; each argument is [B]. 2 us a picture."""
        draws = as_uniform(hash64_each(keys[:, None], range(1 + 4 * _AT_ONCE)))
        tries = draws[:, 1:].reshape(len(keys), _AT_ONCE, 4)
        wide, high, area = widths[:, None], heights[:, None], (widths * heights)[:, None]
        low, most = math.log(self.ratio[0]), math.log(self.ratio[1])
        share = self.scale[0] + (self.scale[1] - self.scale[0]) * tries[..., 0]
        # numpy's exp is not that of `math` to the last bit, and the crops have to be.
        logarithms = (low + (most - low) * tries[..., 1]).ravel().tolist()
        ratio = np.array([math.exp(logarithm) for logarithm in logarithms]).reshape(share.shape)
        across = np.rint(np.sqrt(area * share * ratio))
        down = np.rint(np.sqrt(area * share / ratio))
        left = np.floor((wide - across + 1) * tries[..., 2])
        top = np.floor((high - down + 1) * tries[..., 3])
        fits = (across > 0) & (across <= wide) & (down > 0) & (down <= high)
        boxes = np.stack([left, top, left + across, top + down], axis=-1)
        regions = boxes[np.arange(len(keys)), fits.argmax(axis=1)]
        for row in np.flatnonzero(~fits.any(axis=1)).tolist():
            regions[row] = self(int(keys[row]), int(widths[row]), int(heights[row]))[:4]
        return Crops(regions, draws[:, 0] < self.flip, inside=True)

    def _central(self, width: int, height: int, flip: bool) -> Crop:
        """The middle, as near to the allowed shapes as the picture lets it be."""
        across, down = width, height
        if width / height < self.ratio[0]:
            down = max(1, round(width / self.ratio[0]))
        elif width / height > self.ratio[1]:
            across = max(1, round(height * self.ratio[1]))
        left, top = (width - across) // 2, (height - down) // 2
        return Crop(left, top, left + across, top + down, flip)


class Whole:
    """The whole picture."""

    draws = False

    def __call__(self, key: int, width: int, height: int) -> Crop:
        return Crop(0, 0, width, height, inside=False)

    def many(self, keys: KeyArray, widths: Sizes, heights: Sizes) -> Crops:
        """The crops of pictures; each argument is [B]."""
        sizes = zip(widths.tolist(), heights.tolist(), strict=True)
        return Crops.of([self(0, width, height) for width, height in sizes], inside=False)


class CenterCrop(Whole):
    """The middle of the picture, as if that were resized first and cropped then.

    Args:
        size: (height, width) of the crop.
        resize: length of the picture's shorter side before; None fits the crop into the picture.
    """

    def __init__(self, size: tuple[int, int], resize: int | None) -> None:
        self.size = size
        self.resize = resize
        if resize is not None and resize < max(size):
            raise ConfigError(
                Problem("resize", f"got {resize}, but {max(size)} pixels are to be cut out of it")
            )

    def __call__(self, key: int, width: int, height: int) -> Crop:
        """The crop of a picture of `width` by `height` pixels; `key` is not used."""
        rows, columns = self.size
        if self.resize is None:
            unit = min(width / columns, height / rows)
        else:
            unit = min(width, height) / self.resize
        across, down = min(columns * unit, width), min(rows * unit, height)
        left, top = (width - across) / 2, (height - down) / 2
        return Crop(left, top, left + across, top + down, inside=False)


def _interval(value: Sequence[float], name: str) -> tuple[float, float]:
    if len(value) != 2 or not 0 < value[0] <= value[1]:
        raise ConfigError(Problem(name, f"got {list(value)}, expected [least, largest] above 0"))
    return float(value[0]), float(value[1])
