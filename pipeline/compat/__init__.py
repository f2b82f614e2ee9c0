"""What `pipeline.dataloader`, a DataLoader with torch's arguments, is made of."""
