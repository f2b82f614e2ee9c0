"""Samples in tar archives, as WebDataset lays them out."""
