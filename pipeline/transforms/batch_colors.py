"""Batch transforms that change pixels and move nothing.

Colours are computed in float32 from 0 to 255 and rounded once at the end. torchvision truncates
after each step, so a picture is on average half a grey level brighter than there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from penstock.errors import ConfigError, DataError, Problem
from penstock.loading.batch import Batch
from penstock.order.keys import KeyedRandom
from penstock.transforms import image, warping
from penstock.transforms.batch import (
    Range,
    around,
    blocks,
    by_row,
    images_of,
    interval,
    positive,
    probability,
)
from penstock.transforms.batch_geometry import random_sides


class BatchNormalize(image.Normalize):
    """`Normalize` for batches; on an accelerator, a quarter of the bytes have to be transferred.

    Args:
        statistics: as for `Normalize`.
        channels_last: the memory format of the result.
    """

    def __init__(
        self,
        statistics: str | Mapping[str, Sequence[float]] = "imagenet",
        channels_last: bool = False,
    ) -> None:
        super().__init__(statistics)
        self.channels_last = channels_last

    def __call__(self, batch: Batch, random: KeyedRandom) -> Batch:  # type: ignore[override]
        for name, images in images_of(batch, self).items():
            if images.is_floating_point():
                raise DataError(
                    f"BatchNormalize: the pictures {name!r} are {images.dtype} already;"
                    " normalise samples or batches, not both"
                )
            if len(self.mean) not in (1, images.shape[1]):
                raise self.mismatch(images.shape[1])
            mean = torch.tensor(self.mean, dtype=torch.float64).view(-1, 1, 1)
            std = torch.tensor(self.std, dtype=torch.float64).view(-1, 1, 1)
            factor = (1 / (255 * std)).to(images.device, torch.float32)
            offset = (mean / std).to(images.device, torch.float32)
            order = torch.channels_last if self.channels_last else torch.contiguous_format
            out = torch.empty(images.shape, device=images.device, memory_format=order)
            for rows in blocks(images):
                out[rows].copy_(images[rows]).mul_(factor).sub_(offset)
            batch[name] = out
        return batch


class ColorJitter:
    """Change the colours of each sample by factors of its own.

    Args:
        brightness, contrast, saturation: a factor is drawn from [1 - x, 1 + x], or from
            [least, largest].
        hue: turns of the colour circle, from [-x, x] or [least, largest]; at most half a turn.
        p: probability that a sample is changed.
    """

    def __init__(
        self,
        brightness: float | Range = 0.0,
        contrast: float | Range = 0.0,
        saturation: float | Range = 0.0,
        hue: float | Range = 0.0,
        p: float = 1.0,
    ) -> None:
        self.ranges = [
            around(brightness, "brightness", 1.0, least=0.0),
            around(contrast, "contrast", 1.0, least=0.0),
            around(saturation, "saturation", 1.0, least=0.0),
            around(hue, "hue", least=-0.5, most=0.5),
        ]
        self.p = probability(p, "p")

    def __call__(self, batch: Batch, random: KeyedRandom) -> Batch:
        factors = torch.stack([random.uniform(*bounds) for bounds in self.ranges], 1)
        order = random.permutation(len(self.ranges))
        chosen = random.bernoulli(self.p)
        for name, images in images_of(batch, self).items():
            if images.shape[1] not in (1, 3):
                raise DataError(f"ColorJitter: {name!r} has {images.shape[1]} channels, not 1 or 3")
            batch[name] = self._changed(images, factors, order, chosen)
        return batch

    def _changed(self, images: Tensor, factors: Tensor, order: Tensor, chosen: Tensor) -> Tensor:
        out = torch.empty_like(images)
        unit = 255.0 if images.is_floating_point() else 1.0
        neutral = [(1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (0.0, 0.0)]
        active = {
            number
            for number, (bounds, none) in enumerate(zip(self.ranges, neutral, strict=True))
            if bounds != none and (images.shape[1] == 3 or number < 2)
        }
        turns = order.masked_fill(~chosen[:, None], -1).tolist()
        for rows in blocks(images):
            pixels = images[rows].to(torch.float32, copy=True).mul_(unit)
            for changes in zip(*turns[rows], strict=True):
                _change(pixels, factors[rows], changes, active.intersection(changes))
            out[rows] = pixels.div_(unit) if images.is_floating_point() else pixels.round_()
        return out


def _change(pixels: Tensor, factors: Tensor, changes: Sequence[int], active: set[int]) -> None:
    """Change each row in place, by the number of its change, if that is active."""
    for number in active:
        rows = [row for row, chosen in enumerate(changes) if chosen == number]
        change, factor = _CHANGES[number], by_row(factors[rows, number], pixels)
        if len(rows) == len(pixels):
            change(pixels, factor)
        else:
            there = torch.tensor(rows, device=pixels.device)
            pixels[there] = change(pixels[there], factor)


def _brighten(pixels: Tensor, factor: Tensor) -> Tensor:
    return pixels.mul_(factor).clamp_(0, 255)


def _contrast(pixels: Tensor, factor: Tensor) -> Tensor:
    # Whole numbers have one sum, in whatever order a batch, a thread or a device adds them up.
    grey = _grey(pixels).mul_(256).floor_().flatten(1)
    mean = grey.sum(1, dtype=torch.float64) / (256 * grey.shape[1])
    return _blended(pixels, by_row(mean, pixels), factor)


def _saturate(pixels: Tensor, factor: Tensor) -> Tensor:
    return _blended(pixels, _grey(pixels), factor)


def _blended(pixels: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return pixels.mul_(factor).add_(other.mul_(1 - factor)).clamp_(0, 255)


def _grey(pixels: Tensor) -> Tensor:
    """Luma as in ITU-R 601, [B, 1, H, W]."""
    if pixels.shape[1] == 1:
        return pixels.clone()
    red, green, blue = pixels.split(1, dim=1)
    return (red * 0.2989).add_(green * 0.587).add_(blue * 0.114)


def _turn_hue(pixels: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue of hexagonal HSV, at unchanged value and saturation."""
    red, green, blue = pixels.split(1, dim=1)
    value, low = pixels.amax(1, keepdim=True), pixels.amin(1, keepdim=True)
    chroma = value - low
    divisor = torch.where(chroma > 0, chroma, 1.0)
    hue = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, (blue - red) / divisor + 2, (red - green) / divisor + 4),
    )
    hue = hue + turns * 6
    # Each channel's distance to the value is a trapezoid over the hue: 0 within 60 degrees of the
    # channel's own hue, the chroma beyond 120 (Smith: "Color gamut transform pairs", 1978).
    offset = torch.tensor([5.0, 3.0, 1.0], device=pixels.device).view(1, 3, 1, 1)
    sixth = (hue + offset).remainder(6)
    lacking = torch.minimum(sixth, 4 - sixth).clamp_(0, 1)
    return pixels.copy_(value - chroma * lacking)


