"""Networks that classify pixels: torchvision's by name, and a small U-Net."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from penstock.errors import ConfigError, Problem


class TorchvisionSegmenter(nn.Module):
    """A network of torchvision's with random weights, or its backbone's own: logits [B, C, H, W].

    Args:
        num_outputs: the number of classes, the background included; a fact of the dataset.
        name: of `torchvision.models.segmentation`, such as lraspp_mobilenet_v3_large.
        weights_backbone: null, or the name of weights, which are downloaded.

    Raises:
        ConfigError: there is no such network.
    """

    def __init__(
        self,
        num_outputs: int,
        name: str = "lraspp_mobilenet_v3_large",
        weights_backbone: str | None = None,
    ) -> None:
        super().__init__()
        from torchvision import models

        known = models.list_models(module=models.segmentation)
        if name not in known:
            reason = f"{name!r} is none of torchvision's; allowed: {', '.join(known)}"
            raise ConfigError(Problem("model.name", reason))
        self.segmenter = models.get_model(
            name, weights=None, weights_backbone=weights_backbone, num_classes=num_outputs
        )

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.segmenter(image)["out"]
        return logits


class SmallUNet(nn.Module):
    """A U-Net of four levels (Ronneberger et al. 2015): image [B, 3, H, W] -> logits [B, C, H, W].

    A pixel sees about 45 pixels to each side, so what it says of a larger thing it says by a part.

    Args:
        num_outputs: the number of classes, the background included; a fact of the dataset.
        width: channels of the first level; the second has twice, the others four times as many.
    """

    def __init__(self, num_outputs: int, width: int = 16) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 4 * width]
        pairs = pairwise([3, *widths])
        self.down = nn.ModuleList(_twice(channels, out) for channels, out in pairs)
        self.up = nn.ModuleList(_twice(deep + out, out) for out, deep in pairwise(widths))
        self.out = nn.Conv2d(width, num_outputs, 1)

    def forward(self, image: Tensor) -> Tensor:
        levels: list[Tensor] = []
        for step in self.down:
            halved = F.max_pool2d(levels[-1], 2, ceil_mode=True) if levels else image
            levels.append(step(halved))
        made = levels.pop()
        for step in reversed(self.up):
            level = levels.pop()
            larger = F.interpolate(made, size=level.shape[-2:], mode="nearest")
            made = step(torch.cat([larger, level], 1))
        logits: Tensor = self.out(made)
        return logits


def _twice(channels: int, out: int) -> nn.Sequential:
    """Two convolutions, each with batch norm."""
    layers: list[nn.Module] = []
    for width in (channels, out):
        layers += [nn.Conv2d(width, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
    return nn.Sequential(*layers)
