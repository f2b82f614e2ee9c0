"""hydra's composition with a check at its end: what was looked at is what hydra acts on.

Every configuration that hydra uses comes out of its config loader: for a run, a sweep, each job of
a sweep (in whatever process a launcher starts it), `--help`, `--cfg`, `--info` and tab completion.
So the loader is where the section `hydra:` is checked, however often a command line was before.

The configuration that a single run, or a look at one, was checked with is handed out as it is
(`Kept`): composing it again would cost 0.1 s, and `${now:...}` would have moved on.

With `composition.py`, this is where private names of hydra's are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal import hydra as hydras_own
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, IConfigRepository
from hydra._internal.hydra import Hydra
from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobRuntime
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from pipeline.config import hydra_section, whole_nodes
from pipeline.distributed import preemption
from pipeline.errors import ConfigError, Problem

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


class ConfigLoader(ConfigLoaderImpl):
    """Looks at the search path before hydra imports what it names; replaces whole nodes."""

    def _load_configuration_impl(self, *args: Any, **options: Any) -> DictConfig:
        with whole_nodes.in_hydra():
            return super()._load_configuration_impl(*args, **options)

    def _compose_config_from_defaults_list(
        self, defaults: list[ResultDefault], repo: IConfigRepository
    ) -> DictConfig:
        """As hydra's, but a file's nodes replace nodes of another `_target_`."""
        config = OmegaConf.create()
        with flag_override(config, "no_deepcopy_set_nodes", True):
            for default in defaults:
                one = super()._compose_config_from_defaults_list([default], repo)
                try:
                    whole_nodes.merge(config, one)
                except OmegaConfBaseException as error:
                    raise ConfigCompositionException(
                        f"In '{default.config_path}': {type(error).__name__} raised while "
                        f"composing config:\n{error}"
                    ) from error
        return config

    def _process_config_searchpath(
        self,
        config_name: str | None,
        parsed_overrides: list[Override],
        repo: CachingConfigRepository,
    ) -> None:
        # `repo` keeps what it has read, so hydra goes on with the very configuration seen here.
        primary = repo.load_config(config_name) if config_name is not None else None
        entries = []
        if primary is not None and isinstance(primary.config, DictConfig):
            entries.append(_search_path(primary.config))
        entries += [one.value() for one in parsed_overrides
                    if one.key_or_group == "hydra.searchpath"]  # fmt: skip
        found = [one for entry in entries for one in hydra_section.search_path_problems(entry)]
        if found:
            self._refuse(found)
        super()._process_config_searchpath(config_name, parsed_overrides, repo)

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
        given = list(overrides)
        config = self._kept.take(config_name, given, run_mode) if self._kept else None
        try:
            config = config or super().load_configuration(
                config_name, overrides, run_mode, from_shell, validate_sweep_overrides
            )
        except KeyError as error:
            self._refuse([not_set(error)])
        found = hydra_section.problems(config._get_node("hydra"), given)
        if run_mode is RunMode.MULTIRUN and not found:
            found = _record_problems(config)
        if found:
            self._refuse(found)
        return config

    def _refuse(self, problems: list[Problem]) -> NoReturn:
        error = ConfigError(list(dict.fromkeys(problems)))
        raise SystemExit(error.exit_code) from error


def not_set(error: KeyError) -> Problem:
    """What is said of a variable of `hydra.job.env_copy` that isn't there."""
    return Problem("hydra.job.env_copy", f"{error.args[0]} is not set in the environment")


def _record_problems(config: DictConfig) -> list[Problem]:
    """hydra writes a sweep's record through a link, to whatever that leads to."""
    folder = OmegaConf.select(config, "hydra.sweep.dir", throw_on_resolution_failure=False)
    record = Path(str(folder)) / "multirun.yaml"
    reason = f"{record} is a link; hydra would write to what it leads to. Give another folder"
    return [Problem("hydra.sweep.dir", reason)] if folder and record.is_symlink() else []


@contextmanager
def checked(
    single: bool, loads: type[CheckedConfigLoader] = CheckedConfigLoader, kept: Kept | None = None
) -> Iterator[None]:
    """Let hydra's entry load its configurations with `loads`.

    Args:
        single: spare hydra a composition (0.1 s) from which it would learn that this is one run.
        kept: what was composed already.
    """
    loader, asks = ConfigLoaderImpl, Hydra.get_mode
    hydras_own.ConfigLoaderImpl = partial(loads, kept=kept)  # type: ignore[attr-defined, assignment]
    if single:
        Hydra.get_mode = lambda *_, **__: RunMode.RUN  # type: ignore[method-assign]
    try:
        yield
    finally:
        hydras_own.ConfigLoaderImpl = loader  # type: ignore[attr-defined]
        Hydra.get_mode = asks  # type: ignore[method-assign]


def _search_path(primary: DictConfig) -> Any:
    """The entry `hydra.searchpath` of a primary configuration, raw."""
    try:
        node: Any = OmegaConf.to_container(primary, resolve=False)
    except OmegaConfBaseException:
        return None  # hydra says what is wrong with it
    for name in ("hydra", "searchpath"):
        if isinstance(node, str) and "${" in node:
            return node
        node = node.get(name) if isinstance(node, dict) else None
    return node
