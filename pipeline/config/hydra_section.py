"""The values that the section `hydra:` of a configuration may have.

hydra imports and calls what this section names, before any code of ours runs. So

1. callbacks, launcher, sweeper and logging hold literal values: what an interpolation gives when
   hydra uses it need not be what it gave when it was checked;
2. what is called is named exactly. Launchers and sweepers are classes of installed plugins;
   callbacks, handlers and formatters stand in a short list or in a package trusted by name;
3. text for a plugin is what the plugin ships or what was typed on the command line, at that very
   key: some plugins run it (submitit's `setup`) or import it (optuna's `custom_search_space`). So
   are the names of a launcher's arguments, which become options of Slurm or variables of Ray;
4. no handler writes to a file, and `.hydra` is the only subfolder;
5. environment variables are those in `environment.HARMLESS`.

Works on raw values, before interpolation. Cost: below 1 ms a configuration.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.experimental.callback import Callback
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from penstock.addons.sweeps import batch_scripts
from penstock.config import allow_list, command_line_keys, outputs
from penstock.config.command_line_keys import entries, typed_values
from penstock.config.environment import HARMLESS
from penstock.config.messages import allowing, show
from penstock.errors import ConfigError, Problem

CALLBACKS = (
    "penstock.addons.sweeps.sweep.SweepTable",
    "hydra.experimental.callbacks.LogJobReturnCallback",
)
SWEEPERS = ("penstock.addons.sweeps.optuna_sweeper.OptunaSweeper",)  # beside those of plugins
HANDLERS = ("logging.StreamHandler", "logging.NullHandler", "rich.logging.RichHandler")
FORMATTERS = ("logging.Formatter", "colorlog.ColoredFormatter")
STREAMS = ("ext://sys.stdout", "ext://sys.stderr")

_HYDRAS_OWN = "outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}"  # where a configuration says nothing

_FILES = re.compile(r"\.\w*FileHandler$")
_LITERAL = (
    "callbacks",
    "launcher",
    "sweeper",
    "hydra_logging",
    "job_logging",
    "mode",
    "verbose",
    "output_subdir",
)
# What hydra's schema types as text or a number, so that it never is a node with a `_target_`.
_PLAIN = re.compile(
    r"\$\{hydra[.:](job\.(name|num|id)|sweep\.(dir|subdir)|run\.dir|"
    r"runtime\.(cwd|output_dir))\}"
)


def problems(node: Any, given: Sequence[str], importing: bool = False) -> list[Problem]:
    """The problems of a composed section.

    Args:
        node: the section as hydra will use it.
        given: the overrides that were composed; all that may stand in `hydra.overrides`.
        importing: import what is named in trusted packages, and check its kind.
    """
    if OmegaConf.get_type(node) is not HydraConf:
        return [Problem("hydra", "is not what hydra takes; it is changed key by key")]
    section = raw(node)
    found = [*_literals(section), *_records(section, given)]
    found += _callbacks(section.get("callbacks"), importing)
    typed = dict(typed_values(line for line in given if _of_plugin(line)))
    for name, kind in (("launcher", Launcher), ("sweeper", Sweeper)):
        found += _plugin(section.get(name), f"hydra.{name}", kind, typed)
    launcher = _mapping(section.get("launcher"))
    found += _tasks(launcher)
    if str(launcher.get("_target_")).startswith(batch_scripts.PLUGIN):
        found += batch_scripts.lines_with_interpolations(launcher)
        found += batch_scripts.problems(_resolved(node, "launcher", launcher))
    for name in ("hydra_logging", "job_logging"):
        found += _logging(section.get(name), f"hydra.{name}", importing)
    folder = _mapping(section.get("run"))
    if folder and folder.get("dir") not in (".", _HYDRAS_OWN):
        reason = "a configuration names the folder of a run by run_dir; set that"
        found.append(Problem("hydra.run.dir", f"got {folder.get('dir')!r}: {reason}"))
    found += search_path_problems(section.get("searchpath"))
    if section.get("output_subdir") not in (None, ".hydra"):
        reason = "hydra writes its files there; set it to null, or to .hydra"
        found.append(Problem("hydra.output_subdir", f"got {section['output_subdir']!r}: {reason}"))
    first = {problem.key: problem for problem in reversed(found)}
    return [problem for problem in found if first[problem.key] is problem]


def _mapping(node: Any) -> Mapping[str, Any]:
    return node if isinstance(node, Mapping) else {}


def sweep_problems(node: Any) -> Iterator[Problem]:
    """The problems of where a sweep writes, from a composed section."""
    folder = OmegaConf.select(node, "sweep.dir", throw_on_resolution_failure=False)
    subdir = _mapping(raw(node).get("sweep")).get("subdir")
    if folder is not None:
        plain = subdir if isinstance(subdir, str) and "${" not in subdir else None
        yield from outputs.check_sweep(str(folder), plain)


def _resolved(node: Any, name: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a section's node with their interpolations followed, where that is possible.

    What only a job knows stays text; what an interpolation gives later is checked again by then.
    """
    found = {}
    for key, value in raw.items():
        found[key] = value
        with suppress(OmegaConfBaseException):
            entry = OmegaConf.select(node, f"{name}.{key}")
            container = OmegaConf.is_config(entry)
            found[key] = OmegaConf.to_container(entry, resolve=True) if container else entry
    return found


