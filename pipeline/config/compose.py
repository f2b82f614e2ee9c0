"""From the words of a command line to one checked configuration, in one pass.

    words -> choices of groups, which Hydra composes -> values, applied one at a time
          -> resolved once -> schema | -> targets (torch is imported here) | -> rules

Each `|` ends a phase: its problems come in one ConfigError, and the next phase is left out. A node
that names another `_target_` replaces the node before it, in YAML and on the command line. Cost:
0.08 s beside imports, most of it for reading some twenty YAML files.

Private names of Hydra and OmegaConf in the whole package, there in Hydra 1.3.8 and in 1.4:
ConfigLoaderImpl, create_config_search_path, _compose_config_from_defaults_list,
_apply_overrides_to_config. Nothing of theirs is patched, so threads may compose at the same time.
"""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, flag_override, open_dict
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from omegaconf.resolvers import oc
from pydantic import ValidationError

from penstock import program, seams
from penstock.config import familiar, messages
from penstock.config.allow_list import is_trusted
from penstock.config.schema import TASK_KEYS, Config
from penstock.distributed.world import launched_size
from penstock.errors import ConfigError, Problem

# In a checkout, `pipeline/conf` is a link to the folder beside it.
CONF = (Path(__file__).resolve().parent.parent / "conf").resolve()
VERSION_BASE = "1.3"
# What a command says for itself, also where a run's folder gives everything else.
_OF_THE_COMMAND = {"task", "run_dir", "resume", "resume_despite", "hydra", *TASK_KEYS}
_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, AssertionError)
# One at a time: ${hydra:...} is looked up in a singleton of Hydra.
_LOCK = threading.RLock()
_SECRET = re.compile("secret|token|pass|key|cred", re.IGNORECASE)
_composing: ContextVar[bool] = ContextVar("composing", default=False)


@dataclass
class Composition:
    """What Hydra has composed, as far as it went.

    Attributes:
        config: with its section `hydra`; empty if a file or a choice is wrong.
        problems: of words and files.
        files: of YAML, in the order in which they were merged.
    """

    config: DictConfig
    problems: list[Problem]
    files: list[str]


class _Loader(ConfigLoaderImpl):
    """Hydra's loader, in which a node of another `_target_` replaces the node before it."""

    def _compose_config_from_defaults_list(self, defaults: Any, repo: Any) -> DictConfig:
        config, self.files, first = OmegaConf.create(), list[str](), dict[Any, Any]()
        with flag_override(config, "no_deepcopy_set_nodes", True):
            for default in defaults:
                addition = super()._compose_config_from_defaults_list([default], repo)
                path = str(default.config_path)
                group, _, name = path.rpartition("/")
                before = first.setdefault((group, default.parent), path)
                if before != path and "_target_" in _raw(_raw(addition).get(group)):
                    way = f"let it begin with # @package {group}.{name}"
                    raise ConfigError(Problem(group, f"{path}.yaml replaces {before}; {way}"))
                _make_way(config, addition)
                try:
                    config.merge_with(addition)
                except OmegaConfBaseException as error:
                    raise ConfigError(Problem(f"{path}.yaml", _reason(error))) from error
                self.files.append(f"{repo.load_config(path).path[7:]}/{path}.yaml")
        return config


def _raw(node: Any) -> dict[Any, Any]:
    """The entries of a mapping with interpolations as text; none of anything else."""
    return dict(node.items_ex(resolve=False)) if isinstance(node, DictConfig) and len(node) else {}


def _make_way(config: DictConfig, addition: DictConfig) -> None:
    """Put the whole nodes of `addition` into `config`; merging the two then changes no others."""
    there: dict[Any, Any] = _raw(config)
    for name, new in _raw(addition).items():
        old: Any = there.get(name)
        entries = _raw(new)
        if name not in there or not entries or name == "hydra":
            continue
        target = entries.get("_target_")
        if target and _raw(old).get("_target_") not in (target, "???"):
            config[name] = new
        elif _raw(old):
            if target:  # the same one, whose further arguments need no +
                with open_dict(old):
                    old.update({key: value for key, value in entries.items() if key not in old})
            _make_way(old, new)


