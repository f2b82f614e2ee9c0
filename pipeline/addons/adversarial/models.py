"""A generator and a discriminator of small pictures."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from penstock.errors import ConfigError, Problem


class PictureGan(nn.Module):
    """Two networks of strided convolutions, as DCGAN has them.

    `generator`: noise float[B, noise] -> pictures float[B, 3, size, size], 0 to 1.
    `discriminator`: such pictures -> float[B], the larger, the more like a real one.

    Each convolution of the discriminator is divided by its largest singular value (Miyato et al.
    2018, https://arxiv.org/abs/1802.05957), so it never is so sure that the generator learns
    nothing. The generator's weights are normalised by batch, of each rank's share.

    Args:
        size: of pictures, a power of two from 16 on.
        noise: numbers that a picture is drawn from.
        width: channels of the largest maps.
    """

    def __init__(self, size: int = 32, noise: int = 64, width: int = 32) -> None:
        super().__init__()
        if size < 16 or size & (size - 1):
            raise ConfigError(Problem("model.size", f"{size}; allowed: 16, 32, 64 ..."))
        self.noise = noise
        halvings = size.bit_length() - 3  # down to 4 x 4
        widths = [width * 2**step for step in range(halvings)]
        up: list[nn.Module] = [nn.Linear(noise, widths[-1] * 16), nn.Unflatten(1, (-1, 4, 4))]
        for inputs, outputs in zip(widths[::-1], [*widths[-2::-1], 3], strict=True):
            up += [nn.BatchNorm2d(inputs), nn.ReLU()]
            up.append(nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1))
        self.generator = nn.Sequential(*up, nn.Sigmoid())
        down: list[nn.Module] = []
        for inputs, outputs in zip([3, *widths[:-1]], widths, strict=True):
            layer = nn.Conv2d(inputs, outputs, 4, stride=2, padding=1)
            down += [nn.utils.parametrizations.spectral_norm(layer), nn.LeakyReLU(0.2)]
        down += [nn.Flatten(), nn.Linear(widths[-1] * 16, 1), nn.Flatten(0)]
        self.discriminator = nn.Sequential(*down)

    def forward(self, noise: Tensor) -> Tensor:
        """Draw pictures."""
        pictures: Tensor = self.generator(noise)
        return pictures

    def drawn(self, count: int) -> Tensor:
        """Pictures drawn from torch's generator."""
        device = next(self.parameters()).device
        pictures: Tensor = self(torch.randn(count, self.noise, device=device))
        return pictures
