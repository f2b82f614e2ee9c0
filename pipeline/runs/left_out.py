"""Reading a quarantine.csv, which lists the samples that runs left out; without torch."""

from __future__ import annotations

import csv
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import BinaryIO

from penstock.errors import ConfigError, Problem

NAME = "quarantine.csv"

KEY = "bad_samples.quarantine"
_LARGEST = 128 << 20  # bytes
_MOST = 500_000  # lines
LONGEST_LINE = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a quarantine.csv; `dataset` is a fingerprint."""

    split: str
    index: int
    path: str
    epoch: int
    step: int
    position: int
    cause: str
    dataset: str

    @property
    def sample(self) -> tuple[str, str | int]:
        """The identity of the sample: its file, or split and index."""
        return ("", normal(self.path)) if self.path else (self.split, self.index)


COLUMNS = tuple(one.name for one in fields(Entry))


def read(path: str | Path) -> list[Entry]:
    """The lines of a quarantine.csv, without a last one that a crash cut off.

    Raises:
        ConfigError: there is no such file, or it is something else, or larger than any run's.
    """
    entries: list[Entry] = []
    try:
        with Path(path).open("rb") as file:
            if (size := os.fstat(file.fileno()).st_size) > _LARGEST:
                raise csv.Error(f"it is larger than {_LARGEST >> 20} MiB: it has {size} bytes")
            text = _Lines(file)
            lines = csv.reader(text)
            header = next(lines, None)
            if header is not None and tuple(header) != COLUMNS:
                has, expected = ", ".join(header)[:300], ", ".join(COLUMNS)
                raise ConfigError(
                    Problem(
                        KEY,
                        f"{str(path)!r} is not the {NAME} of a run: its "
                        f"columns are {has}; expected {expected}",
                    )
                )
            for number, line in enumerate(lines, 2):
                if number > _MOST:
                    raise csv.Error(f"it has more than {_MOST} lines")
                entries.append(_entry(number, line, str(path)))
                text.taken = 0
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(Problem(KEY, f"{str(path)!r} cannot be read: {reason}")) from error
    return entries


class _Lines:
    """The whole lines of a CSV file, for a reader that puts those of one record together.

    Attributes:
        taken: characters since it was set to 0; more than LONGEST_LINE are an error.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._text, self.taken = io.TextIOWrapper(file, "utf-8", newline=""), 0

    def __iter__(self) -> Iterator[str]:
        begun: list[str] = []  # a field may hold other line ends
        while line := self._text.readline(LONGEST_LINE):
            self.taken += len(line)
            if self.taken > LONGEST_LINE:
                raise csv.Error(f"it has a line of more than {LONGEST_LINE >> 20} MiB")
            begun.append(line)
            if line.endswith("\n"):
                yield from begun
                begun.clear()


def whole(content: bytes) -> int:
    """The length of the whole lines of a file; a crash may have cut off the last one."""
    return content.rfind(b"\n") + 1


def written(text: str) -> str:
    """`text` as UTF-8 can encode it: file names may have bytes that are not."""
    return text.encode(errors="backslashreplace").decode()


def normal(path: str) -> str:
    """The absolute path; an address stays as it is."""
    return written(path if "://" in path else os.path.abspath(path))  # noqa: PTH100  (asks no disk)


def _entry(number: int, line: Sequence[str], name: str) -> Entry:
    try:
        if len(line) != len(COLUMNS):
            raise ValueError(f"it has {len(line)} fields, and needs {len(COLUMNS)}")
        split, index, path, epoch, step, position, cause, dataset = line
        for text in (index, epoch, step, position):
            if not re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
                raise ValueError(f"{text[:40]!r} is not a number of a sample or a step")
        split, dataset = sys.intern(split), sys.intern(dataset)  # of all lines nearly the same
        return Entry(
            split,
            int(index),
            path,
            int(epoch),
            int(step),
            int(position),
            cause,
            dataset,
        )
    except ValueError as error:
        raise ConfigError(Problem(KEY, f"{name!r}, line {number}: {error}")) from error
