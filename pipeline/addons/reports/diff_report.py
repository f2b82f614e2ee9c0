"""The page of `task=diff`: two runs side by side, from the files in their folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from penstock.addons.comparing.comparison import TITLES, Comparison, Difference
from penstock.addons.reports import page
from penstock.addons.reports.page import Section
from penstock.runs.record import RunRecord


def write(found: Comparison, path: Path) -> Path:
    """Write the page of a comparison, and return its path.

    Raises:
        DiskError: it cannot be written.
        NotOwnError: there is a file that is none of our pages.
    """
    title = f"{found.first.path.name} and {found.second.path.name}"
    answer, *more = found.answer()
    lead = page.together(
        Markup('<p class="verdict">{}</p>').format(page.shown(f"{_capital(answer)}.")),
        *(page.paragraph(f"{_capital(line)}.") for line in more),
        page.facts({"A": _told(found.first), "B": _told(found.second)}),
    )
    text = page.render(title, "two runs", lead, sections(found), "Made by task=diff.")
    return page.write(path, text)


def sections(found: Comparison) -> list[Section]:
    """Where the runs part, their settings by effect, and what else differs."""
    rows = [(one.what, one.text) for one in found.findings]
    parted = page.table("Compared at every address, and bit by bit", ("what", "found"), rows)
    keys = [_table(TITLES[effect], some) for effect, some in found.settings.items()]
    other = [_table(title, some) for title, some in found.facts.items() if some]
    return [
        Section("Where they part", parted),
        Section("Settings", page.together(*keys)),
        Section("Everything else", page.together(*other) or page.paragraph("Nothing differs.")),
    ]


def _table(title: str, some: Sequence[Difference]) -> Markup:
    title = _capital(title)
    if not some:
        return page.paragraph(f"{title}: none.")
    noted = any(one.note for one in some)
    rows = [(one.key, *one.texts(), *([one.note] if noted else [])) for one in some]
    return page.table(title, ("key", "A", "B", *(["note"] if noted else [])), rows)


def _told(run: RunRecord) -> str:
    return f"{run.path} ({run.state}, started {run.manifest.get('started')})"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
