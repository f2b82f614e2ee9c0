"""Samplers and keys that contradict a mixture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.config.nodes import Parts, called, datasets_found
from penstock.config.schema import Config
from penstock.config.signatures import arguments
from penstock.order.streams import is_stream


def mixture(config: Config, parts: Parts) -> Iterator[str]:
    """Only samplers that follow the order of a mixture keep its shares, and only it has one."""
    outer: Any = parts.get("sampler")
    sampler, node = outer, config.sampler
    while isinstance(node.get("order"), Mapping):
        node = node["order"]
        sampler = called(node)
    for key, dataset in datasets_found(config, parts):
        if key == "dataset.val" or None in (outer, sampler) or is_stream(dataset):
            continue
        taken = arguments(sampler).names
        if not getattr(dataset, "mixes", False):
            if "mixing" in taken:
                yield (
                    f"sampler: {sampler.__name__} mixes the sources of dataset=mixture, and "
                    f"{dataset.__name__} has none; set sampler=random"
                )
            continue
        mixture = config.dataset if "_target_" in config.dataset else config.dataset["train"]
        if not {"mixing", "order"} & set(taken):
            yield (
                f"sampler: {sampler.__name__} chooses rows of all sources by itself, and "
                "dataset.weights would not hold; set sampler=mixture, where sampler.sources may "
                "give each source such an order (docs/mixtures.md)"
            )
        if config.dataset.get("packed") is not None:
            yield (
                "dataset.packed: a pack is one dataset without sources; pack each source "
                "(task=pack), and name the packs in dataset.sources"
            )
        weights = mixture.get("weights") or {}
        changing = isinstance(weights, Mapping) and any(
            isinstance(weight, list) for weight in weights.values()
        )
        if (
            changing
            and "mixing" not in arguments(outer).names
            and mixture.get("knots") != "samples"
        ):
            yield (
                f"{key}.knots: a step of {outer.__name__} has not batch.size samples of the "
                "mixture; write dataset.weights for numbers of samples, and set "
                f"{key}.knots=samples"
            )
