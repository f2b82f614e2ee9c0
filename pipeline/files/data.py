"""Whole files of data, of at most `limits.record_bytes`, and JSON, with what is wrong in them."""

from __future__ import annotations

import io
import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.errors import DataError

if TYPE_CHECKING:
    from penstock.files.limits import Limits


def size_of(path: str | os.PathLike[str]) -> int:
    """Bytes of a regular file; -1 for anything else, so that a bad file does not hide others."""
    try:
        status = os.stat(path)  # noqa: PTH116  (once a sample; a Path costs more than that)
    except (OSError, ValueError):
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def read_regular(path: str | os.PathLike[str], limits: Limits | None = None) -> bytes:
    """All of a file, of at most `limits.record_bytes` (None: by default).

    Raises:
        DataError: it is larger; the message begins with "it has".
        OSError: it is missing, a folder, or may not be read, or its name is not valid.
    """
    if limits is None:
        from penstock.files.limits import DEFAULT  # imports pydantic

        limits = DEFAULT
    try:
        with Path(path).open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size > limits.record_bytes:
                raise DataError(f"it has {limits.refusal('record_bytes', f'{size} bytes')}")
            return file.readall()
    except ValueError as error:
        raise OSError(0, f"the name is not valid ({error})", repr(path)) from error


def map_npy(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """The array in a `.npy` file, mapped read-only; raises OSError or ValueError."""
    try:
        mapped: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except EOFError as error:  # of an empty file
        raise ValueError(str(error)) from None
    return mapped


def npy_layout(content: bytes, size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether in Fortran's order, dtype, and the byte at which the numbers begin.

    Args:
        content: what a `.npy` file begins with.
        size: bytes of the whole file.

    Raises:
        ValueError: it is not a complete `.npy` file of numbers, times or text.
    """
    file = io.BytesIO(content)
    old = np.lib.format.read_magic(file) == (1, 0)
    # Versions 2 and 3 differ in the encoding of field names, which plain arrays lack.
    read = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    claimed = file.tell() + math.prod(shape) * dtype.itemsize
    if claimed > size:
        raise ValueError(f"it is shorter than its header says: {size} of {claimed}")
    return shape, fortran, dtype, file.tell()


LONGEST_LINE = 16 << 20  # bytes of a record of a .jsonl file

T = TypeVar("T")


class JsonError(ValueError):
    """The reason why a text is refused; it does not name the file."""


def read(path: Path) -> Any:
    """The content of the file `path`; raises JsonError, or OSError where it cannot be read."""
    return parse(path.read_bytes())


def lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records of a .jsonl file with the numbers of their lines, from 1, one at a time.

    A last line without its end is left out: a process that writes or was killed left it.

    Raises:
        JsonError: a line is no JSON object; with its number.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        yield from lines_of(file)


def lines_of(
    file: BinaryIO, before: int = 0, stop: int | None = None
) -> Iterator[tuple[int, dict[str, object]]]:
    """The same from where `file` stands, after `before` lines, to the first line from `stop` on."""
    number = before
    while stop is None or file.tell() < stop:
        line, number = file.readline(), number + 1
        if not line.endswith(b"\n"):
            return
        try:
            record = mapping(parse(line))
        except JsonError as error:
            raise JsonError(f"line {number} is broken: {error}") from error
        yield number, record


def parse(text: str | bytes) -> Any:
    """The value of a text; raises JsonError."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(error.doc.rstrip()) or "Unterminated" in error.msg
        raise JsonError(f"it is {'cut off' if cut else 'not JSON'} ({error})") from None
    except (ValueError, RecursionError) as error:
        raise JsonError(f"it is not JSON ({error})") from None


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
