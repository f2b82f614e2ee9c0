"""Charts as SVG inside of a page: matplotlib draws them, and the page's CSS colours them.

    line_chart("Loss", [Curve("training", x, y, notes)], marks=[Mark(40, "resumed")]) -> Markup
    embed([figure], "Title", "a sentence for screen readers") -> Markup   for figures of one's own,
                                                     drawn inside of `with drawing():`

A figure uses the colours AXIS, GRID, MUTED, PAPER and COLORS only: in the page they are variables,
which differ between light and dark. Text stays text. A pointer or the arrow keys show the values
at a point with its note, such as its address. A long curve is thinned and keeps its extremes.
Cost: 0.05 s a chart, and 0.3 s for the first to import matplotlib.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup

from penstock.addons.reports import values
from penstock.addons.reports.figures import (
    drawing,
    label_numbers,
    label_powers,
    new_figure,
    numeral,
)
from penstock.addons.reports.page import part
from penstock.terminal import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The order in which lines and keys of legends take their colours; --c1 to --c8 in page.css.
AXIS, GRID, MUTED, PAPER = "#010001", "#020002", "#030003", "#0f000f"
COLORS = ("#040004", "#050005", "#060006", "#070007", "#080008", "#090009", "#0a000a", "#0b000b")
MOST_POINTS = 400  # of a curve

Size = Literal["third", "half", "broad"]
# Inches of a figure, and which figures a chart of a size has: for desks, tablets and phones, on
# which a chart takes a larger share of the row. So letters have about one size on all of them.
_INCHES: dict[Size, tuple[float, float]] = {
    "third": (4.6, 2.3),
    "half": (7.2, 2.7),
    "broad": (13.2, 3.3),
}
_DRAWN: dict[Size, tuple[Size, ...]] = {
    "third": ("third",),
    "half": ("half", "third"),
    "broad": ("broad", "half", "third"),
}
_LETTER = 0.084  # inches, of a digit of 9.5 points

_NAMES = {
    AXIS: "axis",
    GRID: "grid",
    MUTED: "muted",
    PAPER: "bg",
    **{color: f"c{number}" for number, color in enumerate(COLORS, 1)},
}
# matplotlib writes no CSS variables and no ids of one's own, so its SVG is rewritten: colours to
# variables, ids and references to them with a prefix, paths with one decimal. A backend that can do
# these would let the expressions go.
_OURS = re.compile("|".join(_NAMES))
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_LONG = re.compile(r"-?\d+\.\d\d+")
_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_SETTINGS: dict[str, object] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "penstock",
    "path.simplify": False,
    "axes.unicode_minus": True,
}
_DOTTED, _DASHED = (0, (1, 1.6)), (0, (3, 2))

Legend = Sequence[tuple[str, str, bool]]
# {"series": [(label, colour's name)], "points": [(x, note, [(which series, y, value as text)])]};
# x and y in hundredths of a percent of the figure's width and height, from the left and the top.
Readings = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    """A line of a chart.

    Attributes:
        y: None and what is not finite is left out.
        notes: for each point what is shown above its value, e.g. its address.
        color: one of COLORS, or MUTED; the next that is free if "".
        dots: whether points are drawn; None: where there are few.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    notes: Sequence[str] = ()
    color: str = ""
    thin: bool = False
    dots: bool | None = None


@dataclass(frozen=True)
class Mark:
    """A vertical line at `x` with a word; without one, a tick at the bottom."""

    x: float
    label: str = ""


