"""Loader workers on a Ray cluster."""

from penstock.protocols import AddOn

ADDON = AddOn()
