"""The report of one run: `report.html` in its folder, made from the folder's files only.

SECTIONS lists the parts in their order: each is a function of a `RunRecord` that returns its
Section, or None where the run has nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.addons.reports import (
    curves,
    data_section,
    page,
    settings,
    spikes,
    time_spent,
    verdict,
)
from penstock.addons.reports.page import Section
from penstock.errors import PenstockError
from penstock.runs.only_shown import reason
from penstock.runs.record import RunRecord
from penstock.terminal import say

NAME = "report.html"

SECTIONS: tuple[Callable[[RunRecord], Section | None], ...] = (
    curves.section,
    settings.section,
    time_spent.section,
    data_section.samples,
    data_section.pairs,
    spikes.section,
    data_section.section,
    time_spent.starts,
    settings.environment,
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
    sections = [part for part in (part_of(make, run) for make in SECTIONS) if part is not None]
    foot = f"Made from the files in {run.path}; task=report makes it again."
    return page.render(verdict.title(run), "a run", verdict.lead(run), sections, foot)


def part_of(make: Callable[[Any], Section | None], record: Any) -> Section | None:
    """A section of a report; one that cannot be made costs a warning, and says so in its place.

    Raises:
        PenstockError: a file that it is made from is damaged.
    """
    try:
        return make(record)
    except PenstockError:
        raise
    except Exception as error:
        home = make.__module__.rpartition(".")[2].removesuffix("_section")
        name = home if make.__name__ == "section" else make.__name__
        title, why = name.replace("_", " ").capitalize(), reason(error)
        say(f"WARNING: the report lacks a section ({title}): {why}")
        return Section(title, page.paragraph(f"This section could not be made: {why}."))
