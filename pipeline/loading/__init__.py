"""A request becomes a batch, and batches become epochs.

`fetch` makes a batch, `workers` decides which process or thread does, `collate` puts samples
together, `bad_samples` replaces those that cannot be read, `loader` iterates over epochs.
"""
