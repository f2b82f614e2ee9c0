"""Which rows of any dataset train, validate and test: `dataset.split`, `dataset.folds`."""

from penstock.installed import AddOn

ADDON = AddOn(
    only_with=("split", "folds", "fold"),
    wrapper="penstock.addons.splits.wrapper:Splits",
    row_keys=("split", "folds", "fold"),
    rules=("penstock.addons.splits.rules:divided",),
)
