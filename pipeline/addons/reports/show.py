"""`task=show run=FOLDER`: the head of a run's report in the terminal.

Its state, what it reached beside the baseline, what bounded it, and what to type next. Reads the
run's folder only; torch is not imported.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path

from penstock import program
from penstock.addons.reports import run_report, verdict
from penstock.config.own_command import suggested
from penstock.config.schema import Config
from penstock.errors import ConfigError, Problem
from penstock.runs.record import RunRecord
from penstock.terminal import one_line, put

_NAMES = 20  # characters of the column of names


def run(config: Config) -> None:
    """Show `config.run`.

    Raises:
        ConfigError: it is not a run's folder.
        PenstockError: a file of it is damaged.
    """
    if config.run is None:
        raise ConfigError(Problem("run", "is missing: the folder of a run"))
    record = RunRecord.read(Path(config.run), "run")
    sessions = record.sessions
    starts = "" if len(sessions) < 2 else f", started {len(sessions)} times"
    _line("run", one_line(f"{record.path}: {verdict.title(record)}"))
    _line("state", f"{record.state}{starts}")
    _line("verdict", _hanging(verdict.sentence(record)))
    for name, figure, note in verdict.figures(record):
        _line(name, one_line(f"{figure}{'' if note is None else f', {note}'}"))
    page = record.path / run_report.NAME
    make = suggested("task=report", f"runs=[{program.literal(record.path)}]")
    _line("report", one_line(page if page.exists() else f"none yet: {make}"))
    for line, what in verdict.to_type(record):
        put(f"{one_line(what)}\n    {line}")


def _line(name: str, text: str) -> None:
    put(f"{name:<{_NAMES}}{text}")


def _hanging(text: str) -> str:
    """A sentence, on a terminal in lines that begin below its first word."""
    if not sys.stdout.isatty():
        return one_line(text)
    width = max(shutil.get_terminal_size().columns - _NAMES, 20)
    lines = textwrap.wrap(one_line(text), width, break_long_words=False, break_on_hyphens=False)
    return f"\n{'':<{_NAMES}}".join(lines)
