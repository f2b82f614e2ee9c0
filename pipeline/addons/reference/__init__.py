"""The page of all keys."""

from penstock.protocols import AddOn

ADDON = AddOn()
