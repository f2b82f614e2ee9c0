"""Plain values to the typed configuration, or all problems with them.

A problem names the full key, what was given, what is allowed and the nearest valid name.
Cost: about 3 ms for a whole configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from penstock.config import familiar as familiar_names
from penstock.config.familiar import instead
from penstock.config.messages import choices, describe, members, nearest, not_allowed, show
from penstock.config.schema import Config
from penstock.errors import ConfigError, Problem


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
        value, below = values[name], section(field.annotation)
        if below is not None and isinstance(value, Mapping):
            value = _construct(below, value, {path[1:] for path in wrong if path[0] == name})
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
        model = section(annotation)
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


def section(annotation: object) -> type[BaseModel] | None:
    """The section that a field holds, if it holds one."""
    for member in members(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):
            return member
    return None
