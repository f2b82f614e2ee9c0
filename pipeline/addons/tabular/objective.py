"""Numbers to predict on scales of their own, as the columns of a table have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from penstock.errors import ConfigError, Problem
from penstock.loading.batch import Batch
from penstock.training.objective import Loss, Regression

if TYPE_CHECKING:
    from torchmetrics import Metric


class TableRegression(Regression):
    """Numbers of a table: the model gives them less their mean, by their deviation.

    The loss compares on that scale, so that no target outweighs another and learning rates stay
    what they are; metrics compare on the table's own. Both numbers are those of the training rows.

    Args:
        loss, metrics, inputs, target: as in `Supervised`.
        target_mean, target_scale: of each target; facts of `dataset=table`.
    """

    def __init__(
        self,
        loss: Loss,
        metrics: Mapping[str, Metric],
        inputs: Sequence[str],
        target: str,
        target_mean: Sequence[float] = (),
        target_scale: Sequence[float] = (),
    ) -> None:
        super().__init__(loss, metrics, inputs, target)
        if not target_mean:
            reason = (
                "the target of this dataset is no number: take objective=classification for a "
                "class, or say that it is one by dataset.kind=number"
            )
            raise ConfigError(Problem("objective", reason))
        self._mean, self._scale = torch.tensor(target_mean), torch.tensor(target_scale)

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The outputs on the scale of the targets, in their shape."""
        return self._unscaled(outputs).reshape(self.targets(batch).shape)

    def rows(self, outputs: Tensor, batch: Batch) -> Sequence[Mapping[str, Any]]:
        """`predicted`: the number or the numbers, as the table would have them."""
        return super().rows(self._unscaled(outputs), batch)

    def _unscaled(self, outputs: Tensor) -> Tensor:
        outputs = outputs.reshape(len(outputs), -1)
        return outputs * self._scale.to(outputs) + self._mean.to(outputs)

    def _statistics(self, batch: Batch) -> Tensor:
        target = super()._statistics(batch)
        return (target - self._mean.to(target)) / self._scale.to(target)
