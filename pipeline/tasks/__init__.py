"""The tasks of `task=<name>`: one module each, with `run(config) -> float | None`.

A module is imported when its task runs, so that no task pays for another's imports.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import get_args

from pipeline.config.schema import Config, Task

TASKS: tuple[str, ...] = get_args(Task)


def load(name: str) -> Callable[[Config], float | None]:
    """The `run` of a task; `name` is one of TASKS."""
    if name not in TASKS:
        raise ValueError(f"no task {name!r}; there are {', '.join(TASKS)}")
    run: Callable[[Config], float | None] = import_module(f"{__name__}.{name}").run
    return run