def compose(
    *words: str,
    config_dir: str | None = None,
    config_name: str | None = None,
    config_path: str | None = None,
    begin: Callable[[Config], object] = lambda config: None,
) -> Config:
    """The configuration that `python run.py <words>` would run, for use as a library.

    `run=`, `resume=` or `checkpoint=` of a run's folder start from its config.yaml. In a process
    that a launcher has started beside others, `distributed` is `ddp` where nothing is said.

    Args:
        words: as on the command line, e.g. "sampler=weighted", "loader.num_workers=4".
        config_dir: a folder of groups of your own.
        config_name, config_path: of a primary configuration of your own.
        begin: gets the configuration before torch is imported for the later phases.

    Raises:
        ConfigError: with everything that is wrong in the first phase that finds something.
    """
    made = load(words, config_dir, config_name, config_path)
    values, problems = resolved(made)
    ours = values.get("distributed", {}).get("strategy") == "none" and launched_size() > 1
    if ours and not any(word.lstrip("+").startswith("distributed") for word in words):
        return compose(*words, "distributed=ddp", config_dir=config_dir)
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        told = {problem.key for problem in problems}
        problems += [
            problem
            for problem in (messages.of_schema(error, values) if values else ())
            if not any(f"{key}.".startswith(f"{problem.key}.") for key in told)
        ]
    _refuse(problems, words, made.files)
    begin(config)
    if not seams.only_reads(config.task):
        from penstock.config import nodes, rules  # which import torch

        called = {}
        for part in nodes.parts(config):
            called[part.key], more = nodes.check(part)
            problems += more
        _refuse(problems, words, made.files)
        _refuse(rules.find(config, called), words, made.files)
    return config


def composed(
    words: Sequence[str],
    config_dir: str | None = None,
    config_name: str | None = None,
    config_path: str | None = None,
    base: Path | None = None,
) -> tuple[dict[str, Any], list[Problem]]:
    """The plain values, resolved, without what is wrong; and the problems of words and files."""
    return resolved(load(words, config_dir, config_name, config_path, base))


def load(
    words: Sequence[str],
    config_dir: str | None = None,
    config_name: str | None = None,
    config_path: str | None = None,
    base: Path | None = None,
) -> Composition:
    """Compose the choices among the words, and apply all others.

    Args:
        base: config.yaml of a run, whose sections replace all that no choice is about; by default
            that of the run which `run=`, `resume=` or `checkpoint=` name.

    Raises:
        ConfigError: a folder is missing, or a search path would import an untrusted package.
    """
    overrides, problems = list[Override](), list[Problem]()
    for word in words:
        try:
            overrides.append(parse(word))
        except (*_ERRORS, RecursionError) as error:
            way = "write key and value as one word, without spaces: KEY=VALUE"
            reason = way if "=" not in word.strip("=") else _reason(error)
            problems.append(Problem(word, f"cannot be parsed as key=value: {reason}"))
    named = {one.key_or_group: one.value() for one in overrides}
    loader = _Loader(_search_path(config_dir, config_path, named.get("hydra.searchpath") or []))
    name, groups = config_name or "config", loader.repository
    if name != "config" or config_path:  # the file may be a stranger's; Hydra imports what it names
        primary = groups.load_config(name)
        _search_path(None, None, primary and OmegaConf.select(primary.config, "hydra.searchpath"))
    choices, values = list[Override](), list[Override]()
    for one in overrides:
        if one.is_sweep_override():
            way = f"add -m to sweep over them, or write a list as {one.key_or_group}=[a,b]"
            problems.append(Problem(one.key_or_group, f"{one.input_line} is several values: {way}"))
        elif isinstance(one.value(), dict) or not groups.group_exists(one.key_or_group):
            values.append(one)
        elif (
            problem := _no_option(one, groups.get_group_options(one.key_or_group), groups)
        ) is not None:
            problems.append(problem)
        else:
            choices.append(one)
    try:
        lines = [str(one.input_line) for one in choices]
        config = loader.load_configuration(name, lines, RunMode.RUN)
        if base := base or _run_of(named):
            _put_in(config, OmegaConf.load(base), choices, loader, name)
    except ConfigError as error:
        return Composition(OmegaConf.create(), problems + error.problems, [])
    except (*_ERRORS, KeyError) as error:
        group, _, option = (getattr(error, "missing_cfg_file", None) or "").rpartition("/")
        gone = familiar.instead(group, option)
        known = Problem(group, f"{option} {gone}") if gone else Problem("", _reason(error))
        return Composition(OmegaConf.create(), [*problems, known], [])
    typed = [str(one.input_line) for one in overrides if not one.is_hydra_override()]
    config.hydra.overrides.task = typed
    for one in values:
        try:
            _apply(one, config)
        except _ERRORS as error:
            problems.append(
                _unknown(one, config, loader) or Problem(one.key_or_group, _reason(error))
            )
    return Composition(config, problems, loader.files)


