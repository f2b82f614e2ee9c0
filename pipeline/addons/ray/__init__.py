"""Loader workers on a Ray cluster."""

from penstock.protocols import AddOn

ADDON = AddOn(
    options={
        "loader.ray": "penstock.addons.ray.options:RaySection",
    },
)
