"""A generator that draws images, and a discriminator that separates them from real ones.

    export PYTHONPATH=docs/examples/gan
    python run.py --trust gan --config-dir docs/examples/gan/conf experiment=gan

Yours: add `dataset=image_folder dataset.root=FOLDER`, or any other dataset of images.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, relu
from torchmetrics import Metric


class PictureGan(nn.Module):
    """Strided convolutions, as DCGAN has them.

    `generator`: noise float[B, noise] -> images float[B, 3, size, size], 0 to 1.
    `discriminator`: such images -> float[B], the larger, the more like a real one. Each of its
    convolutions is divided by its largest singular value (Miyato et al. 2018,
    https://arxiv.org/abs/1802.05957), so it is never so sure that the generator learns nothing.

    Args:
        size: of images, a power of two from 16 on.
        noise: numbers that an image is drawn from.
        width: channels of the largest maps.
    """

    def __init__(self, size: int = 32, noise: int = 64, width: int = 32) -> None:
        super().__init__()
        if size < 16 or size & (size - 1):
            raise ValueError(f"size is {size}; allowed: 16, 32, 64 ...")
        self.noise = noise
        widths = [width * 2**step for step in range(size.bit_length() - 3)]  # down to 4 x 4
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

    def drawn(self, count: int) -> Tensor:
        """Images drawn from torch's generator, which the run seeds for each batch."""
        noise = torch.randn(count, self.noise, device=next(self.parameters()).device)
        images: Tensor = self.generator(noise)
        return images


class Gan:
    """A step of each network a batch, with hinge losses (Lim and Ye 2017, arXiv:1705.02894).

    Args:
        metrics: by name; each gets drawn images and as many real ones.
    """

    def __init__(self, metrics: dict[str, Metric] | None = None) -> None:
        self.metrics = metrics or {}

    def step(self, model: Any, batch: Any, update: Callable[..., None]) -> dict[str, Tensor]:
        real = batch["image"]
        drawn = model.drawn(len(real))
        told = relu(1 - model.discriminator(real)) + relu(1 + model.discriminator(drawn.detach()))
        update(told, "discriminator")
        fooled = -model.discriminator(drawn)
        update(fooled, "generator")
        return {"discriminator": told, "generator": fooled}

    def outputs(self, model: Any, batch: Any) -> Tensor:
        drawn: Tensor = model.drawn(len(batch["image"]))
        return drawn

    def measured(self, outputs: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
        return outputs, batch["image"]


class FrechetDistance(Metric):
    """The Frechet distance between drawn and real images, reduced to `side` x `side` pixels.

    The formula of FID without its network: it sees colours, places and large shapes, and no
    texture. A share of the variance of the real images: 0 for equal distributions, 1 for grey
    images. It depends on the number of images, so compare runs by equally many.
    """

    higher_is_better = False
    full_state_update = False
    count: Tensor
    sums: Tensor
    products: Tensor

    def __init__(self, side: int = 8) -> None:
        super().__init__()
        self.side, size = side, 3 * side**2
        for name, shape in (("count", (2, 1)), ("sums", (2, size)), ("products", (2, size, size))):
            zeros = torch.zeros(shape, dtype=torch.float64)
            self.add_state(name, zeros, dist_reduce_fx="sum")

    def update(self, drawn: Tensor, real: Tensor) -> None:
        for place, images in enumerate((drawn, real)):
            rows = adaptive_avg_pool2d(images.detach().float(), self.side).flatten(1).double()
            self.count[place] += len(rows)
            self.sums[place] += rows.sum(0)
            self.products[place] += rows.T @ rows

    def compute(self) -> Tensor:
        means = self.sums / self.count
        outer = means[:, :, None] * means[:, None, :]
        spread = self.products / self.count[..., None] - outer
        spread *= (self.count / (self.count - 1))[..., None]
        mixed = torch.linalg.eigvals(spread[0] @ spread[1]).real.clamp_min(0).sqrt().sum()
        traces = spread.diagonal(dim1=1, dim2=2).sum(1)
        distance: Tensor = (means[0] - means[1]).square().sum() + traces.sum() - 2 * mixed
        return distance / traces[1]
