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
        hidden: sizes of the layers; none is logistic or linear regression.
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
        self.embeddings = nn.ModuleList(map(nn.Embedding, cardinalities, widths))
        for weight, size in zip(self.embeddings.parameters(), widths, strict=True):
            # So that a vector has about the length of one scaled number.
            nn.init.normal_(weight, std=size**-0.5)
            # Training rows hold no unknown category, so its row gets no gradient: noise there would
            # stay. A missing one starts from 0, too.
            nn.init.zeros_(weight[:FIRST])
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

    def rows(self, outputs: Tensor, batch: Batch) -> Tensor:
        """`predicted`: the number or the numbers, as the table would have them."""
        outputs = outputs.reshape(len(outputs), -1)
        return outputs * self._scale.to(outputs) + self._mean.to(outputs)

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The same in the shape of the targets."""
        return self.rows(outputs, batch).reshape(self.targets(batch).shape)

    def goals(self, batch: Batch) -> Tensor:
        target = super().goals(batch)
        return (target - self._mean.to(target)) / self._scale.to(target)
