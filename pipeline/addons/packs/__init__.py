"""Samples decoded once, into memory-mapped files.

`folder` is the format, fields of samples as columns of numbers, and the dataset that reads a pack;
`packing` writes one, and says what is done to samples before.
"""
