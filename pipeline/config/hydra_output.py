"""What hydra prints and saves by itself, without secrets and harmless for a terminal.

    shown      `--cfg`, `--info`, `--help`: hydra composes and prints
    saved      multirun.yaml of a sweep, and .hydra/ where `hydra.output_subdir` asks for it
    JobLoader  the same in the processes that a launcher starts, which know nothing of `saved`
    overrides  of the job that runs

Functions of hydra's are replaced for as long as it runs, and no longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.hydra import Hydra
from hydra.core import utils
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from pipeline import program, terminal
from pipeline.config import disclosure, environment, reference
from pipeline.config.hydra_loader import CheckedConfigLoader


@contextmanager
def shown() -> Iterator[None]:
    """Let hydra print configurations in which secrets are *** and variables keep their names.

    Keys have the comments of the YAML files that they come from. Commands in the help are those of
    this program, as it was started.
    """
    whole, to_yaml, help_of = Hydra.get_sanitized_cfg, OmegaConf.to_yaml, Hydra.get_help
    said: dict[str, str] = {}

    def without_secrets(self: Hydra, cfg: DictConfig, cfg_type: str) -> DictConfig:
        said.update(_comments(cfg.hydra))
        return OmegaConf.create(written(whole(self, cfg, cfg_type)))

    def with_comments(cfg: Any, *, resolve: bool = False, sort_keys: bool = False) -> str:
        text = to_yaml(cfg, resolve=resolve, sort_keys=sort_keys)
        return reference.annotated(text, said, cfg._get_full_key(None))

    def with_our_name(self: Hydra, *args: Any, **kwargs: Any) -> str:
        return help_of(self, *args, **kwargs).replace("python run.py", program.text())

    Hydra.get_help = with_our_name  # type: ignore[method-assign]
    Hydra.get_sanitized_cfg = without_secrets  # type: ignore[method-assign]
    OmegaConf.to_yaml = staticmethod(with_comments)  # type: ignore[method-assign]
    try:
        with terminal.held_back(), environment.unread():
            yield
    finally:
        Hydra.get_help = help_of  # type: ignore[method-assign]
        Hydra.get_sanitized_cfg = whole  # type: ignore[method-assign]
        OmegaConf.to_yaml = staticmethod(to_yaml)  # type: ignore[method-assign]


def _comments(section: DictConfig) -> dict[str, str]:
    """What the files of a composition say of its keys; `section` is hydra's own."""
    folders = [Path(one.path) for one in section.runtime.config_sources if one.schema == "file"]
    choices = {str(group): option for group, option in section.runtime.choices.items()}
    return reference.comments(folders, choices, str(section.job.config_name))


@contextmanager
def saved() -> Iterator[None]:
    """Let hydra save configurations without secrets."""
    sweeps, jobs = OmegaConf.save, utils._save_config
    _save_without_secrets()
    try:
        yield
    finally:
        OmegaConf.save, utils._save_config = staticmethod(sweeps), jobs  # type: ignore[method-assign]


class JobLoader(CheckedConfigLoader):
    """Composes the jobs of a sweep.

    Launchers send it to their processes, where it is called before hydra saves anything of a job.
    """

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: list[str]
    ) -> DictConfig:
        _save_without_secrets()
        return super().load_sweep_config(master_config, sweep_overrides)


def _save_without_secrets() -> None:
    OmegaConf.save, utils._save_config = staticmethod(_save), _save_job  # type: ignore[method-assign]


def _save(config: Any, f: Any, resolve: bool = False) -> None:
    Path(f).write_text(_text(config), encoding="utf-8")


def _save_job(cfg: DictConfig, filename: str, output_dir: Path) -> None:
    output_dir.mkdir(parents=True, exist_ok=True)
    (output_dir / filename).write_text(_text(cfg), encoding="utf-8")


def overrides() -> list[str]:
    """The overrides of this job as they were given: reading them one by one would resolve them."""
    if not HydraConfig.initialized():
        return []
    given: Any = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    return list(map(str, given))


def written(config: Any) -> Any:
    """A composed configuration as plain values, unresolved, without secrets."""
    plain: Any = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    if isinstance(plain, list):  # overrides.yaml
        return disclosure.words(map(str, plain))
    shown = disclosure.tree(plain, {})
    hydra = shown.get("hydra")
    if isinstance(hydra, dict):
        given = plain["hydra"].get("overrides") or {}
        hydra["overrides"] = {name: disclosure.words(lines) for name, lines in given.items()}
        if isinstance(hydra.get("job"), dict) and "override_dirname" in hydra["job"]:
            hydra["job"]["override_dirname"] = ",".join(hydra["overrides"].get("task", []))
    return shown


def _text(config: Any) -> str:
    text: str = yaml.safe_dump(written(config), sort_keys=False, allow_unicode=True)
    return text
