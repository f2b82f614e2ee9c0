"""A configuration's parts as objects: `parts` has all of them, `samples` those of the data."""
