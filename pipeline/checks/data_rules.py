"""What `dataset.fingerprint` may be, and what it needs of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.checks.nodes import datasets
from pipeline.config import Config
from pipeline.errors import Problem
from pipeline.words import not_allowed

KEY = "dataset.fingerprint"
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
