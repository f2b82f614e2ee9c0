"""After the training: the test split, predictions for new files, and weights for elsewhere."""
