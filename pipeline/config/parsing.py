"""Plain values to the typed configuration, or all problems with them.

A problem names the full key, what was given, what is allowed and the nearest valid name.
Cost: about 3 ms for a whole configuration.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from penstock.config import familiar_names
from penstock.config.gone import instead
from penstock.config.schema import Config
from penstock.errors import ConfigError, Problem
from penstock.ranges import LARGEST


def nearest(name: str, known: Iterable[str]) -> str:
    """`, did you mean 'x'?` where something is near, else nothing."""
    close = difflib.get_close_matches(name, [str(choice) for choice in known], n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def show(value: Any) -> str:
    """A value as YAML writes it, shortened to 80 characters."""
    if value is None:
        return "null"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def not_allowed(value: object, allowed: str, known: Iterable[str] = ()) -> str:
    """The message for a value of a wrong type or outside its bounds or choices."""
    if type(value) is int and value > LARGEST:
        allowed += " that fits into 64 bits"
    return f"got {show(value)}, expected {allowed}{nearest(str(value), known)}"


def members(annotation: object) -> tuple[object, ...]:
    """The types that an annotation allows."""
    if get_origin(annotation) in (Union, UnionType):
        return tuple(inner for member in get_args(annotation) for inner in members(member))
    return (annotation,)


def choices(annotation: Any) -> list[str]:
    """The words that an annotation allows."""
    literals = (m for m in members(annotation) if get_origin(m) is Literal)
    return [str(choice) for literal in literals for choice in get_args(literal)]


_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
    list: "a list",
    tuple: "a list",
    Sequence: "a list",
    dict: "a mapping",
    Mapping: "a mapping",
}


def describe(annotation: object, metadata: Iterable[object] = ()) -> str:
    """An annotation in words: `a whole number of at least 1 or null`."""
    return " or ".join(_describe_one(member, metadata) for member in members(annotation))


def _describe_one(member: Any, metadata: Iterable[Any]) -> str:
    origin = get_origin(member)
    if origin is Annotated:
        words = (getattr(entry, "description", None) for entry in member.__metadata__)
        if said := next(filter(None, words), None):
            return str(said)
        return _describe_one(member.__origin__, member.__metadata__)
    if origin is Literal:
        return " | ".join(map(str, get_args(member)))
    if member in (int, float):
        return _NAMES[member] + _bounds(metadata)
    if origin in (list, Sequence) and all(map(_is_number, get_args(member))):
        return f"a list, each entry {describe(get_args(member)[0])}"
    if hasattr(member, "model_fields"):  # a section
        return "a mapping"
    return _NAMES.get(origin or member, str(getattr(member, "__name__", member)))


def _is_number(annotation: object) -> bool:
    return getattr(annotation, "__origin__", annotation) in (int, float)


def _bounds(metadata: Iterable[Any]) -> str:
    words = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
    bounds = [bound for entry in metadata for bound in getattr(entry, "metadata", [entry])]
    return " and".join(
        f" {word} {limit}"
        for bound in bounds
        for name, word in words.items()
        # Every number ends there, so only the message about a larger one says it.
        if (limit := getattr(bound, name, None)) is not None and limit < LARGEST
    )


def parse(container: Mapping[str, Any]) -> Config:
    """The typed configuration; raises ConfigError with all problems of a plain, resolved dict."""
    config, problems = check(container)
    if problems:
        raise ConfigError(problems)
    return config


def check(container: Mapping[str, Any]) -> tuple[Config, list[Problem]]:
    """The configuration and its problems.

    The Config lacks the attributes that are wrong, so that further checks can see all others.
    """
    try:
        config = Config.model_validate(dict(container))
    except ValidationError as error:
        places = {_place(container, entry): entry["type"] for entry in error.errors()}
        problems = [_problem(container, path, kind) for path, kind in places.items()]
        return _construct(Config, container, set(places)), problems
    return config, []


def _construct(model: type[Any], values: Mapping[str, object], wrong: set[tuple[str, ...]]) -> Any:
    """A model without validation that holds what is not wrong."""
    valid = {}
    for name, field in model.model_fields.items():
        if name not in values or (name,) in wrong:
            continue
        value, section = values[name], _section(field.annotation)
        if section is not None and isinstance(value, Mapping):
            value = _construct(section, value, {path[1:] for path in wrong if path[0] == name})
        valid[name] = value
    return model.model_construct(**valid)


def _place(container: Any, error: Mapping[str, Any]) -> tuple[str, ...]:
    """The key of an error, without the names pydantic adds for the members of a union."""
    path: list[str] = []
    for part in error["loc"]:
        there = isinstance(container, Mapping) and part in container
        if not there and error["type"] != "missing":
            break
        path.append(str(part))
        container = container[part] if there else None
    return tuple(path)


def _problem(container: Mapping[str, object], path: tuple[str, ...], kind: str) -> Problem:
    model: type[BaseModel] | None = Config
    value: object = container
    annotation: object = None
    metadata: list[object] = []
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
        fields = model.model_fields if model else {}
        if name not in fields and kind == "extra_forbidden":
            way = familiar_names.key(".".join(path), show(value))
            return unknown_key(".".join(path), name, fields, way=way)
        if name not in fields:  # an entry of an open mapping
            entry, allowed = (*get_args(annotation), Any)[1], "a mapping with _target_"
            if get_origin(entry) is Annotated:
                allowed = f"a name of letters, digits and . : _ - with {describe(entry)}"
            return Problem(".".join(path), not_allowed(value, allowed))
        annotation, metadata = fields[name].annotation, fields[name].metadata
        model = _section(annotation)
    allowed, key = describe(annotation, metadata), ".".join(path)
    if kind == "missing":
        return Problem(key, f"is missing; expected {allowed}")
    if sentence := instead(key, value):
        return Problem(key, f"{show(value)} {sentence}")
    known = familiar_names.value(key, show(value).strip("'"))
    message = not_allowed(value, allowed, () if known else choices(annotation))
    return Problem(key, message + familiar_names.hint(known))


def unknown_key(
    key: str, name: str, known: Iterable[str], what: str = "key", way: str | None = None
) -> Problem:
    """The problem of a name that doesn't exist, with the nearest that does.

    Args:
        way: what to write instead, if that is known.
    """
    if sentence := instead(key):
        return Problem(key, sentence)
    known = list(known)
    if way:
        return Problem(key, f"unknown {what} {name!r}{familiar_names.hint(way)}")
    allowed = ", ".join(known) if known else "none"
    return Problem(key, f"unknown {what} {name!r}{nearest(name, known)}; allowed: {allowed}")


def _section(annotation: object) -> type[BaseModel] | None:
    """The section that a field holds, if it holds one."""
    for member in members(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):
            return member
    return None
