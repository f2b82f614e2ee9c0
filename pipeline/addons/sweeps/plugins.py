"""The values that launchers and sweepers may have in a configuration's section `hydra:`.

hydra imports and calls what they name, before any of our code runs. So

1. launchers and sweepers are classes of installed plugins, or the sweeper of this package;
2. text for a plugin is what the plugin ships or what was typed on the command line, at that very
   key: some plugins run it (submitit's `setup`) or import it (optuna's `custom_search_space`). So
   are the names of a launcher's arguments, which become options of Slurm or variables of Ray;
3. what becomes a line of submitit's batch script is one line, and bash and Slurm read it alike.

The other rules on this section are in `penstock.config.hydra_section`. Cost: below 1 ms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from penstock.config.hydra_section import called, mapping, texts, typed_values
from penstock.config.messages import show
from penstock.errors import Problem

SWEEPER = "hydra_plugins.penstock.OptunaSweeper"

SUBMITIT = "hydra_plugins.hydra_submitit_launcher"
_FOR_SHELLS = ("setup", "teardown", "srun_args")  # lines that are taken as they were typed
_PLUGINS = ("hydra.launcher", "hydra.sweeper")


def problems(node: Any, section: Mapping[str, Any], lines: Sequence[str]) -> list[Problem]:
    """The problems of the launcher and the sweeper of a composed section.

    Args:
        node: the section as hydra will use it.
        section: its plain values, interpolations as text.
        lines: the overrides that were composed.
    """
    typed = dict(typed_values(line for line in lines if line.lstrip("+~").startswith(_PLUGINS)))
    problems: list[Problem] = []
    for name, kind in (("launcher", Launcher), ("sweeper", Sweeper)):
        problems += _plugin(section.get(name), f"hydra.{name}", kind, typed)
    launcher = mapping(section.get("launcher"))
    problems += _tasks(launcher)
    if str(launcher.get("_target_")).startswith(SUBMITIT):
        problems += of_script(_resolved(node, "launcher", launcher))
    return problems


def of_script(parameters: Mapping[str, object]) -> Iterator[Problem]:
    """Values that end their line of a batch script, of which bash would run the rest."""
    for key, text in texts(parameters, "hydra.launcher"):
        typed = key.split(".")[2].partition("[")[0] in _FOR_SHELLS
        if not text.isprintable() or ("\\" in text and not typed):
            reason = "has to be one printable line of a batch script, without backslashes"
            yield Problem(key, f"got {show(text)}: it {reason}")


def _plugin(node: Any, key: str, kind: type, typed: Mapping[str, Any]) -> Iterator[Problem]:
    """A launcher or sweeper: a class of an installed plugin, with arguments of its own."""
    if not isinstance(node, Mapping):
        yield Problem(
            key, f"got {node!r}, expected a {kind.__name__.lower()} of an installed plugin"
        )
        return
    known = {
        f"{plugin.__module__}.{plugin.__name__}" for plugin in Plugins.instance().discover(kind)
    }
    if kind is Sweeper and node.get("_target_") == SWEEPER:
        yield from (
            Problem(f"{key}.{name}", f"{node['_target_']} takes params alone")
            for name in node
            if name not in ("_target_", "params")
        )
        yield from _params(node.get("params"), f"{key}.params")
        return
    if str(node.get("_target_")) not in known:
        reason = f"is not a {kind.__name__.lower()} of an installed plugin; there are "
        reason += ", ".join(sorted(known))
        yield Problem(f"{key}._target_", f"{node.get('_target_')} {reason}")
        return
    yield from _arguments(node, key, typed)


def _tasks(launcher: Mapping[str, Any]) -> Iterator[Problem]:
    """A job of a sweep is one process, which starts its ranks: others would run the job again."""
    for name in ("nodes", "tasks_per_node"):
        if launcher.get(name) not in (None, 1):
            yield Problem(
                f"hydra.launcher.{name}",
                f"got {launcher[name]!r}: a job of a sweep is "
                "one process, and starts its ranks itself on the machine that it gets; "
                "set it to 1, and distributed=ddp distributed.nproc=N",
            )


def _arguments(node: Mapping[Any, Any], key: str, typed: Mapping[str, Any]) -> Iterator[Problem]:
    shipped = _shipped().get(node["_target_"], [])
    for name, value in node.items():
        below = f"{key}.{name}"
        if name == "_target_" or any(name in ship and ship[name] == value for ship in shipped):
            continue
        if str(name).startswith("_"):
            yield Problem(below, "is not for the arguments of a plugin")
        elif name == "params" and key == "hydra.sweeper":
            yield from _params(value, below)
        elif isinstance(value, Mapping) and value.get("_target_") in _shipped():
            yield from _arguments(value, below, typed)
        elif target := next(called(value, below, "_target_"), None):
            yield Problem(
                target[0], f"{target[1]} is not called: no installed plugin of hydra's ships it"
            )
        else:
            known = [ship[name] for ship in shipped if name in ship]
            names = key.startswith("hydra.launcher")  # which its arguments' names are text for
            for path, leaf in _foreign(value, below, known, names):
                if path not in typed or not _same(typed[path], leaf):
                    yield Problem(
                        path,
                        f"got {show(leaf)}, text for a plugin, which may run it; "
                        "it is taken from the command line only",
                    )


def _foreign(value: Any, key: str, known: Sequence[Any], names: bool) -> Iterator[tuple[str, Any]]:
    """Key and value of every text in an argument, and of entries that the plugin has no name for.

    Args:
        known: what the plugin ships at `key`; empty if it ships nothing there.
        names: whether unknown names count.
    """
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            below = [ship[name] for ship in known if isinstance(ship, Mapping) and name in ship]
            yield from _foreign(inner, f"{key}.{name}", below, names)
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from _foreign(inner, f"{key}[{number}]", known, names)
    elif isinstance(value, str) or (names and not known):
        yield key, value


def _same(typed: Any, value: Any) -> bool:
    """Whether a value is what was typed; a schema makes text of a number."""
    return bool(typed == value) or (isinstance(value, str) and str(typed) == value)


def _params(params: Any, key: str) -> Iterator[Problem]:
    """The keys that a sweeper goes through: none of hydra's, and no options."""
    if params is not None and not isinstance(params, Mapping):
        yield Problem(key, f"got {params!r}, expected values by key")
        return
    for name, value in (params or {}).items():
        plain = str(name).lstrip("+~")
        if not re.match(r"[A-Za-z_]", plain) or re.split(r"[./@=:]", plain)[0] == "hydra":
            yield Problem(
                f"{key}.{name}", "a sweep goes over the keys of a run, and not over hydra's own"
            )
        if "@hydra" in plain:
            yield Problem(f"{key}.{name}", "a sweep puts nothing into hydra's own section")
        if isinstance(value, Mapping):
            for path, target in called(value, f"{key}.{name}", "_target_"):
                yield Problem(path, f"{target} is not called")


