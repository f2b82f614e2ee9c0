"""Parquet and Arrow: files, row groups, and cells as tensors."""
