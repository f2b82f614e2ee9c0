"""The same weights, to the bit, on any number of ranks that divides the lanes."""

from penstock.installed import AddOn

ADDON = AddOn(
    only_with=(),
    options={"distributed.lanes": "penstock.addons.lanes.options:lanes"},
    rules=("penstock.addons.lanes.rules:lanes",),
    lanes="penstock.addons.lanes.lanes:of_run",
    observers="penstock.addons.lanes.kinds:observers",
)
