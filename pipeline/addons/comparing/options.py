"""The section `diff`."""

from __future__ import annotations

from penstock.config.sections import TASK, Extension


class DiffSection(Extension):
    """The keys of `task=diff` besides its tables."""

    KEY = "diff"
    EFFECT = TASK

    weights: bool = True
    page: str | None = None