@lru_cache(maxsize=1)
def _shipped() -> dict[str, list[dict[str, Any]]]:
    """The nodes that installed plugins have registered as launchers and sweepers, by `_target_`."""
    nodes: dict[str, list[dict[str, Any]]] = {}
    for node in (*_stored("hydra/launcher"), *_stored("hydra/sweeper")):
        if isinstance(node.get("_target_"), str):
            nodes.setdefault(node["_target_"], []).append(node)
    return nodes


def _stored(group: str) -> Iterator[dict[str, Any]]:
    store = ConfigStore.instance()
    for name in store.list(group):
        path = f"{group}/{name}"
        if store.get_type(path) is ObjectType.GROUP:
            yield from _stored(path)
            continue
        node = OmegaConf.to_container(store.load(path).node, resolve=False)
        if isinstance(node, dict):
            yield {str(key): value for key, value in node.items()}


def _resolved(node: Any, name: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a section's node with their interpolations followed, where that is possible.

    Values that only a job knows stay text; the job checks the result of an interpolation again.
    """
    resolved = {}
    for key, value in raw.items():
        resolved[key] = value
        with suppress(OmegaConfBaseException):
            entry = OmegaConf.select(node, f"{name}.{key}")
            container = OmegaConf.is_config(entry)
            resolved[key] = OmegaConf.to_container(entry, resolve=True) if container else entry
    return resolved
