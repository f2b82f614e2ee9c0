"""Two runs, or a run and its repetition, address by address."""
