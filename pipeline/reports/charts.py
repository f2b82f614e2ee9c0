"""Charts as SVG inside of a page: matplotlib draws them, and the page's CSS colours them.

    line_chart("Loss", [Curve("training", x, y, notes)], marks=[Mark(40, "resumed")]) -> Markup
    embed(figure, "Title", "a sentence for screen readers") -> Markup   for figures of one's own

A figure uses the colours `AXIS`, `GRID`, `MUTED` and `COLORS` only: in the page they are variables,
which differ between light and dark. Text stays text. Hovering, or the arrow keys, show the values
at a point with its note, such as its address. A long curve is thinned to `MOST_POINTS`, and keeps
its extremes. Cost: 0.1 s a chart, and 0.3 s for the first to import matplotlib.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

from pipeline.reports.page import part
from pipeline.terminal import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXIS, GRID, MUTED = "#010001", "#020002", "#030003"
COLORS = ("#040004", "#050005", "#060006", "#070007", "#080008", "#090009", "#0a000a", "#0b000b")
MOST_POINTS = 400  # of a curve
INCH = 72  # units of an SVG

_NAMES = {AXIS: "axis", GRID: "grid", MUTED: "muted",
          **{color: f"c{place}" for place, color in enumerate(COLORS, 1)}}  # fmt: skip
_OURS = re.compile("|".join(_NAMES))
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "penstock", "text.parse_math": False, "path.simplify": False,
             "axes.unicode_minus": False}  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """A line of a chart.

    Attributes:
        notes: for each point what is shown above its value, e.g. its address.
        color: one of COLORS, or MUTED; the next that is free if "".
        dots: whether points are drawn; by default where there are few.
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
    """A vertical line at `x` with a word."""

    x: float
    label: str
    color: str = MUTED


def line_chart(
    title: str, curves: Sequence[Curve], *, x_label: str = "step", y_label: str = "",
    marks: Sequence[Mark] = (), levels: Mapping[str, float] | None = None, log: bool = False,
    broad: bool = False, bottom: float | None = None, percent: bool = False,
) -> Markup:  # fmt: skip
    """Lines over a common axis.

    Args:
        levels: horizontal lines by name, e.g. the baseline's value.
        log: a logarithmic axis for values.
        broad: over the whole width of the page.
        bottom: where the axis of values begins.
        percent: values are shares.
    """
    free = iter([one for one in COLORS if one not in {curve.color for curve in curves}] * 99)
    drawn = [thinned(curve, curve.color or next(free)) for curve in curves]
    drawn = [one for one in drawn if one.x]
    figure, axes = new_axes(broad)
    for curve in drawn:
        few = len(curve.x) <= 30 if curve.dots is None else curve.dots
        axes.plot(curve.x, curve.y, color=curve.color, linewidth=0.8 if curve.thin else 1.8,
                  marker="o" if few else "", markersize=3.2)  # fmt: skip
    level_color = MUTED
    for value in (levels or {}).values():
        axes.axhline(value, color=level_color, linewidth=1.3, linestyle=(0, (1, 1.6)))
    if log:
        axes.set_yscale("log")
    if bottom is not None:
        axes.set_ylim(bottom=bottom)
    if percent:
        axes.yaxis.set_major_formatter(lambda value, place: f"{value:.0%}")
    draw_marks(axes, marks)
    axes.set_xlabel(one_line(x_label))
    axes.set_ylabel(one_line(y_label))
    legend = [(one.label, _NAMES[one.color], False) for one in drawn]
    legend += [(name, _NAMES[level_color], True) for name in levels or {}]
    return embed(figure, title, _summary(title, drawn, percent), broad=broad,
                 legend=legend if len(legend) > 1 else (),
                 readings=_readings(figure, axes, drawn, percent))  # fmt: skip


def thinned(curve: Curve, color: str) -> Curve:
    """The curve without missing values, and of at most MOST_POINTS points, extremes included."""
    notes = list(curve.notes) or [""] * len(curve.x)
    kept = [(float(x), float(y), note) for x, y, note in zip(curve.x, curve.y, notes, strict=True)
            if y is not None and math.isfinite(y) and math.isfinite(x)]  # fmt: skip
    if len(kept) > MOST_POINTS:
        buckets = MOST_POINTS // 2
        size = len(kept) / buckets
        chosen = {0, len(kept) - 1}
        for bucket in range(buckets):
            span = range(int(bucket * size), int((bucket + 1) * size))
            chosen |= {min(span, key=lambda at: kept[at][1]), max(span, key=lambda at: kept[at][1])}
        kept = [kept[at] for at in sorted(chosen)]
    x, y, notes = (list(one) for one in zip(*kept, strict=True)) if kept else ([], [], [])
    return Curve(curve.label, x, y, notes, color, curve.thin, curve.dots)


def new_axes(broad: bool = False, height: float = 2.3) -> tuple[Figure, Axes]:
    """A figure of a chart's size, with one pair of axes in our style."""
    from matplotlib.figure import Figure

    width = 10.0 if broad else 4.6
    figure = Figure(figsize=(width, height), facecolor="none")
    axes = figure.add_axes((0.55 / width, 0.48 / height, 1 - 0.7 / width, 1 - 0.68 / height))
    style(axes)
    return figure, axes


