"""Parquet and Arrow: what their tables are made of, and cells as tensors."""
