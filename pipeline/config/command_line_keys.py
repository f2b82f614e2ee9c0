"""Keys that only a command line sets, as what they hold is run by somebody (`AddOn.typed`).

A value is used if the overrides that were typed give it by themselves. So it comes from no YAML
file, however the file was chosen (an experiment, `--config-dir`, `+group@key`), from no
interpolation, and from no run's or sweep's folder, whose overrides are refused: who resumes a run
types it again. An allow-list limits typed values as well, because people copy commands from
elsewhere. Cost: nothing where the keys are not used, else 1 ms a configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from penstock import installed
from penstock.config.messages import nearest
from penstock.errors import ConfigError, Problem

Values = Mapping[str, Any]


@dataclass(frozen=True)
class TypedKey:
    """A key that only a command line sets.

    Attributes:
        below: by name, what may be below of it, with what yields the problems of a value at a key:
            nothing that is downloaded, installed or started.
        why: nothing else may be there.
    """

    below: Mapping[str, Callable[[Any, str], Iterator[Problem]]]
    why: str


def check(config: Values, lines: Sequence[str]) -> list[Problem]:
    """The problems of these keys in a resolved configuration.

    Args:
        lines: the overrides of the command line.
    """
    problems: list[Problem] = []
    for key, named_rules in installed.typed_keys().items():
        content = _at(config, key)
        if not isinstance(content, Mapping) or not content:  # or the schema refuses it
            continue
        rules: TypedKey = installed.load(named_rules)
        typed = dict(typed_values(line for line in lines if _may_give(line, key)))
        for name, value in content.items():
            below = f"{key}.{name}"
            foreign = [at for at, leaf in _leaves(value, below) if typed.get(at, _NOTHING) != leaf]
            if name not in rules.below:
                reason = (
                    f"is not handed on, {rules.why}. The packages, programs and variables that it "
                    f"names belong on the nodes. Allowed: {', '.join(rules.below)}"
                    f"{nearest(str(name), rules.below)}"
                )
                problems.append(Problem(below, reason))
            elif not foreign:
                problems += rules.below[name](value, below)
            elif "${" in str(typed.get(foreign[0])):
                reason = "holds an interpolation, which a file may change; type the value itself"
                problems.append(Problem(below, reason))
            else:
                reason = (
                    "comes from a file, and decides what runs; it is taken from the command line "
                    f"only. If you want it, leave it out of the file and type '+{below}=...'"
                )
                problems.append(Problem(below, reason))
    return problems


def without(config: Values) -> dict[str, Any]:
    """A configuration that a run has stored, without these keys."""
    kept = deepcopy(dict(config))
    for key in installed.typed_keys():
        *path, name = key.split(".")
        section = _at(kept, ".".join(path))
        if isinstance(section, dict):
            section.pop(name, None)
    return kept


def of_folder(words: Sequence[str], typed: Sequence[str], folder: Path) -> list[str]:
    """The overrides that a run's or a sweep's folder gives, without those of keys typed anew.

    Raises:
        ConfigError: they give one of these keys a value.
    """
    anew = {key for word in typed if (key := named(word))}
    kept = [word for word in words if named(word) not in anew]
    if keys := {key for word in kept if (key := given(word))}:
        raise ConfigError(
            [
                Problem(
                    key,
                    f"{folder} holds it, and it is taken from the command line only. Type it "
                    f"again if it is yours, '+{key}={{...}}'; or resume without it, '{key}={{}}'",
                )
                for key in sorted(keys)
            ]
        )
    return kept


def named(word: str) -> str | None:
    """The key that an override is about, or about something below of; None if about others."""
    name = _name(word)
    return next(
        (key for key in installed.typed_keys() if name == key or name.startswith(f"{key}.")), None
    )


def swept(name: str, value: Any) -> str | None:
    """The key that a sweep's parameter gives values, also inside of a mapping; None if none."""
    return given(f"{name}={value}")


def given(word: str) -> str | None:
    """The key that an override gives values, also inside of a mapping; None if it gives none."""
    for key in installed.typed_keys():
        if _may_give(word, key):
            values = dict(typed_values([word]))
            inside = [
                value for at, value in values.items() if at == key or at.startswith(f"{key}.")
            ]
            if not values or any(
                value not in ({}, None) for value in inside
            ):  # or it cannot be read
                return key
    return None


def typed_values(lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Full key and value of everything that override lines give; of several values, each."""
    parser = OverridesParser.create()
    for line in lines:
        try:
            (override,) = parser.parse_overrides([line])
        except (HydraException, RecursionError, ValueError):
            continue  # it is reported where it is composed
        value = override.value()
        for choice in getattr(value, "list", None) or [value]:
            key = override.key_or_group
            yield key, choice
            yield from ((leaf_key, leaf) for leaf_key, _, leaf in entries(choice, key))


def entries(node: Any, key: str) -> Iterator[tuple[str, Any, Any]]:
    """Full key, own name and value of everything inside of a node, at any depth."""
    items = node.items() if isinstance(node, Mapping) else ()
    for name, value in enumerate(node) if isinstance(node, list) else items:
        below = f"{key}[{name}]" if isinstance(node, list) else f"{key}.{name}"
        yield below, name, value
        yield from entries(value, below)


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Key and value of all that is no mapping; a list is typed whole."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}")
    else:
        yield key, value


def _may_give(word: str, key: str) -> bool:
    """Whether an override is about a key, what is below of it, or a mapping that holds it."""
    name = _name(word)
    return named(word) == key or (key.startswith(f"{name}.") and "{" in word)


def _name(word: str) -> str:
    return word.partition("=")[0].lstrip("+~").partition("@")[0]


def _at(config: object, key: str) -> object:
    for name in key.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None
    return config


_NOTHING = object()
