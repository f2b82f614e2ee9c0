"""Loader workers on a Ray cluster."""

from penstock.installed import AddOn

ADDON = AddOn(
    only_with=("backend=ray",),
    backends={"ray": "penstock.addons.ray.cluster:open_backend"},
    typed={"loader.ray.runtime_env": "penstock.addons.ray.runtime_env:TYPED"},
    # Not that of hydra's other launcher, for clusters that are rented.
    launchers={
        "hydra_plugins.hydra_ray_launcher.ray_launcher": "penstock.addons.ray.cluster:for_jobs"
    },
    sends="penstock.addons.ray.joined",
    rules=("penstock.addons.ray.rules:actors",),
    options={
        "loader.ray": "penstock.addons.ray.options:RaySection",
    },
)
