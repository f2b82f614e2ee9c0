"""Forecasts of series: windows of CSV, TSV, Parquet or Arrow, a linear model, MASE."""

from penstock.installed import AddOn, Callables

ADDON = AddOn(
    only_with=(),
    callables=(
        Callables(
            "penstock.addons.forecasting.windows",
            "a torch.utils.data.Dataset",
            "torch.utils.data.Dataset",
        ),
        Callables(
            "penstock.addons.forecasting.drawn_series",
            "a torch.utils.data.Dataset",
            "torch.utils.data.Dataset",
        ),
        Callables("penstock.addons.forecasting.models", "a model"),
        Callables("penstock.addons.forecasting.objective", "an objective or its metric"),
    ),
)
