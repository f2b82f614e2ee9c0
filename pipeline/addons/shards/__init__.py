"""Shards of samples: tar files."""
