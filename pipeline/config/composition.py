"""From a command line's overrides to one plain, resolved dict, and all problems on the way.

hydra composes. Where it stops, the overrides are applied again one at a time, by hydra's own code,
to collect all problems: group choices and keys that don't exist (with the nearest that do), values
of a wrong kind. Cost: about 0.1 s a composition, most of it reading some twenty YAML files; twice
that if it is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hydra import version
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobRuntime, setup_globals
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue, OmegaConfBaseException
from omegaconf.resolvers import oc

from penstock import program
from penstock.config import (
    hydra_internals,
    hydra_section,
    step_order,
    unknown_keys,
    whole_nodes,
)
from penstock.config.familiar import instead
from penstock.config.hydra_loader import JOB_NAME, ConfigLoader, Kept, not_set
from penstock.config.messages import show
from penstock.config.schema import Config
from penstock.distributed import preemption
from penstock.errors import ConfigError, Problem

# In a checkout, `pipeline/conf` is a link to the folder beside it.
CONF = (Path(__file__).resolve().parent.parent / "conf").resolve()
VERSION_BASE = "1.3"
_HYDRAS_FOLDER = "hydra.run.dir"
# What hydra's grammar cannot read as people write it: an expression (sample=length > 500), and
# epoch and step (address=3,1200), which it takes for a sweep over two values.
_EXPRESSIONS = re.compile(r"\+{0,2}(sample|dataset\.([\w.]+\.)?filter)", re.ASCII)  # keys
_READABLE = re.compile(r"[\w./:@+-]*|'.*'|\".*\"|\[.*\]|\$?\{.*\}", re.ASCII | re.DOTALL)
_ADDRESS = re.compile(r"address=\(?(\d+), ?(\d+)\)?", re.ASCII)

_ERRORS = (
    HydraException,
    OmegaConfBaseException,
    yaml.YAMLError,
    ValueError,
    AssertionError,
    RecursionError,
    AttributeError,
    TypeError,
)


@dataclass
class Composed:
    """A composition, as far as it went.

    Attributes:
        config: the configuration as a plain, resolved dict; without the keys that are wrong.
        hydra: hydra's own section as plain values, with its interpolations as text.
        node: the same, as hydra has it.
        lines: the overrides that it was made from.
        problems: overrides that are wrong.
        unset: keys without a value, and interpolations that lead nowhere.
        files: of YAML that it was made from.
        complete: whether there is a configuration at all.
    """

    config: dict[str, Any] = field(default_factory=dict)
    hydra: dict[str, Any] = field(default_factory=dict)
    node: Any = None
    lines: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    unset: list[Problem] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    complete: bool = False


class Composer:
    """hydra's composition for one search path.

    Args:
        config_path: folder of the primary configuration; ours when None.
        config_name: its name, without .yaml.
        config_dir: one more folder to find groups in (`--config-dir`).

    Attributes:
        path: the folder of the primary configuration.
        kept: the last configuration that hydra composed without a problem.
        examined: the values of a single run that preflight has found nothing wrong with, and what
            it made of them.
        sweep: what the add-on that checked a sweep keeps of it.

    Raises:
        ConfigError: a folder is missing, or a search path would import an untrusted package.
    """

    def __init__(
        self,
        config_path: str | None = None,
        config_name: str | None = None,
        config_dir: str | None = None,
    ) -> None:
        version.setbase(VERSION_BASE)
        # As hydra has it, --config-path is relative to the folder of run.py, if that was started.
        base = program.base_of_paths()
        self.path = _folder(config_path, "--config-path", base) if config_path else str(CONF)
        search_path = hydra_internals.create_config_search_path(self.path)
        if config_dir is not None:
            provider = f"file://{_folder(config_dir, '--config-dir', Path())}"
            search_path.prepend("command-line", provider, SearchPathQuery(provider="schema"))
        self.name = config_name or "config"
        self.loader = ConfigLoader(search_path)
        self.kept: Kept | None = None
        self.sweep: Any = None
        self.examined: tuple[dict[str, Any], Config] | None = None
        setup_globals()  # ${now:...} and ${hydra:...}
        JobRuntime.instance().set("name", JOB_NAME)
        self._parser = OverridesParser.create(config_loader=self.loader)

    def parse(self, lines: Iterable[str]) -> tuple[list[Override], list[Problem]]:
        """The overrides that can be parsed, and what is wrong with the others."""
        overrides, problems, before = [], [], ""
        for line in lines:
            try:
                if line.startswith("="):  # hydra takes it for an override of nothing
                    raise HydraException
                overrides += self._parser.parse_overrides([line])
            except (HydraException, RecursionError) as error:
                if line.startswith("-"):
                    reason = "there is no such option, and keys have no dashes before them"
                elif line.startswith("=") or ("=" not in line and not line.startswith("~")):
                    lacks = "key" if "=" in line else "'='"
                    reason = f"it has no {lacks}; write key and value as one word, without spaces"
                    reason += self._in_quotes(f"{before} {line}") if "=" in before else ""
                    if sentence := instead(f"--help {line}"):
                        reason = f"--help {line} {sentence}"
                else:
                    reason = str(error).splitlines()[0] + self._in_quotes(line)
                problems.append(Problem(line, f"cannot be parsed as key=value: {reason}"))
            before = line
        return overrides, problems

    def _in_quotes(self, line: str) -> str:
        """How to write an override whose value is text with letters of Hydra's grammar."""
        key, _, value = line.partition("=")
        word = program.override(key, str(Path(value).expanduser()) if value[:2] == "~/" else value)
        try:
            self._parser.parse_overrides([word])
        except HydraException:  # the key is wrong, too
            return ""
        return f"; if the value is text, quote it for Hydra and the shell: {program.joined([word])}"

    @preemption.held()
    def compose(self, overrides: Sequence[Override], multirun: bool = False) -> Composed:
        """One configuration, without sweeps; `multirun` if it is what a sweep starts from."""
        composed = Composed()
        first = [
            override
            for override in overrides
            if self._is_choice(override) or _is_search_path(override)
        ]
        composed.problems = [
            problem for override in first for problem in self._choice_problems(override)
        ]
        mode = RunMode.MULTIRUN if multirun else RunMode.RUN
        if not composed.problems:
            lines = [str(override.input_line) for override in overrides]
            try:
                config = self.loader.load_configuration(self.name, lines, mode)
            except Exception:  # of any kind: each override is applied by itself below
                pass
            else:
                self.kept = Kept(self.name, tuple(lines), mode, config)
                composed.files = self.loader.files
                _finish(composed, config, lines)
                return composed
        wrong = {problem.key for problem in composed.problems}
        first = [override for override in first if override.key_or_group not in wrong]
        lines = [str(override.input_line) for override in first]
        try:
            config = self.loader.load_configuration(self.name, lines, mode)
        except ConfigError as error:
            composed.problems += error.problems
            return composed
        except _ERRORS as error:
            group, _, option = (getattr(error, "missing_cfg_file", None) or "").rpartition("/")
            sentence = instead(group, option)
            known = Problem(group, f"{option} {sentence}") if sentence else None
            composed.problems.append(known or Problem("", _reason(error)))
            return composed
        except KeyError as error:
            composed.problems.append(not_set(error))
            return composed
        for override in overrides:
            if override not in first and not self._is_choice(override):
                lines.append(str(override.input_line))
                config.hydra.overrides.task.append(lines[-1])  # as hydra would have
                composed.problems += self._apply(override, config)
        composed.files = self.loader.files
        _finish(composed, config, lines)
        return composed

    def _is_choice(self, override: Override) -> bool:
        """Whether an override chooses (or removes) the option of a group."""
        if isinstance(override.value(), Mapping):
            return False
        return self.loader.repository.group_exists(override.key_or_group)

    def chooses(self, line: str) -> bool:
        """Whether an override's line chooses the option of a group."""
        return any(self._is_choice(override) for override in self.parse([line])[0])

    def _choice_problems(self, override: Override) -> Iterator[Problem]:
        group, value = override.key_or_group, override.value()
        if _is_search_path(override) or override.is_delete():
            return
        options = self.options(group)
        for choice in value if isinstance(value, list) else [value]:
            if not isinstance(choice, str):
                way = f"; to choose nothing: {group}=none" if "none" in options else ""
                yield Problem(
                    group, f"got {show(choice)}, expected one of {', '.join(options)}{way}"
                )
            elif choice not in options and not self.loader.repository.config_exists(
                f"{group}/{choice}"
            ):
                yield unknown_keys.option(group, choice, options)

    def options(self, group: str) -> list[str]:
        """The choices of a group."""
        return list(self.loader.get_group_options(group))

    def _apply(self, override: Override, config: DictConfig) -> list[Problem]:
        """Apply one override to a composed configuration, as hydra's own loader does here."""
        try:
            whole_nodes.apply(override, config)
        except Exception as error:  # OmegaConf has a few that are none of its own
            key = override.key_or_group
            value = "..." if override.is_delete() else override.get_value_element_as_str()
            if override.package is not None:
                return [unknown_keys.key(key, value, config, self.loader)]
            if "Could not override" in str(error) or "does not exist" in str(error):
                return _not_mergeable(override, config) or [
                    unknown_keys.key(key, value, config, self.loader)
                ]
            return [Problem(key, _reason(error))]
        return []


