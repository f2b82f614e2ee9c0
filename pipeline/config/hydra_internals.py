"""All uses of hydra's and omegaconf's private names; no other file has any.

Tested with hydra 1.3.8 and omegaconf 2.3.1. With versions that lack one of these names, importing
this file says which.
"""

from __future__ import annotations

import copy
import functools
import io
import math
import os
import pickle
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import hydra
import omegaconf
import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser import overrides_parser, overrides_visitor
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException
from hydra.experimental.callback import Callback
from hydra.plugins.config_source import ConfigSource
from hydra.plugins.launcher import Launcher
from hydra.plugins.plugin import Plugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, flag_override, open_dict, read_write
from omegaconf.base import Container, Node
from omegaconf.errors import OmegaConfBaseException

from penstock.config import yaml_sizes
from penstock.errors import ConfigError, PenstockError

try:
    from hydra._internal import config_loader_impl as _loading
    from hydra._internal import defaults_list as _defaults
    from hydra._internal import hydra as _entry
    from hydra._internal.callbacks import Callbacks
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_repository import ConfigRepository
    from hydra._internal.core_plugins.basic_launcher import BasicLauncher
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra._internal.defaults_list import DefaultsList, Overrides, create_defaults_list
    from hydra._internal.utils import create_config_search_path, get_args_parser
    from hydra.core import utils as _utils
    from omegaconf._utils import get_yaml_loader

    _REPLACED = (
        vars(_loading)["create_defaults_list"],
        vars(_entry)["ConfigLoaderImpl"],
        _entry.Hydra.get_mode,
        _entry.Hydra.get_help,
        _entry.Hydra.get_sanitized_cfg,
        ConfigLoaderImpl._load_configuration_impl,
        ConfigLoaderImpl._compose_config_from_defaults_list,
        ConfigLoaderImpl._process_config_searchpath,
        vars(_utils)["_save_config"],
    )
    _interpolation_map = vars(_defaults)["_create_interpolation_map"]
    _file_name = ConfigSource._normalize_file_name
    _apply = ConfigLoaderImpl._apply_overrides_to_config
    _get_node = DictConfig._get_node, ListConfig._get_node
    _states = DictConfig._is_none, DictConfig._is_missing, DictConfig._is_interpolation
    _value = DictConfig._value
    _resolving = Container._resolve_node_interpolation, Container._evaluate_custom_resolver
    _in_namespace = Plugins.is_in_toplevel_plugins_module
    _sweep = BasicSweeper.sweep
except (ImportError, AttributeError, KeyError) as error:
    raise ImportError(
        f"hydra {hydra.__version__} or omegaconf {omegaconf.__version__} is other inside than 1.3.8"
        f" and 2.3.1, with which Penstock was tested: {error}. Install these versions, or a newer "
        "Penstock"
    ) from error

if not __debug__:
    # hydra's visitor reads on inside of asserts, which `python -O` leaves out.
    _loader: Any = overrides_visitor.__loader__
    _source = _loader.get_data(overrides_visitor.__file__)
    _code = _loader.source_to_code(_source, overrides_visitor.__file__, _optimize=0)
    exec(_code, vars(overrides_visitor))
    vars(overrides_parser)["HydraOverrideVisitor"] = overrides_visitor.HydraOverrideVisitor

__all__ = [
    "BASIC_LAUNCHER",
    "BASIC_SWEEPER",
    "Growth",
    "HookedLoader",
    "apply_override",
    "before_launch",
    "bounded",
    "create_config_search_path",
    "get_args_parser",
    "hydra_config",
    "is_mapping",
    "loaded_by",
    "raw_node",
    "raw_value",
    "replaced",
    "save_by",
    "saved_by",
    "shown_by",
    "swept_by",
    "with_plugin",
]

BASIC_LAUNCHER = f"{BasicLauncher.__module__}.{BasicLauncher.__name__}"
BASIC_SWEEPER = f"{BasicSweeper.__module__}.{BasicSweeper.__name__}"


