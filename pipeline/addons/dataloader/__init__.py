"""The parts of `penstock.addons.dataloader.dataloader`, a DataLoader with torch's arguments."""