def with_run_dir(lines: Iterable[str]) -> list[str]:
    """Override lines as hydra reads them, with its name for the folder of a run replaced by ours.

    Raises:
        ConfigError: both names are given.
    """
    words = list(map(quoted, lines))
    parts = [word.partition("=") for word in words]
    keys = [key.lstrip("+") if equals else "" for key, equals, _ in parts]
    folders = [value for key, (*_, value) in zip(keys, parts, strict=True) if key == _HYDRAS_FOLDER]
    if folders and len(folders) + keys.count("run_dir") > 1:
        raise ConfigError(
            Problem(
                _HYDRAS_FOLDER,
                f"{folders[-1]} is another name for run_dir, "
                "which is given too; leave one of them out",
            )
        )
    return [
        f"run_dir={value}" if key == _HYDRAS_FOLDER else word
        for word, key, (*_, value) in zip(words, keys, parts, strict=True)
    ]


def quoted(word: str) -> str:
    """An override as hydra reads it; one that it reads anyway stays as it is."""
    key, equals, value = word.partition("=")
    if equals and _EXPRESSIONS.fullmatch(key) and not _READABLE.fullmatch(value):
        # A backslash stands for itself, but before a quote.
        text = re.sub(
            r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), value
        )
        return f"{key}='{text}'"
    return _ADDRESS.sub(r"address=[\1,\2]", word) if _ADDRESS.fullmatch(word) else word


