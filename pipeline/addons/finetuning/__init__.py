"""How does a trained model learn something else? Warm starts, frozen parts, groups of weights."""
