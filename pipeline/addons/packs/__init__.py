"""Samples decoded once, into memory-mapped files.

`packing` writes a pack, `recipe` says what is done to samples before and names the pack, `folder`
reads one, `fields` turns fields of samples into rows of numbers and back.
"""
