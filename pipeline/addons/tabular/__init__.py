"""Tables of numbers, categories and dates: CSV, TSV, Parquet, Arrow, or a frame of pandas."""
