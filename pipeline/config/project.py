"""Options that the working folder's own pyproject.toml holds, as if they had been typed.

    [tool.penstock]
    trust = ["my_faces"]      # as --trust my_faces
    config_dir = "conf"       # as --config-dir conf

The folder is put on `sys.path`. A typed option wins over the file. As the file says whose code is
run, it counts only in the working folder itself (folders above are not searched). Processes that
this program starts (ranks, a launcher's jobs) find it in PENSTOCK_PROJECT. Cost: 5 ms where a
pyproject.toml names penstock at all.

Without such a file, a package that was typed after --trust may lie in the working folder too. The
folder then comes last on `sys.path`, so that nothing in it takes the place of what is installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from penstock.config.messages import nearest, show
from penstock.errors import ConfigError, Problem

NAME = "pyproject.toml"
VARIABLE = "PENSTOCK_PROJECT"
_KEYS = ("trust", "config_dir")
_TABLE = f"{NAME}: tool.penstock"


@dataclass(frozen=True)
class Project:
    """A folder with such a table: in full, as is `config_dir`; `trust` are names of packages.

    `last`: the folder has no table, and comes behind all others on `sys.path`.
    """

    folder: str
    trust: tuple[str, ...] = ()
    config_dir: str | None = None
    last: bool = False

    def said(self, trusts: bool, configures: bool) -> str:
        """The announcement; empty if neither counts."""
        parts = []
        if trusts and self.trust:
            parts.append(f"trusting {', '.join(self.trust)}")
        if configures and self.config_dir:
            parts.append(f"reading {os.path.relpath(self.config_dir, self.folder)}/")
        return f"{' and '.join(parts)}, as {NAME} says" if parts else ""


def find(folder: Path) -> Project | None:
    """The project in a folder; None if its pyproject.toml has no [tool.penstock].

    Raises:
        ConfigError: the file has wrong keys or values.
    """
    path = folder / NAME
    data = path.read_bytes() if path.is_file() else b""
    if b"penstock" not in data:
        return None
    try:
        table = tomllib.loads(data.decode()).get("tool", {}).get("penstock")
    except (ValueError, RecursionError, AttributeError) as error:
        raise ConfigError(Problem(str(path), f"is not TOML: {error}")) from None
    if table is None:
        return None
    return _project(folder.resolve(), table)


def of_trusted(folder: Path, names: Iterable[str]) -> Project | None:
    """A project for packages that were typed after --trust and lie in `folder` alone, if any do."""
    for name in dict.fromkeys(name.partition(".")[0] for name in names):
        known = name in sys.modules or importlib.util.find_spec(name) is not None
        if not known and PathFinder.find_spec(name, [str(folder)]) is not None:
            return Project(str(folder.resolve()), last=True)
    return None


def _project(folder: Path, table: object) -> Project:
    if not isinstance(table, dict):
        raise ConfigError(Problem(_TABLE, f"got {show(table)}, expected a table"))
    problems = [
        Problem(f"{_TABLE}.{key}", f"is not one of {', '.join(_KEYS)}{nearest(key, _KEYS)}")
        for key in table
        if key not in _KEYS
    ]
    trust, config_dir = table.get("trust", []), table.get("config_dir")
    if not isinstance(trust, list) or not all(isinstance(name, str) for name in trust):
        reason = f'got {show(trust)}, expected a list of names such as ["my_package"]'
        problems.append(Problem(f"{_TABLE}.trust", reason))
    configs = None
    if config_dir is not None:
        named = isinstance(config_dir, str) and config_dir and "\0" not in config_dir
        configs = (folder / config_dir).resolve() if named else None
        if configs is None or not (configs.is_dir() and configs.is_relative_to(folder)):
            problems.append(
                Problem(
                    f"{_TABLE}.config_dir",
                    f"got {show(config_dir)}, expected a folder inside of {folder}",
                )
            )
    if problems:
        raise ConfigError(problems)
    return Project(str(folder), tuple(trust), None if configs is None else str(configs))


def current() -> Project | None:
    """The project that this program, or the one that started it, was started in."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    values = json.loads(text)
    return Project(**{**values, "trust": tuple(values["trust"])})


def as_variable(project: Project | None) -> str:
    """The value that `current` reads; empty for no project."""
    return "" if project is None else json.dumps(asdict(project))


@contextmanager
def importable() -> Iterator[None]:
    """Have the current project's folder on `sys.path` for a time: first, or `last`."""
    project = current()
    if project is None or project.folder in sys.path:
        yield
        return
    sys.path.insert(len(sys.path) if project.last else 0, project.folder)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(project.folder)