@drawing()
def line_chart(
    title: str,
    curves: Sequence[Curve],
    *,
    x_label: str = "",
    marks: Sequence[Mark] = (),
    levels: Mapping[str, float] | None = None,
    log: bool = False,
    size: Size = "third",
    stacked: bool = False,
    percent: bool = False,
    most: int = MOST_POINTS,
    span: tuple[float, float] | None = None,
    behind: Sequence[Curve] = (),
    others: str = "",
    summary: str = "",
) -> Markup:
    """Lines over a common axis; nothing where they have no points.

    Args:
        levels: horizontal lines by name, e.g. the baseline's value.
        log: a logarithmic axis for values.
        size: its share of the page's width, except on a phone.
        stacked: areas on top of each other; all curves have the same x.
        percent: values are shares, shown from 0 to 100 %.
        most: points of each curve.
        span: the ends of the common axis, so that several charts have the same.
        behind: thin lines without a name, thinned, for which the legend has `others` in MUTED.
        summary: instead of the beginning and end of each line.
    """
    taken = {curve.color for curve in curves}
    free = cycle(color for color in COLORS if color not in taken)
    drawn = [thinned(curve, curve.color or next(free), most) for curve in curves]
    drawn = [curve for curve in drawn if curve.x]
    if not drawn and not behind:
        return Markup("")
    legend = [(curve.label, _NAMES[curve.color], False) for curve in drawn]
    legend += [(others, "muted", False)] if others else []
    legend += [(name, "muted", True) for name in levels or {}]
    figures, pointed = [], []
    for part_of_row in sizes(size):
        figure, axes = new_axes(part_of_row)
        if stacked:
            axes.stackplot(
                list(drawn[0].x),
                [_values(curve) for curve in drawn],
                linewidth=0,
                colors=[curve.color for curve in drawn],
                alpha=0.85,
            )
            axes.set_ylim(bottom=0)
        else:
            for curve in behind:
                axes.plot(curve.x, _values(curve), color=curve.color, linewidth=0.8, alpha=0.6)
            for curve in reversed(drawn) if behind else drawn:  # the first on top
                few = len(curve.x) <= 30 if curve.dots is None else curve.dots
                axes.plot(
                    curve.x,
                    _values(curve),
                    color=curve.color,
                    linewidth=0.9 if curve.thin else 1.8,
                    marker="o" if few else "",
                    markersize=3.2,
                )
        for value in (levels or {}).values():
            axes.axhline(value, color=MUTED, linewidth=1.4, linestyle=_DOTTED)
        _settle(axes, drawn or behind, log, percent, span)
        draw_marks(axes, marks)
        axes.set_xlabel(one_line(x_label))
        make_room(figure, axes)
        figures.append(figure)
        pointed.append(_readings(figure, axes, drawn, percent, stacked))
    return embed(
        figures,
        title,
        f"{summary}." if summary else _summary(drawn, percent),
        size=size,
        readings=pointed,
        # The title says what a single line is, unless it is only the fine one of several.
        legend=legend if len(legend) > 1 or any(curve.thin for curve in drawn) else (),
    )


def size_of(count: int) -> Size:
    """The size of each of so many charts, which fill their rows."""
    return "broad" if count == 1 else "half" if count in (2, 4) else "third"


def is_curve(curve: Curve) -> bool:
    """Whether a line leads from one point to another; a lone point is better told as a number."""
    finite = {
        x
        for x, y in zip(curve.x, curve.y, strict=True)
        if y is not None and math.isfinite(y) and math.isfinite(x)
    }
    return len(finite) > 1


def thinned(curve: Curve, color: str, most: int = MOST_POINTS) -> Curve:
    """The curve without missing values, of about `most` points at most, extremes included."""
    notes = list(curve.notes) or [""] * len(curve.x)
    kept = [
        (float(x), float(y), note)
        for x, y, note in zip(curve.x, curve.y, notes, strict=True)
        if y is not None and math.isfinite(y) and math.isfinite(x)
    ]
    if len(kept) > most:
        extremes = values.thinned(np.array([y for _, y, _ in kept]), most)
        kept = [kept[at] for at in sorted({0, *extremes.tolist(), len(kept) - 1})]
    x, y, notes = map(list, zip(*kept, strict=True)) if kept else ([], [], [])
    return Curve(curve.label, x, y, notes, color, curve.thin, curve.dots)


def new_axes(size: Size = "third") -> tuple[Figure, Axes]:
    """A figure of a chart's size in inches, with one pair of axes in our style."""
    width, height = _INCHES[size]
    figure = new_figure(width, height, facecolor="none")
    axes = figure.add_axes((0.58 / width, 0.46 / height, 1 - 0.74 / width, 1 - 0.72 / height))
    style(axes)
    return figure, axes