def parse(word: str) -> Override:
    """A word as Hydra's grammar reads it; where it does not (`run_dir=outputs/lr=0.1`), as text.

    Raises:
        HydraException: it has no key, or begins as a list, a mapping or a quoted text does.
    """
    parser, (key, _, value) = OverridesParser.create(), word.partition("=")
    if key == "address":
        word = re.sub(r"=\(?(\d+), ?(\d+)\)?$", r"=[\1,\2]", word)  # epoch and step
    try:
        return parser.parse_overrides([word])[0]
    except HydraException:
        if not re.fullmatch(r"[+]{0,2}\w[\w./@-]*", key, re.ASCII) or value[:1] in "[{'\"":
            raise
        return parser.parse_overrides([program.override(key, value)])[0]


def _search_path(config_dir: str | None, config_path: str | None, more: Any) -> Any:
    """Where Hydra looks for groups: folders, and packages that are trusted."""
    folders = {"--config-path": config_path, "--config-dir": config_dir}
    entries = [("hydra.searchpath", entry) for entry in more or ()]
    for key, entry in (*folders.items(), *entries):
        scheme, separator, place = str(entry or CONF).partition("://")
        package = place.replace("/", ".")
        if separator and scheme != "file" and not (scheme == "pkg" and is_trusted(package)):
            way = f"If it is yours: --trust {package.split('.')[0]}"
            raise ConfigError(
                Problem(key, f"{entry} imports {package}, which is not trusted. {way}")
            )
        if key in folders and not separator and not Path(scheme).is_dir():
            raise ConfigError(Problem(key, f"there is no folder {Path(scheme).resolve()}"))
    path = create_config_search_path(str(config_path or CONF))
    for key, entry in (("command-line", config_dir), *entries):
        if entry:
            path.prepend(key, str(entry), SearchPathQuery(provider="schema"))
    return path


def _no_option(one: Override, options: Sequence[str], groups: Any) -> Problem | None:
    """What is wrong with the options that a word chooses in a group."""
    group, value = one.key_or_group, one.value()
    for name in () if one.is_delete() else value if isinstance(value, list) else [value]:
        if isinstance(name, str):
            if name in options or groups.config_exists(f"{group}/{name}"):
                continue
            if way := familiar.instead(group, name):
                return Problem(group, f"{name} {way}")
            hint = familiar.hint(familiar.choice(group, name))
            reason = f"has no {name!r}{hint or messages.nearest(name.lower(), options)}; choose"
        elif name is None and group not in Config.model_fields:
            continue
        else:
            nothing = f"; to choose nothing: {group}=none" if "none" in options else ""
            reason = f"got {messages.show(name)}{nothing}, expected"
        return Problem(group, f"{reason} one of {', '.join(options)}")
    return None