_MOST_STEPS = 3000  # interpolations
_MOST_GIVEN = 4 << 20  # characters that they give
_MOST_VALUES = 200_000  # of a configuration


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
    """hydra's config loader, with hooks for its single steps.

    It keeps what choices of options give before values are set, for as long as no file of it has
    changed: composing takes 25 ms then, instead of 90.
    """

    _known: _Composition | None = None

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.repository = _Repository(config_search_path)

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
            replaced(ConfigLoaderImpl, _apply_overrides_to_config=staticmethod(apply)),
            replaced(_loading, create_defaults_list=self._defaults_list),
            replaced(_defaults, _create_interpolation_map=_known_choices),
            replaced(OmegaConf, load=staticmethod(_load)),
            bounded(),
        ):
            return super()._load_configuration_impl(*args, **options)

    def _defaults_list(
        self,
        repo: Any,
        config_name: str | None,
        overrides_list: list[Override],
        prepend_hydra: bool,
        skip_missing: bool,
    ) -> DefaultsList:
        overrides = Overrides(repo=repo, overrides_list=overrides_list)
        values = {id(item) for item in overrides.config_overrides}
        choices = [item.input_line for item in overrides_list if id(item) not in values]
        sources = [(type(item), item.provider, item.path) for item in repo.get_sources()]
        self._key = (
            type(self).merge,
            config_name,
            skip_missing,
            tuple(choices),
            tuple(sources),
            tuple(_names(ConfigStore.instance().repo)),
        )
        self._begun = time.time_ns()
        known = _COMPOSED.get(self._key)
        if known is not None and known.stamps != _stamps(repo, known.paths):
            known = None
        self._known = known
        if known is None:
            made = create_defaults_list(
                repo, config_name, overrides_list, prepend_hydra, skip_missing
            )
            self._choices = made.overrides.known_choices
            return made
        _COMPOSED.move_to_end(self._key)
        overrides.known_choices = dict(known.choices)
        none: Any = None  # the tree is for `--info defaults-tree`, which asks elsewhere
        return DefaultsList(known.defaults, none, overrides.config_overrides, overrides)

    def _compose_config_from_defaults_list(self, defaults: list[Any], repo: Any) -> DictConfig:
        if self._known is not None:
            return _copy(self._known.config)
        config = self._composed(defaults, repo)
        paths = [key.partition("=")[2] for key in repo.cache]
        if (stamps := _stamps(repo, paths, self._begun)) is not None:
            try:
                kept = pickle.dumps(config)
            except (pickle.PicklingError, AttributeError):
                return config  # a plugin's schema that is no class of a module
            _COMPOSED[self._key] = _Composition(kept, defaults, dict(self._choices), paths, stamps)
            while len(_COMPOSED) > _MOST_COMPOSED:
                _COMPOSED.popitem(last=False)
        return config

    def _composed(self, defaults: list[Any], repo: Any) -> DictConfig:
        config = OmegaConf.create()
        files: list[tuple[str, bool, Any]] = []
        with flag_override(config, "no_deepcopy_set_nodes", True):
            for default in defaults:
                merged_file = super()._compose_config_from_defaults_list([default], repo)
                path = str(default.config_path)
                source = repo.load_config(path)
                theirs = source is not None and source.provider == "command-line"
                # Before it is merged, as the two share nodes from then on.
                files.append((path, theirs, OmegaConf.to_container(merged_file, resolve=False)))
                try:
                    self.merge(config, merged_file)
                except OmegaConfBaseException as error:
                    raise ConfigCompositionException(
                        f"In '{default.config_path}': {type(error).__name__} raised while "
                        f"composing config:\n{error}"
                    ) from error
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


@dataclass
class _Composition:
    """The result of choices of options before any value is set.

    Attributes:
        config: pickled, as every use gets a copy: 2 ms, and 10 by `copy.deepcopy`.
    """

    config: bytes
    defaults: list[Any]
    choices: dict[str, str | None]
    paths: list[str]  # of configurations that were read, or looked for in vain
    stamps: tuple[Any, ...]


def _copy(pickled: bytes) -> Any:
    """A copy of a node that this process has pickled."""
    return pickle.loads(pickled)


# A sweep over values composes the same choices for each job.
_COMPOSED: OrderedDict[Hashable, _Composition] = OrderedDict()
_MOST_COMPOSED = 64
_SETTLED = 100_000_000  # nanoseconds; a file that changed later may change again in the same tick


def _names(nodes: dict[str, object], above: str = "") -> Iterator[tuple[str, int]]:
    """The nodes of hydra's store of schemas, which plugins add to."""
    for name, node in nodes.items():
        if isinstance(node, dict):
            yield from _names(node, f"{above}{name}/")
        else:
            yield above + name, id(node)


def _stamps(repo: Any, paths: Iterable[str], since: float = math.inf) -> tuple[Any, ...] | None:
    """A mark that changes when configuration files change, come or go.

    None if that cannot be known: one changed after `since` (nanoseconds), or lies in a package.
    """
    folders = []
    for source in repo.get_sources():
        if source.scheme() == "file":
            folders.append(source.path)
        elif source.path not in ("", "hydra.conf"):
            return None
    names = [_file_name(path) for path in paths]
    stamps: list[Any] = []
    for file in (f"{folder}/{name}" for folder in folders for name in names):
        try:
            state = os.stat(file)  # noqa: PTH116  (a Path costs more than that)
        except (OSError, ValueError):
            stamps.append(None)
            continue
        changed = max(state.st_mtime_ns, state.st_ctime_ns)
        if changed > since - _SETTLED:
            return None
        stamps.append((state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns))
    return tuple(stamps)


