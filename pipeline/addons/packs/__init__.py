"""Samples decoded once, into memory-mapped files.

`packing` writes a pack and says what is done to samples before; `folder` is the format; `packed` is
the dataset that reads one; `fields` turns fields of samples into rows of numbers and back.
"""