def make_room(figure: Figure, axes: Axes) -> None:
    """Move the sides of the axes so that the numbers on them are seen whole.

    The browser chooses the font, so the width of a text is an estimate, by a wide font's digits.
    """
    width, height = figure.get_size_inches()
    low, high = sorted(axes.get_ylim())
    places = [place for place in axes.get_yticks() if low <= place <= high]
    texts = axes.yaxis.get_major_formatter().format_ticks(places)
    left = 0.14 + max((_inches(text) for text in texts), default=0.0)
    left += 0.2 if axes.get_ylabel() else 0.0
    start, end = sorted(axes.get_xlim())
    places = [place for place in axes.get_xticks() if start <= place <= end]
    below = [_inches(text) for text in axes.xaxis.get_major_formatter().format_ticks(places)]
    left = min(max(left, below[0] / 2 if below else 0.0), width / 3)
    right = min(max(0.16, below[-1] / 2 if below else 0.0), width / 5)
    axes.set_position((left / width, 0.46 / height, 1 - (left + right) / width, 1 - 0.72 / height))


def _inches(text: str) -> float:
    thin = sum(sign in ",.:⁻⁰¹²³⁴⁵⁶⁷⁸⁹ il|" for sign in text)
    return _LETTER * (len(text) - 0.4 * thin)


def style(axes: Axes) -> None:
    """Our style, for axes that somebody else made."""
    axes.set_facecolor("none")
    axes.tick_params(length=0, labelsize=9.5, colors=AXIS, which="both")
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(size=9.5, color=AXIS)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.margins(x=0.02)


def draw_marks(axes: Axes, marks: Iterable[Mark]) -> None:
    """Vertical lines with their words above, in a second row if near; ticks for those without."""
    low, high = axes.get_xlim()
    inside = sorted((mark for mark in marks if low <= mark.x <= high), key=lambda mark: mark.x)
    ticks = [mark.x for mark in inside if not mark.label]
    if ticks:
        axes.plot(
            ticks,
            [0.02] * len(ticks),
            "|",
            color=COLORS[1],
            markersize=7,
            transform=axes.get_xaxis_transform(),
        )
    room, row = low - (high - low), 0
    for mark in (mark for mark in inside if mark.label):
        row = 1 - row if mark.x - room < 0.15 * (high - low) else 0
        room = mark.x
        axes.axvline(mark.x, color=MUTED, linewidth=1, linestyle=_DASHED)
        right = mark.x > low + 0.8 * (high - low)
        axes.annotate(
            one_line(mark.label),
            (mark.x, 1),
            xycoords=("data", "axes fraction"),
            xytext=(-2 if right else 2, 1 + 10 * row),
            fontsize=9,
            color=AXIS,
            textcoords="offset points",
            ha="right" if right else "left",
            annotation_clip=False,
        )


def embed(
    figures: Sequence[Figure],
    title: str,
    summary: str,
    *,
    size: Size = "third",
    legend: Legend = (),
    readings: Sequence[Readings | None] = (),
) -> Markup:
    """A chart of a page.

    Args:
        figures: the same for desks, tablets and phones, as `sizes` has them.
        summary: what it shows in a sentence or two, for those who don't see it.
        size: its share of the page's width.
        legend: label, colour's name in page.css, and whether dotted, of each line.
        readings: what a pointer finds in each figure.
    """
    label = one_line(f"{title}. {summary}")
    plots = [_svg(drawn, label) for drawn in figures]
    pairs = list(zip(plots, readings or [None] * len(plots), strict=True))
    return part("chart", one_line(title), pairs, legend, size)


def sizes(size: Size) -> tuple[Size, ...]:
    """The sizes of the figures that a chart of a size has."""
    return _DRAWN[size]