def style(axes: Axes) -> None:
    """Our style for axes that somebody else made."""
    axes.set_facecolor("none")
    axes.tick_params(length=0, labelsize=9, colors=AXIS, which="both")
    axes.xaxis.label.set(size=9, color=AXIS)
    axes.yaxis.label.set(size=9, color=AXIS)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.margins(x=0.02)


def draw_marks(axes: Axes, marks: Iterable[Mark]) -> None:
    """Vertical lines with their words at the top, which take turns in two rows."""
    for place, mark in enumerate(sorted(marks, key=lambda one: one.x)):
        axes.axvline(mark.x, color=mark.color, linewidth=1, linestyle=(0, (3, 2)))
        axes.annotate(one_line(mark.label), (mark.x, 1), xycoords=("data", "axes fraction"),
                      xytext=(2, 2 + 9 * (place % 2)), textcoords="offset points", fontsize=8,
                      color=AXIS, annotation_clip=False)  # fmt: skip


def embed(
    figure: Figure, title: str, summary: str, *, broad: bool = False,
    legend: Sequence[tuple[str, str, bool]] = (), readings: Mapping[str, Any] | None = None,
) -> Markup:  # fmt: skip
    """A figure with its title in a page.

    Args:
        summary: what it shows in a sentence or two, for those who don't see it.
        legend: label, colour's name in page.css, and whether dotted, of each line.
        readings: see `_readings`.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(figure)
    written = io.BytesIO()
    with matplotlib.rc_context(_SETTINGS):
        figure.savefig(written, format="svg", metadata={"Date": None}, transparent=True)
    key = hashlib.blake2b(f"{title}\0{summary}".encode(errors="replace"), digest_size=4).hexdigest()
    root = ElementTree.fromstring(written.getvalue())
    _rewrite(root, f"f{key}")
    root.attrib.update({"role": "img", "aria-label": one_line(f"{title}. {summary}")})
    svg = Markup(ElementTree.tostring(root, encoding="unicode", default_namespace=None))
    return part("chart", f"f{key}", one_line(title), svg, legend, (), readings, broad)


def _rewrite(root: ElementTree.Element, key: str) -> None:
    """Make an SVG of matplotlib's part of a page: own ids, the page's colours and fonts."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith("metadata") or child.tag == f"{_SVG}style":
                parent.remove(child)
    used = set()
    for one in root.iter():
        for value in one.attrib.values():
            used |= set(_REFERENCE.findall(value))
        if _HREF in one.attrib:
            used.add(one.attrib[_HREF].removeprefix("#"))
    for one in root.iter():
        one.tag = one.tag.removeprefix(_SVG)
        for name, value in list(one.attrib.items()):
            if name == "id" and value not in used:
                del one.attrib["id"]
            elif name == "id":
                one.attrib["id"] = f"{key}-{value}"
            elif name == _HREF:
                del one.attrib[name]
                one.attrib["href"] = f"#{key}-{value.removeprefix('#')}"
            else:
                value = _REFERENCE.sub(rf"url(#{key}-\1)", value)
                value = _OURS.sub(lambda found: f"var(--{_NAMES[found[0]]})", value)
                one.attrib[name] = re.sub(r"font: ([\d.]+px)[^;]*", r"font-size: \1", value)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)


def _readings(
    figure: Figure, axes: Axes, curves: Sequence[Curve], percent: bool
) -> dict[str, Any] | None:
    """For page.js: series as (label, colour), and points as (x, note, ((series, y, value), ...)).

    Places are in hundredths of a percent of the figure's width and height.
    """
    width, height = figure.get_size_inches() * figure.dpi
    points: dict[float, tuple[int, str, list[tuple[int, int, str]]]] = {}
    for which, curve in enumerate(curves):
        for (left, up), x, y, note in zip(
            axes.transData.transform(list(zip(curve.x, curve.y, strict=True))),
            curve.x, curve.y, curve.notes, strict=True,
        ):  # fmt: skip
            value = f"{y:.1%}" if percent else f"{y:.4g}"
            place = (int(1e4 * left / width), note, [])
            points.setdefault(x, place)[2].append((which, int(1e4 * (1 - up / height)), value))
    if not points:
        return None
    named = [(one_line(one.label), _NAMES[one.color]) for one in curves]
    return {"series": named, "points": [points[x] for x in sorted(points)]}


def _summary(title: str, curves: Sequence[Curve], percent: bool) -> str:
    def each(curve: Curve) -> str:
        def text(value: float | None) -> str:
            return f"{value:.1%}" if percent else f"{value:.4g}"

        values = [one for one in curve.y if one is not None]
        return (f"{curve.label}: {text(values[0])} at first, {text(values[-1])} at last, between "
                f"{text(min(values))} and {text(max(values))}")  # fmt: skip

    return "; ".join(map(each, curves)) or "no values"
