"""CSV, JSON lines, Parquet, Arrow, folders that Hugging Face saved, and plain text."""
