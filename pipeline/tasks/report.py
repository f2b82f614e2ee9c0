"""`task=report runs=[A,...]`: make the report.html of runs again, from their files alone."""

from __future__ import annotations

from pathlib import Path

from pipeline.config.schema import Config
from pipeline.errors import ConfigError, Problem
from pipeline.reports import run_report
from pipeline.terminal import put


def run(config: Config) -> None:
    """Write a report into each folder of `config.runs`, and print its path.

    Raises:
        ConfigError: a folder is not a run's.
        PenstockError: a file of a run is damaged, or the report cannot be written.
    """
    if not config.runs:
        raise ConfigError(Problem("runs", "needs folders of runs: runs=[outputs/a,outputs/b]"))
    for folder in config.runs:
        put(run_report.write(Path(folder)))
