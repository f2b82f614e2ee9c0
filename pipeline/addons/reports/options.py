"""The section `find` of `task=runs`."""

from __future__ import annotations

from typing import Literal

from penstock.config.sections import TASK, Extension
from penstock.ranges import Count

RunState = Literal["done", "running", "failed", "preempted", "interrupted", "killed", "damaged"]


class FindSection(Extension):
    """Which runs `task=runs` lists, and in which order."""

    KEY = "find"
    EFFECT = TASK

    state: RunState | list[RunState] | None = None
    since: str | None = None
    command: str | None = None
    sort: Literal["started", "best"] = "started"
    limit: Count | None = 50
