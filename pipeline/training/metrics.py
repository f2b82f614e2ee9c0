"""Metrics that torchmetrics lacks. Importing this imports torchmetrics (1 to 2 s)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchmetrics import Metric

EYE_CORNERS = (36, 45)  # outer ones, of the 68 iBUG landmarks


def _add_sums(metric: Metric, **kinds: torch.dtype) -> None:
    """Give a metric sums over all ranks, of the named dtypes."""
    for name, kind in kinds.items():
        metric.add_state(name, torch.tensor(0, dtype=kind), dist_reduce_fx="sum")


class NormalizedMeanError(Metric):
    """Mean distance between predicted and true landmarks, as a share of the face's size.

    The size is the distance of the outer eye corners ("inter-ocular", as in 300-W) for 68
    landmarks, and the diagonal of the true landmarks' box otherwise.

    True landmarks that are NaN (not annotated) are left out, and so are faces whose size is zero
    or unknown, which `skipped` counts. A NaN prediction makes the result NaN, and so does a split
    without faces. Sums are float64, so no shown digit depends on the batch size.

    """

    higher_is_better = False
    full_state_update = False
    total: Tensor
    faces: Tensor
    skipped: Tensor

    def __init__(self) -> None:
        super().__init__()
        _add_sums(self, total=torch.float64, faces=torch.int64, skipped=torch.int64)

    def update(self, predicted: Tensor, target: Tensor) -> None:
        """Add faces: two float[B, L, 2] of the same unit, e.g. pixels."""
        if predicted.shape != target.shape or target.ndim != 3 or target.shape[-1] != 2:
            raise ValueError(
                f"expected two tensors [B, L, 2], got {list(predicted.shape)} and "
                f"{list(target.shape)}"
            )
        target = target.double()
        annotated = ~target.isnan().any(-1)
        distance = (predicted.double() - target).norm(dim=-1)
        # `where`, as NaN times 0 is NaN.
        error = distance.where(annotated, 0.0).sum(-1) / annotated.sum(-1)
        if target.shape[1] == 68:
            extent = target[:, EYE_CORNERS[0]] - target[:, EYE_CORNERS[1]]
        else:
            missing = target.isnan()
            high = target.masked_fill(missing, -torch.inf).amax(1)
            extent = high - target.masked_fill(missing, torch.inf).amin(1)
        size = extent.norm(dim=-1)
        # A face of size 0 has an infinite error, which no mean forgets.
        counts = (size > 0) & size.isfinite() & annotated.any(-1)
        self.total += (error / size).where(counts, 0.0).sum()
        self.faces += counts.sum()
        self.skipped += (~counts).sum()

    def compute(self) -> Tensor:
        """The mean over all faces, a float64 scalar."""
        return self.total / self.faces


class BitsPerByte(Metric):
    """Bits that a language model needs for a byte of text, over all tokens that it predicts.

    It compares models with any vocabularies, and with programs that compress. NaN without a byte.
    """

    higher_is_better = False
    full_state_update = False
    nats: Tensor
    bytes: Tensor

    def __init__(self) -> None:
        super().__init__()
        _add_sums(self, nats=torch.float64, bytes=torch.int64)

    def update(self, predicted: Tensor, target: Tensor) -> None:
        """Add tokens: the loss of each in nats, float[n], and its bytes, int64[n]."""
        self.nats += predicted.double().sum()
        self.bytes += target.sum()

    def compute(self) -> Tensor:
        """A float64 scalar."""
        return self.nats / self.bytes / math.log(2)
