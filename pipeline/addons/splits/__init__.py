"""Which rows of any dataset train, validate and test: `dataset.split`, `dataset.folds`."""
