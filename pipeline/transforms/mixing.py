"""Batch transforms that mix samples with a partner: MixUp and CutMix, with soft labels.

Rows 2k and 2k + 1 of the global batch are partners, and always on one rank (`together`). A row
without a partner, or with padding as its partner, stays as it is. Both rows of a pair are mixed
from the pictures before mixing. The field `label` stays the class of the row's own picture;
`label_soft`, float32[B, classes], is the target of the loss, with rows that add up to 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.errors import DataError
from penstock.files.limits import Fraction, PositiveFloat
from penstock.loading.batch import Batch
from penstock.order.keys import KeyedRandom
from penstock.transforms.batch import by_row, images_of

SOFT = "_soft"  # ends the name of the field of soft labels


def partners(batch: Batch) -> Tensor:
    """The row that each row of a batch is mixed with, int64[B]; itself if it has none."""
    places = np.asarray(batch.places).tolist()
    # By places in the global batch, so that every way to share it out gives the same pairs.
    row_of = {place: row for row, place in enumerate(places)}
    chosen = torch.tensor([row_of.get(place ^ 1, row) for row, place in enumerate(places)])
    if batch.valid is None:
        return chosen
    return torch.where(batch.valid[chosen] & batch.valid, chosen, torch.arange(len(places)))


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
        self, num_classes: int, alpha: PositiveFloat = 1.0, p: Fraction = 1.0, target: str = "label"
    ) -> None:
        self.num_classes, self.alpha, self.p, self.target = num_classes, alpha, p, target

    def __call__(self, batch: Batch, random: KeyedRandom) -> Batch:
        name, label = type(self).__name__, batch.get(self.target)
        if kinds := set(batch.kinds.values()) - {"image"}:
            raise DataError(
                f"{name} mixes pictures of classes, and cannot mix {', '.join(sorted(kinds))}"
            )
        if not isinstance(label, Tensor) or label.ndim != 1 or label.is_floating_point():
            raise DataError(
                f"{name} mixes classes, and the field {self.target!r} of the batch is "
                "not int64[B]; name the field of the classes as `target`"
            )
        other = partners(batch)
        share = random.beta(self.alpha, self.alpha)
        mixed = random.bernoulli(self.p) & (other != torch.arange(len(other)))
        kept = share = torch.where(mixed, share, 1.0)
        for field, pixels in images_of(batch, self).items():
            others = pixels[other.to(pixels.device)]
            # A child has the same numbers each time, so all fields are cut at the same place.
            batch[field], kept = self.mix(pixels, others, share, random.child("place"))
        # Of a step before this one: mixup and cutmix may follow each other.
        soft = batch.get(self.target + SOFT)
        soft = F.one_hot(label, self.num_classes).float() if soft is None else soft
        kept = by_row(kept, soft)
        batch[self.target + SOFT] = soft * kept + soft[other.to(soft.device)] * (1 - kept)
        return batch

    @abstractmethod
    def mix(
        self, images: Tensor, others: Tensor, share: Tensor, random: KeyedRandom
    ) -> tuple[Tensor, Tensor]:
        """Mixed pictures, and the share of its own picture that each row has kept.

        Args:
            images, others: the pictures and their partners, [B, C, H, W].
            share: float64[B], how much of its own picture a row should keep.
        """


class MixUp(Mix):
    """A weighted mean of each picture and its partner's (Zhang et al.: "mixup", 2018)."""

    def mix(
        self, images: Tensor, others: Tensor, share: Tensor, random: KeyedRandom
    ) -> tuple[Tensor, Tensor]:
        kept = by_row(share, images)
        mixed = images * kept + others * (1 - kept)
        return (mixed if images.is_floating_point() else mixed.round_()).to(images.dtype), share


class CutMix(Mix):
    """Put a rectangle of its partner's picture into each picture (Yun et al.: "CutMix", 2019)."""

    def mix(
        self, images: Tensor, others: Tensor, share: Tensor, random: KeyedRandom
    ) -> tuple[Tensor, Tensor]:
        canvas = torch.tensor(images.shape[-2:])
        # By the root of the share that is covered, as both sides shrink.
        sides = ((1 - share).sqrt()[:, None] * canvas).long()
        centre = (random.uniform(size=(2,)) * canvas).long()
        low = (centre - sides // 2).clamp(min=0)
        high = torch.minimum(centre - sides // 2 + sides, canvas)
        down, across = (
            (place >= low[:, axis, None]) & (place < high[:, axis, None])
            for axis, place in enumerate(map(torch.arange, canvas.tolist()))
        )
        covered = (down[:, :, None] & across[:, None])[:, None].to(images.device)
        # The rectangle may be cut off by the border, so what was kept is counted.
        kept = 1 - (high - low).prod(1).double() / canvas.prod()
        return torch.where(covered, others, images), kept
