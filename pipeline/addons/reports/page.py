"""A report as one HTML file: text, tables and charts that need no server, network or other file.

    Section("Curves", body)            a heading and what is below it
    render(title, kind, lead, sections, foot) -> str
    table, chart, facts, command, paragraph, together, part(macro, ...) -> Markup

Every text is escaped, unless it is `Markup` that one of these functions returned; control
characters and marks that turn the direction of reading become visible first. The page's only script
is named by its hash in a policy that allows no request and nothing else to run.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import penstock
from penstock.terminal import printable

TEMPLATES = Path(__file__).parent / "templates"
MUTED = "muted"
COLORS = tuple(f"c{number}" for number in range(1, 9))  # variables of page.css, in their order
_MOST_POINTS = 400  # of a curve


@dataclass(frozen=True)
class Section:
    """A part of a report; links lead to its `id`, which is made of the title."""

    title: str
    body: Markup

    @property
    def id(self) -> str:
        words = "".join(letter if letter.isalnum() else " " for letter in self.title.lower())
        return "-".join(words.split())


def render(title: str, kind: str, lead: Markup, sections: Sequence[Section], foot: str = "") -> str:
    """A whole page.

    Args:
        kind: of the report, beside our name above the title: "a run", "a sweep".
        lead: what stands below the title, before the list of sections.
        foot: the last line.
    """
    # Texts of a run come from file names and data, so the page lets no other script run.
    script = _source("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            kind=kind,
            lead=lead,
            sections=sections,
            foot=foot,
            script=Markup(script),
            style=Markup(_source("page.css")),
            script_hash=f"sha256-{digest}",
            version=penstock.__version__,
        )
    )


def table(
    caption: str,
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    numbers: Iterable[int] = (),
    without_empty: bool = False,
) -> Markup:
    """A table whose first column names the rows; it scrolls by itself where it is too wide.

    Args:
        numbers: columns that are aligned to the right.
        without_empty: leave out the columns in which no row has anything.
    """
    cells = list(rows)
    filled = [n for n in range(len(head)) if any(row[n] not in ("", None) for row in cells)]
    if without_empty and len(filled) < len(head):
        head, cells = [head[n] for n in filled], [[row[n] for n in filled] for row in cells]
        numbers = [place for place, n in enumerate(filled) if n in set(numbers)]
    return part("table", caption, head, cells, set(numbers))


def facts(values: Mapping[str, object], short: bool = False) -> Markup:
    """Names and values; those that are None or empty are left out.

    Args:
        short: they fit side by side.
    """
    return part("facts", [pair for pair in values.items() if pair[1] not in (None, "")], short)


def command(line: str, what: str = "") -> Markup:
    """A line to paste into a shell, with a button that copies it; `what` it does."""
    return part("command", line, what)


def curve(
    label: str, x: Iterable[float], y: Iterable[float], notes: Iterable[str] = (), **style: Any
) -> dict[str, Any]:
    """A line of a chart without what is not finite; a long one keeps its extremes.

    Args:
        notes: for each point what is shown above its value, e.g. its address.
        style: `color`, one of COLORS or MUTED; `thin`; `line=False`: dots; `named=False`: neither
            legend nor pointer know it.
    """
    xs, ys = (np.asarray(list(values), float) for values in (x, y))
    kept = np.flatnonzero(np.isfinite(ys))
    # A mean would hide the one step whose loss was a thousand times the rest.
    if len(kept) > _MOST_POINTS:  # the lowest and the highest of some at a time
        parts = np.array_split(kept, _MOST_POINTS // 2)
        kept = np.unique([part[[ys[part].argmin(), ys[part].argmax()]] for part in parts])
    words = list(notes)
    points = {
        "x": xs[kept].tolist(),
        "y": ys[kept].tolist(),
        "notes": [words[i] for i in kept] if words else [],
    }
    usual = {"color": COLORS[0], "thin": False, "line": True, "named": True}
    return {"label": label, **points, **usual, **style}


def chart(title: str, curves: Iterable[dict[str, Any]], wide: bool = False, **more: Any) -> Markup:
    """Curves in one panel, which page.js draws; nothing if none has points enough.

    Args:
        wide: over the whole width of the page.
        more: `x_label`; `marks`, vertical lines as (x, word); `levels`, horizontal ones by name;
            `log`, `logx`: logarithmic axes, where all values are positive; `percent`: values are
            shares of 1; `span`, the least and the largest x.
    """
    usual: dict[str, Any] = {"x_label": "", "marks": [], "levels": {}, "span": []}
    usual |= {"log": False, "logx": False, "percent": False}
    # Curves of one point come from runs of one epoch: a table shows that better.
    kept = [one for one in curves if len(one["x"]) > one["line"]]  # a point alone is no line
    return part("chart", title, {"curves": kept, **usual, **more}, wide) if kept else Markup("")


def paragraph(text: object) -> Markup:
    return Markup("<p>{}</p>").format(shown(text))


def together(*some: Markup | None) -> Markup:
    """One after the other; None is left out."""
    return Markup("\n").join(markup for markup in some if markup is not None)


def shown(value: object) -> object:
    """A value as it may stand in a page: foreign control characters become visible."""
    return value if isinstance(value, Markup) else printable(value)


def part(name: str, *arguments: object) -> Markup:
    """The markup that the macro `name` of templates/parts.html makes."""
    macros: Any = _environment().get_template("parts.html").module
    return Markup(getattr(macros, name)(*arguments))


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _source(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
