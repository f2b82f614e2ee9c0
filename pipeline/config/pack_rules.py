"""What packed data needs of the rest of a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.config.messages import not_allowed
from pipeline.config.nodes import datasets
from pipeline.config.schema import Config
from pipeline.errors import Problem
from pipeline.order.streams import is_stream


def find(config: Config, found: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong.

    Args:
        found: callable by key of its part.
    """
    where = config.dataset.get("packed")
    if where is not None and (not isinstance(where, str) or not where):
        yield Problem("dataset.packed", not_allowed(where, "auto, the path of a pack, or null"))
    if where is None and config.task != "pack":
        return
    key = "task" if config.task == "pack" else "dataset.packed"
    for name, _ in datasets(config.dataset):
        kind = found.get(name)
        if isinstance(kind, type) and is_stream(kind):
            yield Problem(
                key,
                f"{kind.__name__} is a stream, which can only be read forwards; packing is for "
                "datasets with rows",
            )
    if config.pack.format == "encoded" and config.pack.size is not None:
        yield Problem(
            "pack.size",
            f"{config.pack.size} would decode the files that pack.format=encoded keeps; set "
            "pack.size=null or pack.format=pixels",
        )