def _not_mergeable(override: Override, config: DictConfig) -> list[Problem]:
    """The keys of a mapping that the node it would be merged into doesn't have."""
    key, value = override.key_or_group, override.value()
    node = OmegaConf.select(config, key)
    if not isinstance(value, dict) or not isinstance(node, DictConfig):
        return []
    return [
        Problem(
            f"{key}.{name}",
            f"is not in the {key} that this is merged into; add it with "
            f"+{key}.{name}=..., or replace all of {key} with '~{key}' '+{key}={{...}}'",
        )
        for name in value
        if str(name) not in node
    ]


def _folder(path: str, option: str, base: Path) -> str:
    if path.startswith("pkg://"):
        problems = hydra_section.search_path_problems([path], option)
        if problems:
            raise ConfigError(problems)
        return path
    folder = (base / path).resolve()
    if not folder.is_dir():
        raise ConfigError(Problem(option, f"there is no folder {folder}"))
    return str(folder)


def _is_search_path(override: Override) -> bool:
    return override.key_or_group == "hydra.searchpath"


def _reason(error: BaseException) -> str:
    """hydra's own words, with those of what caused it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = error.__cause__
    if cause is not None:
        lines += [line.strip() for line in str(cause).splitlines()[:1] if line.strip()]
    return "; ".join(line.rstrip(".:") for line in lines) or type(error).__name__


def _finish(composed: Composed, config: DictConfig, lines: list[str]) -> None:
    """Resolve every interpolation once, into plain values; those of hydra's own stay text."""
    composed.lines, composed.node = lines, hydra_internals.raw_node(config, "hydra")
    composed.hydra = hydra_section.raw(composed.node)
    with hydra_internals.hydra_config(config):
        items = _Resolver(composed.unset).items(config, "", but="hydra")
        composed.config.update((str(name), value) for name, value in items)
    _settle(composed.config, composed.problems)
    composed.complete = True


def plain(config: DictConfig) -> dict[str, Any]:
    """A composed configuration as a plain dict, every interpolation resolved.

    Raises:
        ConfigError: with every key that has no value.
    """
    problems: list[Problem] = []
    value: dict[str, Any] = _Resolver(problems).plain(config, "")
    _settle(value, problems)
    if problems:
        raise ConfigError(problems)
    return value


def _settle(config: dict[str, Any], problems: list[Problem]) -> None:
    if "transform" in config:
        config["transform"] = step_order.settle(config["transform"], problems)


_UNSET = object()


@dataclass
class _Resolver:
    """Makes plain values of a configuration's nodes.

    Attributes:
        problems: what is wrong is added here.
    """

    problems: list[Problem]

    def plain(self, value: Any, key: str) -> Any:
        """A value without interpolations."""
        if isinstance(value, DictConfig):
            return dict(self.items(value, key))
        if isinstance(value, ListConfig):
            entries = (self._value(value, i, f"{key}[{i}]") for i in range(len(value)))
            return [item for item in entries if item is not _UNSET]
        return value

    def items(self, node: DictConfig, key: str, but: str = "") -> Iterator[tuple[Any, Any]]:
        """The entries of a mapping, without those that have no value."""
        for name in node:
            if name != but:
                item = self._value(node, name, f"{key}.{name!s}".lstrip("."))
                if item is not _UNSET:
                    yield name, item

    def _value(self, node: DictConfig | ListConfig, name: Any, key: str) -> Any:
        try:
            return self.plain(node[name], key)
        except MissingMandatoryValue:
            self.problems.append(Problem(key, f"has no value yet; give it with {key}=..."))
        except InterpolationKeyError:
            text = hydra_internals.raw_value(node, name)
            self.problems.append(Problem(key, f"{text} leads nowhere; give it a value of its own"))
        except (OmegaConfBaseException, RecursionError) as error:
            reason = str(error).splitlines()[0].split("resolving interpolation: ")[-1]
            self.problems.append(Problem(key, reason))
        return _UNSET


def _variable(name: str, *default: str | None) -> str | None:
    """`${oc.env:NAME}`, but for credentials: a run's folder keeps all values."""
    if re.search("SECRET|TOKEN|PASS|KEY|CRED", name, re.IGNORECASE):
        raise ValueError(f"{name} is a secret by its name; the tool that needs it reads it itself")
    return oc.env(name, *default)


OmegaConf.register_new_resolver("oc.env", _variable, replace=True)
