"""Rows of predictions while they are made: FILE.part, a line of JSON each below what they are of.

A process that is killed leaves its rows there, and the next one continues. Only the process that
holds the file's lock writes to it. Memory: 16 bytes a row, which say where rows lie in the file.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from penstock.build.data import Split
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.files import plain_json
from penstock.files.disk import Hold, append
from penstock.order.randomness import IntArray
from penstock.terminal import say

Row = dict[str, Any]
_NAMED = 5  # damaged rows that a message names


class Journal:
    """The rows that are predicted so far.

    Args:
        out: the file that they go to at last.
        weights: the checkpoint that they are of.

    Attributes:
        columns: all columns of the rows so far, `error` last.
        damaged: how many rows have an error.
        named: the paths of the first of these.
    """

    def __init__(self, out: Path, weights: Path) -> None:
        self.out, self.path = out, out.with_name(f"{out.name}.part")
        stat = weights.stat()
        self._weights = f"{weights.absolute()} {stat.st_size} {stat.st_mtime_ns}"
        self._head: Row | None = None
        self._is_new = False  # whether this process has written it from the beginning
        self._numbers, self._starts = array("q"), array("q")
        self._end = 0
        self._columns: dict[str, None] = {}
        self._damaged: list[tuple[int, str]] = []
        self.damaged = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Write to it, and nobody else does; it is deleted when FILE is there.

        Raises:
            ConfigError: another process holds it, or FILE has come to be there.
        """
        hold = None
        while hold is None or not hold.is_on(self.path):  # unless it was deleted meanwhile
            try:
                hold = Hold.take(self.path, os.O_RDWR | os.O_CREAT)
            except OSError as error:
                reason = f"{str(self.out)!r} cannot be written: {error.strerror or error}"
                raise ConfigError(Problem("out", f"{reason}; name another file")) from error
            if hold is None:
                reason = "another process predicts into it at this moment; name another file"
                raise ConfigError(Problem("out", f"{str(self.out)!r}: {reason}"))
        try:
            if self.out.exists():
                raise ConfigError(Problem("out", f"{str(self.out)!r} exists already"))
            yield
        finally:
            begun_for_nothing = self._is_new and not self._numbers
            if self.out.exists() or begun_for_nothing or not self.path.stat().st_size:
                self.path.unlink()
            hold.release()

    def read(self, repairs: bool) -> None:
        """Look at what an earlier process has left.

        Args:
            repairs: cut off a last line that it wrote in part.

        Raises:
            ConfigError: it is no list of predictions.
        """
        try:
            if not self.path.exists():
                return
            with self.path.open("rb") as file:
                for number, line in plain_json.lines_of(file):
                    length = file.tell() - self._end - 1
                    if number == 1:
                        self._head, self._end = line, length + 1
                    else:
                        self._know(line, plain_json.integer(line, "row"), length)
            if repairs and self._end < self.path.stat().st_size:
                os.truncate(self.path, self._end)
        except (OSError, plain_json.JsonError) as error:
            reason = f"{self.path} is no list of predictions: {error}; delete it"
            raise ConfigError(Problem("out", reason)) from error

    def begin(self, data: Split) -> None:
        """Say what the rows are of; refuse those of something else."""
        head = {"weights": self._weights, "data": data.identity.data()}
        if self._head is None:
            self._is_new = True
            append(self.path, [json.dumps(head)])
            self._end = len(json.dumps(head)) + 1
        elif self._head != head:
            reason = (
                f"{self.path} was begun with other weights or other data; delete it, or name "
                "another file"
            )
            raise ConfigError(Problem("out", reason))
        elif self._numbers:
            say(f"{len(self._numbers)} rows are there already, in {self.path}")

    def add(self, rows: Sequence[Row]) -> None:
        """Append the rows of a batch."""
        try:
            lines = [json.dumps(row) for row in rows]
        except (TypeError, ValueError) as error:
            reason = f"a row is no plain JSON: {error}; give numbers, texts, lists and mappings"
            raise PenstockError(f"objective: {reason}") from error
        append(self.path, lines)
        for row, line in zip(rows, lines, strict=True):
            self._know(row, int(row["row"]), len(line))

    def left(self, rows: int) -> IntArray:
        """Which of so many rows are not there, int64[n], ascending."""
        missing = np.ones(rows, np.bool_)
        known = np.frombuffer(self._numbers, np.int64)
        missing[known[known < rows]] = False
        return np.flatnonzero(missing)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Row]:
        """All rows in the order of the data, read one by one."""
        numbers = np.frombuffer(self._numbers, np.int64)
        with self.path.open("rb") as file:
            for place in np.argsort(numbers, kind="stable").tolist():
                file.seek(self._starts[place])
                yield plain_json.mapping(plain_json.parse(file.readline(plain_json.LONGEST_LINE)))

    @property
    def columns(self) -> list[str]:
        return sorted(self._columns, key=lambda name: name == "error")

    @property
    def named(self) -> list[str]:
        return [path for _, path in self._damaged]

    def _know(self, row: Row, number: int, length: int) -> None:
        """A row that begins where the last one ends; JSON of Python's is ASCII."""
        self._numbers.append(number)
        self._starts.append(self._end)
        self._end += length + 1
        self._columns |= dict.fromkeys(row)
        if row.get("error"):
            self.damaged += 1
            self._damaged = sorted([*self._damaged, (number, str(row.get("path")))])[:_NAMED]
