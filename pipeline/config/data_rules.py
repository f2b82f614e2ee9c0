"""Rules on the keys of `dataset` and `transform` that are ours, for `config/rules.py`.

A rule gets the configuration and the callable of each part by key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from penstock.config.nodes import Parts, called, datasets
from penstock.config.schema import Config
from penstock.distributed import world
from penstock.loading.collate import List, Single
from penstock.transforms.image import Normalize

KEY = "data.fingerprint"
_SECRET = re.compile("secret|password|token|key", re.IGNORECASE)
_NEEDS = {"names": ("names_fingerprint",), "content": ("data_files", "path")}


def dataset_keys(config: Config, parts: Parts) -> Iterator[str]:
    """Names and facts of a dataset, and what `fingerprint` needs of it."""
    for key in ("fields", "batch_fields"):
        names = getattr(config.data, key) or []
        if len(set(names)) != len(names):
            yield f"data.{key}: got {', '.join(names)}; every position needs a name of its own"
    for name in (config.files and config.files.options) or ():
        if _SECRET.search(name):  # a run's folder keeps all values
            yield (
                f"files.options.{name}: put it into the environment or the tool's own credentials "
                "file"
            )
    if called(config.collate) is Single and config.batch.size is not None:
        yield (
            f"collate: Single takes one sample, and batch.size is {config.batch.size}; set "
            "batch.size=null, or collate=stack"
        )
    for name, _ in datasets(config):
        kind, needed = parts.get(name), _NEEDS.get(config.data.fingerprint, ())
        if (
            needed
            and isinstance(kind, type)
            and not any(hasattr(kind, member) for member in needed)
        ):
            yield (
                f"{KEY}: {config.data.fingerprint} needs the files of a dataset, and "
                f"{kind.__name__} does not tell them: it has no `{needed[0]}()` "
                "(docs/own_dataset.md); add it, or set the key to sizes"
            )


def batch_steps(config: Config, parts: Parts) -> Iterator[str]:
    """Transforms of batches need stacked fields; mixing needs pairs; pixels are normalised once."""
    for split in ("train", "val"):
        steps, section = _steps(config, f"{split}_batch"), f"transform.{split}_batch"
        if steps and config.batch.size is None:
            yield (
                f"{section}: works on batches, but batch.size=null passes samples through one by "
                f"one; set batch.size, or {section}={{}}"
            )
        if steps and parts.get("collate") is List:
            yield (
                f"{section}: works on stacked fields, but collate=list stacks nothing; set "
                "collate=stack"
            )
        first, *others = [
            key
            for key, step in {**_steps(config, split), **steps}.items()
            if isinstance(step, type) and issubclass(step, Normalize)
        ] or [""]
        for other in others:
            yield (
                f"{other}: normalises what {first} has normalised; leave one of them out, "
                f"{first}=null"
            )
        mixing = [key for key, step in steps.items() if getattr(step, "together", 1) > 1]
        if mixing and split == "val":
            yield (
                f"{mixing[0]}: mixes samples of validation, whose metrics are of samples as they "
                "are; move it to transform.train_batch"
            )
        elif mixing:
            yield from _pairs(config, mixing[0])


def _pairs(config: Config, key: str) -> Iterator[str]:
    size, ranks = config.batch.size, world.launched_size()
    if size is None or size % (2 * ranks) == 0:
        return
    low = size // (2 * ranks) * 2 * ranks
    ways = " or ".join(str(even) for even in (low, low + 2 * ranks) if even)
    yield (
        f"batch.size: {size} cannot be cut into pairs for {ranks} process(es), and {key} mixes "
        f"pairs; take {ways}"
    )


def _steps(config: Config, section: str) -> dict[str, Any]:
    """The callables of a section of transforms, by key, without those that are wrong."""
    nodes = getattr(config.transform, section)
    steps = {f"transform.{section}.{name}": called(node) for name, node in nodes.items()}
    return {key: step for key, step in steps.items() if step is not None}


def views(config: Config, parts: Parts) -> Iterator[str]:
    """Steps of batches do the same to all pictures of a sample, so they would make no views."""
    steps = _steps(config, "train_batch") if config.transform.views > 1 else {}
    for key, step in steps.items():
        if not (isinstance(step, type) and issubclass(step, Normalize)):
            yield (
                f"{key}: does the same to all views of a sample (transform.views). Do it in "
                f"transform.train, as transform=views does, or leave it out: {key}=null"
            )


RULES = (batch_steps, dataset_keys, views)
