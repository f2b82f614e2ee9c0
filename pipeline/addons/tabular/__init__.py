"""Tables of numbers, categories and dates: CSV, TSV, Parquet, Arrow, or a frame of pandas."""

from penstock.installed import AddOn, Callables

ADDON = AddOn(
    only_with=(),
    callables=(
        Callables(
            "penstock.addons.tabular.table",
            "a torch.utils.data.Dataset",
            "torch.utils.data.Dataset",
        ),
        Callables(
            "penstock.addons.tabular.drawn_table",
            "a torch.utils.data.Dataset",
            "torch.utils.data.Dataset",
        ),
        Callables("penstock.addons.tabular.models", "a model"),
        Callables("penstock.addons.tabular.objective", "an objective"),
    ),
)
