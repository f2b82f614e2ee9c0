"""`dataset.packed`: a split reads a pack instead of its dataset.

`task=pack`: samples decoded once into memory-mapped files.

    python run.py task=pack dataset=image_folder dataset.root=FOLDER pack.size=256

Packs into `cache_dir`, where `dataset.packed=auto` finds it, or into `pack.out`, unless it exists;
to an address by way of a folder in `cache_dir`.
Prints a line a split: split, samples, bytes, folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.addons.packs.folder import Pack
from penstock.addons.packs.remote import RemotePack
from penstock.build.data import DataParts, Split
from penstock.config.instantiate import make
from penstock.config.nodes import datasets
from penstock.config.schema import Config
from penstock.datasets.files import Files
from penstock.distributed.world import World
from penstock.errors import ConfigError, Problem
from penstock.runs.identity.fingerprints import other_than_own
from penstock.terminal import put

_NOT_NATIVE = (
    "native crops squares from image files, which needs pack.size, pack.square=true, "
    "pack.format=pixels, the native decoder (libjpeg-dev and a C compiler when Penstock is "
    "installed), and a dataset that takes `lazy` and has no points or boxes; set it to auto or "
    "reader"
)


def opened(split: Split) -> Any:
    """The pack of a split, given or to be made."""
    folder, config = split.config.dataset["packed"], split.config
    _ = split.node  # a split that the configuration lacks has no pack either
    node: dict[str, Any] = {
        "_target_": "penstock.addons.packs.packed.Packed",
        "folder": str(pack_of(split) if folder == "auto" else folder),
        "cache_dir": f"{config.cache_dir}/text",
    }
    if isinstance(config.dataset.get("files"), Mapping):
        node["files"] = config.dataset["files"]
    return make(node, "dataset.packed", split.supply(lazy=split.decodes))


def pack_of(split: Split) -> Path | str:
    """The folder or address of the split's pack, which is made if it does not exist."""
    from penstock.addons.packs.packing import backend_for, pack
    from penstock.addons.packs.recipe import Recipe, fits

    section = split.config.pack
    recipe = Recipe(section.size, section.square, section.format)
    squares = None if section.decoder == "reader" else recipe.natively()
    dataset = split.read(lazy=section.format == "encoded" or squares is not None)
    if squares is not None and fits(dataset):
        recipe = squares
    elif section.decoder == "native":
        raise ConfigError(Problem("pack.decoder", _NOT_NATIVE))
    elif squares is not None and getattr(dataset, "lazy", False):
        dataset = split.read(lazy=False)
    # "auto" would look at the transform, which may need this very dataset's statistics.
    backend, suited = split.config.loader.backend, backend_for(dataset, recipe)
    if backend != "ray" and (suited == "thread" or backend == "auto"):
        backend = suited
    return pack(
        dataset,
        split.name,
        recipe,
        split.config.cache_dir,
        section.out,
        split.loader_options(backend),
        other_than_own(dataset, split.config),
        split.data.fields,
        split.identity.cache_key(dataset),
        _files_of(split),
    )


def _files_of(split: Split) -> Files:
    """Access to addresses, as the split's dataset has it."""
    key, node = split.node
    files = node.get("files")
    made: Files = make(files, f"{key}.files") if isinstance(files, Mapping) else Files()
    return made


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
        if isinstance(folder, str):
            files = _files_of(data.split(split))
            pack: Pack = RemotePack(files.remote.folder(folder), files)
        else:
            pack = Pack(folder)
        size = sum(pack.record["files"].values())
        put(f"{split} {pack.count} samples {size} bytes {folder}", flush=True)
