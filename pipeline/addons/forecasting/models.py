"""A linear forecast.

`past`, `horizon`, `num_values` and `num_known` are facts of `dataset=windows`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from penstock.errors import ConfigError, Problem


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
        kernel: steps of the mean that is the trend; odd.
    """

    def __init__(
        self,
        past: int = 0,
        horizon: int = 0,
        num_values: int = 1,
        num_known: int = 0,
        kernel: int = 25,
    ) -> None:
        super().__init__()
        if not (past and horizon):
            reason = "needs past and horizon, facts of dataset=windows; this dataset has none"
            raise ConfigError(Problem("model", reason))
        if kernel < 1 or kernel % 2 == 0:
            raise ConfigError(Problem("model.kernel", f"{kernel}; allowed: odd numbers from 1"))
        self.values, self.kernel = num_values, kernel
        self.trend, self.rest = nn.Linear(past, horizon), nn.Linear(past, horizon)
        for layer in (self.trend, self.rest):
            nn.init.constant_(layer.weight, 1 / past)
            nn.init.zeros_(layer.bias)
        self.known = nn.Parameter(torch.zeros(num_values, num_known))

    def forward(self, past: Tensor, future: Tensor) -> Tensor:
        values = past[..., : self.values].transpose(1, 2)
        around = self.kernel // 2
        trend = F.avg_pool1d(F.pad(values, (around, around), "replicate"), self.kernel, 1)
        forecast: Tensor = (self.trend(trend) + self.rest(values - trend)).transpose(1, 2)
        return forecast + F.linear(future, self.known)
