"""Delimited text, Parquet, Arrow and plain text."""

from penstock.installed import AddOn, Callables

ADDON = AddOn(
    callables=(
        Callables(
            "penstock.addons.tables", "a torch.utils.data.Dataset", "torch.utils.data.Dataset"
        ),
    ),
)
