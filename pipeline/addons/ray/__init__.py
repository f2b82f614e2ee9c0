"""Loader workers on a Ray cluster."""

from penstock.installed import AddOn

ADDON = AddOn(
    only_with=("backend=ray",),
    typed={"loader.ray.runtime_env": "penstock.addons.ray.runtime_env:TYPED"},
    sends="penstock.addons.ray.joined",
)
