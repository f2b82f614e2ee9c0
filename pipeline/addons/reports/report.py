"""`task=report runs=[A,...]`, and the reports that runs and sweeps leave in their folders.

A section that cannot be made costs a warning, and says so in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.addons.reports import page, run_page, verdict
from penstock.addons.reports.page import Section
from penstock.config.schema import Config
from penstock.errors import ConfigError, Problem
from penstock.files.disk import write_atomically
from penstock.runs.only_shown import only_shown, reason
from penstock.runs.run import Run
from penstock.terminal import put, say

NAME = "report.html"


def run(config: Config) -> None:
    """Write a report into each folder of `config.runs`, and print its path.

    Raises:
        ConfigError: a folder is not a run's or a sweep's.
        PenstockError: the report cannot be written.
    """
    from penstock.addons.reports import sweep_report

    if not config.runs:
        raise ConfigError(Problem("runs", "needs folders of runs: runs=[outputs/a,outputs/b]"))
    for folder in map(Path, config.runs):
        is_sweep = sweep_report.is_sweep(folder)
        put(sweep_report.write(folder) if is_sweep else save(Run(folder)))


def save(record: Run) -> Path:
    """Write the report of a run, and return its path; raises DiskError."""
    return write(record.path, make(record))


def write(folder: Path, html: str) -> Path:
    """Write a report into a folder, and return its path; raises DiskError."""
    # Texts may hold halves of surrogate pairs, such as in names of files, that UTF-8 refuses.
    write_atomically(folder / NAME, html.encode(errors="backslashreplace"))
    return folder / NAME


def make(record: Run) -> str:
    """The report of a run as HTML."""
    parts = [
        part for part in (part_of(make, record) for make in run_page.SECTIONS) if part is not None
    ]
    foot = f"Made from the files in {record.path}; task=report makes it again."
    return page.render(verdict.title(record), "a run", verdict.lead(record), parts, foot)


def part_of(make: Callable[[Any], Section | None], record: Any) -> Section | None:
    """A section of a report; one that cannot be made costs a warning, and says so in its place."""
    try:
        return make(record)
    # One damaged file must not cost the rest of the page.
    except Exception as error:
        title, why = make.__name__.replace("_", " ").capitalize(), reason(error)
        say(f"WARNING: the report lacks a section ({title}): {why}")
        return Section(title, page.paragraph(f"This section could not be made: {why}."))


def leave(folder: Path, is_done: bool) -> None:
    """Write the report of a run that ends now; where that fails, the run is as it was."""
    with only_shown("the report"):
        # Read from the files, as task=report does: there is one way to make a page.
        record = Run(folder)
        (put if is_done else say)(f"{'report':<12} {save(record)}")
        # The lines of the epochs show a good result; what went wrong deserves a sentence.
        if is_done and (verdict.concern(record) or not verdict.is_better(record)):
            say(f"{'verdict':<12} {verdict.result(record)}")


def of_sweep(config: Mapping[str, Any], folder: Path) -> None:
    """Write the report of a sweep, unless its configuration wants none."""
    if config["trainer"].get("report") is False:
        return
    with only_shown("the sweep's report"):
        from penstock.addons.reports import sweep_report

        put(f"{'report':<12} {sweep_report.write(folder)}")
