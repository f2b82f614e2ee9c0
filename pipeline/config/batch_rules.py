"""Rules on transforms of whole batches, for `config/contradictions.py`.

They need batches of stacked fields; mixing needs pairs, in training only; and pixels are normalised
once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.config.nodes import called
from pipeline.config.schema import Config
from pipeline.distributed import world
from pipeline.loading.collate import List
from pipeline.transforms.image import Normalize


def find(config: Config, found: Mapping[str, Any]) -> Iterator[str]:
    """Keys and messages of what contradicts the transforms.

    Args:
        found: callable by key of its part.
    """
    for split in ("train", "val"):
        steps, section = _steps(config, f"{split}_batch"), f"transform.{split}_batch"
        if steps and config.batch.size is None:
            yield (
                f"{section}: works on batches, but batch.size=null passes samples through one by "
                f"one; set batch.size, or {section}={{}}"
            )
        if steps and found.get("collate") is List:
            yield (
                f"{section}: works on stacked fields, but collate=list stacks nothing; set "
                "collate=stack"
            )
        first, *others = [
            key for key, step in {**_steps(config, split), **steps}.items()
            if isinstance(step, type) and issubclass(step, Normalize)
        ] or [""]  # fmt: skip
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
    ways = " or ".join(str(one) for one in (low, low + 2 * ranks) if one)
    yield (
        f"batch.size: {size} cannot be cut into pairs for {ranks} process(es), and {key} mixes "
        f"pairs; take {ways}"
    )


def _steps(config: Config, section: str) -> dict[str, Any]:
    """The callables of a section of transforms, by key, without those that are wrong."""
    nodes = getattr(config.transform, section)
    found = {f"transform.{section}.{name}": called(node) for name, node in nodes.items()}
    return {key: step for key, step in found.items() if step is not None}
