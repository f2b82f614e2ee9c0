"""The values that the section `hydra:` of a configuration may have.

hydra imports and calls what this section names, before any of our code runs. So

1. callbacks, launcher, sweeper and logging hold literal values: what an interpolation gives when
   hydra uses it need not be what it gave when it was checked;
2. what is called is named exactly. Callbacks, handlers and formatters stand in a short list or in a
   package trusted by name; launchers and sweepers are hydra's basic ones, or what the add-on that
   runs sweeps checks (`Sweeps.plugins`);
3. no handler writes to a file, and `.hydra` is the only subfolder;
4. environment variables are those in `HARMLESS`.

Works on raw values, before interpolation. Cost: below 1 ms a configuration.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hydra.conf import HydraConf
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import OmegaConf

from penstock import seams
from penstock.config import targets
from penstock.config.hydra_internals import BASIC_LAUNCHER, BASIC_SWEEPER
from penstock.errors import ConfigError, Problem

CALLBACKS = ("hydra.experimental.callbacks.LogJobReturnCallback",)
HANDLERS = ("logging.StreamHandler", "logging.NullHandler", "rich.logging.RichHandler")
FORMATTERS = ("logging.Formatter", "colorlog.ColoredFormatter")
STREAMS = ("ext://sys.stdout", "ext://sys.stderr")

# Numbers of threads, choices of devices and whether something is said. A name belongs here if no
# value of it makes a library load a file, run a program or talk to another machine.
HARMLESS = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TOKENIZERS_PARALLELISM",
    "VECLIB_MAXIMUM_THREADS",
)

_BASIC = {
    "launcher": {"_target_": BASIC_LAUNCHER},
    "sweeper": {"_target_": BASIC_SWEEPER, "max_batch_size": None, "params": None},
}
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


def problems(node: Any, overrides: Sequence[str], importing: bool = False) -> list[Problem]:
    """The problems of a composed section.

    Args:
        node: the section as hydra will use it.
        overrides: that were composed; all that may stand in `hydra.overrides`.
        importing: import what is named in trusted packages, and check its kind.
    """
    if OmegaConf.get_type(node) is not HydraConf:
        return [Problem("hydra", "is not what hydra takes; it is changed key by key")]
    section = raw(node)
    result = [*_literals(section), *_records(section, overrides)]
    result += _callbacks(section.get("callbacks"), importing)
    if any(section.get(name) != own for name, own in _BASIC.items()):
        result += seams.plugin_problems(node, section, overrides)
    for name in ("hydra_logging", "job_logging"):
        result += _logging(section.get(name), f"hydra.{name}", importing)
    folder = mapping(section.get("run"))
    if folder and folder.get("dir") not in (".", _HYDRAS_OWN):
        reason = "a configuration names the folder of a run by run_dir; set that"
        result.append(Problem("hydra.run.dir", f"got {folder.get('dir')!r}: {reason}"))
    result += search_path_problems(section.get("searchpath"))
    if section.get("output_subdir") not in (None, ".hydra"):
        reason = "hydra writes its files there; set it to null, or to .hydra"
        result.append(Problem("hydra.output_subdir", f"got {section['output_subdir']!r}: {reason}"))
    first = {problem.key: problem for problem in reversed(result)}
    return [problem for problem in result if first[problem.key] is problem]


def mapping(node: Any) -> Mapping[str, Any]:
    return node if isinstance(node, Mapping) else {}


def raw(node: Any) -> dict[str, Any]:
    """The section as plain containers in which interpolations are still text."""
    section: Any = OmegaConf.to_container(node, resolve=False)
    return section if isinstance(section, dict) else {"callbacks": section}


def search_path_problems(entries: object, key: str = "hydra.searchpath") -> list[Problem]:
    """Refuse what is no folder and no trusted package: hydra would import it to look there."""
    if not isinstance(entries, (list, tuple)):
        reason = f"got {entries!r}, expected a list of folders"
        return [] if entries is None else [Problem(key, reason)]
    reasons = map(_not_a_place, entries)
    return [Problem(key, reason) for reason in reasons if reason]


def _not_a_place(entry: object) -> str | None:
    if not isinstance(entry, str) or "${" in entry:
        return f"{entry!r} is not the name of a folder; an interpolation is not followed here"
    scheme, separator, path = entry.partition("://")
    if not separator or scheme == "file":
        return None
    package = path.replace("/", ".").rstrip(".")
    if scheme != "pkg":
        return f"{entry} would import {package}; give a folder, or pkg:// and a package you trust"
    if targets.is_trusted(package):
        return None
    first = package.split(".")[0]
    return f"{entry} imports {package}, which is not trusted. If it is yours: --trust {first}"


def _literals(section: Mapping[str, object]) -> Iterator[Problem]:
    """Interpolations in what decides how hydra runs."""
    nodes = {f"hydra.{name}": section.get(name) for name in _LITERAL}
    job = section.get("job")
    if isinstance(job, Mapping):
        nodes |= {f"hydra.job.{name}": job.get(name) for name in ("chdir", "env_set", "env_copy")}
    else:
        nodes["hydra.job"] = job
    for node, value in nodes.items():
        for key, text in texts(value, node):
            of_plugin = node in ("hydra.callbacks", "hydra.launcher", "hydra.sweeper")
            name = key.rpartition(".")[2]
            rest = _PLAIN.sub("", text) if of_plugin and not name.startswith("_") else text
            if "${" in rest or text == "???":
                yield Problem(
                    key,
                    f"is {text!r}, and its value when hydra uses it may be another "
                    "than now; hydra's own section needs the value itself",
                )


def _records(section: Mapping[str, Any], overrides: Sequence[str]) -> Iterator[Problem]:
    """Overrides, which hydra hands to jobs and ranks as if they had been typed; variables."""
    recorded = mapping(section.get("overrides"))
    words = [*(recorded.get("hydra") or ()), *(recorded.get("task") or ())]
    if sorted(map(str, words)) != sorted(overrides):
        yield Problem(
            "hydra.overrides",
            "is hydra's record of the command line; a configuration may not write into it",
        )
    for name in mapping(mapping(section.get("job")).get("env_set")):
        if name not in HARMLESS:
            yield Problem(
                f"hydra.job.env_set.{name}",
                "is not set from a configuration, since "
                "variables decide what runs and is trusted; set it outside, before the "
                f"program starts. Allowed: {', '.join(HARMLESS)}",
            )


def _callbacks(callbacks: object, importing: bool) -> Iterator[Problem]:
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
        for at, target in called(node, key, "_target_"):
            if not own or at != f"{key}._target_":
                kind = Callback if at == f"{key}._target_" else object
                yield from _trusted(at, target, kind, CALLBACKS, importing)
        for at, _ in called(node, key, "_partial_"):
            yield Problem(at, "a callback is built whole")


def _trusted(
    key: str, name: object, kind: type, known: Sequence[str], importing: bool
) -> Iterator[Problem]:
    """The problem of a name that has to be in a package of the person's own."""
    if not isinstance(name, str) or not targets.is_trusted(name):
        package = str(name).split(".")[0]
        way = "" if package in targets.NEVER else f". If it is yours: --trust {package}"
        yield Problem(
            key,
            f"{name} is not called: hydra's section may name {', '.join(known)} and "
            f"objects of a package that you trust{way}",
        )
        return
    try:
        targets.check_name(name, key)
        target = targets.resolve(name, key) if importing else None
    except ConfigError as error:
        yield from error.problems
        return
    fits = kind is object or (isinstance(target, type) and issubclass(target, kind))
    if importing and not fits:
        yield Problem(key, f"{name} is not a subclass of {kind.__module__}.{kind.__name__}")


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
        for at, value in called(section, key, name):
            group, _, inside = at.removesuffix(f".{name}").removeprefix(f"{key}.").partition(".")
            if group not in _LOGS or not inside or "." in inside or name == ".":
                yield Problem(
                    at, f"{value} is not called; only a handler or a formatter is made here"
                )
                continue
            known, kind = _LOGS[group]
            if isinstance(value, str) and value.startswith("logging.") and _FILES.search(value):
                yield Problem(
                    at,
                    f"{value} writes to a file of the configuration's choice, so "
                    "it is refused. Modules log to stderr, and metrics go to the "
                    "run folder; choose hydra/job_logging=stdout, or redirect "
                    "stderr",
                )
            elif value not in known:
                yield from _trusted(at, value, kind, known, importing)
    for at, text in texts(section, key):
        if text.startswith("cfg://") or (text.startswith("ext://") and text not in STREAMS):
            yield Problem(at, f"got {text}, expected {' | '.join(STREAMS)}")


