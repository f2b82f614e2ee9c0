"""The charts of a sweep's report: curves over each other, the metric over each key, and all keys.

Colours: the best groups take COLORS in their order, all others are MUTED.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from markupsafe import Markup

from penstock.addons.reports import charts, values
from penstock.addons.reports.charts import (
    AXIS,
    COLORS,
    MUTED,
    PAPER,
    Curve,
    embed,
    new_axes,
    thinned,
)
from penstock.addons.reports.figures import drawing
from penstock.addons.reports.importance import Importance
from penstock.addons.reports.sweep_data import SeedGroup, SweepJob, SweepRecord, number
from penstock.terminal import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COLORED = 6  # groups
_MOST_POINTS = 100  # of a curve
_MOST_LINES = 200  # jobs in a chart of curves
_MOST_LEVELS = 24  # of a key whose values have names
_LOG = 10  # largest value by the smallest from which on an axis is logarithmic
_SHORT = 18  # characters of a value on an axis


def color_of(sweep: SweepRecord, group: SeedGroup) -> str:
    """The colour of a group in all charts."""
    best = sweep.groups[:MOST_COLORED]
    return COLORS[best.index(group)] if group in best and group.mean is not None else MUTED


def label_of(sweep: SweepRecord, group: SeedGroup) -> str:
    """A group's place in the leaderboard and its values, short enough for a legend."""
    values = ", ".join(group.settings.values()) or "all jobs"
    return short(f"{sweep.groups.index(group) + 1}. {values}")


