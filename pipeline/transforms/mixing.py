"""Batch transforms that mix samples with a partner: MixUp and CutMix, with soft labels.

Rows 2k and 2k + 1 of the global batch are partners, and always on one rank (`together`). A row
without a partner, or with padding as its partner, stays as it is. Both of a pair are mixed from
their values before. The field `label` stays the class of the row's own picture; `label_soft`,
float32[B, classes], is the target of the loss, with rows that add up to 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.errors import ConfigError, DataError, Problem
from penstock.loading.batch import Batch
from penstock.order.keys import KeyedRandom
from penstock.transforms.batch import blocks, by_row, images_of, probability
from penstock.transforms.batch_colors import paste

SOFT = "_soft"  # ends the name of the field of soft labels


def partners(batch: Batch) -> Tensor:
    """The row that each row of a batch is mixed with, int64[B]; itself if it has none."""
    places = np.asarray(batch.places)
    row_of = {int(position): row for row, position in enumerate(places)}
    pairs = [row_of.get(int(position) ^ 1, row) for row, position in enumerate(places)]
    chosen = torch.from_numpy(np.array(pairs, dtype=np.int64))
    if batch.valid is None:
        return chosen
    rows = torch.arange(len(places))
    return torch.where(batch.valid[chosen] & batch.valid, chosen, rows)


class Mix(ABC):
    """Mix each picture with its partner's, and their labels by the same shares.

    Args:
        num_classes: a fact of the dataset.
        alpha: both shapes of the beta distribution of the share; 1 is uniform, with less one of the
            two dominates.
        p: probability that a row is mixed.
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
        for field, kind in batch.kinds.items():
            if kind != "image":
                raise DataError(
                    f"{type(self).__name__} mixes pictures of classes, and cannot mix "
                    f"{kind} (field {field!r})"
                )
        other = partners(batch)
        share = random.beta(self.alpha, self.alpha)
        mixed = random.bernoulli(self.p) & (other != torch.arange(len(other)))
        share = torch.where(mixed, share, 1.0)
        kept = share
        for name, pixels in images.items():
            batch[name], kept = self.mix(pixels, other, share, random.child("place"))
        soft = batch.get(self.target + SOFT)
        if soft is None:
            soft = self._hard(batch)
        kept = by_row(kept, soft)
        batch[self.target + SOFT] = soft * kept + soft[other.to(soft.device)] * (1 - kept)
        return batch

    @abstractmethod
    def mix(
        self, images: Tensor, other: Tensor, share: Tensor, random: KeyedRandom
    ) -> tuple[Tensor, Tensor]:
        """Mixed pictures, and the share of its own picture that each row has kept.

        Args:
            images: [B, C, H, W].
            other: int64[B], the partners' rows.
            share: float64[B], how much of its own picture a row should keep.
        """

    def _hard(self, batch: Batch) -> Tensor:
        name, label = type(self).__name__, batch.get(self.target)
        if not isinstance(label, Tensor) or label.ndim != 1 or label.is_floating_point():
            raise DataError(
                f"{name} mixes classes, and the field {self.target!r} of the batch is "
                "not int64[B]; name the field of the classes as `target`"
            )
        # As int64, and then as float32.
        return F.one_hot(label, self.num_classes).to(torch.float32)


class MixUp(Mix):
    """A weighted mean of each picture and its partner's (Zhang et al.: "mixup", 2018)."""

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
    """Put a rectangle of its partner's picture into each picture (Yun et al.: "CutMix", 2019)."""

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
