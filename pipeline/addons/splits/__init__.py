"""Which rows of any dataset train, validate and test: `data.split`, `data.folds`."""
