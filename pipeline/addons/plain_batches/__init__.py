"""Batches as bytes that any process may read: what Ray actors and the decode pool hand over."""

from penstock.installed import AddOn

ADDON = AddOn()
