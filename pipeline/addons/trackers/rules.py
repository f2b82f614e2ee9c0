"""Requirements of trackers."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from penstock.config.nodes import Parts, by_name, called
from penstock.config.schema import Config


def tracker_packages(config: Config, parts: Parts) -> Iterator[str]:
    """Packages of trackers that are not installed."""
    for key, node in by_name(config.tracker, "tracker").items() if config.task == "fit" else ():
        package = getattr(called(node), "needs", None)
        # A folder of that name, as W&B makes one, has no loader of its own.
        spec = importlib.util.find_spec(package) if package else None
        if package and (spec is None or spec.origin is None):
            yield (
                f"{key}: needs the package {package}, which is not installed: pip install -e "
                f"'.[{package}]', or leave it out (tracker=none)"
            )
