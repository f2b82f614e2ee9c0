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
from penstock.addons.reports.options import FindSection
from penstock.addons.reports.summary import DAMAGED, RunSummary
from penstock.config.schema import Config
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
    wanted, since = FindSection.of(config), _since(FindSection.of(config).since)
    places = [Path(one) for one in config.runs or FOLDERS]
    for place in places:
        if config.runs and not place.is_dir():
            raise ConfigError(Problem("runs", f"{place} is not a folder"))
    folders = list(dict.fromkeys(path for place in places for path in find(place)))
    read = map(RunSummary.read, folders)
    found = list(watched(read, len(folders), "reading runs"))
    chosen = [one for one in found if _is_wanted(one, wanted, since)]
    shown = _sorted(chosen, wanted.sort)[: wanted.limit]
    if shown:
        rows = [("state", "started", "epochs", "steps", "best", "folder", "command")]
        put_rows([*rows, *map(_row, shown)])
    said = f"{len(shown)} of {len(found)} runs below {' and '.join(map(str, places))}"
    left_out = len(chosen) - len(shown)
    say(said + (f"; {left_out} more by find.limit=null" if left_out else ""))


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


def _is_wanted(one: RunSummary, wanted: FindSection, since: datetime | None) -> bool:
    states = [wanted.state] if isinstance(wanted.state, str) else wanted.state
    return (
        (states is None or one.state in states)
        and (since is None or (one.started is not None and one.started >= since))
        and (wanted.command is None or wanted.command in one.command)
    )


def _sorted(found: Sequence[RunSummary], by: str) -> list[RunSummary]:
    """The newest first; or by metric, the best first and those without a value last."""
    newest = sorted(found, key=lambda one: one.started.timestamp() if one.started else 0.0)[::-1]
    if by == "started":
        return newest
    return sorted(
        newest,
        key=lambda one: (
            one.best is None,
            one.metric,
            0.0 if one.best is None else -one.best if one.mode == "max" else one.best,
        ),
    )


def _row(one: RunSummary) -> tuple[str, ...]:
    started = "" if one.started is None else f"{one.started:%Y-%m-%d %H:%M}"
    best = "" if one.best is None else f"{one.metric} {one.best:.4g}"
    if one.state == DAMAGED:
        cells = (one.state, started, "", "", "", str(one.path), one.problem[:_LONGEST])
    else:
        words = [word for word in one.overrides if not word.startswith("run_dir=")]
        typed = program.joined(words) or one.command[:_LONGEST]
        cells = (one.state, started, str(one.epochs), str(one.steps), best, str(one.path), typed)
    return tuple(map(one_line, cells))
