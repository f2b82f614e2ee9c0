"""Which models does transformers have? From a folder or a few numbers, never from the network."""
