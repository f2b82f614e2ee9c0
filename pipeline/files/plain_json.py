"""JSON from anywhere: read in bounded time and memory, or refused with a `JsonError`.

Cost: that of `json.loads`, and 0.3 us for each value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.files.regular_file import open_regular

MAX_BYTES = 64 << 20
_MAX_DEPTH = 100
_VALUE = 64  # bytes in memory that a value takes, with its place in a list; about
_MAX_DIGITS = 100  # of a number; a generator's state has 39


class JsonError(ValueError):
    """The reason why a text is refused; it does not name the file."""


def read(path: Path, limit: int = MAX_BYTES, nan: bool = False) -> Any:
    """The content of the file `path`.

    Args:
        limit: bytes, of the text and of its values in memory.
        nan: accept NaN and Infinity, which Python writes and JSON lacks.

    Raises:
        JsonError: it is too large, nested too deeply, or not JSON.
        OSError: it cannot be read, or is not a regular file.
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    return parse(content, limit, nan)


def parse(text: str | bytes, limit: int = MAX_BYTES, nan: bool = False) -> Any:
    """The value of a text; arguments and errors as for `read`."""
    if len(text) > limit:
        raise JsonError(f"it is larger than {limit >> 20} MiB")
    content = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
    values = content.count(b",") + content.count(b"[") + content.count(b"{")
    if len(content) + _VALUE * values > limit:
        raise JsonError(f"its values would take more than {limit >> 20} MiB of memory")
    if not text.strip():
        raise JsonError("it is empty")
    try:
        found = json.loads(
            text, parse_int=_integer, parse_float=_number,
            parse_constant=float if nan else _no_constant,
        )  # fmt: skip
        _check_depth(found)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(error.doc.rstrip()) or "Unterminated" in error.msg
        what = "it is cut off" if cut else "it is not JSON"
        place = f"line {error.lineno}, column {error.colno}"
        raise JsonError(f"{what} ({error.msg} at {place})") from None
    except UnicodeDecodeError as error:
        raise JsonError(f"it is not text (byte {error.start})") from None
    except RecursionError:
        raise JsonError(f"it is nested more than {_MAX_DEPTH} levels deep") from None
    return found


def mapping(value: Any) -> dict[str, Any]:
    """`value`, if it is a JSON object; raises JsonError."""
    if not isinstance(value, dict):
        raise JsonError(f"it is {name(value)}, not a mapping")
    return value


def integer(values: Mapping[str, Any], key: str, least: int = 0, most: int = 2**63 - 1) -> int:
    """The whole number at `key`; raises JsonError where there is none in that range."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        has = shown(value) if key in values else "missing"
        raise JsonError(f"{key} is {has}, and must be a whole number of at least {least}")
    return value


def name(value: Any) -> str:
    """The kind of a value, for messages."""
    kinds = {dict: "a mapping", list: "a list", str: "a text", bool: "a truth value",
             int: "a number", float: "a number", type(None): "null"}  # fmt: skip
    return kinds.get(type(value), f"a {type(value).__name__}")


def shown(value: Any) -> str:
    """A value for messages, shortened to 60 characters."""
    text = repr(value) if isinstance(value, (int, float, str, bool, type(None))) else name(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise JsonError(f"it has a number of {len(text)} digits")
    return int(text)


def _number(text: str) -> float:
    if len(text) > _MAX_DIGITS:
        raise JsonError(f"it has a number of {len(text)} digits")
    number = float(text)
    if math.isinf(number):
        raise JsonError(f"it has the number {text}, which is too large")
    return number


def _no_constant(text: str) -> float:
    raise JsonError(f"it has {text}, which is not JSON")


def _check_depth(value: Any) -> None:
    """Raise RecursionError where code that walks through a value could."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return
    raise RecursionError
