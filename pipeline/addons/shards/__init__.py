"""Shards of samples: tar files and MDS."""

from penstock.installed import AddOn, Callables

ADDON = AddOn(
    callables=(
        Callables(
            "penstock.addons.shards", "a torch.utils.data.Dataset", "torch.utils.data.Dataset"
        ),
    ),
)
