"""Several labels a sample: each of C classes is there or not, whatever the others are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from penstock.errors import ConfigError, DataError, Problem
from penstock.loading.batch import Batch
from penstock.training.objective import Loss, Supervised
from penstock.training.objective_base import in_shape, valid
from penstock.training.rendered import Rendered

if TYPE_CHECKING:
    from torchmetrics import Metric

THRESHOLD = 0.5
_RARE = 1e-4  # the least probability that the baseline gives; a label may never occur


class MultiLabel(Supervised):
    """The model gives logits [B, C]; targets are 0 and 1, or shares between, [B, C].

    Metrics get probabilities float32[n, C], and targets int64[n, C].

    Args:
        loss: as for `Supervised`; one that gives [B, C] counts with its mean over the classes.
        classes: their names, for metrics that have a value a class.
        num_classes: how many there are; a fact of the dataset.
    """

    baseline_name = "label frequencies"

    def __init__(
        self,
        loss: Loss,
        metrics: Mapping[str, Metric],
        inputs: Sequence[str],
        target: str,
        num_classes: int,
        classes: Sequence[str] | None = None,
    ) -> None:
        super().__init__(loss, metrics, inputs, target)
        self.num_classes = num_classes
        self.names = list(classes) if classes else [str(number) for number in range(num_classes)]

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Probabilities: torchmetrics would take logits that all lie in [0, 1] for some."""
        return outputs.sigmoid()

    def targets(self, batch: Batch) -> Tensor:
        """Which labels each sample has, int64[B, C]; of shares, those from one half on."""
        return (self._shares(batch) >= THRESHOLD).long()

    def rows(self, outputs: Tensor, batch: Batch) -> Sequence[Mapping[str, Any]]:
        """`predicted`: the labels that are likelier than not, and `score/NAME` of each."""
        return [
            {"predicted": self._words(row >= THRESHOLD)}
            | {f"score/{name}": score for name, score in zip(self.names, row.tolist(), strict=True)}
            for row in valid(outputs, batch).sigmoid()
        ]

    def rendered(self, batch: Batch, outputs: Tensor | None = None) -> list[Rendered]:
        """The labels that a sample has, and those that are likelier than not."""
        truth = [self._words(row) for row in self.targets(batch)]
        if outputs is None:
            return [Rendered(words) for words in truth]
        guesses = map(self._words, self.predictions(outputs, batch) >= THRESHOLD)
        return [Rendered(*row) for row in zip(truth, guesses, strict=True)]

    def _words(self, row: Tensor) -> str:
        names = [name for name, there in zip(self.names, row.tolist(), strict=True) if there]
        return ", ".join(names) or "none"

    def _losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        target = self._shares(batch)
        if target.device.type == "cpu":  # on a GPU the look would wait for it in every step
            self._check_range(target)
        self._check_count(outputs, target)
        if outputs.shape != target.shape:
            reason = (
                f"gives {list(outputs.shape[1:])} a sample; {self.num_classes} labels need as many "
                "logits"
            )
            raise ConfigError(Problem("model", reason))
        losses = self.loss(outputs, target)
        return losses.mean(1) if losses.ndim == 2 else losses

    def _statistics(self, batch: Batch) -> Tensor:
        target = self._shares(batch)
        self._check_range(target)
        return target

    def _shares(self, batch: Batch) -> Tensor:
        """The target as float32[B, C]; raises ConfigError if it has another shape."""
        target = self._field(batch, self.target)
        if target.shape[1:] != (self.num_classes,):
            reason = (
                f"{self.target!r} is {in_shape(target)}; several labels are 0 or 1 for each of "
                f"{self.num_classes} classes. Of dataset=image_table set dataset.labels; one class "
                "a sample is objective=classification"
            )
            raise ConfigError(Problem("objective.target", reason))
        return target.float()

    def _check_range(self, target: Tensor) -> None:
        if not bool(((target >= 0) & (target <= 1)).all()):
            raise DataError(
                f"{self.target!r} has values outside of 0 to 1; a label is there or not"
            )

    def _from_mean(self, mean: Tensor) -> Tensor:
        return torch.logit(mean.clamp(_RARE, 1 - _RARE))

    def _labels(self, count: int) -> Sequence[object]:
        return self.names if len(self.names) == count else range(count)