def _of_plugin(line: str) -> bool:
    return line.lstrip("+~").startswith(("hydra.launcher", "hydra.sweeper"))


def raw(node: Any) -> dict[str, Any]:
    """The section as plain containers in which interpolations are still text."""
    section: Any = OmegaConf.to_container(node, resolve=False)
    return section if isinstance(section, dict) else {"callbacks": section}


def search_path_problems(entries: Any, key: str = "hydra.searchpath") -> list[Problem]:
    """Refuse what is no folder and no trusted package: hydra would import it to look there."""
    if not isinstance(entries, (list, tuple)):
        reason = f"got {entries!r}, expected a list of folders"
        return [] if entries is None else [Problem(key, reason)]
    reasons = map(_not_a_place, entries)
    return [Problem(key, reason) for reason in reasons if reason]


def _not_a_place(entry: Any) -> str | None:
    if not isinstance(entry, str) or "${" in entry:
        return f"{entry!r} is not the name of a folder; an interpolation is not followed here"
    scheme, separator, path = entry.partition("://")
    if not separator or scheme == "file":
        return None
    package = path.replace("/", ".").rstrip(".")
    if scheme != "pkg":
        return f"{entry} would import {package}; give a folder, or pkg:// and a package you trust"
    if allow_list.is_trusted(package):
        return None
    first = package.split(".")[0]
    way = allowing("--trust", first, "PACKAGE")
    return f"{entry} imports {package}, which is not trusted. If it is yours: {way}"


def _literals(section: Mapping[str, Any]) -> Iterator[Problem]:
    """Interpolations in what decides how hydra runs."""
    nodes = {f"hydra.{name}": section.get(name) for name in _LITERAL}
    job = section.get("job")
    if isinstance(job, Mapping):
        nodes |= {f"hydra.job.{name}": job.get(name) for name in ("chdir", "env_set", "env_copy")}
    else:
        nodes["hydra.job"] = job
    for node, value in nodes.items():
        for key, text in _texts(value, node):
            of_plugin = node in ("hydra.callbacks", "hydra.launcher", "hydra.sweeper")
            name = key.rpartition(".")[2]
            rest = _PLAIN.sub("", text) if of_plugin and not name.startswith("_") else text
            if "${" in rest or text == "???":
                yield Problem(
                    key,
                    f"is {text!r}, and its value when hydra uses it may be another "
                    "than now; hydra's own section needs the value itself",
                )


