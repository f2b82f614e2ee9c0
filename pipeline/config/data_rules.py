"""Rules on the keys of `dataset` that are ours, for `config/contradictions.py`.

`fingerprint` and what it needs of a dataset, `facts`, `fields`, and `packed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.config.messages import not_allowed
from pipeline.config.nodes import datasets, of_the_build
from pipeline.config.schema import Config
from pipeline.order.streams import is_stream

KEY = "dataset.fingerprint"
_ONE = "pipeline.loading.collate.Single"
MODES = ("names", "sizes", "content")
_NEEDS = {"names": ("names_fingerprint",), "content": ("data_files", "path")}


def mode_of(config: Config) -> str:
    """What data is told from other data by."""
    mode: str = config.dataset.get("fingerprint", "sizes")
    return mode


def find(config: Config, found: Mapping[str, Any]) -> Iterator[str]:
    """Keys and messages of what is wrong with `fields`, `facts` and `fingerprint`.

    Args:
        found: callable by key of its part.
    """
    for key, node in (("dataset", config.dataset), ("collate", config.collate)):
        names = of_the_build(node, "fields")
        if names is None:
            continue
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            yield f"{key}.fields: {not_allowed(names, 'names of positions: [image, label]')}"
        elif len(set(names)) != len(names) or not names:
            given = ", ".join(names) or "no name"
            yield f"{key}.fields: got {given}; every position needs a name of its own"
    facts = of_the_build(config.dataset, "facts")
    if facts is not None and not (
        isinstance(facts, Mapping) and all(type(one) is int for one in facts.values())
    ):
        yield f"dataset.facts: {not_allowed(facts, 'whole numbers by name')}"
    if config.collate.get("_target_") == _ONE and config.batch.size is not None:
        yield (
            f"collate: Single takes one sample, and batch.size is {config.batch.size}; set "
            "batch.size=null, or collate=stack"
        )
    mode = mode_of(config)
    if mode not in MODES:
        yield f"{KEY}: {not_allowed(mode, ' | '.join(MODES), MODES)}"
        return
    for name, _ in datasets(config.dataset):
        kind, needed = found.get(name), _NEEDS.get(mode, ())
        if needed and isinstance(kind, type) and not any(hasattr(kind, one) for one in needed):
            yield (
                f"{KEY}: {mode} needs the files of a dataset, and {kind.__name__} does not tell "
                f"them: it has no `{needed[0]}()` (docs/own_dataset.md); add it, or set the key to "
                "sizes"
            )


def packed(config: Config, found: Mapping[str, Any]) -> Iterator[str]:
    """The same for `dataset.packed`."""
    where = config.dataset.get("packed")
    if where is not None and (not isinstance(where, str) or not where):
        yield f"dataset.packed: {not_allowed(where, 'auto, the path of a pack, or null')}"
    if where is None and config.task != "pack":
        return
    key = "task" if config.task == "pack" else "dataset.packed"
    for name, _ in datasets(config.dataset):
        kind = found.get(name)
        if isinstance(kind, type) and is_stream(kind):
            yield (
                f"{key}: {kind.__name__} is a stream, which can only be read forwards; packing is "
                "for datasets with rows"
            )
    if config.pack.format == "encoded" and config.pack.size is not None:
        yield (
            f"pack.size: {config.pack.size} would decode the files that pack.format=encoded keeps; "
            "set pack.size=null or pack.format=pixels"
        )
