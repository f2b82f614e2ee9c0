"""Loader workers on a Ray cluster."""

from penstock.protocols import AddOn

ADDON = AddOn(
    backends={"ray": "penstock.addons.ray.cluster:open_backend"},
    options={
        "loader.ray": "penstock.addons.ray.options:RaySection",
    },
)
