"""Stores at addresses: listing their files, reading them, and keeping them on this machine."""

from penstock.installed import AddOn, Callables

ADDON = AddOn(
    callables=(Callables("penstock.addons.stores.blocks", "a sampler"),),
    ahead="penstock.addons.stores.read_ahead:read_ahead",
    stores="penstock.addons.stores.remote_files:RemoteFiles",
)
