"""Which keys of a loader contradict actors."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.addons.ray.access import refuse_client
from penstock.addons.ray.cluster import require_installed
from penstock.config.messages import show
from penstock.config.nodes import Parts
from penstock.config.schema import Config
from penstock.errors import ConfigError


def actors(config: Config, parts: Parts) -> Iterator[str]:
    loader, section = config.loader, config.loader.ray
    try:
        require_installed()
        refuse_client(section.address)
    except ConfigError as error:
        yield from map(str, error.problems)
    if loader.multiprocessing_context:
        yield (
            f"loader.multiprocessing_context: {show(loader.multiprocessing_context)} is for "
            "processes, but loader.backend=ray, and Ray starts its own; set it to null"
        )
    if config.loader.num_workers == 0 and section.num_actors != "auto":
        yield (
            f"loader.ray.num_actors: {section.num_actors} needs actors, but loader.num_workers=0, "
            "which means none; leave that out, or set loader.backend=main"
        )
