"""Hydra's own section: what it may hold, as Hydra acts on it before any of our code runs.

A file may change the folders of runs and sweeps, the name of a job, how it logs, and launcher and
sweeper by what installed plugins bring; the command line may change more. Whoever changes it: what
is called comes with Hydra, with `logging` or from a package that is trusted by name, and no
interpolation decides on it, as Hydra may find another value than was found here. Cost: 1 ms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from penstock.config import targets
from penstock.errors import Problem

_TRUSTED = ("callbacks", "job_logging", "hydra_logging")  # may call a package that is trusted
_ACTS = (*_TRUSTED, "launcher", "sweeper")
_CALLED = {
    *("logging.StreamHandler", "logging.NullHandler", "logging.FileHandler", "logging.Formatter"),
    *("rich.logging.RichHandler", "colorlog.ColoredFormatter"),
    "hydra.experimental.callbacks.LogJobReturnCallback",
    "hydra_plugins.penstock.OptunaSweeper",
}
_SUBMITIT = "hydra_plugins.hydra_submitit_launcher"  # writes these into a script for bash
_IN_SCRIPTS = ("hydra.job.name", "hydra.sweep.dir", "hydra.sweep.subdir")
_OF_FILES = re.compile(  # `runtime` and `overrides` are Hydra's record of a start
    rf"hydra\.(({'|'.join(_ACTS)}|help|hydra_help|searchpath|runtime|overrides|sweep)\b.*|run\.dir"
    r"|mode|verbose|job\.(name|config|config_name|override_dirname)\b.*)",
    re.DOTALL,
)
# Text of a file that no plugin runs. Further text is what plugins bring themselves.
_HARMLESS = re.compile(
    r"(launcher\.(partition|account|qos|gres|constraint|comment)|job\.name|sweep\.(sub)?dir)="
    r"[\w.,:@+/=-]*|\w+_logging\.((format|datefmt|style|level|formatter|stream|\d+)=.*"
    r"|filename=/\.log)",
    re.ASCII,
)
# Hydra's schema types these as text or a number, so that they are never nodes with a `_target_`.
_TEXTS = re.compile(
    r"\$\{(now:[^${}]*|oc\.env:[^${}]*|job_name:\$\{hydra\.overrides\.task\}|hydra[.:](job\.(name|num|id|override_dirname)|sweep\.(dir|subdir)|run\.dir"
    r"|runtime\.(cwd|output_dir)))\}"
)


def problems(node: Any, overrides: Sequence[Override]) -> list[Problem]:
    """The problems of a composed section.

    Args:
        node: the section as composed, raw.
        overrides: that it was composed from.

    Raises:
        ConfigError: what a trusted package should hold is not there.
    """
    if OmegaConf.get_type(node) is not HydraConf:
        return [Problem("hydra", "is not what Hydra takes; it is changed key by key")]
    section: Any = OmegaConf.to_container(node)
    words = [one for one in overrides if one.key_or_group.startswith("hydra.")]
    typed = {key: at for one in words for key, at in leaves(one.value(), one.key_or_group)}
    bare = dict(leaves(OmegaConf.to_container(OmegaConf.structured(HydraConf)), "hydra"))
    found = dict(search_path(section["searchpath"]))
    scripts = _IN_SCRIPTS if _SUBMITIT in str(section["launcher"]) else ()
    for key, value in leaves(section, "hydra"):
        own = key in typed and str(typed[key]) == str(value)
        if key.split(".")[1] in _ACTS or key in scripts:
            found |= {key: reason} if (reason := _reason(key, value, own)) else {}
        elif value and value != bare.get(key) and not own and not _OF_FILES.fullmatch(key):
            found[key] = f"is {value!r} by a file; type it on the command line"
    record = {*section["overrides"]["hydra"], *section["overrides"]["task"]}
    if not record <= {one.input_line for one in overrides}:
        found["hydra.overrides"] = "is Hydra's record of the command line, and not a file's"
    if section["job"]["chdir"]:
        found["hydra.job.chdir"] = "leave it out: a run writes into run_dir, and reads as typed"
    return [Problem(key, reason) for key, reason in found.items()]


def _reason(key: str, value: Any, own: bool) -> str | None:
    """What is wrong with a value that Hydra hands to what it calls."""
    part, name, text = key.split(".")[1], key.rpartition(".")[2], str(value)
    plain, of_jobs = _TEXTS.sub("", text), key.partition("hydra.sweeper.params.")[2]
    if re.match(r"[+~]*(-|hydra\b)|.*@hydra\b", of_jobs):
        return "a sweep goes over the keys of a run, and not over Hydra's own"
    if of_jobs or not isinstance(value, str) or (name, text) in _shipped():
        return None if key.isprintable() else "has a name that is no line of text"
    if "${" in plain:
        return f"is {text!r}: Hydra's own section needs the value itself, and no interpolation"
    if name in ("_target_", "class", "()"):
        if text in _CALLED:
            return None
        if part not in _TRUSTED or not targets.is_trusted(text):
            way = f". If it is yours: --trust {text.split('.')[0]}" * (part in _TRUSTED)
            return f"{text} is not called: neither Hydra nor a plugin brings it{way}"
        targets.resolve(text, key)
    elif re.match(r"(ext|cfg)://(?!sys\.std(out|err)$)", text):
        return f"{text} is not followed; there are ext://sys.stdout and ext://sys.stderr"
    elif not (own or part == "callbacks" or _HARMLESS.fullmatch(f"{part}.{name}={plain}")):
        return f"is {text!r} by a file, and may be run; type it on the command line"
    return None


def _shipped() -> set[tuple[str, Any]]:
    """Name and text of every argument that Hydra and installed plugins bring."""
    stored = (entry.node for _, entry in leaves(ConfigStore.instance().repo["hydra"], ""))
    nodes = (leaves(OmegaConf.to_container(node), "") for node in stored)
    return {(key.rpartition(".")[2], str(value)) for node in nodes for key, value in node}


def leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Full key and value of everything in a node that holds nothing more."""
    items = enumerate(value) if isinstance(value, list) else ()
    for name, inner in value.items() if isinstance(value, Mapping) else items:
        yield from leaves(inner, f"{key}.{name}")
    if not value or not isinstance(value, Mapping | list):
        yield key, value


def search_path(entries: Any, key: str = "hydra.searchpath") -> Iterator[tuple[str, str]]:
    """Key and reason of what is no folder and no trusted package, which Hydra would import."""
    for entry in map(str, entries or ()):
        scheme, _, path = entry.rpartition("://")
        known = scheme in ("", "file") or targets.is_trusted(path.replace("/", "."))
        if not known or scheme not in ("", "file", "pkg") or "${" in entry:
            way = f"If it is yours: --trust {path.split('.')[0]}"
            yield key, f"{entry} is no folder, and imports {path}, which is not trusted. {way}"


def overrides() -> list[str]:
    """The overrides of this job, as given: reading them one by one would resolve them."""
    if not HydraConfig.initialized():
        return []
    words: Any = OmegaConf.to_container(HydraConfig.get().overrides.task)
    return list(map(str, words))
