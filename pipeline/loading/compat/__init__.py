"""What `pipeline.loading.dataloader`, a DataLoader with torch's arguments, is made of."""
