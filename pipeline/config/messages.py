"""Parts of error messages: "got 'tru', expected true or false", and the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from penstock.config import familiar
from penstock.errors import Problem


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` where something is near, else nothing."""
    choices = {str(choice).lower(): str(choice) for choice in known}
    close = difflib.get_close_matches(name.lower(), choices, n=1, cutoff=0.6)
    return f" (did you mean {choices[close[0]]!r}?)" if close else ""


def show(value: Any) -> str:
    """A value as YAML writes it, shortened to 80 characters."""
    text = {"None": "null", "True": "true", "False": "false"}.get(repr(value), repr(value))
    return text if len(text) <= 80 else text[:77] + "..."


def of_schema(error: ValidationError, values: Any, section: str = "") -> list[Problem]:
    """A problem for each key that the schema refuses, with pydantic's reasons and a way out."""
    by_key: dict[str, list[str]] = {}
    for entry in error.errors(include_url=False):
        there, value = _there(values, entry["loc"]), show(entry["input"])
        names = [str(name) for name in entry["loc"][: len(there) + (entry["type"] == "missing")]]
        key, is_unknown = ".".join([*section.split(), *names]), entry["type"] == "extra_forbidden"
        by_key.setdefault(key, []).append(
            f"{entry['msg']}, got {value}"
            + (
                familiar.advice(key, value.strip("'"))
                or (nearest(names[-1], {*there[-1]} - {names[-1]}) if is_unknown else "")
            )
        )
    return [Problem(key, "; or: ".join(reasons)) for key, reasons in by_key.items()]


def _there(node: Any, place: tuple[Any, ...]) -> list[Any]:
    """The mappings on the way to a place of pydantic's, which adds names of members of unions."""
    inside = place and isinstance(node, Mapping) and place[0] in node
    return [node, *_there(node[place[0]], place[1:])] if inside else []
