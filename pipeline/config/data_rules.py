"""What `dataset.fingerprint` may be, and what it needs of a dataset; names of fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.config.messages import not_allowed
from pipeline.config.nodes import datasets, of_the_build
from pipeline.config.schema import Config
from pipeline.errors import Problem

KEY = "dataset.fingerprint"
_ONE = "pipeline.loading.collate.Single"
MODES = ("names", "sizes", "content")
_NEEDS = {"names": ("names_fingerprint",), "content": ("data_files", "path")}


def mode_of(config: Config) -> str:
    """What data is told from other data by."""
    mode: str = config.dataset.get("fingerprint", "sizes")
    return mode


def find(config: Config, found: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong.

    Args:
        found: callable by key of its part.
    """
    yield from _names(config.dataset, "dataset")
    yield from _names(config.collate, "collate")
    facts = of_the_build(config.dataset, "facts")
    if facts is not None and not (
        isinstance(facts, Mapping) and all(type(one) is int for one in facts.values())
    ):
        yield Problem("dataset.facts", not_allowed(facts, "whole numbers by name"))
    if config.collate.get("_target_") == _ONE and config.batch.size is not None:
        yield Problem("collate", f"Single takes one sample, and batch.size is {config.batch.size}; "
                      "set batch.size=null, or collate=stack")  # fmt: skip
    mode = mode_of(config)
    if mode not in MODES:
        yield Problem(KEY, not_allowed(mode, " | ".join(MODES), MODES))
        return
    for name, _ in datasets(config.dataset):
        kind, needed = found.get(name), _NEEDS.get(mode, ())
        if needed and isinstance(kind, type) and not any(hasattr(kind, one) for one in needed):
            yield Problem(
                KEY,
                f"{mode} needs to know the files of a dataset, and {kind.__name__} does not tell "
                f"them: it has no `{needed[0]}()` (docs/own_dataset.md); give it one, or set it "
                "to sizes",
            )


def _names(node: Mapping[str, Any], key: str) -> Iterator[Problem]:
    """What is wrong with names for positions."""
    names = of_the_build(node, "fields")
    if names is None:
        return
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        yield Problem(f"{key}.fields", not_allowed(names, "names of positions: [image, label]"))
    elif len(set(names)) != len(names) or not names:
        said = ", ".join(names) or "no name"
        yield Problem(f"{key}.fields", f"got {said}; every position needs a name of its own")
