"""hydra's config loader with a check at its end: what was checked is what hydra acts on.

Every configuration that hydra uses comes from its loader: for a run, a sweep, each job of a sweep
(in whatever process a launcher starts it), `--help`, `--cfg`, `--info` and tab completion. So the
section `hydra:` is checked here, even if the command line was checked before.

The configuration that a single run, or a look at one, was checked with is handed out again
(`Kept`): composing it twice would cost 0.1 s, and `${now:...}` would have moved on.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobRuntime
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from penstock import program, terminal
from penstock.config import hydra_internals, hydra_section, whole_nodes
from penstock.distributed import preemption
from penstock.errors import ConfigError, Problem


@contextmanager
def shown() -> Iterator[None]:
    """Let hydra print what `--cfg`, `--info` or `--help` asks for."""

    def fitted(text: str) -> str:
        text = text.replace("python run.py", program.text())
        return _fitted(text, shutil.get_terminal_size((100, 24)).columns)

    with hydra_internals.helped_by(fitted), terminal.held_back():
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


def overrides() -> list[str]:
    """The overrides of this job as they were given: reading them one by one would resolve them."""
    if not HydraConfig.initialized():
        return []
    words: Any = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    return list(map(str, words))


JOB_NAME = "run"  # of a composition that no program has a name for yet


@dataclass
class Kept:
    """A configuration that hydra's loader has composed, to be handed out once.

    Attributes:
        name: of the primary configuration.
        lines: all overrides that it was composed from.
        mode: what for.
        config: as hydra's loader gave it.
    """

    name: str
    lines: tuple[str, ...]
    mode: RunMode
    config: DictConfig | None

    def take(self, name: str | None, lines: list[str], mode: RunMode) -> DictConfig | None:
        """The configuration, if it is the one that would be composed from this."""
        if (name, tuple(lines), mode) != (self.name, self.lines, self.mode):
            return None
        config, self.config = self.config, None
        if config is not None and config.hydra.job.name == JOB_NAME:
            config.hydra.job.name = JobRuntime.instance().get("name")
        return config


class ConfigLoader(hydra_internals.HookedLoader):
    """Checks the search path before hydra imports what it names; replaces whole nodes."""

    def merge(self, config: DictConfig, addition: DictConfig) -> None:
        whole_nodes.merge(config, addition)

    def merged(self, config: DictConfig, files: Sequence[tuple[str, bool, Any]]) -> None:
        if problems := [*whole_nodes.overruled(config, files)]:
            self._refuse(problems)

    def apply(self, override: Override, config: DictConfig) -> None:
        whole_nodes.apply(override, config)

    def check_search_path(self, primary: object, overrides: Sequence[Override]) -> None:
        entries = [_search_path(primary)] if isinstance(primary, DictConfig) else []
        entries += [item.value() for item in overrides if item.key_or_group == "hydra.searchpath"]
        problems = [item for entry in entries for item in hydra_section.search_path_problems(entry)]
        if problems:
            self._refuse(problems)

    def _refuse(self, problems: list[Problem]) -> NoReturn:
        raise ConfigError(list(dict.fromkeys(problems)))


class CheckedConfigLoader(ConfigLoader):
    """Hands out only configurations whose section `hydra:` may be acted on.

    Args:
        config_search_path: hydra's.
        kept: a configuration that need not be composed again; it is checked like any other.

    Raises:
        SystemExit: caused by a ConfigError; hydra catches exceptions of other kinds.
    """

    def __init__(self, config_search_path: Any, kept: Kept | None = None) -> None:
        super().__init__(config_search_path)
        self._kept = kept

    @preemption.held()
    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """As hydra's, and checked."""
        words = list(overrides)
        config = self._kept.take(config_name, words, run_mode) if self._kept else None
        try:
            config = config or super().load_configuration(
                config_name, overrides, run_mode, from_shell, validate_sweep_overrides
            )
        except KeyError as error:
            self._refuse([not_set(error)])
        problems = hydra_section.problems(hydra_internals.raw_node(config, "hydra"), words)
        if problems:
            self._refuse(problems)
        return config

    def _refuse(self, problems: list[Problem]) -> NoReturn:
        error = ConfigError(list(dict.fromkeys(problems)))
        raise SystemExit(error.exit_code) from error


def not_set(error: KeyError) -> Problem:
    """The problem of a variable of `hydra.job.env_copy` that isn't set."""
    return Problem("hydra.job.env_copy", f"{error.args[0]} is not set in the environment")


def checked(
    single: bool, kept: Kept | None = None, sweeps: bool = False
) -> AbstractContextManager[None]:
    """Let `hydra.main` load checked configurations.

    Args:
        single, sweeps: whether this is one run, and whether `--multirun` was given.
        kept: what was composed already.
    """
    return hydra_internals.loaded_by(partial(CheckedConfigLoader, kept=kept), single, sweeps)


def _search_path(primary: DictConfig) -> object:
    """The entry `hydra.searchpath` of a primary configuration, raw."""
    try:
        node: object = OmegaConf.to_container(primary, resolve=False)
    except OmegaConfBaseException:
        return None  # hydra says what is wrong with it
    for name in ("hydra", "searchpath"):
        if isinstance(node, str) and "${" in node:
            return node
        node = node.get(name) if isinstance(node, dict) else None
    return node
