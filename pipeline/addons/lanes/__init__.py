"""The same weights, to the bit, on any number of ranks that divides the lanes."""