def _records(section: Mapping[str, Any], given: Sequence[str]) -> Iterator[Problem]:
    """Overrides, which hydra hands to jobs and ranks as if they had been typed; variables."""
    overrides = _mapping(section.get("overrides"))
    words = [*(overrides.get("hydra") or ()), *(overrides.get("task") or ())]
    if sorted(map(str, words)) != sorted(given):
        yield Problem(
            "hydra.overrides",
            "is hydra's record of the command line; a configuration may not write into it",
        )
    for name in _mapping(_mapping(section.get("job")).get("env_set")):
        if name not in HARMLESS:
            yield Problem(
                f"hydra.job.env_set.{name}",
                "is not set from a configuration, since "
                "variables decide what runs and is trusted; set it outside, before the "
                f"program starts. Allowed: {', '.join(HARMLESS)}",
            )


def _callbacks(callbacks: Any, importing: bool) -> Iterator[Problem]:
    if callbacks is None:
        return
    if not isinstance(callbacks, Mapping):
        yield Problem("hydra.callbacks", f"got {callbacks!r}, expected callbacks by name")
        return
    for name, node in callbacks.items():
        key = f"hydra.callbacks.{name}"
        if not isinstance(node, Mapping) or "_target_" not in node:
            yield Problem(key, "has no _target_, so it is not a callback")
            continue
        own = node["_target_"] in CALLBACKS
        for argument in node if own else ():
            if argument != "_target_":
                yield Problem(f"{key}.{argument}", f"{node['_target_']} takes no arguments")
        for place, target in _called(node, key, "_target_"):
            if not own or place != f"{key}._target_":
                kind = Callback if place == f"{key}._target_" else object
                yield from _trusted(place, target, kind, CALLBACKS, importing)
        for place, _ in _called(node, key, "_partial_"):
            yield Problem(place, "a callback is built whole")


def _trusted(
    key: str, name: Any, kind: type, known: Sequence[str], importing: bool
) -> Iterator[Problem]:
    """The problem of a name that has to be in a package of the person's own."""
    if not isinstance(name, str) or not allow_list.is_trusted(name):
        package = str(name).split(".")[0]
        way = allowing("--trust", package, "PACKAGE")
        way = "" if package in allow_list.NEVER else f". If it is yours: {way}"
        yield Problem(
            key,
            f"{name} is not called: hydra's section may name {', '.join(known)} and "
            f"what lies in a package that you trust{way}",
        )
        return
    try:
        allow_list.check_name(name, key)
        found = allow_list.resolve(name, key) if importing else None
    except ConfigError as error:
        yield from error.problems
        return
    fits = kind is object or (isinstance(found, type) and issubclass(found, kind))
    if importing and not fits:
        yield Problem(key, f"{name} is not a subclass of {kind.__module__}.{kind.__name__}")