def _run_of(named: dict[str, Any]) -> Path | None:
    """config.yaml of the run that a command names, by its folder or by one of its checkpoints."""
    for path in (Path(str(named.get(key))) for key in ("run", "resume", "checkpoint")):
        for folder in (path, path.parent.parent):
            if (folder / "manifest.json").is_file() and (folder / "config.yaml").is_file():
                return folder / "config.yaml"
    return None


def _put_in(
    config: DictConfig, run: Any, choices: Sequence[Override], loader: _Loader, name: str
) -> None:
    """Put a run's sections into a composition, but for those that its choices are about."""
    tasks = [str(one.input_line) for one in choices if one.key_or_group == "task"]
    without = _raw(loader.load_configuration(name, tasks, RunMode.RUN))
    chosen = {re.split(r"[./]", one.package or one.key_or_group)[0] for one in choices}
    chosen |= {key for key, value in _raw(config).items() if value != without.get(key)}
    with open_dict(config):
        for key, value in _raw(run).items():
            if key not in _OF_THE_COMMAND | chosen:
                config[key] = value


def _apply(one: Override, config: DictConfig) -> None:
    """Apply a value as Hydra does, but for whole nodes, `KEY={}` and `~KEY` of null."""
    key, value = one.key_or_group, one.value()
    where, _, name = key.rpartition(".")
    if isinstance(value, dict) and not one.is_delete():
        if not value:
            OmegaConf.update(config, key, {}, merge=False)
        addition = OmegaConf.create()
        OmegaConf.update(addition, key, value)
        _make_way(config, addition)
    elif one.is_delete() and value is None:
        node = OmegaConf.select(config, where) if where else config
        if isinstance(node, DictConfig) and name in _raw(node):
            with open_dict(node):
                del node[name]
            return
    ConfigLoaderImpl._apply_overrides_to_config([one], config)


def _unknown(one: Override, config: DictConfig, loader: _Loader) -> Problem | None:
    """The problem of a key that is not there, with what may be meant; None if it is there."""
    key, where, name = one.key_or_group, "", ""
    node: Any = config
    value = "..." if one.is_delete() else one.get_value_element_as_str()
    for name in key.split("."):
        if name not in _raw(node):
            break
        node, where = _raw(node)[name], f"{where}.{name}".lstrip(".")
    else:
        return None
    if way := familiar.instead(key, value):
        return Problem(key, way)
    if way := familiar.key(key, value):
        return Problem(key, f"unknown key {name!r}{familiar.hint(way)}")
    known = [str(key) for key in _raw(node) if key not in ("hydra", "_target_")]
    elsewhere = [f"{top}.{name}" for top, section in _raw(config).items() if name in _raw(section)]
    hint = messages.nearest(name, [*known, *(() if where else loader.list_groups(""))])
    if elsewhere and (not where or not hint):
        hint = f" (did you mean {' or '.join(elsewhere[:3])}?)"
    if not where and name in TASK_KEYS:
        read: Any = loader.repository.load_config
        tasks = [
            task for task in loader.get_group_options("task") if name in read(f"task/{task}").config
        ]
        return Problem(key, f"is a key of task={' | '.join(tasks)}, and not of task={config.task}")
    there = f"{where or 'a configuration'} has {', '.join(known) or 'no keys'}"
    add = f"; to add one: {shlex.join([f'+{key}={value}'])}" if where else ""
    return Problem(key, f"unknown key {name!r}{hint}; {there}{add}")


def _reason(error: BaseException) -> str:
    """Hydra's own words, with those of what caused it."""
    lines = [*str(error).splitlines(), *str(error.__cause__ or "").splitlines()[:1]]
    return "; ".join(line.strip(" .:\t") for line in lines if line.strip()) or type(error).__name__


