"""Learning from pairs: two views of a sample, or a picture and its caption."""
