"""What `task=check` says of the splits together: samples of one that stand in training, too."""

from penstock.installed import AddOn

ADDON = AddOn(checks="penstock.addons.overlaps.overlaps:report")
