"""Fingerprints of a run's data and code."""
