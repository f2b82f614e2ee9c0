"""Networks that classify pixels: torchvision's by name, and a small U-Net."""

from __future__ import annotations

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
    """A U-Net of three levels (Ronneberger et al. 2015): image [B, 3, H, W] -> logits [B, C, H, W].

    Args:
        num_outputs: the number of classes, the background included; a fact of the dataset.
        width: channels of the first level; each below has twice as many.
    """

    def __init__(self, num_outputs: int, width: int = 16) -> None:
        super().__init__()
        self.first = _twice(3, width)
        self.second = _twice(width, 2 * width)
        self.third = _twice(2 * width, 4 * width)
        self.middle = _twice(6 * width, 2 * width)
        self.last = _twice(3 * width, width)
        self.out = nn.Conv2d(width, num_outputs, 1)

    def forward(self, image: Tensor) -> Tensor:
        first = self.first(image)
        second = self.second(F.max_pool2d(first, 2, ceil_mode=True))
        third = self.third(F.max_pool2d(second, 2, ceil_mode=True))
        up = F.interpolate(third, size=second.shape[-2:], mode="nearest")
        middle = self.middle(torch.cat([up, second], 1))
        up = F.interpolate(middle, size=first.shape[-2:], mode="nearest")
        logits: Tensor = self.out(self.last(torch.cat([up, first], 1)))
        return logits


def _twice(channels: int, out: int) -> nn.Sequential:
    """Two convolutions, each with batch norm."""
    layers: list[nn.Module] = []
    for width in (channels, out):
        layers += [nn.Conv2d(width, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
    return nn.Sequential(*layers)
