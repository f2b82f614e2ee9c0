"""The parts of `penstock.addons.dataloader.dataloader`, a DataLoader with torch's arguments."""

from penstock.installed import AddOn

ADDON = AddOn()
