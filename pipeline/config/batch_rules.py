"""What transforms of whole batches need of the rest of a configuration.

They need batches of stacked fields; mixing needs pairs, in training only; and pixels are normalised
once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.config import allow_list
from pipeline.config.schema import Config
from pipeline.distributed import world
from pipeline.errors import ConfigError, Problem
from pipeline.loading.collate import List
from pipeline.transforms.image import Normalize


def find(config: Config, found: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong.

    Args:
        found: callable by key of its part.
    """
    for split in ("train", "val"):
        steps = _steps(config, f"{split}_batch")
        if steps:
            yield from _stacked(config, found, f"transform.{split}_batch")
        yield from _normalised_twice({**_steps(config, split), **steps})
        mixing = [key for key, step in steps.items() if getattr(step, "together", 1) > 1]
        if mixing and split == "val":
            yield Problem(mixing[0], "mixes samples of validation, whose metrics are of samples as "
                          "they are; move it to transform.train_batch")  # fmt: skip
        elif mixing:
            yield from _pairs(config, mixing[0])


def _stacked(config: Config, found: Mapping[str, Any], key: str) -> Iterator[Problem]:
    if config.batch.size is None:
        yield Problem(key, "works on batches, but batch.size=null hands samples through one by one;"
                      f" set batch.size, or {key}={{}}")  # fmt: skip
    if found.get("collate") is List:
        yield Problem(key, "works on stacked fields, but collate=list stacks nothing; set "
                      "collate=stack")  # fmt: skip


def _normalised_twice(steps: Mapping[str, Any]) -> Iterator[Problem]:
    first, *others = [key for key, step in steps.items() if _normalises(step)] or [""]
    for other in others:
        yield Problem(other, f"normalises what {first} has normalised; leave one of them out, "
                      f"{first}=null")  # fmt: skip


def _normalises(step: Any) -> bool:
    return isinstance(step, type) and issubclass(step, Normalize)


def _pairs(config: Config, key: str) -> Iterator[Problem]:
    size, ranks = config.batch.size, world.launched_size()
    if size is None or size % (2 * ranks) == 0:
        return
    low = size // (2 * ranks) * 2 * ranks
    ways = " or ".join(str(one) for one in (low, low + 2 * ranks) if one)
    yield Problem("batch.size", f"{size} cannot be cut into pairs for {ranks} process(es), and "
                  f"{key} mixes pairs; take {ways}")  # fmt: skip


def _steps(config: Config, section: str) -> dict[str, Any]:
    """What the steps of a section of transforms call, by key."""
    found = {}
    for name, node in getattr(config.transform, section).items():
        key = f"transform.{section}.{name}"
        try:
            found[key] = allow_list.resolve(node["_target_"], key)
        except (ConfigError, KeyError, TypeError):  # which the check of the nodes reports
            continue
    return found
