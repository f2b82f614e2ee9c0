"""Parts of error messages: "got 'tru', expected true or false", and the nearest valid name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError

from penstock.config import familiar
from penstock.errors import Problem
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
    if origin in (list, Sequence) and all(
        getattr(entry, "__origin__", entry) in (int, float) for entry in get_args(member)
    ):
        return f"a list, each entry {describe(get_args(member)[0])}"
    if origin in (list, Sequence) and get_args(member) == (str,):
        return "a list of texts"
    if hasattr(member, "model_fields"):  # a section
        return "a mapping"
    return _NAMES.get(origin or member, str(getattr(member, "__name__", member)))


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


def of_schema(error: ValidationError, values: Mapping[str, Any]) -> list[Problem]:
    """A problem for each key that the schema refuses, with pydantic's reasons and a way out."""
    found: dict[str, dict[str, None]] = {}
    for entry in error.errors(include_url=False):
        there = _there(values, entry["loc"])
        keys, given = list(map(str, entry["loc"][: len(there)])), show(entry["input"])
        reason, known = f"{entry['msg']}, got {given}", re.findall("'([^']+)'", entry["msg"])
        if entry["type"] == "extra_forbidden":
            reason, known = f"unknown key {keys[-1]!r}", [*there[-1]]
            known.remove(keys[-1])
        if entry["type"] == "missing":
            keys.append(str(entry["loc"][-1]))
            reason = "is missing"
        advice = familiar.advice(".".join(keys), given.strip("'"))
        reason += advice or nearest(keys[-1] if known else "", known)
        found.setdefault(".".join(keys), {})[reason] = None
    return [Problem(key, "; or: ".join(reasons)) for key, reasons in found.items()]


def _there(node: Any, place: tuple[Any, ...]) -> list[Any]:
    """The mappings on the way to a place of pydantic's, which adds names of members of unions."""
    inside = place and isinstance(node, Mapping) and place[0] in node
    return [node, *_there(node[place[0]], place[1:])] if inside else []
