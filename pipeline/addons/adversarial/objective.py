"""The two losses of a GAN, each with an optimizer of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from penstock.errors import ConfigError, Problem
from penstock.loading.batch import Batch
from penstock.training.rendered import Rendered


class Gan:
    """The discriminator tells real pictures from drawn ones, and learns to recognise the generator
    less.

    A step of each a batch, with hinge losses (Lim and Ye 2017, https://arxiv.org/abs/1705.02894).
    The model has `generator`, `discriminator` and `drawn(count)`, as `PictureGan`; optimizers are
    called so, too.

    Args:
        metrics: by name; each gets drawn pictures and as many real ones.
        inputs: the field of pictures, float[B, 3, H, W] from 0 to 1.
    """

    def __init__(
        self, metrics: Mapping[str, Any] | None = None, inputs: Sequence[str] = ("image",)
    ) -> None:
        self.metrics, self.inputs = metrics or {}, list(inputs)

    def step(self, model: Any, batch: Batch, update: Any) -> dict[str, Tensor]:
        real = self._real(batch)
        drawn = model.drawn(len(real))
        if drawn.shape != real.shape:
            reason = f"draws {list(drawn.shape[1:])}, and pictures are {list(real.shape[1:])}"
            raise ConfigError(
                Problem("model.size", f"{reason}; change transform.train.resize.size")
            )
        told = relu(1 - model.discriminator(real)) + relu(1 + model.discriminator(drawn.detach()))
        update(told, "discriminator")
        fooled = -model.discriminator(drawn)
        update(fooled, "generator")
        return {"discriminator": told, "generator": fooled}

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        """Drawn pictures, as many as there are real ones."""
        drawn: Tensor = model.drawn(len(self._real(batch)))
        return drawn

    def measured(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return outputs, self._real(batch)

    baseline_name = "pixels by themselves"

    def baseline(self, batches: Any) -> nn.Module:
        """Draws each pixel by itself, with its mean and deviation over all pictures."""
        return Pixels(self._real(batch).double().cpu() for batch in batches)

    def shown(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The images that a report shows instead of the batch's."""
        return outputs

    def rendered(self, batch: Batch, outputs: Any = None) -> list[Rendered]:
        return [Rendered()] * len(batch.positions)

    def _real(self, batch: Batch) -> Tensor:
        pictures = batch.get(self.inputs[0])
        if not isinstance(pictures, Tensor) or not pictures.is_floating_point():
            reason = (
                f"{self.inputs[0]!r} has to be a field of pictures from 0 to 1, float "
                "[B, 3, H, W], as transform=pixels makes them"
            )
            raise ConfigError(Problem("objective.inputs", reason))
        return pictures


class Pixels(nn.Module):
    """Pictures of independent pixels.

    Args:
        batches: pictures [B, 3, H, W] whose means and deviations they have; kept one at a time.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, batches: Iterable[Tensor]) -> None:
        super().__init__()
        count, total, squares = 0, torch.zeros(()), torch.zeros(())
        for pictures in batches:
            count += len(pictures)
            total, squares = total + pictures.sum(0), squares + pictures.square().sum(0)
        mean = total / count
        spread = ((squares - count * mean.square()) / max(count - 1, 1)).clamp_min(0).sqrt()
        self.register_buffer("mean", mean.float())
        self.register_buffer("spread", spread.float())

    def drawn(self, count: int) -> Tensor:
        noise = torch.randn(count, *self.mean.shape, device=self.mean.device)
        return (self.mean + noise * self.spread).clamp(0, 1)
