"""The parts of `pipeline.loading.dataloader`, a DataLoader with torch's arguments."""
