"""The report of one run: `report.html` in its folder, made from the folder's files only.

SECTIONS lists the parts in their order: each is a function of a `RunRecord` that returns its
Section, or None where the run has nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipeline.reports import (
    curves,
    data_section,
    environment,
    page,
    samples_section,
    settings,
    spikes,
    starts,
    time_spent,
    verdict,
)
from pipeline.reports.page import Section
from pipeline.runs.record import RunRecord

NAME = "report.html"

SECTIONS: tuple[Callable[[RunRecord], Section | None], ...] = (
    settings.section,
    curves.section,
    time_spent.section,
    samples_section.section,
    spikes.section,
    data_section.section,
    starts.section,
    environment.section,
)


def write(folder: Path, key: str = "runs") -> Path:
    """Make the report of the run in `folder`, and return its path.

    Args:
        key: of the configuration that names the folder.

    Raises:
        ConfigError: it is not a run's folder.
        PenstockError: a file of it is damaged, or the report cannot be written.
    """
    return save(RunRecord.read(folder, key))


def save(run: RunRecord, made: str | None = None) -> Path:
    """Write the report of a run that was read, and return its path; errors as for `write`.

    Args:
        made: what `make` gave, if it is known.
    """
    return page.write(run.path / NAME, make(run) if made is None else made)


def make(run: RunRecord) -> str:
    """The report of a run as HTML."""
    sections = [one for one in (make(run) for make in SECTIONS) if one is not None]
    foot = f"Made from the files in {run.path}; task=report makes it again."
    return page.render(verdict.title(run), "a run", verdict.lead(run), sections, foot)
