"""Which add-ons are installed, and what they bring: an `AddOn` each.

The core's tasks stand in the same kind of record, `penstock.tasks.CORE`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from penstock.errors import ConfigError, Problem

_FOLDER = Path(__file__).parent / "addons"


@dataclass(frozen=True)
class Sweeps:
    """How an add-on runs the several jobs of a command line with `-m`.

    Attributes:
        check: "module:function" of (composer, overrides, what is composed of those that are fixed,
            announce), which gives the problems of all jobs.
        plugins: "module:function" of (hydra's section, its plain values, the overrides), which
            gives the problems of a launcher and a sweeper that are not hydra's basic ones.
        resumed: "module:function" of overrides, one of which is `resume`: the overrides with those
            of the sweep that it names before them, and whether it names one.
        running: "module:function" of (composer, overrides, words of the command line), which gives
            the context manager in which hydra runs the jobs.
        job: "module:function" of (accept, run, report), called in the process of each job: it
            gives `accept` the job's folder for its configuration, and that to `run` for its value;
            what is raised goes to `report`, for an exit code.
    """

    check: str
    plugins: str
    resumed: str
    running: str
    job: str


@dataclass(frozen=True)
class AddOn:
    """What is still named by strings; see `penstock.seams`."""

    typed: Mapping[str, str] = field(default_factory=dict)
    sends: str = ""
    completion: str = ""
    sweeps: Sweeps | None = None
    sweep_contexts: Sequence[str] = ()
    sweep_pages: Sequence[str] = ()
    only_with: Sequence[str] | None = None


@cache
def addons() -> Mapping[str, AddOn]:
    """The add-ons by name. Cost: 0.2 ms for each, once.

    Packages of other distributions are no add-ons: they would run without anybody having said so.
    """
    names = [module.name for module in pkgutil.iter_modules([str(_FOLDER)])]
    modules = {name: import_module(f"penstock.addons.{name}") for name in names}
    return {name: module.ADDON for name, module in modules.items() if hasattr(module, "ADDON")}


Asked = Literal["sends"]


def asked(config: object, seam: Asked) -> list[Any]:
    """The parts of add-ons at a seam, for a configuration; see `AddOn.only_with`.

    Args:
        config: a `Config` or a mapping; of keys that are missing, or wrong, nothing is asked.
    """
    said = set(_said(config))
    return [
        load(name)
        for addon in addons().values()
        if (names := getattr(addon, seam))
        and (addon.only_with is None or not said.isdisjoint(addon.only_with))
        for name in ([names] if isinstance(names, str) else names)
    ]


def _said(config: object) -> Iterator[str]:
    """NAME and NAME=VALUE of every key at any depth that is not null."""
    if isinstance(config, (list, tuple)):
        for value in config:
            yield from _said(value)
    elif isinstance(config, Mapping) or hasattr(config, "model_fields_set"):
        for name, value in (config if isinstance(config, Mapping) else vars(config)).items():
            if isinstance(value, (str, int)):
                yield f"{name}={value}"
            if value is not None:
                yield str(name)
                yield from _said(value)


@cache
def typed_keys() -> Mapping[str, str]:
    """The values that keys of the command line alone may have; see `AddOn.typed`."""
    return {key: name for addon in addons().values() for key, name in addon.typed.items()}


def completion() -> Callable[..., Any]:
    """The part that answers `-sc`.

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


def load(name: str) -> Any:
    """The object that "module:NAME" names, or a module."""
    module, _, attribute = name.partition(":")
    loaded = import_module(module)
    return getattr(loaded, attribute) if attribute else loaded
