"""The page of `task=diff`: two runs side by side, from the files in their folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from penstock.addons.comparing.comparison import TITLES, Comparison, Difference
from penstock.addons.reports import page
from penstock.addons.reports.page import Section
from penstock.runs.record import RunRecord


def write(comparison: Comparison, path: Path) -> Path:
    """Write the page of a comparison, and return its path.

    Raises:
        DiskError: it cannot be written.
        NotOwnError: there is a file that is none of our pages.
    """
    title = f"{comparison.first.path.name} and {comparison.second.path.name}"
    answer, *more = comparison.answer()
    lead = page.together(
        Markup('<p class="verdict">{}</p>').format(page.shown(f"{_capital(answer)}.")),
        *(page.paragraph(f"{_capital(line)}.") for line in more),
        page.facts({"A": _told(comparison.first), "B": _told(comparison.second)}),
    )
    text = page.render(title, "two runs", lead, sections(comparison), "Made by task=diff.")
    return page.write(path, text)


def sections(comparison: Comparison) -> list[Section]:
    """Where the runs part, their settings by effect, and what else differs."""
    rows = [(finding.what, finding.text) for finding in comparison.findings]
    parted = page.table("Compared at every address, and bit by bit", ("what", "found"), rows)
    keys = [_table(TITLES[effect], some) for effect, some in comparison.settings.items()]
    other = [_table(title, some) for title, some in comparison.facts.items() if some]
    return [
        Section("Where they part", parted),
        Section("Settings", page.together(*keys)),
        Section("Everything else", page.together(*other) or page.paragraph("Nothing differs.")),
    ]


def _table(title: str, some: Sequence[Difference]) -> Markup:
    title = _capital(title)
    if not some:
        return page.paragraph(f"{title}: none.")
    noted = any(difference.note for difference in some)
    rows = [
        (difference.key, *difference.texts(), *([difference.note] if noted else []))
        for difference in some
    ]
    return page.table(title, ("key", "A", "B", *(["note"] if noted else [])), rows)


def _told(run: RunRecord) -> str:
    return f"{run.path} ({run.state}, started {run.manifest.get('started')})"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
