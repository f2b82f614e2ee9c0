"""The line that says what `task=where` is about to do."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config.schema import Config


def where(config: Config, names: Mapping[str, str]) -> str:
    """Its announcement."""
    of = names["data"] if config.run is None else names["run"]
    if config.address is not None:
        return f"which samples are at {tuple(config.address)} in {of}"
    return f"looking for {names['sample']} in {of}"
