"""Completion of keys, options and files by Tab in a shell."""

from penstock.protocols import AddOn

ADDON = AddOn(completion="penstock.addons.completion.shells:run")
