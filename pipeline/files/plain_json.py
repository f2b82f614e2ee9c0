"""JSON from anywhere: read in bounded time and memory, or refused with a `JsonError`.

Cost: that of `json.loads`, and 0.3 us for each value.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from penstock.files.regular_file import TooLargeError, open_regular, read_bounded

MAX_BYTES = 64 << 20
LONGEST_LINE = 16 << 20  # bytes of a record of a .jsonl file
_MAX_DEPTH = 100
_VALUE = 64  # bytes in memory that a value takes, with its place in a list; about
_MAX_DIGITS = 100  # of a number; a generator's state has 39

T = TypeVar("T")


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
    try:
        return parse(read_bounded(path, limit), limit, nan)
    except TooLargeError as error:
        raise JsonError(str(error)) from None


def lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records of a .jsonl file with the numbers of their lines, from 1, one at a time.

    A last line without its end is left out: a process that writes or was killed left it.

    Raises:
        JsonError: a line is longer than LONGEST_LINE, or no JSON object; with its number.
        OSError: the file cannot be read, or is not a regular file.
    """
    with open_regular(path) as file:
        yield from lines_of(file)


def lines_of(
    file: BinaryIO, before: int = 0, stop: int | None = None
) -> Iterator[tuple[int, dict[str, object]]]:
    """The same from where `file` stands, after `before` lines, to the first line from `stop` on."""
    number = before
    while stop is None or file.tell() < stop:
        line, number = file.readline(LONGEST_LINE), number + 1
        if not line.endswith(b"\n"):
            if len(line) < LONGEST_LINE:
                return
            raise JsonError(f"line {number} is longer than {LONGEST_LINE} bytes")
        try:
            record = mapping(parse(line))
        except JsonError as error:
            raise JsonError(f"line {number} is broken: {error}") from error
        yield number, record


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
        value = json.loads(
            text,
            parse_int=_integer,
            parse_float=_number,
            parse_constant=float if nan else _no_constant,
            object_pairs_hook=_mapping,
        )
        _check_depth(value)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(error.doc.rstrip()) or "Unterminated" in error.msg
        what = "it is cut off" if cut else "it is not JSON"
        position = f"line {error.lineno}, column {error.colno}"
        raise JsonError(f"{what} ({error.msg} at {position})") from None
    except UnicodeDecodeError as error:
        raise JsonError(f"it is not text (byte {error.start})") from None
    except RecursionError:
        raise JsonError(f"it is nested more than {_MAX_DEPTH} levels deep") from None
    return value


def mapping(value: object) -> dict[str, Any]:
    """`value`, if it is a JSON object; raises JsonError."""
    if not isinstance(value, dict):
        raise JsonError(f"it is {name(value)}, not a mapping")
    return value


def checked(kind: Callable[..., T], value: Any) -> T:
    """A dataclass of pydantic's, or a model, made of a JSON object; raises JsonError."""
    from pydantic import ValidationError  # 0.1 s, which most readers of JSON do without

    try:
        return kind(**mapping(value))
    except ValidationError as error:
        first = error.errors()[0]
        if "error" in first.get("ctx", {}):  # a sentence of our own
            raise JsonError(str(first["ctx"]["error"])) from None
        raise JsonError(f"{shown('.'.join(map(str, first['loc'])))}: {first['msg']}") from None


def integer(values: Mapping[str, object], key: str, least: int = 0, most: int = 2**63 - 1) -> int:
    """The whole number at `key`; raises JsonError where there is none in that range."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        has = shown(value) if key in values else "missing"
        raise JsonError(f"{key} is {has}, and must be a whole number of at least {least}")
    return value


def name(value: object) -> str:
    """The kind of a value, for messages."""
    kinds = {
        dict: "a mapping",
        list: "a list",
        str: "a text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        type(None): "null",
    }
    return kinds.get(type(value), f"a {type(value).__name__}")


def shown(value: object) -> str:
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


def _mapping(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise JsonError(f"it has the key {shown(twice)} twice")
    return values


def _no_constant(text: str) -> float:
    raise JsonError(f"it has {text}, which is not JSON")


def _check_depth(value: object) -> None:
    """Raise RecursionError where code that walks through a value could."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return
    raise RecursionError
