"""Recordings: datasets of audio files, and transforms of samples to features.

`reading` decodes a file; `spoken_digits` and `pairs` are datasets; `transforms` and `resampling`
change samples. All arithmetic is the same on every processor.
"""
