"""Hydra's own output, printed and saved, without secrets and harmless for a terminal.

    shown      `--cfg`, `--info`, `--help`: hydra composes and prints
    saved      multirun.yaml of a sweep, and .hydra/ where `hydra.output_subdir` asks for it
    overrides  of the job that runs

Functions of hydra's and omegaconf's are replaced while hydra runs, and no longer.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from penstock import program, terminal
from penstock.config import disclosure, environment, hydra_internals
from penstock.errors import PenstockError
from penstock.files.disk import replace_own, write_atomically
from penstock.files.own_files import NotOwnError

SWEEP = "multirun.yaml"

_MADE = re.compile(rb"hydra:\n")  # how multirun.yaml begins


@contextmanager
def shown(package: str | None) -> Iterator[None]:
    """Let hydra print configurations in which secrets are *** and variables keep their names.

    Keys have the comments of the YAML files that they come from. Commands in the help are those of
    this program, as it was started.

    Args:
        package: the key of what is printed (`--package`); everything if None.
    """
    from penstock.config import yaml_comments  # a run shows nothing

    to_yaml = OmegaConf.to_yaml
    said: dict[str, str] = {}
    page: str | None = None
    prefix = "" if package in (None, "_global_") else package

    def without_secrets(config: DictConfig, section: DictConfig) -> DictConfig:
        folders = [
            Path(source.path)
            for source in section.runtime.config_sources
            if source.schema == "file"
        ]
        nonlocal page
        choices = {str(group): option for group, option in section.runtime.choices.items()}
        page = choices.get("hydra/help")
        said.update(yaml_comments.comments(folders, choices, str(section.job.config_name)))
        return OmegaConf.create(written(config))

    def with_comments(cfg: Any, *, resolve: bool = False, sort_keys: bool = False) -> str:
        if OmegaConf.is_config(cfg):  # `--info` comes without what `--cfg` has gone through
            cfg = OmegaConf.create(written(cfg))
        text = to_yaml(cfg, resolve=resolve, sort_keys=sort_keys)
        return yaml_comments.annotated(text, said, prefix or "")

    def fitted(text: str) -> str:
        text = text.replace("python run.py", program.text())
        return (
            text if page == "keys" else _fitted(text, shutil.get_terminal_size((100, 24)).columns)
        )

    printed = hydra_internals.replaced(OmegaConf, to_yaml=staticmethod(with_comments))
    loaded = hydra_internals.shown_by(without_secrets, fitted)
    with loaded, printed, terminal.held_back(), environment.unread():
        yield


def _fitted(text: str, width: int) -> str:
    """Break the lines of a help text that are longer than a terminal is wide; commands stay whole.

    Text behind two spaces or more is a description, whose lines begin below each other.
    """
    lines = []
    for line in text.strip().splitlines():
        indent = "  " if re.match(r"\w+: \w+(, \w+)*$", line) else ""  # the options of a group
        if len(indent + line) <= width or line.startswith("    "):
            lines.append(indent + line)
            continue
        described = re.match(r" *\S.*? {2,}(?=\S)", line)
        hanging = " " * (len(described[0]) if described else 2 * len(indent))
        lines += textwrap.wrap(
            line, max(width, 40), initial_indent=indent, subsequent_indent=hanging
        )
    return "\n".join(lines)


@contextmanager
def saved() -> Iterator[None]:
    """Let hydra save configurations without secrets, and through no link."""
    printed = hydra_internals.replaced(OmegaConf, to_yaml=_TO_YAML)
    with printed, hydra_internals.saved_by(_save_or_leave):
        yield


def save_without_secrets() -> None:
    """The same for all that this process, which a launcher has started, still saves."""
    OmegaConf.to_yaml = _TO_YAML  # type: ignore[method-assign]
    hydra_internals.save_by(_save)


def save_sweep(config: DictConfig, folder: Path) -> None:
    """Write multirun.yaml, the configuration that the jobs of a sweep start from.

    Raises:
        DiskError: it cannot be written.
        NotOwnError: there is a file of that name which no sweep has written.
    """
    replace_own(folder / SWEEP, OmegaConf.to_yaml(config).encode(), _MADE)


def _save(config: object, name: str, folder: Path) -> None:
    """As hydra saves a configuration, but a folder that leads elsewhere is refused."""
    for path in (folder.parent, folder):
        if path.is_symlink():
            raise NotOwnError(
                f"{path} is a symbolic link; nothing was written through it. Give "
                "another hydra.sweep.dir, or hydra.output_subdir=null"
            )
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / name, OmegaConf.to_yaml(config).encode())


def _save_or_leave(config: object, name: str, folder: Path) -> None:
    """The same; hydra catches exceptions of other kinds."""
    try:
        _save(config, name, folder)
    except PenstockError as error:
        raise SystemExit(error.exit_code) from error


def overrides() -> list[str]:
    """The overrides of this job as they were given: reading them one by one would resolve them."""
    if not HydraConfig.initialized():
        return []
    words: Any = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    return list(map(str, words))


def written(config: Any) -> Any:
    """A composed configuration as plain values, unresolved, without secrets."""
    plain: Any = config  # others save what is no configuration of OmegaConf's
    if OmegaConf.is_config(config):
        plain = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    if isinstance(plain, list):  # overrides.yaml
        return disclosure.words(map(str, plain))
    shown = disclosure.tree(plain, {})
    hydra = shown.get("hydra")
    if isinstance(hydra, dict):
        typed = plain["hydra"].get("overrides") or {}
        hydra["overrides"] = {name: disclosure.words(lines) for name, lines in typed.items()}
        if isinstance(hydra.get("job"), dict) and "override_dirname" in hydra["job"]:
            hydra["job"]["override_dirname"] = ",".join(hydra["overrides"].get("task", []))
    return shown


def _to_yaml(cfg: object, *, resolve: bool = False, sort_keys: bool = False) -> str:
    text: str = yaml.safe_dump(written(cfg), sort_keys=sort_keys, allow_unicode=True)
    return text


_TO_YAML = staticmethod(_to_yaml)
