"""`task=show run=FOLDER`: the head of a run's report in the terminal.

Its state, what it reached beside the baseline, what bounded it, and what to type next. Reads the
run's folder only; torch is not imported.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.config.schema import Config
from pipeline.errors import ConfigError, Problem
from pipeline.reports import run_report, verdict
from pipeline.runs.record import RunRecord
from pipeline.terminal import one_line, put


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
    _line("run", f"{record.path}: {verdict.title(record)}")
    _line("state", f"{record.state}{starts}")
    _line("reached", verdict.sentence(record))
    for name, value, note in verdict.figures(record):
        _line(name, f"{value}{'' if note is None else f', {note}'}")
    for what, command in verdict.to_type(record):
        _line(what[0].lower() + what[1:], command)
    page = record.path / run_report.NAME
    make = verdict.command(record, "task=report", f"runs=[{record.path}]")
    _line("report", str(page) if page.exists() else f"none yet: {make}")


def _line(name: str, text: str) -> None:
    put(f"{name:<20}{one_line(text)}")
