"""Requirements of blocks of packed sequences."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.config.nodes import Parts
from penstock.config.schema import Config


def packing(config: Config, parts: Parts) -> Iterator[str]:
    """Blocks need a sampler that forms them and a collate function that knows what they are."""
    sampler, collate = (getattr(parts.get(key), "packs", False) for key in ("sampler", "collate"))
    if sampler and not collate:
        yield (
            f"collate: {config.collate['_target_']} knows no blocks, which the sampler packs rows "
            "into; set collate=packed"
        )
    steps = [
        f"transform.{section}.{name}"
        for section in ("train_batch", "val_batch")
        for name, node in getattr(config.transform, section).items()
        if node is not None
    ]
    if sampler and steps:
        yield (
            f"{steps[0]}: transforms of batches take a row for each sample, "
            "and rows of packed batches are blocks; transform samples instead (transform.train)"
        )
    tokens, room = config.sampler.get("tokens"), config.collate.get("pad_to")
    if sampler and collate and isinstance(tokens, int) and isinstance(room, int) and room < tokens:
        yield (
            f"collate.pad_to: {room} is less than the {tokens} tokens of a block (sampler.tokens); "
            f"set collate.pad_to={tokens}"
        )
    if sampler and config.batch.size is None:
        yield (
            "batch.size: null passes samples through one by one, and the sampler packs them into "
            "blocks; set batch.size to the number of blocks"
        )
