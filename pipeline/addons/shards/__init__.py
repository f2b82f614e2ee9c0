"""Shards of samples: tar files and MDS."""
