"""The page of all keys."""

from penstock.installed import AddOn

ADDON = AddOn()
