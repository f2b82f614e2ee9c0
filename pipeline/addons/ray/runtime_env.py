"""`loader.ray.runtime_env`: what Ray puts into the processes of actors, on whatever nodes.

It is set by a command line only (`penstock.config.command_line_keys`); here is what may be typed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.config import allow_list
from penstock.config.command_line_keys import TypedKey
from penstock.config.environment import HARMLESS
from penstock.config.messages import show
from penstock.errors import Problem

_WHY = "so that only the program and packages that you trust run in actors"


def _working_dir(content: Any, key: str) -> Iterator[Problem]:
    if not _is_folder(content):
        yield Problem(key, f"got {show(content)}, expected a folder of this machine, {_WHY}")


def _py_modules(content: Any, key: str) -> Iterator[Problem]:
    if not isinstance(content, list):
        yield Problem(key, f"got {show(content)}, expected a list of folders")
        return
    for number, path in enumerate(content):
        below = f"{key}[{number}]"
        if not _is_folder(path):
            yield Problem(below, f"got {show(path)}, expected the folder of a package, {_WHY}")
            continue
        package = Path(path).absolute().name  # as Ray names it
        if package in allow_list.NEVER:
            yield Problem(below, f"{package} is not replaced in actors")
        elif not allow_list.is_trusted(package):
            yield Problem(below, f"{package} is not trusted; if it is yours: --trust {package}")


def _is_folder(path: Any) -> bool:
    return isinstance(path, str) and "://" not in path and Path(path).is_dir()


def _excludes(content: Any, key: str) -> Iterator[Problem]:
    if not isinstance(content, list) or not all(isinstance(entry, str) for entry in content):
        yield Problem(key, f"got {show(content)}, expected a list of patterns as in .gitignore")


def _env_vars(content: Any, key: str) -> Iterator[Problem]:
    if not isinstance(content, Mapping):
        yield Problem(key, f"got {show(content)}, expected values by name")
        return
    for name, value in content.items():
        if name not in HARMLESS:
            yield Problem(
                f"{key}.{name}",
                "is not set for actors, since variables decide what runs; start Ray with it. "
                f"Allowed: {', '.join(HARMLESS)}",
            )
        elif not isinstance(value, (str, int)):
            yield Problem(f"{key}.{name}", f"got {show(value)}, expected text")


TYPED = TypedKey(
    {
        "working_dir": _working_dir,
        "py_modules": _py_modules,
        "excludes": _excludes,
        "env_vars": _env_vars,
    },
    _WHY,
)
