"""`task=pack`: samples decoded once into files that are read from where they lie.

    python run.py task=pack dataset=image_folder dataset.root=FOLDER pack.size=256

Packs the splits (`split=train | val | both`) with the loader's workers, as `pack` says, into
`cache_dir`, where `dataset.packed=auto` finds them, or into `pack.out`. Prints a line a split:
split, samples, bytes, folder. What is there already is not made again.
"""

from __future__ import annotations

from pipeline.build.data import DataParts
from pipeline.config.nodes import datasets
from pipeline.config.schema import Config
from pipeline.distributed.world import World
from pipeline.packing.folder import Pack
from pipeline.terminal import put


def run(config: Config) -> None:
    """Pack `config.split`."""
    data = DataParts(config, World())
    for split in _splits(config):
        folder = data.split(split).pack()
        pack = Pack(folder)
        size = sum(pack.record["files"].values())
        put(f"{split} {pack.count} samples {size} bytes {folder}", flush=True)


def _splits(config: Config) -> list[str]:
    if config.split != "both":
        return [config.split]
    keys = [key for key, _ in datasets(config.dataset)]
    return [split for split in ("train", "val") if {"dataset", f"dataset.{split}"} & set(keys)]
