"""Tar shards: members, the samples they make up, and fields as tensors."""
