"""Parts of error messages: "got 'tru', expected true or false", and the nearest valid name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from penstock.config import familiar
from penstock.errors import Problem
from penstock.files.limits import LARGEST


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