def resolved(made: Composition) -> tuple[dict[str, Any], list[Problem]]:
    """The plain values of a composition, without what is wrong, and all problems."""
    problems, config, state = list(made.problems), made.config, HydraConfig.instance()
    if "hydra" not in config:
        return {}, problems
    with _LOCK:
        before, token = state.cfg, _composing.set(True)
        try:
            if before is None:
                state.set_config(config)
            sections = [str(name) for name in config if name != "hydra"]
            values = _plain(config, sections, "", problems)
        finally:
            state.cfg = before
            _composing.reset(token)
    return values, problems


def _plain(node: Any, names: Any, key: str, problems: list[Problem]) -> dict[Any, Any]:
    """The entries of a node by name, every interpolation resolved."""
    made = {}
    for name in names:
        below = f"{key}[{name}]" if isinstance(node, ListConfig) else f"{key}.{name}".lstrip(".")
        try:
            value = node[name]
        except MissingMandatoryValue:
            problems.append(Problem(below, f"has no value yet; give it with {below}=..."))
        except (OmegaConfBaseException, RecursionError) as error:
            reason = str(error).splitlines()[0].split("resolving interpolation: ")[-1]
            problems.append(Problem(below, reason))
        else:
            if isinstance(value, ListConfig):
                value = list(_plain(value, range(len(value)), below, problems).values())
            elif isinstance(value, DictConfig):
                value = _plain(value, value, below, problems)
            made[name] = value
    return made


def _refuse(problems: Sequence[Problem], words: Sequence[str], files: Sequence[str]) -> None:
    """Raise a ConfigError if there are problems."""
    if problems:
        raise ConfigError(dict.fromkeys(_with_quotes(one, words, files) for one in problems))


def _with_quotes(problem: Problem, words: Sequence[str], files: Sequence[str]) -> Problem:
    """A problem of a text that Hydra or YAML reads as something else, with the way to write it."""
    if not re.search(r"\b(string|text)", problem.message):
        return problem
    for word in reversed(words):
        key, _, value = word.partition("=")
        if key.lstrip("+") == problem.key:
            quoted = f"{key}='{value}'"
            way = f"if {value} is text, quote it for Hydra and the shell: {shlex.quote(quoted)}"
            return Problem(problem.key, f"{problem.message}; {way}")
    for file in reversed(files):
        if texts := _read_otherwise(file, problem.key.rpartition(".")[2]):
            way = f"{file} has {', '.join(texts)}, which YAML reads otherwise; quote it for text"
            quotes = ", ".join(f"'{text}'" for text in texts)
            return Problem(problem.key, f"{problem.message}; {way}: {quotes}")
    return problem


def _read_otherwise(file: str, key: str) -> list[str]:
    """What stands below a key of a YAML file without quotes and is no text to OmegaConf."""
    found: list[str] = []
    nodes: list[tuple[Any, bool]] = [(yaml.compose(Path(file).read_text("utf-8")), False)]
    for node, below in nodes:  # which grows
        if isinstance(node, yaml.MappingNode):
            nodes += [(value, below or name.value == key) for name, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            nodes += [(value, below) for value in node.value]
        elif below and node.style is None and not isinstance(yaml.safe_load(node.value), str):
            found.append(node.value or "(nothing)")
    return found[:10]


def _variable(name: str, *default: str | None) -> str | None:
    """`${oc.env:NAME}`, but for secrets: a run's folder keeps all values. Elsewhere OmegaConf's."""
    if _composing.get() and _SECRET.search(name):
        raise ValueError(f"{name} is a secret by its name; the tool that needs it reads it itself")
    return oc.env(name, *default)


version.setbase(VERSION_BASE)
setup_globals()  # ${now:...} and ${hydra:...}
OmegaConf.register_new_resolver("oc.env", _variable, replace=True)
