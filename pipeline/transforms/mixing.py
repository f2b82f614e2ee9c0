"""Samples mixed with a partner: MixUp and CutMix, with soft labels.

Who is mixed with whom is part of the address and not of who computes it: rows 2k and 2k + 1 of the
global batch are partners, and batches are shared out in pairs (`together`), so that both are always
on the same rank. In a random order neighbours are a random pair. A row without a partner, as the
last of an odd batch, stays as it is; so does one whose partner is padding, since padding depends on
how a batch is shared out.

Each row draws its own share from its own key. Both of a pair are mixed from what both were before.

    field `label`         int64[B], stays: the class of the picture that the row began as
    field `label_soft`    float32[B, classes], the target of the loss; rows add up to 1

Zhang et al.: "mixup: Beyond empirical risk minimization", 2018; Yun et al.: "CutMix", 2019.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import ConfigError, DataError, Problem
from pipeline.loading.batch import Batch
from pipeline.order.sample_generators import KeyedRandom
from pipeline.transforms.batch import blocks, by_row, images_of, probability
from pipeline.transforms.batch_colors import paste

SOFT = "_soft"  # ends the name of the field of soft labels


def partners(batch: Batch) -> Tensor:
    """The row that each row of a batch is mixed with, int64[B]; itself if it has none."""
    places = np.asarray(batch.places)
    row_of = {int(place): row for row, place in enumerate(places)}
    found = np.array([row_of.get(int(place) ^ 1, row) for row, place in enumerate(places)])
    chosen = torch.from_numpy(found.astype(np.int64))
    if batch.valid is None:
        return chosen
    rows = torch.arange(len(places))
    return torch.where(batch.valid[chosen] & batch.valid, chosen, rows)


class Mix(ABC):
    """Mix each picture with its partner's, and their labels by the same shares.

    Args:
        num_classes: a fact of the dataset.
        alpha: both shapes of the beta distribution that the share is drawn from; 1 is uniform, less
            leaves one of the two nearly alone.
        p: probability that a row is mixed at all.
        target: the field of classes, int64[B].
    """

    together = 2

    def __init__(
        self, num_classes: int, alpha: float = 1.0, p: float = 1.0, target: str = "label"
    ) -> None:
        if alpha <= 0:
            raise ConfigError(Problem("alpha", f"got {alpha}, expected a number above 0"))
        self.num_classes = num_classes
        self.alpha = float(alpha)
        self.p = probability(p, "p")
        self.target = target

    def __call__(self, batch: Batch, random: KeyedRandom) -> Batch:
        images = images_of(batch, self)
        self._refuse_places(batch)
        other = partners(batch)
        share = random.beta(self.alpha, self.alpha)
        mixed = random.bernoulli(self.p) & (other != torch.arange(len(other)))
        share = torch.where(mixed, share, 1.0)
        kept = share
        for name, pixels in images.items():
            batch[name], kept = self.mix(pixels, other, share, random.child("place"))
        batch[self.target + SOFT] = self._soft(batch, other, kept)
        return batch

    @abstractmethod
    def mix(
        self, images: Tensor, other: Tensor, share: Tensor, random: KeyedRandom
    ) -> tuple[Tensor, Tensor]:
        """Mixed pictures, and the share of each row's own picture that came of it.

        Args:
            images: [B, C, H, W].
            other: int64[B], the partners' rows.
            share: float64[B], how much of its own picture a row should keep.
        """

    def _soft(self, batch: Batch, other: Tensor, share: Tensor) -> Tensor:
        soft = batch.get(self.target + SOFT)
        if soft is None:
            soft = self._hard(batch)
        kept = by_row(share, soft)
        return soft * kept + soft[other.to(soft.device)] * (1 - kept)

    def _hard(self, batch: Batch) -> Tensor:
        name, label = type(self).__name__, batch.get(self.target)
        if not isinstance(label, Tensor) or label.ndim != 1 or label.is_floating_point():
            raise DataError(f"{name} mixes classes, and the field {self.target!r} of the batch is "
                            "not int64[B]; name the field of the classes as `target`")  # fmt: skip
        return F.one_hot(label, self.num_classes).to(torch.float32)

    def _refuse_places(self, batch: Batch) -> None:
        for field, kind in batch.kinds.items():
            if kind != "image":
                raise DataError(f"{type(self).__name__} mixes pictures of classes; there is no "
                                f"mixture of {kind} (field {field!r})")  # fmt: skip


class MixUp(Mix):
    """Add each picture to its partner's, by shares that add up to 1."""

    def mix(
        self, images: Tensor, other: Tensor, share: Tensor, random: KeyedRandom
    ) -> tuple[Tensor, Tensor]:
        out = torch.empty_like(images)
        others = other.to(images.device)
        for rows in blocks(images):
            kept = by_row(share[rows], images)
            mixed = images[rows] * kept + images[others[rows]] * (1 - kept)
            out[rows] = mixed if images.is_floating_point() else mixed.round_()
        return out, share


class CutMix(Mix):
    """Put a rectangle of its partner's picture into each picture."""

    def mix(
        self, images: Tensor, other: Tensor, share: Tensor, random: KeyedRandom
    ) -> tuple[Tensor, Tensor]:
        canvas = torch.tensor(images.shape[-2:])
        sides = ((1 - share).sqrt()[:, None] * canvas).long()
        centre = (random.uniform(size=(2,)) * canvas).long()
        corner = (centre - sides // 2).clamp(min=0)
        sides = torch.minimum(centre - sides // 2 + sides, canvas) - corner
        mixed = paste(images, images, corner, sides, other)
        return mixed, 1 - sides.prod(1).double() / canvas.prod()
