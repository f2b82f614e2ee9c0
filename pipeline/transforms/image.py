"""Transforms of a sample (a dict of fields) that torchvision v2 does not have.

They draw from torch's global generator, as torchvision's do; fetch seeds it from the sample's key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import CenterCrop
from torchvision.transforms.v2 import functional as F

from penstock.errors import ConfigError, DataError, Problem
from penstock.loading.compose import Compose as Compose

Sample = dict[str, Any]

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
        step.transform = partial(_centre, size=step.size, ignored=ignored)
    inside = getattr(step, "transforms", None)
    for part in inside if isinstance(inside, (list, tuple, torch.nn.ModuleList)) else ():
        fill_masks(part, ignored)


def _centre(value: Any, params: object, size: Sequence[int], ignored: int) -> Any:
    if isinstance(value, tv_tensors.Mask):
        down, across = (max(a - b, 0) for a, b in zip(size, value.shape[-2:], strict=True))
        sides = [across // 2, down // 2, (across + 1) // 2, (down + 1) // 2]
        value = F.pad(value, sides, fill=ignored)
    return F.center_crop(value, list(size)) if isinstance(value, torch.Tensor) else value


class Normalize:
    """uint8 images and videos become float32, scaled to [0, 1], less `mean`, divided by `std`.

    Args:
        statistics: "imagenet"; "dataset", for which the build puts in the statistics of the
            training split; or {"mean": [C], "std": [C]} of values in [0, 1].
    """

    def __init__(self, statistics: str | Mapping[str, Sequence[float]] = "imagenet") -> None:
        if isinstance(statistics, str):
            if statistics != "imagenet":
                raise ConfigError(
                    Problem(
                        "statistics",
                        f"{statistics!r} is not 'imagenet', 'dataset' or a map of mean and std",
                    )
                )
            statistics = IMAGENET
        self.mean = [float(value) for value in statistics["mean"]]
        self.std = [float(value) for value in statistics["std"]]
        if not all(value > 0 for value in self.std):
            raise ConfigError(Problem("statistics", f"std is {self.std}; each must be above 0"))

    def __call__(self, sample: Sample) -> Sample:
        changed = dict(sample)
        for name, value in sample.items():
            if isinstance(value, (tv_tensors.Image, tv_tensors.Video)):
                if len(self.mean) not in (1, value.shape[-3]):
                    raise self.mismatch(value.shape[-3])
                scaled = F.to_dtype(value, torch.float32, scale=True)
                normalized = F.normalize(scaled, self.mean, self.std)
                changed[name] = tv_tensors.wrap(normalized, like=value)
        return changed

    def mismatch(self, channels: int) -> DataError:
        """The error for pictures with another number of channels than there are means."""
        return DataError(
            f"Normalize has {len(self.mean)} means, and a picture has {channels} "
            "channels; set its statistics to dataset, or to {mean: [...], std: "
            "[...]} of as many"
        )

    def inverse(self, images: torch.Tensor) -> torch.Tensor:
        """Normalised float32 [..., C, H, W] back to uint8, for display."""
        mean = torch.tensor(self.mean, device=images.device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(-1, 1, 1)
        return ((images * std + mean).clamp(0, 1) * 255).round().to(torch.uint8)


class LandmarkFlip:
    """Mirror image and landmarks with probability `p`; a left eye's landmarks stay a left eye's.

    Args:
        p: probability.
        pairs: "ibug68", or pairs of landmark numbers that are swapped.
    """

    def __init__(self, p: float = 0.5, pairs: str | Sequence[Sequence[int]] = "ibug68") -> None:
        if isinstance(pairs, str) and pairs != "ibug68":
            raise ConfigError(Problem("pairs", f"{pairs!r} is not 'ibug68' or a list of pairs"))
        self.p = p
        self.pairs = _IBUG68_PAIRS if isinstance(pairs, str) else [tuple(pair) for pair in pairs]
        swapped = [both for left, right in self.pairs for both in ((left, right), (right, left))]
        self._swapped = torch.tensor(swapped, dtype=torch.int64).view(-1, 2).T

    def __call__(self, sample: Sample) -> Sample:
        if torch.rand(()).item() >= self.p:
            return sample
        changed = dict(sample)
        for name, value in sample.items():
            if isinstance(value, tv_tensors.KeyPoints):
                order = torch.arange(value.shape[-2])
                if (self._swapped >= len(order)).any():
                    raise ConfigError(
                        Problem(
                            "transform.train.flip.pairs",
                            f"{name!r} has {len(order)} landmarks, fewer than the pairs name; "
                            "say which of them change places in a mirror, as [[0, 1], [3, 4]]",
                        )
                    )
                order[self._swapped[0]] = self._swapped[1]
                changed[name] = tv_tensors.wrap(F.horizontal_flip(value)[..., order, :], like=value)
            elif isinstance(value, tv_tensors.Image):
                changed[name] = F.horizontal_flip(value)
        return changed


class FaceCrop:
    """A square around the landmarks; pixels outside of the picture are black.

    Args:
        scale: side of the square, in units of the longer side of the landmarks' box.
        jitter: the square's centre and side vary by up to this share of its side.
    """

    def __init__(self, scale: float = 1.3, jitter: float = 0.0) -> None:
        self.scale = scale
        self.jitter = jitter

    def __call__(self, sample: Sample) -> Sample:
        points = next((v for v in sample.values() if isinstance(v, tv_tensors.KeyPoints)), None)
        if points is None:
            raise DataError("FaceCrop needs landmarks (KeyPoints), and the sample has none")
        plain = points.as_subclass(torch.Tensor)
        low, high = plain.amin(dim=-2), plain.amax(dim=-2)
        side = max(float((high - low).max()) * self.scale, 1.0)
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