def called(node: Any, key: str, word: str) -> Iterator[tuple[str, Any]]:
    """Key and value of every entry called `word`, at any depth."""
    return ((below, value) for below, name, value in entries(node, key) if name == word)


def texts(node: Any, key: str) -> Iterator[tuple[str, str]]:
    """Key and value of every text, at any depth; names of entries are none."""
    every = ((key, key, node), *entries(node, key))
    return ((below, value) for below, _, value in every if isinstance(value, str))


def entries(node: Any, key: str) -> Iterator[tuple[str, Any, Any]]:
    """Full key, own name and value of everything inside of a node, at any depth."""
    items = node.items() if isinstance(node, Mapping) else ()
    for name, value in enumerate(node) if isinstance(node, list) else items:
        below = f"{key}[{name}]" if isinstance(node, list) else f"{key}.{name}"
        yield below, name, value
        yield from entries(value, below)


def typed_values(lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Full key and value of everything that override lines give; of several values, each."""
    parser = OverridesParser.create()
    for line in lines:
        try:
            (override,) = parser.parse_overrides([line])
        except (HydraException, RecursionError, ValueError):
            continue  # it is reported where it is composed
        value = override.value()
        for choice in getattr(value, "list", None) or [value]:
            key = override.key_or_group
            yield key, choice
            yield from ((leaf_key, leaf) for leaf_key, _, leaf in entries(choice, key))