class Growth:
    """How much interpolations have given; `${a}${a}` doubles, so thirty lines make a gigabyte."""

    def __init__(self) -> None:
        self.steps = self.given = self.values = 0

    @property
    def is_too_much(self) -> bool:
        return self.steps > _MOST_STEPS or self.given > _MOST_GIVEN or self.values > _MOST_VALUES

    @property
    def refusal(self) -> str:
        return (
            f"its interpolations give more than {_MOST_STEPS:,} results or "
            f"{_MOST_GIVEN >> 20} MiB of text; write them out, or refer to less"
        )

    def add(self, result: Any) -> None:
        """Count the result of an interpolation; raises ConfigError where it is one too many."""
        self.steps += 1
        self.given += len(result) if isinstance(result, str) else 0
        if self.is_too_much:
            raise ConfigError(self.refusal)


@contextmanager
def bounded(each: bool = False) -> Iterator[Growth]:
    """Refuse interpolations that grow too large, in what is resolved meanwhile.

    Args:
        each: the bound is of every single value, and not of all together.
    """
    growth, depth = Growth(), 0

    def counted(resolve: Callable[..., object]) -> Callable[..., object]:
        def resolved(*args: object, **options: object) -> object:
            nonlocal depth
            if each and not depth:
                growth.steps = growth.given = 0
            depth += 1
            try:
                result = resolve(*args, **options)
                growth.add(result._value() if isinstance(result, Node) else result)
            finally:
                depth -= 1
            return result

        return resolved

    of_nodes = vars(Container)["_resolve_node_interpolation"]
    by_resolvers = vars(Container)["_evaluate_custom_resolver"]
    with replaced(
        Container,
        _resolve_node_interpolation=counted(of_nodes),
        _evaluate_custom_resolver=counted(by_resolvers),
    ):
        yield growth


class _Loader(yaml_sizes.PARSER, get_yaml_loader()):  # type: ignore[misc]
    """OmegaConf's reading of values, behind a parser in C."""


def _load(file: TextIO) -> DictConfig | ListConfig:
    """A file of a configuration, as OmegaConf reads it; ValueError if it is too large."""
    text = file.read(yaml_sizes.MOST_TEXT + 1)
    if len(text) > yaml_sizes.MOST_TEXT:
        raise ValueError(f"{file.name} has more than {yaml_sizes.MOST_TEXT >> 20} MiB")
    parsed = _kept_parsed if len(text) <= _MOST_KEPT else _parsed
    node: DictConfig | ListConfig = _copy(parsed(text, file.name))
    return node


def _parsed(text: str, name: str) -> bytes:
    """The pickled node of a text."""
    named: Any = io.StringIO(text)
    named.name = name  # for messages
    yaml_sizes.check(named)
    named.seek(0)
    values = yaml.load(named, _Loader)
    return pickle.dumps(OmegaConf.create({} if values is None else values))


# Each job of a sweep reads the same texts of the same files.
_kept_parsed = functools.lru_cache(maxsize=256)(_parsed)
_MOST_KEPT = 1 << 16  # characters of such a text


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
    with hooks[0], hooks[1], bounded(each=True):
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
def shown_by(
    change: Callable[[DictConfig, DictConfig], DictConfig], change_help: Callable[[str], str]
) -> Iterator[None]:
    """Change the configurations and help texts that hydra prints.

    Args:
        change: from a configuration as hydra would show it, and its section `hydra:`.
    """
    sanitized, help_of = _entry.Hydra.get_sanitized_cfg, _entry.Hydra.get_help

    def get_sanitized_cfg(self: Any, cfg: DictConfig, cfg_type: str) -> DictConfig:
        section = cfg.hydra
        return change(sanitized(self, cfg, cfg_type), section)

    def get_help(*args: Any, **options: Any) -> str:
        return change_help(help_of(*args, **options))

    with replaced(_entry.Hydra, get_sanitized_cfg=get_sanitized_cfg, get_help=get_help):
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


def save_by(save: Callable[[Any, str, Path], None]) -> None:
    """Let hydra save a job's configurations with `save(config, file name, folder)`, for good."""
    _utils._save_config = save  # type: ignore[assignment]


@contextmanager
def saved_by(save: Callable[[Any, str, Path], None]) -> Iterator[None]:
    """The same for a time."""
    with replaced(_utils, _save_config=save):
        yield


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
