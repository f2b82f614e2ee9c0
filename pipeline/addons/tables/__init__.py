"""Delimited text, Parquet, Arrow and plain text."""
