"""Metrics as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

from penstock.addons.trackers.tracker import Points, TrackedRun, Tracker
from penstock.files.disk import append, replacing, write
from penstock.files.regular_file import open_regular
from penstock.files.table_cells import cell


class Csv(Tracker):
    """A table `metrics.csv` with a row for every record, and a column for every name.

    A resumed run writes it anew, from metrics.jsonl.
    """

    def __init__(self, folder: str | Path, run: TrackedRun) -> None:
        self.path = Path(folder) / "metrics.csv"
        self.run = run
        self._names: dict[str, None] = {"step": None}

    def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for metrics, _ in self.run.before:
            self._names.update(dict.fromkeys(metrics))
        self._write({"step": step, **metrics} for metrics, step in self.run.before)

    def log(self, metrics: Points, step: int) -> None:
        new = metrics.keys() - self._names.keys()
        row = {"step": step, **metrics}
        if not new:
            append(self.path, [self._text(row).rstrip("\r\n")])
            return
        before = list(self._names)
        self._names.update(dict.fromkeys(metrics))
        with open_regular(self.path) as file:  # the head changes, and with it every row
            rows = csv.reader(io.TextIOWrapper(file, "utf-8", newline=""))
            next(rows)
            self._write(chain((dict(zip(before, values, strict=False)) for values in rows), [row]))

    def _write(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Replace the table by its head and `rows`, of which one is in memory at a time."""
        with replacing(self.path) as descriptor:
            lines = chain([{name: cell(name) for name in self._names}], rows)
            write(
                descriptor, (self._text(line).encode(errors="backslashreplace") for line in lines)
            )

    def _text(self, row: Mapping[str, object]) -> str:
        text = io.StringIO(newline="")
        csv.DictWriter(text, list(self._names), lineterminator="\n").writerow(row)
        return text.getvalue()
