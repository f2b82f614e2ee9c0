"""Small networks that give pictures and texts a place in one space."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn


class ImageEncoder(nn.Module):
    """Four strided convolutions, their mean over the picture, and two layers behind it.

    Channels are normalised in groups, within a sample: statistics of a batch would tell a
    contrastive loss which rows belong together, and would be others for other numbers of ranks.

    Forward: image float[B, 3, H, W], H and W from 16 on -> float[B, num_outputs].

    Args:
        num_outputs: size of the space.
        width: channels of the first convolution, in eights; each following one doubles them.
        where: also tell the last layers in which quarter of the picture things are, and not only
            what there is.
    """

    def __init__(self, num_outputs: int = 64, width: int = 16, where: bool = False) -> None:
        super().__init__()
        widths = [3, width, 2 * width, 4 * width, 8 * width]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers.append(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False))
            layers += [nn.GroupNorm(8, outputs), nn.ReLU(inplace=True)]
        side = 2 if where else 1
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(side), nn.Flatten())
        hidden = widths[-1]
        self.head = nn.Sequential(
            nn.Linear(hidden * side**2, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, num_outputs),
        )

    def forward(self, image: Tensor) -> Tensor:
        rows: Tensor = self.head(self.features(image))
        return rows


class TwoTowers(nn.Module):
    """A network for pictures and one for texts, whose outputs are compared with each other.

    Args:
        image: float[B, 3, H, W] -> float[B, D].
        text: tokens int64[B, T] and lengths int64[B] -> float[B, D].
        temperature: that likenesses are divided by at first; it is learned, from 0.01 on.

    Attributes:
        scale: float32[], the logarithm of what likenesses are multiplied with.
    """

    LARGEST = 100.0  # of the factor, as CLIP has it

    def __init__(self, image: nn.Module, text: nn.Module, temperature: float = 0.1) -> None:
        super().__init__()
        self.image, self.text = image, text
        self.scale = nn.Parameter(torch.tensor(-math.log(temperature)))

    def forward(self, image: Tensor, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The places of pictures and texts, float[B, D] each."""
        return self.image(image), self.text(tokens, lengths)

    def factor(self) -> Tensor:
        """The factor of likenesses."""
        return self.scale.exp().clamp(max=self.LARGEST)
