"""Line charts as SVG in a page, whose CSS colours them.

    chart("Loss", [Curve("training", x, y, notes)], marks=[Mark(40, "resumed")]) -> Markup

The SVG holds lines alone and is stretched to the width there is; numbers and words are HTML beside
it, so that letters have one size on all screens. A pointer or the arrow keys show the values at a
point with its note, such as its address. A long curve is thinned and keeps its extremes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from penstock.addons.reports.page import part
from penstock.addons.reports.values import numeral, thinned

MUTED = "muted"
COLORS = tuple(f"c{number}" for number in range(1, 9))  # variables of page.css, in their order
MOST_POINTS = 400  # of a curve
_FEW = 50  # points that are drawn as dots
_HEIGHT, _WIDTH = 1000, 1000  # units of the SVG


@dataclass(frozen=True)
class Curve:
    """A line of a chart.

    Attributes:
        y: what is not finite is left out.
        notes: for each point what is shown above its value, e.g. its address.
        color: one of COLORS, or MUTED; the next of COLORS if "".
        line: whether points are joined; else they are dots.
        named: whether legend and pointer know it.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    notes: Sequence[str] = ()
    color: str = ""
    thin: bool = False
    line: bool = True
    named: bool = True


@dataclass(frozen=True)
class Mark:
    """A vertical line at `x` with a word; without one, a tick at the bottom."""

    x: float
    label: str = ""


class Axis:
    """Maps values to [0, 1], with round numbers in between."""

    def __init__(self, values: Sequence[float], log: bool = False, percent: bool = False) -> None:
        low, high = (0.0, 1.0) if percent else (min(values), max(values))
        self.log = log and low > 0
        self.percent = percent
        if self.log:
            low, high = math.log10(low), math.log10(high)
        room = 0.0 if percent else 0.04 * (high - low) or 0.04 * abs(high) or 1.0
        self.low, self.high = low - room, high + room

    def at(self, value: float) -> float:
        value = math.log10(value) if self.log else value
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int, whole: bool = False) -> list[tuple[float, str]]:
        """Places and texts of at most so many round numbers."""
        if self.log and self.high - self.low > 1:
            powers = range(math.ceil(self.low), math.floor(self.high) + 1)
            values = [10.0**power for power in powers[:: max(1, -(-len(powers) // most))]]
        else:
            low, high = (10**self.low, 10**self.high) if self.log else (self.low, self.high)
            step = 10.0 ** math.floor(math.log10((high - low) / most))
            step *= next(by for by in (1, 2, 5, 10) if (high - low) / (step * by) <= most)
            step = max(step, 1.0) if whole else step
            first, last = math.ceil(low / step), math.floor(high / step)
            values = [count * step for count in range(first, last + 1)]
        texts = [f"{value:.0%}" if self.percent else numeral(value, 6) for value in values]
        return [(round(self.at(v), 4), text) for v, text in zip(values, texts, strict=True)]


def chart(
    title: str,
    curves: Sequence[Curve],
    *,
    x_label: str = "",
    marks: Sequence[Mark] = (),
    levels: Mapping[str, float] | None = None,
    log: bool = False,
    percent: bool = False,
    wide: bool = False,
    most: int = MOST_POINTS,
    span: tuple[float, float] | None = None,
    logx: bool = False,
) -> Markup:
    """Curves in one panel; nothing if none has a point.

    Args:
        levels: horizontal lines by name.
        log, logx: logarithmic axes, where all values are positive.
        percent: values are shares of 1.
        wide: over the whole width of the page.
        span: the least and the largest x.
    """
    curves = [drawn for curve in curves if (drawn := _drawn(curve, most)).x]
    if not curves:
        return Markup("")
    levels = dict(levels or {})
    x = Axis([*(span or ()), *(value for curve in curves for value in curve.x)], logx)
    y_values = [value for curve in curves for value in curve.y]
    y = Axis([*y_values, *levels.values()], log and min(levels.values(), default=1) > 0, percent)
    colors, lines, legend = iter(COLORS * len(curves)), [], []
    points: dict[float, tuple[float, str, list[tuple[int, float, str]]]] = {}
    series: list[tuple[str, str]] = []
    for curve in curves:
        color = curve.color or next(colors)
        places = [
            (round(_WIDTH * x.at(a)), round(_HEIGHT * (1 - y.at(b))))
            for a, b in zip(curve.x, curve.y, strict=True)
        ]
        if curve.line:
            lines.append(("thin" if curve.thin else "", color, _path(places)))
        if not curve.line or (len(places) <= _FEW and not curve.thin):
            lines.append(("dots", color, "".join(f"M{a} {b}h0" for a, b in places)))
        if not curve.named:
            continue
        legend.append((curve.label, color, ""))
        for a, b, note, (across, down) in zip(curve.x, curve.y, curve.notes, places, strict=True):
            text = f"{b:.1%}" if percent else numeral(b)
            points.setdefault(a, (10 * across, note, []))[2].append((len(series), 10 * down, text))
        series.append((curve.label, color))
    for number, (name, level) in enumerate(levels.items()):
        height, style = round(_HEIGHT * (1 - y.at(level))), ("dotted", "dashed")[number % 2]
        lines.append((style, "axis", f"M0 {height}H{_WIDTH}"))
        legend.append((name, "axis", style))
    return part(
        "chart",
        title,
        {
            "x": x.ticks(6, whole=not logx),
            "y": y.ticks(5),
            "x_label": x_label,
            "lines": lines,
            "marks": [(x.at(mark.x), mark.label) for mark in marks],
            "labels": _apart([(round(x.at(mark.x), 4), mark.label) for mark in marks]),
            "legend": legend if len(legend) > 1 else [],
            "wide": wide,
            "summary": _summary([curve for curve in curves if curve.named], percent),
        },
        {"series": series, "points": [points[a] for a in sorted(points)]} if points else None,
    )


def _drawn(curve: Curve, most: int) -> Curve:
    """The curve without what is not finite, thinned."""
    y = np.asarray(curve.y, float)
    kept = np.flatnonzero(np.isfinite(y))
    kept = kept[thinned(y[kept], most)] if curve.line else kept
    xs, notes = list(curve.x), list(curve.notes) or [""] * len(y)
    fields: dict[str, Any] = {"x": [xs[i] for i in kept], "y": y[kept].tolist()}
    return Curve(**{**vars(curve), **fields, "notes": [notes[i] for i in kept]})


def _apart(labels: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Labels that have room beside each other, from the left."""
    kept: list[tuple[float, str]] = []
    for at, label in sorted(labels):
        if label and (not kept or at - kept[-1][0] > 0.12):
            kept.append((at, label))
    return kept


def _path(places: Sequence[tuple[int, int]]) -> str:
    return "M" + "L".join(f"{across} {down}" for across, down in places)


def _summary(curves: Sequence[Curve], percent: bool) -> str:
    """The chart in words, for screen readers."""

    def text(value: float) -> str:
        return f"{value:.1%}" if percent else numeral(value)

    return "; ".join(
        f"{curve.label}: from {text(curve.y[0])} to {text(curve.y[-1])}, between "
        f"{text(min(curve.y))} and {text(max(curve.y))}"
        for curve in curves
    )
