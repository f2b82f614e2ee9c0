"""Whole files of data, of at most `limits.record_bytes`, and files with a JSON record a line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Limits


def size_of(path: str | os.PathLike[str]) -> int:
    """Bytes of a file; -1 where there is none, so that a missing file does not hide others."""
    try:
        return os.stat(path).st_size  # noqa: PTH116  (once a sample; a Path costs more than that)
    except (OSError, ValueError):
        return -1


def read_file(path: str | os.PathLike[str], limits: Limits = DEFAULT) -> bytes:
    """All of a file, of at most `limits.record_bytes`.

    Raises:
        DataError: it is larger; the message begins with "it has".
        OSError: it is missing, a folder, or may not be read.
    """
    # Unbuffered: it is read in one call, and a buffer would be a copy more.
    with open(path, "rb", buffering=0) as file:
        if (size := os.fstat(file.fileno()).st_size) > limits.record_bytes:
            raise DataError(f"it has {limits.refusal('record_bytes', f'{size} bytes')}")
        return file.readall()


def records(
    file: BinaryIO, number: int = 1, stop: float = math.inf
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records of a .jsonl file from where it stands to byte `stop`, with the numbers of lines.

    A last line without its end is left out: a process that writes or was killed left it.

    Args:
        number: of the first line.

    Raises:
        ValueError: a line is no JSON object; with its number.
    """
    while file.tell() < stop and (line := file.readline()).endswith(b"\n"):
        try:
            yield number, {**json.loads(line)}
        except (ValueError, TypeError) as error:
            raise ValueError(f"line {number} is broken: {error}") from error
        number += 1
