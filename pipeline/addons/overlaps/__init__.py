"""The part of `task=check` that compares splits: samples of one that are also in training."""
