"""Transforms of a sample (a dict of fields) that torchvision v2 does not have.

They draw from torch's global generator, as torchvision's do; fetch seeds it from the sample's key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torchvision import tv_tensors
from torchvision.transforms.v2 import CenterCrop
from torchvision.transforms.v2 import functional as F

from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Fraction, Index

Sample = dict[str, Any]

Statistics = Literal["imagenet", "dataset"] | Mapping[str, Sequence[float]]
Pairs = Literal["ibug68"] | Sequence[Annotated[Sequence[Index], Field(min_length=2, max_length=2)]]
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}

# Mirror images of the 68 iBUG landmarks (Sagonas et al., "300 faces in-the-wild challenge", 2013):
# jaw, brows, nose, eyes, outer and inner lips.
_IBUG68_PAIRS = (
    [(i, 16 - i) for i in range(8)]
    + [(17 + i, 26 - i) for i in range(5)]
    + [(31, 35), (32, 34)]
    + [(36, 45), (37, 44), (38, 43), (39, 42), (40, 47), (41, 46)]
    + [(48, 54), (49, 53), (50, 52), (55, 59), (56, 58)]
    + [(60, 64), (61, 63), (65, 67)]
)


def fill_masks(step: Any, ignored: int) -> None:
    """Let a step, and those inside of it, fill what they uncover of masks of classes with the
    number that is ignored. torchvision's and Albumentations' own choice is class 0.
    """
    if isinstance(getattr(step, "_fill", None), dict):  # by kind of field, of torchvision
        step._fill = {tv_tensors.Mask: ignored, **step._fill}
    if getattr(step, "fill_mask", None) == 0:  # of Albumentations
        step.fill_mask = ignored
    if type(step) is CenterCrop:  # it takes no `fill`
        step.transform = partial(_centre, list(step.size), ignored)
    inside = getattr(step, "transforms", None)
    for part in inside if isinstance(inside, (list, tuple, torch.nn.ModuleList)) else ():
        fill_masks(part, ignored)


def _centre(size: list[int], ignored: int, value: Any, params: object) -> Any:
    if isinstance(value, tv_tensors.Mask):  # beyond the border, the crop is 0
        return tv_tensors.wrap(F.center_crop(value - ignored, size) + ignored, like=value)
    return F.center_crop(value, size) if isinstance(value, torch.Tensor) else value


class Normalize:
    """uint8 images and videos become float32, scaled to [0, 1], less `mean`, divided by `std`.

    Args:
        statistics: "imagenet"; "dataset", for which the build puts in the statistics of the
            training split; or {"mean": [C], "std": [C]} of values in [0, 1].
    """

    def __init__(self, statistics: Statistics = "imagenet") -> None:
        numbers = statistics if isinstance(statistics, Mapping) else IMAGENET
        self.mean = [float(value) for value in numbers["mean"]]
        self.std = [float(value) for value in numbers["std"]]

    def __call__(self, sample: Sample) -> Sample:
        changed = dict(sample)
        for name, value in sample.items():
            if isinstance(value, (tv_tensors.Image, tv_tensors.Video)):
                self.check(value.shape[-3])
                scaled = F.to_dtype(value, torch.float32, scale=True)
                normalized = F.normalize(scaled, self.mean, self.std)
                changed[name] = tv_tensors.wrap(normalized, like=value)
        return changed

    def check(self, channels: int) -> None:
        """Raise DataError for pictures with another number of channels than there are means."""
        if len(self.mean) not in (1, channels):  # a single one holds for all channels
            raise DataError(
                f"Normalize has {len(self.mean)} means, and a picture has {channels} "
                "channels; set its statistics to dataset, or to {mean: [...], std: "
                "[...]} of as many"
            )

    def inverse(self, images: torch.Tensor) -> torch.Tensor:
        """Normalised float32 [..., C, H, W] back to uint8, for display."""
        mean = torch.tensor(self.mean, device=images.device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(-1, 1, 1)
        return ((images * std + mean).clamp(0, 1) * 255).round().to(torch.uint8)


def mirror_order(pairs: Pairs, count: int, fewest: int) -> torch.Tensor:
    """Which of `count` landmarks takes the place of each in a mirror, int64[count].

    Args:
        pairs: as for `LandmarkFlip`.
        fewest: landmarks of the sample that has the fewest; its others are padding.

    Raises:
        ConfigError: `pairs` names landmarks that there are not.
    """
    order = list(range(count))
    for left, right in _IBUG68_PAIRS if isinstance(pairs, str) else pairs:
        if not 0 <= min(left, right) <= max(left, right) < fewest:
            raise ConfigError(
                Problem(
                    "transform.*.pairs",
                    f"there are {fewest} landmarks, and the pairs name landmark "
                    f"{max(left, right)}; say which of them change places in a mirror, as "
                    "[[0, 1], [3, 4]]",
                )
            )
        order[left], order[right] = right, left
    return torch.tensor(order, dtype=torch.int64)


class LandmarkFlip:
    """Mirror a picture and all in it with probability `p`; a left eye's landmarks stay a left
    eye's.

    Args:
        p: probability.
        pairs: "ibug68", or pairs of landmark numbers that are swapped.
    """

    def __init__(self, p: Fraction = 0.5, pairs: Pairs = "ibug68") -> None:
        self.p, self.pairs = p, pairs

    def __call__(self, sample: Sample) -> Sample:
        if torch.rand(()).item() >= self.p:
            return sample
        changed = dict(sample)
        for name, value in sample.items():
            if isinstance(value, tv_tensors.TVTensor):  # other fields have no sides
                changed[name] = F.horizontal_flip(value)
            if isinstance(value, tv_tensors.KeyPoints):
                order = mirror_order(self.pairs, value.shape[-2], value.shape[-2])
                changed[name] = tv_tensors.wrap(changed[name][..., order, :], like=changed[name])
        return changed


class FaceCrop:
    """A square around the landmarks; pixels outside of the picture are black.

    Args:
        scale: side of the square, in units of the longer side of the landmarks' box.
        jitter: the square's centre and side vary by up to this share of its side.
    """

    def __init__(self, scale: float = 1.3, jitter: float = 0.0) -> None:
        self.scale, self.jitter = scale, jitter

    def __call__(self, sample: Sample) -> Sample:
        points = next((v for v in sample.values() if isinstance(v, tv_tensors.KeyPoints)), None)
        if points is None or not points.numel():
            raise DataError("FaceCrop needs landmarks (KeyPoints), and the sample has none")
        plain = points.as_subclass(torch.Tensor).flatten(0, -2)
        low, high = plain.amin(dim=-2), plain.amax(dim=-2)
        side = max(float((high - low).max()) * self.scale, 1.0)  # landmarks may be in one place
        centre = (low + high) / 2
        if self.jitter:
            draws = (torch.rand(3) * 2 - 1) * self.jitter
            centre = centre + draws[:2] * side
            side = side * (1 + float(draws[2]))
        left, top = (centre - side / 2).round().int().tolist()
        side = max(round(side), 1)
        box = {"top": top, "left": left, "height": side, "width": side}
        return {
            name: F.crop(value, **box) if isinstance(value, tv_tensors.TVTensor) else value
            for name, value in sample.items()
        }