def _svg(figure: Figure, label: str) -> Markup:
    """A figure as an element of a page: own ids, the page's colours and fonts."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(figure)
    written = io.BytesIO()
    with drawing(**_SETTINGS):
        figure.savefig(written, format="svg", metadata={"Date": None}, transparent=True)
    content = written.getvalue()
    key = "f" + hashlib.blake2b(label.encode(errors="replace") + content, digest_size=5).hexdigest()
    root = ElementTree.fromstring(content)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith("metadata") or child.tag == f"{_SVG}style":
                parent.remove(child)
    attributes = [pair for element in root.iter() for pair in element.attrib.items()]
    used = {value.removeprefix("#") for name, value in attributes if name == _HREF}
    used |= {name for _, value in attributes for name in _REFERENCE.findall(value)}
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        element.attrib = {
            name.removeprefix("{http://www.w3.org/1999/xlink}"): _rewritten(name, value, key)
            for name, value in element.attrib.items()
            if name != "id" or value in used
        }
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib.update({"role": "img", "aria-label": label})
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _rewritten(name: str, value: str, key: str) -> str:
    if name == "id":
        return f"{key}-{value}"
    if name == _HREF:
        return f"#{key}-{value.removeprefix('#')}"
    if name == "d":
        return _LONG.sub(lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), value)
    value = _REFERENCE.sub(rf"url(#{key}-\1)", value)
    value = _OURS.sub(lambda color: f"var(--{_NAMES[color[0]]})", value)
    return re.sub(r"font: ([\d.]+px)[^;]*", r"font-size: \1", value)


def _settle(
    axes: Axes,
    curves: Sequence[Curve],
    log: bool,
    percent: bool,
    span: tuple[float, float] | None,
) -> None:
    """Axes that fit the values, with short numbers on them."""
    from matplotlib.ticker import MaxNLocator

    if log and min(value for curve in curves for value in _values(curve)) > 0:
        axes.set_yscale("log")
        label_powers(axes.yaxis)
    elif percent:
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(lambda value, position: f"{value:.0%}")
    else:
        label_numbers(axes.yaxis)
        if not any(value for curve in curves for value in _values(curve)):
            axes.set_ylim(-0.02, 1)  # nothing but zeros, which has no scale of its own
    low, high = min(curve.x[0] for curve in curves), max(curve.x[-1] for curve in curves)
    if low == high:  # a single one, with room on both sides
        axes.set_xlim(low - 1, high + 1)
    if span is not None and span[0] < span[1]:
        axes.set_xlim(span[0] - 0.01 * (span[1] - span[0]), span[1] + 0.02 * (span[1] - span[0]))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, number: f"{value:,.0f}")


def _readings(
    figure: Figure, axes: Axes, curves: Sequence[Curve], percent: bool, stacked: bool
) -> Readings | None:
    """What `embed` needs of these curves."""
    points = []
    below: dict[float, float] = {}  # of areas on top of each other, by x
    for which, curve in enumerate(curves):
        for x, value, note in zip(curve.x, _values(curve), curve.notes, strict=True):
            below[x] = below.get(x, 0.0) + value
            text = f"{value:.1%}" if percent else numeral(value)
            points.append((x, note, which, below[x] if stacked else value, text))
    return readings(figure, axes, [(curve.label, curve.color) for curve in curves], points)


def readings(
    figure: Figure,
    axes: Axes,
    series: Sequence[tuple[str, str]],
    points: Sequence[tuple[float, str, int, float, str]],
) -> Readings | None:
    """What a pointer finds in a chart.

    Args:
        series: label and colour.
        points: x, a note, which of the series, y, and its value as text.
    """
    if not points:
        return None
    width, height = figure.get_size_inches() * figure.dpi
    places = axes.transData.transform([(x, y) for x, _, _, y, _ in points])
    by_x: dict[float, tuple[int, str, list[tuple[int, int, str]]]] = {}
    for (left, up), (x, note, which, _, text) in zip(places, points, strict=True):
        at: tuple[int, str, list[tuple[int, int, str]]] = (int(1e4 * left / width), note, [])
        by_x.setdefault(x, at)[2].append((which, int(1e4 * (1 - up / height)), text))
    named = [(one_line(label), _NAMES.get(color, "muted")) for label, color in series]
    return {"series": named, "points": [by_x[x] for x in sorted(by_x)]}


def _values(curve: Curve) -> list[float]:
    """The values of a curve that is `thinned`, where none is missing."""
    return [value for value in curve.y if value is not None]


def _summary(curves: Sequence[Curve], percent: bool) -> str:
    def text(value: float) -> str:
        return f"{value:.1%}" if percent else numeral(value)

    parts = []
    for curve in curves:
        y = _values(curve)
        ends = f"from {text(y[0])} to {text(y[-1])}"
        parts.append(f"{curve.label}: {ends}, between {text(min(y))} and {text(max(y))}")
    return "; ".join(parts) + "."
