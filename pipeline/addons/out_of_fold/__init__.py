"""One table of what every sample was predicted to be by a model that did not train on it."""

from penstock.installed import AddOn

ADDON = AddOn(sweep_pages=("penstock.addons.out_of_fold.tables:of_sweep",))
