"""FILE.part: predicted rows as lines of JSON, the first line of which says what they are of.

A process that is killed leaves its rows there, and the next one continues. Only the process that
holds the file's lock writes to it. Memory: the rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from penstock.build.data import Split
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.files.data import records
from penstock.files.disk import append
from penstock.files.locks import lock
from penstock.order.keys import IntArray
from penstock.terminal import say

Row = dict[str, Any]


class Journal:
    """The rows that are predicted so far.

    Args:
        out: the file that they go to at last.
        weights: the checkpoint that they are of.

    Attributes:
        rows: by number.
    """

    def __init__(self, out: Path, weights: Path) -> None:
        self.out, self.path = out, out.with_name(f"{out.name}.part")
        stat = weights.stat()
        self._weights = f"{weights.absolute()} {stat.st_size} {stat.st_mtime_ns}"
        self._head: Row | None = None
        self._is_new = False  # whether this process has written it from the beginning
        self.rows: dict[int, Row] = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Write to it, and nobody else does; it is deleted when FILE is there.

        Raises:
            ConfigError: another process holds it, FILE has come to be there, or nothing can be
                written there.
        """
        try:
            held = lock(self.path)
        except BlockingIOError as error:
            reason = "another process predicts into it at this moment; name another file"
            raise ConfigError(Problem("out", f"{str(self.out)!r}: {reason}")) from error
        except OSError as error:
            reason = f"{str(self.out)!r} cannot be written: {error.strerror or error}"
            raise ConfigError(Problem("out", f"{reason}; name another file")) from error
        try:
            if self.out.exists():
                raise ConfigError(Problem("out", f"{str(self.out)!r} exists already"))
            yield
        finally:
            begun_for_nothing = self._is_new and not self.rows
            if self.out.exists() or begun_for_nothing or not self.path.stat().st_size:
                self.path.unlink()
            held.close()

    def read(self, repairs: bool) -> None:
        """Read what an earlier process has left.

        Args:
            repairs: cut off a last line that it wrote in part.

        Raises:
            ConfigError: it is no list of predictions.
        """
        end = 0
        try:
            if not self.path.exists():
                return
            with self.path.open("rb") as file:
                for number, line in records(file):
                    end = file.tell()
                    if number == 1:
                        self._head = line
                    else:
                        self.rows[int(line["row"])] = line
            if repairs and end < self.path.stat().st_size:
                os.truncate(self.path, end)
        except (OSError, ValueError, KeyError) as error:
            reason = f"{self.path} is no list of predictions: {error}; delete it"
            raise ConfigError(Problem("out", reason)) from error

    def begin(self, data: Split) -> None:
        """Say what the rows are of; refuse those of something else."""
        head = {"weights": self._weights, "data": data.fingerprint["dataset"]}
        if self._head is None:
            self._is_new = True
            append(self.path, [json.dumps(head)])
        elif self._head != head:
            reason = (
                f"{self.path} was begun with other weights or other data; delete it, or name "
                "another file"
            )
            raise ConfigError(Problem("out", reason))
        elif self.rows:
            say(f"{len(self.rows)} rows are there already, in {self.path}")

    def add(self, rows: Sequence[Row]) -> None:
        """Append the rows of a batch."""
        try:
            append(self.path, [json.dumps(row) for row in rows])
        except (TypeError, ValueError) as error:
            reason = f"a row is no plain JSON: {error}; give numbers, texts, lists and mappings"
            raise PenstockError(f"objective: {reason}") from error
        self.rows |= {int(row["row"]): row for row in rows}

    def left(self, rows: int) -> IntArray:
        """Which of so many rows are not there, int64[n], ascending."""
        return np.setdiff1d(np.arange(rows), np.array([*self.rows], np.int64))

    def in_order(self) -> list[Row]:
        """All rows in the order of the data."""
        return [self.rows[number] for number in sorted(self.rows)]
