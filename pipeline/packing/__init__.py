"""Samples decoded once, in files that are read from where they lie."""
