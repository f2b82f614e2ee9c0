"""Metrics as a table."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from pipeline.files.disk import append, write_atomically
from pipeline.files.table_cells import cell
from pipeline.runs.trackers.tracker import Points, TrackedRun, Tracker


class Csv(Tracker):
    """A table `metrics.csv` with a row for every record, and a column for every name.

    A resumed run writes it anew, from metrics.jsonl.
    """

    def __init__(self, folder: str | Path, run: TrackedRun) -> None:
        self.path = Path(folder) / "metrics.csv"
        self.run = run
        self._names: list[str] = ["step"]
        self._rows: list[dict[str, object]] = []

    def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for metrics, step in self.run.before:
            self._add(metrics, step)
        self._write()

    def log(self, metrics: Points, step: int) -> None:
        if self._add(metrics, step):  # the head has changed
            self._write()
        else:
            append(self.path, [self._text(self._rows[-1:]).rstrip("\r\n")])

    def _add(self, metrics: Points, step: int) -> bool:
        """Keep a row; whether it has columns that are new."""
        new = [name for name in metrics if name not in self._names]
        self._names += new
        self._rows.append({"step": step, **metrics})
        return bool(new)

    def _write(self) -> None:
        text = self._text([{name: cell(name) for name in self._names}, *self._rows])
        write_atomically(self.path, text.encode(errors="backslashreplace"))

    def _text(self, rows: list[dict[str, object]]) -> str:
        text = io.StringIO(newline="")
        csv.DictWriter(text, self._names, lineterminator="\n").writerows(rows)
        return text.getvalue()
