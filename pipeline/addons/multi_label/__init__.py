"""Several labels a sample: an objective."""

from penstock.installed import AddOn, Callables

ADDON = AddOn(callables=(Callables("penstock.addons.multi_label.objective", "an objective"),))
