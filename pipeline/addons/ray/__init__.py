"""Loader workers on a Ray cluster."""
