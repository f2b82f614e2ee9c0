"""Forecasts: a loss on the scale of each series, metrics on the file's, a naive forecast beside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.aggregation import MeanMetric

from penstock.files.limits import Count
from penstock.loading.batch import Batch
from penstock.training.adapter import Rendered, field, in_shape, is_known, require
from penstock.training.objective import Loss, Regression


class Mase(MeanMetric):
    """Mean absolute scaled error: of all forecasts, the mean of error / naive error.

    The naive error is the mean |y[t] - y[t - season]| over the training part of the same series
    (Hyndman and Koehler 2006, "Another look at measures of forecast accuracy"). Below 1 is better
    than that. Forecasts of series whose training part has no such error are left out.
    """

    higher_is_better = False  # type: ignore[assignment]

    def __init__(self, **options: Any) -> None:
        super().__init__(nan_strategy="ignore", **options)
        # A million small errors are summed.
        self.set_dtype(torch.float64)

    def update(self, predicted: Tensor, target: Tensor, naive_error: Tensor) -> None:  # type: ignore[override]
        """Forecasts and truth float[n, H, C], NaN where it is missing; naive errors float[n, C]."""
        super().update((predicted - target).double().abs() / naive_error.double()[:, None])


class Forecasting(Regression):
    """Values of a series: the model gives them less its mean, by its deviation, [B, H, C].

    Truth that is missing counts neither in the loss nor in metrics.

    Args:
        loss: (predictions, targets) -> [B, H, C].
        metrics, inputs, target: as in `Supervised`; those of torchmetrics' get all forecasts [n].
        season, horizon, num_values: facts of `dataset=windows`.
    """

    baseline_name = "seasonal naive"

    def __init__(
        self,
        loss: Loss,
        metrics: Mapping[str, Metric],
        inputs: Sequence[str],
        target: str,
        season: int,
        horizon: int,
        num_values: int,
    ) -> None:
        super().__init__(loss, metrics, inputs, target)
        self._naive = SeasonalNaive(season, horizon, num_values)

    def baseline(self, batches: Iterable[Batch], monitor: str = "loss") -> nn.Module:
        """The values a season before, which need no batch."""
        return self._naive

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Forecasts on the scale of the file, float32[B, H, C]."""
        spread, location = field(self, batch, "spread"), field(self, batch, "location")
        return outputs * spread[:, None] + location[:, None]

    def measured(self, outputs: Tensor, batch: Batch) -> Mapping[str, tuple[Tensor, ...]]:
        # Metrics of torchmetrics know no missing truth, so they get what is there as one long list.
        predicted, target = self.predictions(outputs, batch), self.targets(batch)
        there, errors = target.isfinite(), field(self, batch, "naive_error")
        known, own = (predicted[there], target[there]), (predicted, target)
        return {
            name: (*own, errors) if isinstance(metric, Mase) else known if is_known(metric) else own
            for name, metric in self.metrics.items()
        }

    def rows(self, outputs: Tensor, batch: Batch) -> Tensor:
        """`predicted`: a forecast a step, as the file would have them."""
        return self.predictions(outputs, batch)

    def rendered(self, batch: Batch, outputs: Tensor | None = None) -> list[Rendered]:
        """The past of the first value, how it went on, and with `outputs` the forecast."""
        target = self.targets(batch)
        past = self.predictions(field(self, batch, self.inputs[0])[..., : target.shape[-1]], batch)
        guesses = repeat(None) if outputs is None else self.predictions(outputs, batch)[..., 0]
        rows = zip(past[..., 0], target[..., 0], guesses, strict=False)
        return [Rendered(past=past, future=after, forecast=guess) for past, after, guess in rows]

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        target = self.targets(batch)
        require(
            outputs.shape == target.shape,
            "model",
            f"gives {in_shape(outputs)}, but the target is {in_shape(target)}",
        )
        spread, location = field(self, batch, "spread"), field(self, batch, "location")
        scaled = (target - location[:, None]) / spread[:, None]
        there = scaled.isfinite()
        # The model's own output stands in for a missing truth: NaN times zero would still be NaN in
        # the gradient.
        losses = self.criterion(outputs, torch.where(there, scaled, outputs.detach()))
        # One number for a batch would count missing truth as well.
        require(
            losses.shape == target.shape,
            "objective.loss",
            f"gives {in_shape(losses)}; it has to give a loss a value: reduction=none",
        )
        # By the steps that are there: a window with half its truth counts as much as a whole one.
        return (losses * there).sum((1, 2)).div(there.sum((1, 2)).clamp_min(1))


class SeasonalNaive(nn.Module):
    """The value one season before, of the last season that is known; season 1: the last value.

    Forward: past float[B, P, >= num_values], and any others -> float[B, H, num_values].
    """

    def __init__(self, season: int, horizon: int, num_values: int) -> None:
        super().__init__()
        self.values = num_values
        # Beyond one season the last known season repeats.
        self.steps = [step % season - season for step in range(horizon)]

    def forward(self, past: Tensor, *others: Tensor) -> Tensor:
        return past[:, self.steps, : self.values]


class DLinear(nn.Module):
    """The past as a trend and what is left of it, each mapped to the horizon by one matrix.

    From Zeng et al. 2023, "Are Transformers Effective for Time Series Forecasting?". All values and
    series share the matrices, which start as the mean of the past. Each column that is
    known for the steps to forecast adds a number.

    Forward: past float[B, P, num_values + num_known], future float[B, H, num_known] ->
    float[B, H, num_values].
    Cost at 56 and 14 steps: 1,600 weights, 1 us a sample forwards and backwards in batches of 64.

    Args:
        past, horizon: steps that it gets, and forecasts.
        num_values, num_known: columns.
        kernel: steps of the mean that is the trend.
    """

    def __init__(
        self, past: int, horizon: int, num_values: int, num_known: int, kernel: Count = 25
    ) -> None:
        super().__init__()
        self.values, self.kernel = num_values, kernel
        self.trend, self.rest = nn.Linear(past, horizon), nn.Linear(past, horizon)
        for layer in (self.trend, self.rest):
            # The first forecast is then the mean of the past, and not noise.
            nn.init.constant_(layer.weight, 1 / past)
            nn.init.zeros_(layer.bias)
        self.known = nn.Parameter(torch.zeros(num_values, num_known))

    def forward(self, past: Tensor, future: Tensor) -> Tensor:
        values = past[..., : self.values].transpose(1, 2)
        # The ends are repeated: zeros would bend the trend towards the mean there.
        around = (self.kernel // 2, (self.kernel - 1) // 2)
        trend = F.avg_pool1d(F.pad(values, around, "replicate"), self.kernel, 1)
        forecast: Tensor = (self.trend(trend) + self.rest(values - trend)).transpose(1, 2)
        return forecast + F.linear(future, self.known)
