"""Hydra's own section: what it may hold, as Hydra acts on it before any of our code runs; and the
overrides of the job that Hydra runs.

A file may change the folders of runs and sweeps, the name of a job, how it logs, and launcher and
sweeper by what installed plugins bring; the command line may change more. Whoever changes it: what
is called comes with Hydra, with `logging` or from a package that is trusted by name, and no
interpolation decides on it, as Hydra may find another value than was found here. Cost: 1 ms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hydra.conf import HydraConf
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from penstock.config import targets
from penstock.config.schema import TASK_KEYS
from penstock.errors import Problem

# Keys of one command: the arguments of its task, where it writes, how it starts.
OF_A_START = ("task", "run_dir", "resume", "resume_despite", "hydra", *TASK_KEYS)

_TRUSTED = ("callbacks", "job_logging", "hydra_logging")  # may call a package that is trusted
_ACTS = (*_TRUSTED, "launcher", "sweeper")
_CALLED = {
    *("logging.StreamHandler", "logging.NullHandler", "logging.FileHandler", "logging.Formatter"),
    *("rich.logging.RichHandler", "colorlog.ColoredFormatter"),
    "hydra.experimental.callbacks.LogJobReturnCallback",
    "hydra_plugins.penstock.OptunaSweeper",
}
# Hydra's schema types these as text or a number, so that they are never nodes with a `_target_`.
_TEXTS = re.compile(
    r"\$\{(now:[^${}]*|oc\.env:[^${}]*|job_name:\$\{hydra\.overrides\.task\}"
    r"|hydra[.:](job\.(name|num|id|override_dirname)|sweep\.(dir|subdir)|run\.dir"
    r"|runtime\.(cwd|output_dir)))\}"
)
# `key=value` of what a file may hold, without such texts. Plugins write some of it into scripts for
# bash. Log files end with .log, which nothing runs. `runtime` is Hydra's record of a start.
_OF_FILES = re.compile(
    r"""hydra\.(
    ((help|hydra_help|searchpath|runtime|mode|verbose|job\.(config\w*|override_dirname))\b|run\.dir=).*
    |(sweep\.(sub)?dir|job\.name|launcher\.(partition|account|qos|gres|constraint|comment))
        =[\w.,:@+/=-]*
    |sweeper\.params\.(?![+~]*(-|hydra\b)|[^=]*@hydra\b)[^\n]*
    |callbacks\.[\w.]+=[^$]*
    |\w+_logging\.(\w+\.)*((format|datefmt|style|level|formatter|stream|\d+)=[^$]*|filename=/\.log)
    |(launcher|sweeper|\w+_logging)\.[\w.]+=(True|False|-?\d+(\.\d+)?)
    )""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)


def problems(node: Any, overrides: Sequence[Override]) -> Iterator[Problem]:
    """The problems of a composed section.

    Args:
        node: the section as composed, raw.
        overrides: that it was composed from.

    Raises:
        ConfigError: what a trusted package should hold is not there.
    """
    if OmegaConf.get_type(node) is not HydraConf:
        yield Problem("hydra", "is not what Hydra takes; it is changed key by key")
        return
    section: Any = OmegaConf.to_container(node)
    yield from search_path(section["searchpath"])
    known = {  # of what Hydra and its plugins bring
        (key.rpartition(".")[2], str(value))
        for _, stored in targets.nodes(ConfigStore.instance().repo["hydra"], "")
        if isinstance(stored, ConfigNode)
        for key, value in targets.nodes(OmegaConf.to_container(stored.node), "")
    }
    typed = {
        (key, str(at))
        for one in overrides
        for key, at in targets.nodes(one.value(), one.key_or_group)
    } | {("overrides", one.input_line) for one in overrides}  # Hydra's record of them
    for key, value in targets.nodes(section, "hydra"):
        part, name, text = f"{key}.".split(".")[1], key.rpartition(".")[2], str(value)
        plain = _TEXTS.sub("", text)
        if not value or isinstance(value, dict | list) or (name, text) in known or text in _CALLED:
            continue
        if name in ("_target_", "class", "()"):
            if part in _TRUSTED and targets.is_below(text, targets.trusted()):
                targets.resolve(text, key)
            else:
                yield Problem(
                    key,
                    f"{text} is not called: neither Hydra nor a plugin brings it"
                    + f". If it is yours: --trust {text.split('.')[0]}" * (part in _TRUSTED),
                )
        elif part in _ACTS and re.match(r"(ext|cfg)://(?!sys\.std(out|err)$)", text):
            yield Problem(
                key, f"{text} is not followed; there are ext://sys.stdout and ext://sys.stderr"
            )
        elif key == "hydra.job.chdir":
            yield Problem(key, "leave it out: a run writes into run_dir, and reads as typed")
        elif not _OF_FILES.fullmatch(f"{key}={plain}") and (
            not {(key, text), (part, text)} & typed or (part in _ACTS and "${" in plain)
        ):
            yield Problem(key, "comes from a file; type the value itself on the command line")


def search_path(entries: Iterable[Any], key: str = "hydra.searchpath") -> Iterator[Problem]:
    """Whatever is no folder and no trusted package, which Hydra would import."""
    for entry in map(str, filter(None, entries)):
        scheme, _, path = entry.rpartition("://")
        if "${" in entry or not (
            scheme in ("", "file")
            or (scheme == "pkg" and targets.is_below(path.replace("/", "."), targets.trusted()))
        ):
            yield Problem(
                key,
                f"{entry} is no folder, and imports {path}, which is not trusted. If it is yours: "
                f"--trust {path.split('.')[0]}",
            )


def overrides() -> list[str]:
    """The overrides of this job, as given: reading them one by one would resolve them."""
    if not HydraConfig.initialized():
        return []
    typed: Any = OmegaConf.to_container(HydraConfig.get().overrides)
    # A job of a sweep may run where no command line was, so it brings where groups are looked for.
    return [*typed["task"], *(one for one in typed["hydra"] if "hydra.searchpath=" in one)]


def is_job() -> bool:
    """Whether this is a job of a sweep, which keeps a folder for each."""
    return HydraConfig.initialized() and str(HydraConfig.get().mode) == "RunMode.MULTIRUN"


def of_run(words: Sequence[str]) -> list[str]:
    """Overrides without those of a task, of where it writes, and of how it is started."""
    return [word for word in words if re.split(r"[=./@]", word.lstrip("+~"))[0] not in OF_A_START]
