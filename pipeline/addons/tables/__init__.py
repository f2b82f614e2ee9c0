"""CSV, JSON lines, Parquet, Arrow, folders of `datasets`, and plain text."""
