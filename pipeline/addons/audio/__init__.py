"""Recordings: datasets of audio files, and transforms of samples to features.

`reading` decodes a file; `recordings` has the datasets; `transforms` change samples.
All arithmetic is the same on every processor.
"""
