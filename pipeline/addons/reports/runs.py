"""`task=runs`: the runs below some folders, a line each: state, start, progress, best, command.

    python run.py task=runs find.state=[failed,preempted] find.sort=best find.limit=20

Cost: 3 ms a run; torch is not imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

from penstock import program
from penstock.addons.reports.values import column, finite, moment
from penstock.addons.reports.verdict import monitored
from penstock.config.schema import Config
from penstock.config.targets import options
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.files.limits import Count
from penstock.runs.folder import CONFIG, MANIFEST
from penstock.runs.run import Run
from penstock.tasks.summary import put_rows
from penstock.terminal import one_line, say, watched

FOLDERS = ("outputs", "multirun")
State = Literal["done", "running", "failed", "preempted", "interrupted", "killed", "damaged"]

_LONGEST = 200  # characters of a reason


class Row(NamedTuple):
    """A run's folder in a line; `words` say how it was started, or why it is damaged."""

    path: Path
    state: str = "damaged"
    started: datetime | None = None
    epochs: int | str = ""
    steps: int | str = ""
    metric: str = ""
    best: float | None = None
    is_max: bool = False
    words: str = ""

    @classmethod
    def read(cls, path: Path) -> Row:
        """The run in `path`; never fails."""
        try:
            run = Run(path)
            metric, best, *_ = monitored(run)
            started, is_max = moment(run.manifest, "started"), run.manifest.get("mode") == "max"
            values = column(run.metrics, f"val/{metric}")[finite(run.metrics, f"val/{metric}")]
            # The manifest has its best value when the run has ended only.
            if best is None and run.state != "done" and len(values):  # not ended
                best = float(values.max() if is_max else values.min())
            # The folder has a column of its own.
            typed = [w for w in run.manifest.get("overrides", []) if not w.startswith("run_dir=")]
            command, steps = str(run.manifest.get("command", "")), column(run.metrics, "step")
            return cls(
                path,
                run.state,
                started and started.astimezone(),
                len(run.metrics),
                int(steps[-1]) if len(steps) else 0,
                metric,
                best,
                is_max,
                program.joined(typed)
                or " ".join(
                    Path(word).name if word.startswith("/") else word  # /usr/bin/penstock
                    for word in command[:_LONGEST].split()
                ),
            )
        # One broken folder of a thousand is a line that says why, and no end of the list.
        except (PenstockError, OSError, ValueError, TypeError, KeyError) as error:
            return cls(path, words=str(error).strip()[:_LONGEST])


def run(config: Config) -> None:
    """List the runs below `config.runs`, by default those of FOLDERS.

    Raises:
        ConfigError: a folder is missing.
    """
    below = [Path(run) for run in config.runs or FOLDERS]
    for folder in below:
        if config.runs and not folder.is_dir():
            raise ConfigError(Problem("runs", f"{folder} is not a folder"))
    options(config, "find", below)


def find(folder: Path) -> Iterator[Path]:
    """The folders of runs below `folder` (or itself), without those inside a run, by name."""
    for parent, folders, files in os.walk(folder):
        # No run is inside another, and a checkpoint may be many folders.
        if MANIFEST in files and CONFIG in files:
            folders.clear()
            yield Path(parent)
        folders.sort()


def put_runs(
    below: Sequence[Path],
    /,
    state: State | list[State] | None = None,
    sort: Literal["started", "best"] = "started",
    limit: Count | None = 50,
) -> None:
    """List the runs below some folders that the section `find` asks for.

    Args:
        state: which ones; None: all.
        sort: the newest first, or the best.
        limit: lines at most.
    """
    # Folders may overlap: runs=[outputs,outputs/2026-11-22].
    folders = list(dict.fromkeys(path for folder in below for path in find(folder)))
    read = map(Row.read, folders)
    all_rows = list(watched(read, len(folders), "reading runs"))
    chosen = [
        row
        for row in all_rows
        if state is None or row.state in ([state] if isinstance(state, str) else state)
    ]
    chosen.sort(key=lambda row: row.started.timestamp() if row.started else 0.0, reverse=True)
    shown = (sorted(chosen, key=_place) if sort == "best" else chosen)[:limit]
    if shown:
        rows = [("state", "started", "epochs", "steps", "best", "folder", "command")]
        put_rows([*rows, *map(_cells, shown)])
    say(f"{len(shown)} of {len(all_rows)} runs below {' and '.join(map(str, below))}")


def _place(row: Row) -> tuple[bool, str, float]:
    """A key that sorts by metric, the best first and those without a value last."""
    value = row.best or 0.0
    # Values of different metrics are not comparable, so runs are sorted within each.
    return row.best is None, row.metric, -value if row.is_max else value


def _cells(row: Row) -> tuple[str, ...]:
    started = "" if row.started is None else f"{row.started:%Y-%m-%d %H:%M}"
    best = "" if row.best is None else f"{row.metric} {row.best:.4g}"
    cells = row.state, started, str(row.epochs), str(row.steps), best, str(row.path), row.words
    return tuple(map(one_line, cells))
