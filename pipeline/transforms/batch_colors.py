"""Batch transforms that change pixels and move nothing.

Colours are computed in float32 from 0 to 255 and rounded once at the end. torchvision truncates
after each step, so a picture is on average half a grey level brighter than there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.errors import DataError
from penstock.files.limits import Fraction
from penstock.loading.batch import Batch
from penstock.order.keys import KeyedRandom
from penstock.transforms import image
from penstock.transforms.batch import around, by_row, images_of
from penstock.transforms.crops import Distance, Range

_CONTRAST, _HUE = 1, 3  # numbers of changes; 0 is brightness, 2 saturation


class BatchNormalize(image.Normalize):
    """`Normalize` for batches; on an accelerator, a quarter of the bytes have to be transferred.

    Args:
        statistics: as for `Normalize`.
    """

    def __call__(self, batch: Batch, random: KeyedRandom) -> Batch:  # type: ignore[override]
        # x / 255 less the mean, over the deviation, as one product and one difference.
        factors = [1 / (255 * std) for std in self.std]
        offsets = [mean / std for mean, std in zip(self.mean, self.std, strict=True)]
        for name, images in images_of(batch, self).items():
            if images.is_floating_point():
                raise DataError(
                    f"BatchNormalize: the pictures {name!r} are {images.dtype} already;"
                    " normalise samples or batches, not both"
                )
            self.check(images.shape[1])
            pixels = images.to(torch.float32, memory_format=torch.contiguous_format)
            factor, offset = pixels.new_tensor([factors, offsets])[:, :, None, None]
            batch[name] = pixels.mul_(factor).sub_(offset)
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
        brightness: Distance | Range = 0.0,
        contrast: Distance | Range = 0.0,
        saturation: Distance | Range = 0.0,
        hue: Distance | Range = 0.0,
        p: Fraction = 1.0,
    ) -> None:
        factors = [around(one, 1.0, least=0.0) for one in (brightness, contrast, saturation)]
        self.ranges = [*factors, around(hue, least=-0.5, most=0.5)]
        self.p = p

    def __call__(self, batch: Batch, random: KeyedRandom) -> Batch:
        factors = torch.stack([random.uniform(*bounds) for bounds in self.ranges], 1)
        order = random.permutation(len(self.ranges))
        chosen = random.bernoulli(self.p)
        for name, images in images_of(batch, self).items():
            batch[name] = self.changed(images, factors, order, chosen)
        return batch

    def changed(self, images: Tensor, factors: Tensor, order: Tensor, chosen: Tensor) -> Tensor:
        """Pictures [B, C, H, W] with each row's factors (float64[B, 4]) applied in its order."""
        if images.shape[1] not in (1, 3):
            raise DataError(f"ColorJitter: a picture has {images.shape[1]} channels, not 1 or 3")
        unit = 255.0 if images.is_floating_point() else 1.0
        pixels = images.to(torch.float32, copy=True).mul_(unit)
        numbers = [
            number
            for number, bounds in enumerate(self.ranges)
            if bounds != ((0.0, 0.0) if number == _HUE else (1.0, 1.0))
            and (images.shape[1] == 3 or number <= _CONTRAST)
        ]
        # Each row has an order of its own: all rows whose next change is the same go together.
        for turn in range(len(self.ranges)):
            for number in numbers:
                rows = torch.nonzero(chosen & (order[:, turn] == number))[:, 0]
                factor, on_device = by_row(factors[rows, number], pixels), rows.to(pixels.device)
                pixels[on_device] = _changed(number, pixels[on_device], factor)
        return pixels.div_(unit) if images.is_floating_point() else pixels.round_().to(images.dtype)


def _changed(number: int, pixels: Tensor, factor: Tensor) -> Tensor:
    """One change of colours; it writes into its argument."""
    if number == _HUE:
        return _with_hue(pixels, factor)
    # Luma as in ITU-R 601, [B, 1, H, W].
    red, green, blue = pixels.split(1, dim=1) if pixels.shape[1] == 3 else (pixels, pixels, pixels)
    other = (red * 0.2989).add_(green * 0.587).add_(blue * 0.114) if number else red * 0
    if number == _CONTRAST:
        # Whole numbers have one sum, in whatever order a batch, a thread or a device adds them up.
        grey = other.mul_(256).floor_().flatten(1)
        other = by_row(grey.sum(1, dtype=torch.float64) / (256 * grey.shape[1]), pixels)
    return pixels.mul_(factor).add_(other * (1 - factor)).clamp_(0, 255)


def _with_hue(pixels: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue of hexagonal HSV, at unchanged value and saturation."""
    red, green, blue = pixels.split(1, dim=1)
    value, low = pixels.amax(1, keepdim=True), pixels.amin(1, keepdim=True)
    chroma = value - low
    divisor = torch.where(chroma > 0, chroma, 1.0)  # grey has no hue, and keeps its value below
    of_others = torch.where(value == green, (blue - red) / divisor + 2, (red - green) / divisor + 4)
    hue = torch.where(value == red, (green - blue) / divisor, of_others) + turns * 6
    # Each channel's distance to the value is a trapezoid over the hue: 0 within 60 degrees of the
    # channel's own hue, the chroma beyond 120 (Smith: "Color gamut transform pairs", 1978).
    offset = torch.tensor([5.0, 3.0, 1.0], device=pixels.device).view(1, 3, 1, 1)
    sixth = (hue + offset).remainder(6)
    return value - chroma * torch.minimum(sixth, 4 - sixth).clamp_(0, 1)