def short(text: str, most: int = 60) -> str:
    """A text that came from a file, for a chart or a legend."""
    text = one_line(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


@drawing()
def curves(sweep: SweepRecord, name: str, title: str, broad: bool = True) -> Markup:
    """A measurement over the epochs, of all jobs; nothing where no job has it."""
    named, others, lines = [], [], []
    for group in sweep.groups:
        color = color_of(sweep, group)
        own = [one for job in group.jobs if (one := _curve(job, name, color)) is not None]
        if own and color != MUTED:
            named.append(
                _mean(own, label_of(sweep, group), color)
                if len(own) > 1
                else replace(own[0], label=label_of(sweep, group))
            )
            lines += own if len(own) > 1 else []
        else:
            others += own
    others = others[: max(0, _MOST_LINES - len(lines))]
    if not named and not others:
        return Markup("")
    figures, readings = [], []
    for wide in (True, False) if broad else (False,):
        figure, axes = new_axes(wide)
        for one in [*others, *lines]:
            axes.plot(one.x, _known(one), color=one.color, linewidth=0.8, alpha=0.6)
        for one in reversed(named):  # the best on top
            few = len(one.x) <= 30
            axes.plot(
                one.x,
                _known(one),
                color=one.color,
                linewidth=1.9,
                marker="o" if few else "",
                markersize=3.2,
            )
        _whole_numbers(axes)
        axes.set_xlabel("epoch")
        figures.append(figure)
        points = [
            (x, note, which, y, f"{y:.4g}")
            for which, one in enumerate(named)
            for x, y, note in zip(one.x, one.y, one.notes, strict=True)
            if y is not None
        ]
        readings.append(_readings(figure, axes, [(one.label, one.color) for one in named], points))
    legend = [(one.label, _name(one.color), False) for one in named]
    if others:
        legend.append((f"{len(others)} other jobs", "muted", False))
    said = "; ".join(f"{one.label}: {one.y[-1]:.4g} at last" for one in named)
    return embed(
        figures[0],
        title,
        f"{said or 'no job is done'}.",
        readings=readings,
        narrow=figures[1] if broad else None,
        legend=legend if broad else (),
    )


@drawing()
def scatter(sweep: SweepRecord, key: str) -> Markup:
    """The metric over one key: a point for each job that is done."""
    jobs = [job for job in sweep.jobs if job.value is not None]
    figure, axes = new_axes()
    axis = _Axis(key, [job.settings.get(key) for job in jobs])
    group_of = {job.name: group for group in sweep.groups for job in group.jobs}
    points = []
    for job in jobs:
        x, value = axis.place(job.settings.get(key)), job.value
        assert value is not None
        color = color_of(sweep, group_of[job.name])
        axes.plot([x], [value], "o", color=color, markersize=5, alpha=0.85)
        points.append(
            (
                x,
                f"{short(key)}={short(job.settings.get(key, 'default'))}",
                0,
                value,
                f"{value:.5g} by job {short(job.name, 20)}",
            )
        )
    axis.draw_below(axes)
    axes.set_xlabel(short(key))
    title = f"{short(sweep.metric)} by {short(key)}"
    order = sorted(points, key=lambda one: one[0])
    said = "; ".join(f"{note}: {text}" for _, note, _, _, text in order[:40])
    return embed(
        figure, title, f"{said}.", readings=[_readings(figure, axes, [("", COLORS[0])], points)]
    )


@drawing()
def parallel(sweep: SweepRecord, keys: Sequence[str]) -> Markup:
    """All keys and the metric side by side, a line for each job; the best quarter in colour."""
    jobs = [job for job in sweep.ranked if job.value is not None]
    axes_of = [_Axis(key, [job.settings.get(key) for job in jobs]) for key in keys]
    upside_down = not sweep.larger_is_better  # so that the best is above
    axes_of.append(_Axis(sweep.metric, [repr(job.value) for job in jobs], upside_down))
    colors = {job.name: color_of(sweep, one) for one in sweep.groups for job in one.jobs}
    figures = [_parallel(jobs, axes_of, keys, colors, broad) for broad in (True, False)]
    names = ", ".join(f"{key}={value}" for key, value in jobs[0].settings.items() if key in keys)
    said = f"The best of {len(jobs)} jobs has {names}, with {sweep.metric} {jobs[0].value:.5g}."
    return embed(
        figures[0],
        "All keys at once: a line for each job, the best one broad",
        one_line(said),
        narrow=figures[1],
        legend=_legend(sweep),
    )


def _legend(sweep: SweepRecord) -> charts.Legend:
    """The colours of the groups."""
    colored = [
        (label_of(sweep, one), _name(color_of(sweep, one)), False)
        for one in sweep.groups
        if color_of(sweep, one) != MUTED
    ]
    others = sum(one.mean is not None for one in sweep.groups) - len(colored)
    return [*colored, *([(f"{others} others", "muted", False)] if others else [])]


def _parallel(
    jobs: Sequence[SweepJob],
    axes_of: Sequence[_Axis],
    keys: Sequence[str],
    colors: Mapping[str, str],
    broad: bool,
) -> Figure:
    """Axes stand side by side; on phones they lie one below the other."""
    figure, axes = new_axes(broad, 2.6 if broad else 0.5 + 0.8 * len(axes_of))
    axes.set_position((0.04, 0.03, 0.92, 0.84) if broad else (0.05, 0.05, 0.9, 0.88))
    axes.axis("off")
    last = len(axes_of) - 1
    for place in range(len(axes_of)):
        ends = ([place, place], [0, 1]) if broad else ([0, 1], [last - place] * 2)
        axes.plot(*ends, color=AXIS, linewidth=1, zorder=1, alpha=0.6)
    for rank, job in reversed(list(enumerate(jobs))):
        texts = [*(job.settings.get(key) for key in keys), repr(job.value)]
        along = [axis.share(text) for axis, text in zip(axes_of, texts, strict=True)]
        places = list(range(len(axes_of)))
        line = (places, along) if broad else (along, [last - one for one in places])
        muted = colors[job.name] == MUTED
        axes.plot(
            *line,
            color=colors[job.name],
            alpha=0.5 if muted else 0.9,
            linewidth=2.8 if rank == 0 else 0.8 if muted else 1.4,
            zorder=3 - rank / len(jobs),
        )
    for place, axis in enumerate(axes_of):
        side = "right" if place == last else "left"
        for share, text in axis.ticks():
            where, beside = (
                ((place, share), (-7 if place == last else 7, 0))
                if broad
                else ((share, last - place), (0, -11))
            )
            align = (
                side if broad else "left" if share < 0.2 else "right" if share > 0.8 else "center"
            )
            _write(axes, text, where, beside, align)
        above = (place, 1), (0, 14), side if place in (0, last) else "center"
        where, beside, align = above if broad else ((0, last - place), (0, 8), "left")
        _write(axes, short(axis.name, 34), where, beside, align, bold=True)
    axes.set_xlim((-0.01, last + 0.01) if broad else (-0.01, 1.01))
    axes.set_ylim((-0.08, 1.08) if broad else (-0.3, last + 0.3))
    return figure


def _write(
    axes: Axes,
    text: str,
    where: tuple[float, float],
    beside: tuple[float, float],
    align: str,
    bold: bool = False,
) -> None:
    """A text beside a point of the axes, which lines behind it don't cross out."""
    box = {"facecolor": PAPER, "edgecolor": "none", "pad": 1, "alpha": 0.75}
    axes.annotate(
        text,
        where,
        xytext=beside,
        textcoords="offset points",
        ha=align,
        va="center",
        fontsize=9.5 if bold else 9,
        weight="bold" if bold else "normal",
        color=AXIS,
        zorder=5,
        annotation_clip=False,
        bbox=box,
    )


class _Axis:
    """Where the values of a key lie: numbers by size, others by name, side by side."""

    def __init__(self, name: str, texts: Sequence[str | None], upside_down: bool = False) -> None:
        self.name = name
        self.upside_down = upside_down
        numbers = [value for text in texts if (value := number(text)) is not None]
        self.numeric = len(numbers) == len(texts) and bool(numbers)
        self.levels = list(dict.fromkeys(text or "default" for text in texts))
        if self.numeric:
            self.low, self.high = min(numbers), max(numbers)
            self.log = self.low > 0 and self.high >= _LOG * self.low

    def place(self, text: str | None) -> float:
        """In the units of a chart's axis."""
        value = number(text) if self.numeric else None
        return value if value is not None else float(self.levels.index(text or "default"))

    def share(self, text: str | None) -> float:
        """Between 0 and 1."""
        if not self.numeric:
            return self.place(text) / (len(self.levels) - 1) if len(self.levels) > 1 else 0.5
        if self.high == self.low:
            return 0.5
        value, low, high = self.place(text), self.low, self.high
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        share = (value - low) / (high - low)
        return 1 - share if self.upside_down else share

    def ticks(self) -> list[tuple[float, str]]:
        """Shares, and what stands there."""
        if self.numeric:
            few = len(self.levels) <= 6 and not self.upside_down
            ends = self.levels if few else [repr(self.low), repr(self.high)]
            shown = {one: f"{number(one) or 0:.4g}" for one in ends}
            return [(self.share(one), text) for one, text in shown.items()]
        step = math.ceil(len(self.levels) / 8)
        return [(self.share(one), short(one, _SHORT)) for one in self.levels[::step]]

    def draw_below(self, axes: Axes) -> None:
        """Settle the axis of a chart below its points."""
        if self.numeric:
            if self.log:
                axes.set_xscale("log")
            if len(set(self.levels)) <= 6:
                axes.set_xticks([number(one) or 0.0 for one in self.levels])
            elif self.log:
                pass
            elif all(float(one).is_integer() for one in self.levels):
                _whole_numbers(axes)
            if self.low == self.high:
                axes.set_xlim(self.low - 1, self.high + 1)
            axes.xaxis.set_major_formatter(lambda value, place: f"{value:.3g}")
            axes.xaxis.set_minor_formatter(lambda value, place: "")
            return
        step = math.ceil(len(self.levels) / 4)
        axes.set_xticks(
            range(0, len(self.levels), step), [short(one, _SHORT) for one in self.levels[::step]]
        )
        axes.set_xlim(-0.5, len(self.levels) - 0.5)


def _curve(job: SweepJob, name: str, color: str) -> Curve | None:
    known = job.epochs.finite(name)
    known = known[values.thinned(job.epochs.column(name)[known], 10 * _MOST_POINTS)]
    if not len(known):
        return None
    x, y = (job.epochs.column(one)[known].astype(float).tolist() for one in ("epoch", name))
    notes = [f"epoch {epoch:.0f}" for epoch in x]
    return thinned(Curve(job.name, x, y, notes), color, _MOST_POINTS)


def _mean(lines: Sequence[Curve], label: str, color: str) -> Curve:
    """The mean of curves, where all of them have a value."""
    at: dict[float, list[float]] = {}
    for one in lines:
        for x, y in zip(one.x, one.y, strict=True):
            if y is not None:
                at.setdefault(x, []).append(y)
    kept = sorted((x, ys) for x, ys in at.items() if len(ys) == len(lines))
    kept = kept or sorted(at.items())
    notes = [f"epoch {x:.0f}, mean of {len(ys)}" for x, ys in kept]
    return Curve(label, [x for x, _ in kept], [sum(ys) / len(ys) for _, ys in kept], notes, color)


def _known(curve: Curve) -> list[float]:
    """The values of a curve that has been thinned, of which none is missing."""
    return [value for value in curve.y if value is not None]


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _readings(
    figure: Figure,
    axes: Axes,
    series: Sequence[tuple[str, str]],
    points: Sequence[tuple[float, str, int, float, str]],
) -> charts.Readings | None:
    """For `embed`: points are (x, note, which series, y, text)."""
    if not points:
        return None
    width, height = figure.get_size_inches() * figure.dpi
    places = axes.transData.transform([(x, y) for x, _, _, y, _ in points])
    found: dict[float, tuple[int, str, list[tuple[int, int, str]]]] = {}
    for (left, up), (x, note, which, _, text) in zip(places, points, strict=True):
        at: tuple[int, str, list[tuple[int, int, str]]] = (int(1e4 * left / width), note, [])
        found.setdefault(x, at)[2].append((which, int(1e4 * (1 - up / height)), text))
    named = [(label, _name(color)) for label, color in series]
    return {"series": named, "points": [found[x] for x in sorted(found)]}


def _name(color: str) -> str:
    """The name of one of COLORS in page.css."""
    return f"c{COLORS.index(color) + 1}" if color in COLORS else "muted"


def levels_of(sweep: SweepRecord, key: str) -> int:
    """How many values a key has among the jobs that are done."""
    return len({job.settings.get(key) for job in sweep.jobs if job.value is not None})


def worth_drawing(sweep: SweepRecord, keys: Sequence[str], weights: Importance) -> list[str]:
    """The keys with several values, of which names are not too many; the most important first."""

    def fits(key: str) -> bool:
        numeric = all(
            number(job.settings.get(key)) is not None for job in sweep.jobs if job.value is not None
        )
        return levels_of(sweep, key) > 1 and (numeric or levels_of(sweep, key) <= _MOST_LEVELS)

    return sorted(filter(fits, keys), key=lambda key: -weights.of(key))
