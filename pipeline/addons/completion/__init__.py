"""Completion of keys, options and files by Tab in a shell."""

from penstock.installed import AddOn

ADDON = AddOn(
    completion="penstock.addons.completion.shells:run",
)
