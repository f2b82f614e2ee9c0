"""Which batches have a row, and which rows a batch has."""