def _plugin(node: Any, key: str, kind: type, typed: Mapping[str, Any]) -> Iterator[Problem]:
    """A launcher or sweeper: a class of an installed plugin, with arguments of its own."""
    if not isinstance(node, Mapping):
        yield Problem(
            key, f"got {node!r}, expected a {kind.__name__.lower()} of an installed plugin"
        )
        return
    installed = {f"{one.__module__}.{one.__name__}" for one in Plugins.instance().discover(kind)}
    if kind is Sweeper and node.get("_target_") in SWEEPERS:
        yield from (
            Problem(f"{key}.{name}", f"{node['_target_']} takes params alone")
            for name in node
            if name not in ("_target_", "params")
        )
        yield from _params(node.get("params"), f"{key}.params")
        return
    if str(node.get("_target_")) not in installed:
        reason = f"is not a {kind.__name__.lower()} of an installed plugin; there are "
        reason += ", ".join(sorted(installed))
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
        if name == "_target_" or any(name in one and one[name] == value for one in shipped):
            continue
        if str(name).startswith("_"):
            yield Problem(below, "is not for the arguments of a plugin")
        elif name == "params" and key == "hydra.sweeper":
            yield from _params(value, below)
        elif isinstance(value, Mapping) and value.get("_target_") in _shipped():
            yield from _arguments(value, below, typed)
        elif called := next(_called(value, below, "_target_"), None):
            yield Problem(
                called[0], f"{called[1]} is not called: no installed plugin of hydra's ships it"
            )
        else:
            known = [one[name] for one in shipped if name in one]
            names = key.startswith("hydra.launcher")  # which its arguments' names are text for
            for place, leaf in _foreign(value, below, known, names):
                if place not in typed or not _same(typed[place], leaf):
                    yield Problem(
                        place,
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
            below = [one[name] for one in known if isinstance(one, Mapping) and name in one]
            yield from _foreign(inner, f"{key}.{name}", below, names)
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            yield from _foreign(inner, f"{key}[{place}]", known, names)
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
        if typed := command_line_keys.swept(plain, value):
            yield Problem(f"{key}.{name}", f"{typed} is taken from the command line only")
        if "@hydra" in plain:
            yield Problem(f"{key}.{name}", "a sweep puts nothing into hydra's own section")
        if isinstance(value, Mapping):
            for place, target in _called(value, f"{key}.{name}", "_target_"):
                yield Problem(place, f"{target} is not called")


@lru_cache(maxsize=1)
def _shipped() -> dict[str, list[dict[str, Any]]]:
    """The nodes that installed plugins have registered as launchers and sweepers, by `_target_`."""
    found: dict[str, list[dict[str, Any]]] = {}
    for node in (*_stored("hydra/launcher"), *_stored("hydra/sweeper")):
        if isinstance(node.get("_target_"), str):
            found.setdefault(node["_target_"], []).append(node)
    return found


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


_LOGS: dict[str, tuple[tuple[str, ...], type]] = {
    "handlers": (HANDLERS, logging.Handler),
    "formatters": (FORMATTERS, logging.Formatter),
}


def _logging(section: Any, key: str, importing: bool) -> Iterator[Problem]:
    """A section as logging.config takes it: what is called, and with which streams."""
    if section is None:
        return
    if not isinstance(section, Mapping):
        yield Problem(key, f"got {section!r}, expected what logging.config.dictConfig takes")
        return
    for name in ("()", "class", "."):
        for place, value in _called(section, key, name):
            group, _, inside = place.removesuffix(f".{name}").removeprefix(f"{key}.").partition(".")
            if group not in _LOGS or not inside or "." in inside or name == ".":
                yield Problem(
                    place, f"{value} is not called; only a handler or a formatter is made here"
                )
                continue
            known, kind = _LOGS[group]
            if isinstance(value, str) and value.startswith("logging.") and _FILES.search(value):
                yield Problem(
                    place,
                    f"{value} writes to a file of the configuration's choice, so "
                    "it is refused. What modules log goes to stderr, and metrics to the "
                    "run folder; choose hydra/job_logging=stdout, or redirect "
                    "stderr",
                )
            elif value not in known:
                yield from _trusted(place, value, kind, known, importing)
    for place, text in _texts(section, key):
        if text.startswith("cfg://") or (text.startswith("ext://") and text not in STREAMS):
            yield Problem(place, f"got {text}, expected {' | '.join(STREAMS)}")


def _called(node: Any, key: str, wanted: str) -> Iterator[tuple[str, Any]]:
    """Key and value of every entry called `wanted`, at any depth."""
    return ((below, value) for below, name, value in entries(node, key) if name == wanted)


def _texts(node: Any, key: str) -> Iterator[tuple[str, str]]:
    """Key and value of every text, at any depth; names of entries are none."""
    every = ((key, key, node), *entries(node, key))
    return ((below, value) for below, _, value in every if isinstance(value, str))
