"""All uses of hydra's and omegaconf's private names; no other file has any.

Tested with hydra 1.3.8 and omegaconf 2.3.1.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

import yaml
from hydra._internal import defaults_list as _defaults
from hydra._internal import hydra as _entry
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.defaults_list import Overrides
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException
from hydra.experimental.callback import Callback
from hydra.plugins.launcher import Launcher
from hydra.plugins.plugin import Plugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, flag_override, open_dict, read_write
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import OmegaConfBaseException

from penstock.errors import PenstockError

_interpolation_map = vars(_defaults)["_create_interpolation_map"]
_apply = ConfigLoaderImpl._apply_overrides_to_config

__all__ = [
    "BASIC_LAUNCHER",
    "BASIC_SWEEPER",
    "HookedLoader",
    "apply_override",
    "before_launch",
    "create_config_search_path",
    "get_args_parser",
    "helped_by",
    "hydra_config",
    "is_mapping",
    "loaded_by",
    "raw_node",
    "raw_value",
    "replaced",
    "scalars",
    "swept_by",
    "with_plugin",
]

BASIC_LAUNCHER = f"{BasicLauncher.__module__}.{BasicLauncher.__name__}"
BASIC_SWEEPER = f"{BasicSweeper.__module__}.{BasicSweeper.__name__}"


_LOCK = threading.RLock()  # of what is replaced while hydra composes


@contextmanager
def replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Replace attributes of a class or module for a time."""
    kept = {name: vars(owner)[name] for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(owner, name, value)


class _Repository(ConfigRepository):
    """hydra copies it for each composition; its store of schemas is large, and only read."""

    def __deepcopy__(self, memo: object) -> _Repository:
        return copy.copy(self)


class HookedLoader(ConfigLoaderImpl):
    """hydra's config loader, with hooks for its single steps."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.repository = _Repository(config_search_path)
        self.files: list[str] = []  # of the last composition, in their order

    def check_search_path(self, primary: DictConfig | None, overrides: Sequence[Override]) -> None:
        """Called before packages of `hydra.searchpath` are imported."""

    def merge(self, config: DictConfig, addition: DictConfig) -> None:
        """Merge one YAML file into those before it."""
        config.merge_with(addition)

    def merged(self, config: DictConfig, files: Sequence[tuple[str, bool, Any]]) -> None:
        """Called with all files that were merged, in order.

        Args:
            files: path without ending, whether it lies in a folder of `--config-dir`, and its plain
                values, interpolations as text.
        """

    def apply(self, override: Override, config: DictConfig) -> None:
        """Apply one override to the merged files."""
        apply_override(override, config)

    def _load_configuration_impl(self, *args: Any, **options: Any) -> DictConfig:
        def apply(overrides: Sequence[Override], config: DictConfig) -> None:
            for override in overrides:
                self.apply(override, config)

        # hydra calls this static method by the name of its class.
        with (
            _LOCK,
            replaced(ConfigLoaderImpl, _apply_overrides_to_config=staticmethod(apply)),
            replaced(_defaults, _create_interpolation_map=_known_choices),
            replaced(OmegaConf, load=staticmethod(_load)),
        ):
            return super()._load_configuration_impl(*args, **options)

    def _compose_config_from_defaults_list(self, defaults: list[Any], repo: Any) -> DictConfig:
        config = OmegaConf.create()
        files: list[tuple[str, bool, Any]] = []
        read: list[str] = []
        with flag_override(config, "no_deepcopy_set_nodes", True):
            for default in defaults:
                merged_file = super()._compose_config_from_defaults_list([default], repo)
                path = str(default.config_path)
                source = repo.load_config(path)
                theirs = source is not None and source.provider == "command-line"
                if source is not None and source.path.startswith("file://"):
                    read.append(f"{source.path.removeprefix('file://')}/{path}.yaml")
                # Before it is merged, as the two share nodes from then on.
                files.append((path, theirs, OmegaConf.to_container(merged_file, resolve=False)))
                try:
                    self.merge(config, merged_file)
                except OmegaConfBaseException as error:
                    raise ConfigCompositionException(
                        f"In '{default.config_path}': {type(error).__name__} raised while "
                        f"composing config:\n{error}"
                    ) from error
        self.files = read
        self.merged(config, files)
        return config

    def _process_config_searchpath(
        self, config_name: str | None, parsed_overrides: list[Override], repo: Any
    ) -> None:
        # `repo` keeps what it has read, so hydra goes on with the configuration checked here.
        primary = repo.load_config(config_name) if config_name is not None else None
        self.check_search_path(primary and primary.config, parsed_overrides)
        super()._process_config_searchpath(config_name, parsed_overrides, repo)


def _known_choices(overrides: Overrides, defaults: list[Any], self_added: bool) -> DictConfig:
    """The values for interpolations in a list of defaults; a quarter of composing, if made."""
    if any(not default.is_self() and default.is_interpolation() for default in defaults):
        return _interpolation_map(overrides, defaults, self_added)
    return DictConfig({})


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader), get_yaml_loader()):  # type: ignore[misc]
    """OmegaConf's reading of values, behind a parser in C."""


def _load(file: TextIO) -> DictConfig | ListConfig:
    """A file of a configuration, as OmegaConf reads it."""
    values = yaml.load(file, _Loader)
    return OmegaConf.create({} if values is None else values)


def scalars(file: str, key: str) -> list[str]:
    """The texts, as they are written, of the values below a key that YAML takes for no text."""
    found: list[str] = []
    nodes: list[tuple[Any, bool]] = [
        (yaml.compose(Path(file).read_text(encoding="utf-8"), _Loader), False)
    ]
    for node, below in nodes:  # which grows
        if isinstance(node, yaml.MappingNode):
            nodes += [(name, below and name.tag[-4:] != ":int") for name, _ in node.value]
            nodes += [(value, below or name.value == key) for name, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            nodes += [(value, below) for value in node.value]
        elif below and node.tag != "tag:yaml.org,2002:str":
            found.append(node.value or "(nothing)")
    return found


def apply_override(override: Override, config: DictConfig) -> None:
    """Apply one override to a composed configuration as hydra does."""
    _apply([override], config)


@contextmanager
def loaded_by(make: Callable[..., HookedLoader], single: bool, sweeps: bool) -> Iterator[None]:
    """Let `hydra.main` load configurations with `make(config_search_path=...)`.

    Args:
        single, sweeps: this is one run, or `--multirun` was given; either spares hydra a
            composition (0.1 s), in which it would look for `hydra.mode`.
    """
    mode = RunMode.RUN if single else None
    modes = {"get_mode": lambda *args, **options: mode} if single or sweeps else {}
    hooks = replaced(_entry, ConfigLoaderImpl=make), replaced(_entry.Hydra, **modes)
    with hooks[0], hooks[1]:
        yield


@contextmanager
def with_plugin(kind: type[Plugin]) -> Iterator[None]:
    """Let hydra call a launcher or sweeper that does not lie in its namespace `hydra_plugins`."""
    name = f"{kind.__module__}.{kind.__name__}"
    known = Plugins.is_in_toplevel_plugins_module
    Plugins.instance().register(kind)
    allowed = staticmethod(lambda module: module == name or known(module))
    with replaced(Plugins, is_in_toplevel_plugins_module=allowed):
        yield


@contextmanager
def called_back(callback: Callback) -> Iterator[None]:
    """Let hydra call a callback beside those of the configuration."""
    begin = Callbacks.__init__

    def begin_with_it(self: Callbacks, config: DictConfig | None = None) -> None:
        begin(self, config)
        self.callbacks.append(callback)

    with replaced(Callbacks, __init__=begin_with_it):
        yield


@contextmanager
def helped_by(change: Callable[[str], str]) -> Iterator[None]:
    """Change the help texts that hydra prints."""
    help_of = _entry.Hydra.get_help

    def get_help(*args: Any, **options: Any) -> str:
        return change(help_of(*args, **options))

    with replaced(_entry.Hydra, get_help=get_help):
        yield


def swept_by(
    sweep: Callable[[Any, DictConfig, Any], None],
) -> AbstractContextManager[None]:
    """Let `sweep(launcher, config, hydra_context)` run the jobs of hydra's basic sweeper."""

    def replacement(self: Any, arguments: list[str]) -> None:
        try:
            sweep(self.launcher, self.config, self.hydra_context)
        except PenstockError as error:  # hydra would make a traceback of it
            raise SystemExit(error.exit_code) from error

    # hydra runs the file of each plugin anew when it looks for plugins.
    classes = {kind.__name__: kind for kind in Plugins.instance().discover(Sweeper)}
    return replaced(classes[BasicSweeper.__name__], sweep=replacement)


@contextmanager
def before_launch(plugin: str, prepare: Callable[[Any], None]) -> Iterator[None]:
    """Call `prepare(launcher)` immediately before launchers of a plugin launch jobs.

    Args:
        plugin: the name of its package.
    """
    kinds = [
        kind for kind in Plugins.instance().discover(Launcher) if kind.__module__.startswith(plugin)
    ]
    owners = {next(base for base in kind.__mro__ if "launch" in vars(base)) for kind in kinds}
    with ExitStack() as stack:
        for owner in owners:
            stack.enter_context(replaced(owner, launch=_prepared(vars(owner)["launch"], prepare)))
        yield


def _prepared(
    launch: Callable[..., object], prepare: Callable[[Any], None]
) -> Callable[..., object]:
    def launch_prepared(self: object, *args: object, **options: object) -> object:
        prepare(self)
        return launch(self, *args, **options)

    return launch_prepared


@contextmanager
def hydra_config(config: DictConfig) -> Iterator[None]:
    """Let ${hydra:...} resolve, with placeholders for what only a running job knows.

    Afterwards the section is as before.
    """
    runtime, job = config.hydra.runtime, config.hydra.job
    places = ((runtime, "output_dir", "."), (job, "num", 0), (job, "id", "0"))
    before = [(node, name, raw_value(node, name)) for node, name, _ in places]
    state, locked = HydraConfig.instance(), OmegaConf.is_readonly(config.hydra)
    kept = state.cfg

    def fill(values: Iterable[tuple[DictConfig, str, Any]]) -> None:
        with read_write(config), open_dict(config):
            for node, name, value in values:
                node[name] = value

    fill(places)
    # As `set_config` does, which would copy the section.
    OmegaConf.set_readonly(config.hydra, True)
    section = {"hydra": raw_node(config, "hydra")}
    held: Any = DictConfig(section, flags={"no_deepcopy_set_nodes": True})
    state.cfg = held
    section["hydra"]._set_parent(config)
    try:
        yield
    finally:
        state.cfg = kept
        OmegaConf.set_readonly(config.hydra, locked)
        fill(before)


def raw_node(config: DictConfig | ListConfig, name: Any) -> Any:
    """The node under a key, with no interpolation followed; None if there is none."""
    return config._get_node(name, validate_access=False)


def raw_value(config: DictConfig | ListConfig, name: Any) -> Any:
    """The value under a key as it is written; None if there is none."""
    node = raw_node(config, name)
    return None if node is None else node._value()


def is_mapping(node: Any) -> bool:
    """Whether a raw node is a mapping, and no interpolation, null or `???`."""
    return isinstance(node, DictConfig) and not (
        node._is_interpolation() or node._is_none() or node._is_missing()
    )
