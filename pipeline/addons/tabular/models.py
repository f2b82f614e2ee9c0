"""Models of the rows of a table; `num_numbers` and `cardinalities` are facts of `dataset=table`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from penstock.addons.tabular.table import FIRST
from penstock.loading.batch import Batch
from penstock.training.objective import Loss, Regression

if TYPE_CHECKING:
    from torchmetrics import Metric


class TableMlp(nn.Module):
    """Categories become vectors that are learnt, and go with the numbers through linear layers.

    Forward: numbers float[B, num_numbers], categories int64[B, C] -> float[B, num_outputs].
    Cost at width 16 and two layers of 128, for 10 numbers and 5 categories: 30,000 weights, 0.1 ms
    a batch of 256 forwards and backwards a core.

    Args:
        num_numbers: columns of numbers.
        cardinalities: how many indices each column of categories has.
        num_outputs: classes, or numbers to predict.
        width: of a category's vector; a column of few categories has a smaller one.
        hidden: sizes of the layers.
        dropout: after each of them.
    """

    def __init__(
        self,
        num_outputs: int,
        num_numbers: int,
        cardinalities: Sequence[int],
        width: int = 16,
        hidden: Sequence[int] = (128, 128),
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        # Half of the categories are enough to tell them apart, and fewer weights learn faster.
        widths = [min(width, (count + 1) // 2) for count in cardinalities]
        self.embeddings = nn.ModuleList(
            # So that a vector has about the length of one scaled number.
            _embedding(count, size, size**-0.5)
            for count, size in zip(cardinalities, widths, strict=True)
        )
        layers, sizes = list[nn.Module](), [num_numbers + sum(widths), *hidden]
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], num_outputs))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        vectors = [
            embedding(categories[:, column]) for column, embedding in enumerate(self.embeddings)
        ]
        outputs: Tensor = self.layers(torch.cat([numbers, *vectors], 1))
        return outputs


class TableLinear(nn.Module):
    """A weight for each number and each category: logistic or linear regression.

    Forward: numbers float[B, num_numbers], categories int64[B, C] -> float[B, num_outputs].

    Args:
        num_outputs, num_numbers, cardinalities: as in `TableMlp`.
    """

    def __init__(self, num_outputs: int, num_numbers: int, cardinalities: Sequence[int]) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(num_outputs))
        self.weight = nn.Parameter(torch.zeros(num_outputs, num_numbers))
        self.embeddings = nn.ModuleList(
            # From zero, as regression starts: the first forecast is the mean, or all classes alike.
            _embedding(count, num_outputs, 0.0)
            for count in cardinalities
        )

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        outputs = nn.functional.linear(numbers, self.weight, self.bias)
        for column, embedding in enumerate(self.embeddings):
            outputs = outputs + embedding(categories[:, column])
        return outputs


def _embedding(count: int, width: int, deviation: float) -> nn.Embedding:
    """Vectors of categories; those of a missing and of an unknown one start from 0, where an
    unknown one stays."""
    made = nn.Embedding(count, width)
    nn.init.normal_(made.weight, std=deviation)
    with torch.no_grad():
        # Training rows hold no unknown category, so its row gets no gradient: noise there would
        # stay.
        made.weight[:FIRST] = 0.0
    return made


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
        target_mean: Sequence[float],
        target_scale: Sequence[float],
    ) -> None:
        super().__init__(loss, metrics, inputs, target)
        # No buffers: they are facts of the data, and stand in the manifest and not in checkpoints.
        self._mean, self._scale = torch.tensor(target_mean), torch.tensor(target_scale)

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The outputs on the scale of the targets, in their shape."""
        return self._unscaled(outputs).reshape(self.targets(batch).shape)

    def rows(self, outputs: Tensor, batch: Batch) -> Tensor:
        """`predicted`: the number or the numbers, as the table would have them."""
        return self._unscaled(outputs)

    def _unscaled(self, outputs: Tensor) -> Tensor:
        outputs = outputs.reshape(len(outputs), -1)
        return outputs * self._scale.to(outputs) + self._mean.to(outputs)

    def goals(self, batch: Batch) -> Tensor:
        target = super().goals(batch)
        return (target - self._mean.to(target)) / self._scale.to(target)
