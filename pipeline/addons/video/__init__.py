"""Clips of videos: datasets, models, and drawn motions."""
