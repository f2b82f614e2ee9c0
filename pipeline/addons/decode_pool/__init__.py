"""Batches that runs of one machine hand each other: in files (`pool.py`)."""

from penstock.installed import AddOn

ADDON = AddOn(
    only_with=(),
    sweep_contexts=("penstock.addons.decode_pool.folder:jobs_to_come",),
    rules=("penstock.addons.decode_pool.rules:share",),
    options={
        "loader.share": "penstock.addons.decode_pool.options:share",
        "loader.share_size": "penstock.addons.decode_pool.options:share_size",
    },
    wrapper="penstock.addons.decode_pool.wrapper:SharedBatches",
)
