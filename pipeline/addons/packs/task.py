"""`task=pack`: samples decoded once into memory-mapped files.

    python run.py task=pack dataset=image_folder dataset.root=FOLDER pack.size=256

Packs into `cache_dir`, where `dataset.packed=auto` finds it, or into `pack.out`, unless it exists.
Prints a line a split: split, samples, bytes, folder.
"""

from __future__ import annotations

from penstock.addons.packs.folder import Pack
from penstock.addons.packs.wrapper import pack_of
from penstock.build.data import DataParts
from penstock.config.nodes import datasets
from penstock.config.schema import Config
from penstock.distributed.world import World
from penstock.terminal import put


def run(config: Config) -> None:
    """Pack `config.split`."""
    data = DataParts(config, World())
    splits = [str(config.split)]
    if config.split == "both":
        keys = [key for key, _ in datasets(config.dataset)]
        splits = [
            name
            for name in (split.name for split in data.splits)
            if {"dataset", f"dataset.{name}"} & set(keys)
        ]
    for split in splits:
        folder = pack_of(data.split(split))
        pack = Pack(folder)
        size = sum(pack.record["files"].values())
        put(f"{split} {pack.count} samples {size} bytes {folder}", flush=True)
