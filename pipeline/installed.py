"""Which add-ons are installed, and what they bring.

The core's tasks stand in the same kind of record, `penstock.tasks.CORE`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from penstock.errors import ConfigError, Problem
from penstock.protocols import AddOn, Sweeps, Task

if TYPE_CHECKING:
    from penstock.runs.checkpoint import CopiesPlace

_FOLDER = Path(__file__).parent / "addons"


@cache
def addons() -> Mapping[str, AddOn]:
    """The add-ons by name. Cost: 0.2 ms for each, once.

    Packages of other distributions are no add-ons: they would run without anybody having said so.
    """
    names = [module.name for module in pkgutil.iter_modules([str(_FOLDER)])]
    return {name: import_module(f"penstock.addons.{name}").ADDON for name in names}


@cache
def tasks() -> Mapping[str, Task]:
    """All tasks by name, the core's first."""
    found: dict[str, Task] = dict(load("penstock.tasks:CORE"))
    for addon in addons().values():
        found |= addon.tasks
    return found


def options() -> dict[str, Any]:
    """What add-ons bring into the configuration, by key: `Extension` classes and `Option`s."""
    found: dict[str, Any] = {}
    for addon in addons().values():
        found |= {key: load(name) for key, name in addon.options.items()}
    return found


def backends() -> dict[str, str]:
    """What opens each backend that add-ons bring, by the name of `loader.backend`."""
    return {name: opener for addon in addons().values() for name, opener in addon.backends.items()}


def all_of(seam: Literal["explains", "observers", "pictures"]) -> list[Callable[..., Any]]:
    """The functions that add-ons bring to a seam."""
    names = (getattr(addon, seam) for addon in addons().values())
    return [load(name) for name in names if name]


def copies() -> CopiesPlace | None:
    """Another place that a fit's state is kept in, if an add-on has one."""
    module = next((addon.copies for addon in addons().values() if addon.copies), None)
    return cast("CopiesPlace", load(module)) if module else None


@cache
def typed_keys() -> Mapping[str, str]:
    """What may be typed at keys that only a command line sets; see `AddOn.typed`."""
    return {key: name for addon in addons().values() for key, name in addon.typed.items()}


def sends() -> list[Any]:
    """What add-ons send to servers; see `AddOn.sends`."""
    return [load(addon.sends) for addon in addons().values() if addon.sends]


def rules() -> list[Callable[..., Any]]:
    """What add-ons check of a configuration; see `AddOn.rules`."""
    return [load(name) for addon in addons().values() for name in addon.rules]


def completion() -> Callable[..., Any]:
    """What answers `-sc`.

    Raises:
        ConfigError: no add-on does.
    """
    name = next((addon.completion for addon in addons().values() if addon.completion), None)
    if name is None:
        raise ConfigError(Problem("-sc", "completion by Tab needs the add-on completion"))
    return load(name)


def sweeps() -> Sweeps | None:
    """How several jobs of one command line run; None if no add-on does that."""
    return next((addon.sweeps for addon in addons().values() if addon.sweeps), None)


def command(word: str) -> Callable[[Sequence[str]], int] | None:
    """What takes a command line whose first word this is; None for a run."""
    names = (addon.commands[word] for addon in addons().values() if word in addon.commands)
    return next(map(load, names), None)


def only_reads(task: object) -> bool:
    """Whether a task of that name only reads folders of runs."""
    known = tasks().get(task) if isinstance(task, str) else None
    return known is not None and known.reads


def runner(task: str) -> Callable[..., Any]:
    """What a task runs."""
    return load(tasks()[task].run)


def load(name: str) -> Any:
    """What "module:NAME" names, or a module."""
    module, _, attribute = name.partition(":")
    loaded = import_module(module)
    return getattr(loaded, attribute) if attribute else loaded
