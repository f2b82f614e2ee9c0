"""Transforms of samples that compute pixels, with the same bytes on every processor.

torchvision's own of these names resize and blend with other instructions on other processors, which
differ by a grey level. Everything else of torchvision v2 can be used as it is. They draw from
torch's global generator, as torchvision's do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from penstock.transforms import batch_colors
from penstock.transforms.crops import Crops, RandomAreaCrop, Ratios, Shares, Size, side_lengths
from penstock.transforms.image import Sample
from penstock.transforms.native_images import resized

_PLACES = (tv_tensors.Mask, tv_tensors.BoundingBoxes, tv_tensors.KeyPoints)


class Resize(v2.Transform):
    """The whole picture, and what lies in it, resized with antialiasing.

    Args:
        size: of the result, one side or [height, width], in pixels.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = side_lengths(size)

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        height, width = v2.query_size(flat_inputs)
        return {"region": [0, 0, width, height]}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        left, top, right, bottom = params["region"]
        height, width = bottom - top, right - left
        is_bytes = getattr(inpt, "dtype", None) == torch.uint8 and not isinstance(inpt, _PLACES)
        if not is_bytes or (height, width) == self.size:
            # torchvision does the rest: places, masks, pixels of floats, crops at their own size.
            return F.resized_crop(inpt, top, left, height, width, list(self.size))
        images = inpt.as_subclass(torch.Tensor).reshape(-1, *inpt.shape[-3:])
        regions = np.full((len(images), 4), params["region"], np.float64)
        crops = Crops(regions, np.zeros(len(images), bool), inside=True)
        made = resized(images, crops, self.size)
        return tv_tensors.wrap(made.reshape(*inpt.shape[:-2], *self.size), like=inpt)


class RandomResizedCrop(Resize):
    """A part of random area and shape, resized.

    Args:
        size: as for `Resize`.
        scale: share of the picture's area.
        ratio: width by height; its logarithm is drawn evenly.
    """

    def __init__(
        self, size: Size, scale: Shares = (0.08, 1.0), ratio: Ratios = (3 / 4, 4 / 3)
    ) -> None:
        super().__init__(size)
        self.crop = RandomAreaCrop(scale, ratio, flip=0.0)

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        height, width = np.array(v2.query_size(flat_inputs))[:, None]
        # One number of torch's generator, from which the crop takes as many as it needs.
        key = torch.randint(1 << 62, (1,)).numpy().astype(np.uint64)
        return {"region": self.crop(key, width, height).regions[0].astype(int).tolist()}


class ColorJitter(batch_colors.ColorJitter):
    """Change brightness, contrast, saturation and hue of pictures and videos, in a random order.

    Arguments as for `penstock.transforms.batch_colors.ColorJitter`; saturation [0, 0] makes grey.
    """

    def __call__(self, sample: Sample) -> Sample:  # type: ignore[override]
        draws = torch.rand(len(self.ranges), dtype=torch.float64)
        low, high = torch.tensor(self.ranges, dtype=torch.float64).T
        factors, order = low + (high - low) * draws, torch.randperm(len(self.ranges))
        chosen, changed = torch.rand(1) < self.p, dict(sample)
        for name, value in sample.items():
            if isinstance(value, (tv_tensors.Image, tv_tensors.Video)):
                plain = value.as_subclass(torch.Tensor)
                # All frames of a video have the same factors in the same order.
                images = plain.reshape(-1, *plain.shape[-3:])
                made = self.changed(
                    images,
                    factors.expand(len(images), -1),
                    order.expand(len(images), -1),
                    chosen.expand(len(images)),
                )
                changed[name] = tv_tensors.wrap(made.reshape(plain.shape), like=value)
        return changed