_CHANGES = (_brighten, _contrast, _saturate, _turn_hue)  # each in place


class RandomErasing:
    """Cover a rectangle of each picture with one colour.

    Args:
        p: probability.
        scale: least and largest share of the area.
        ratio: least and largest height per width.
        value: the colour, in the pixels' units: one number, one a channel, or "random" for a
            colour drawn for each sample.
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: Range = (0.02, 0.33),
        ratio: Range = (0.3, 3.3),
        value: float | Sequence[float] | str = 0.0,
    ) -> None:
        self.p = probability(p, "p")
        self.scale = interval(scale, "scale", 0.0, 1.0)
        self.ratio = positive(ratio, "ratio")
        if isinstance(value, str) and value != "random":
            raise ConfigError(Problem("value", f"got {value!r}, expected numbers or 'random'"))
        self.value = value

    def __call__(self, batch: Batch, random: KeyedRandom) -> Batch:
        images = images_of(batch, self)
        height, width = next(iter(images.values())).shape[-2:]
        sides = random_sides(random, self.scale, self.ratio, height * width)
        room = torch.tensor([height, width]) - sides
        fits = (room > 0).all(-1)
        first = fits.int().argmax(1)[:, None, None]
        sides = torch.take_along_dim(sides, first, 1)[:, 0]
        room = torch.tensor([height, width]) - sides
        corner = (random.uniform(size=(2,)) * (room + 1)).long()
        covered = random.bernoulli(self.p) & fits.any(1)
        sides = torch.where(covered[:, None], sides, 0)
        for name, pixels in images.items():
            colour = self._colour(random.child(name), pixels)
            batch[name] = paste(pixels, colour.expand(*pixels.shape[:2], 1, 1), corner, sides)
        return batch

    def _colour(self, random: KeyedRandom, pixels: Tensor) -> Tensor:
        channels = pixels.shape[1]
        if self.value == "random":
            most = 1.0 if pixels.is_floating_point() else 256.0
            colour = random.uniform(0.0, most, (channels,))
        else:
            values = [self.value] if isinstance(self.value, (int, float)) else list(self.value)
            if len(values) not in (1, channels):
                raise ConfigError(
                    Problem(
                        "value", f"has {len(values)} numbers, but pictures have {channels} channels"
                    )
                )
            colour = torch.tensor([values])
        return colour.to(pixels.device, pixels.dtype)[:, :, None, None]


def paste(
    images: Tensor, source: Tensor, corners: Tensor, sides: Tensor, rows: Tensor | None = None
) -> Tensor:
    """Pictures with a rectangle of another one in each.

    Args:
        images: [B, C, H, W].
        source: as large as `images`, or [B, C, 1, 1] for a colour each.
        corners: int64[B, 2], top and left.
        sides: int64[B, 2], height and width; 0 pastes nothing.
        rows: int64[B], the row of `source` for each picture; None: its own.
    """
    bounds = torch.cat([corners, corners + sides], 1)
    if not warping.row_by_row(images):
        source = source if rows is None else source[rows.to(source.device)]
        return torch.where(_inside(bounds, images), source, images)
    out = images.clone()
    origins = range(len(images)) if rows is None else rows.tolist()
    for row, (top, left, bottom, right) in enumerate(bounds.tolist()):
        part = source[origins[row]]
        part = part if part.shape[-1] == 1 else part[:, top:bottom, left:right]
        out[row, :, top:bottom, left:right] = part
    return out


def _inside(bounds: Tensor, images: Tensor) -> Tensor:
    """bool[B, 1, H, W] where `images` are, True inside of a rectangle a row."""
    y = torch.arange(images.shape[-2], device=images.device)[None, :, None]
    x = torch.arange(images.shape[-1], device=images.device)
    top, left, bottom, right = bounds.to(images.device)[:, :, None, None].unbind(1)
    return ((y >= top) & (y < bottom) & (x >= left) & (x < right))[:, None]
