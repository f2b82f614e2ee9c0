"""The part of `task=check` that compares splits: samples of one that are also in training."""

from penstock.installed import AddOn

ADDON = AddOn(checks="penstock.addons.overlaps.overlaps:report")
