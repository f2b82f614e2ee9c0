"""`task=runs`: the runs below some folders, a line each: state, start, progress, best, command.

    python run.py task=runs find.state=[failed,preempted] find.since=2d find.sort=best

Reads manifests only: 1000 runs in a second, and torch is not imported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from penstock import program
from penstock.addons.reports.summary import DAMAGED, RunSummary
from penstock.config.schema import Config, FindSection
from penstock.errors import ConfigError, Problem
from penstock.runs.record import find
from penstock.tasks.tables import put_rows
from penstock.terminal import one_line, say, watched

FOLDERS = ("outputs", "multirun")

_SPAN = re.compile(r"(\d{1,6})(m|h|d|w)")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_LONGEST = 200  # characters of a reason


def run(config: Config) -> None:
    """List the runs below `config.runs`, by default those of FOLDERS.

    Raises:
        ConfigError: a folder is missing, or `find.since` is no time.
    """
    options, since = config.find, _since(config.find.since)
    below = [Path(run) for run in config.runs or FOLDERS]
    for folder in below:
        if config.runs and not folder.is_dir():
            raise ConfigError(Problem("runs", f"{folder} is not a folder"))
    folders = list(dict.fromkeys(path for folder in below for path in find(folder)))
    read = map(RunSummary.read, folders)
    summaries = list(watched(read, len(folders), "reading runs"))
    chosen = [summary for summary in summaries if _is_wanted(summary, options, since)]
    shown = _sorted(chosen, options.sort)[: options.limit]
    if shown:
        rows = [("state", "started", "epochs", "steps", "best", "folder", "command")]
        put_rows([*rows, *map(_row, shown)])
    sentence = f"{len(shown)} of {len(summaries)} runs below {' and '.join(map(str, below))}"
    left_out = len(chosen) - len(shown)
    say(sentence + (f"; {left_out} more by find.limit=null" if left_out else ""))


def _since(text: str | None) -> datetime | None:
    if text is None:
        return None
    span = _SPAN.fullmatch(text)
    try:
        if span:
            return datetime.now().astimezone() - timedelta(**{_UNITS[span[2]]: int(span[1])})
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        reason = f"{text!r} is no time; give a span (30m, 12h, 2d, 1w) or a date (2026-11-22)"
        raise ConfigError(Problem("find.since", reason)) from None


def _is_wanted(summary: RunSummary, options: FindSection, since: datetime | None) -> bool:
    states = [options.state] if isinstance(options.state, str) else options.state
    return (
        (states is None or summary.state in states)
        and (since is None or (summary.started is not None and summary.started >= since))
        and (options.command is None or options.command in summary.command)
    )


def _sorted(summaries: Sequence[RunSummary], by: str) -> list[RunSummary]:
    """The newest first; or by metric, the best first and those without a value last."""
    newest = sorted(
        summaries, key=lambda summary: summary.started.timestamp() if summary.started else 0.0
    )[::-1]
    if by == "started":
        return newest
    return sorted(
        newest,
        key=lambda summary: (
            summary.best is None,
            summary.metric,
            0.0
            if summary.best is None
            else -summary.best
            if summary.mode == "max"
            else summary.best,
        ),
    )


def _row(summary: RunSummary) -> tuple[str, ...]:
    started = "" if summary.started is None else f"{summary.started:%Y-%m-%d %H:%M}"
    best = "" if summary.best is None else f"{summary.metric} {summary.best:.4g}"
    if summary.state == DAMAGED:
        cells = (summary.state, started, "", "", "", str(summary.path), summary.problem[:_LONGEST])
    else:
        words = [word for word in summary.overrides if not word.startswith("run_dir=")]
        typed = program.joined(words) or summary.command[:_LONGEST]
        cells = (
            summary.state,
            started,
            str(summary.epochs),
            str(summary.steps),
            best,
            str(summary.path),
            typed,
        )
    return tuple(map(one_line, cells))
