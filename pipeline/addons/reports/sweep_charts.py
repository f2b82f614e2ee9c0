"""The charts of a sweep's report: curves over each other, and the metric over each key.

Colours: the best groups take COLORS in their order, all others are MUTED.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from markupsafe import Markup

from penstock.addons.reports import values
from penstock.addons.reports.charts import (
    COLORS,
    MUTED,
    Curve,
    Size,
    embed,
    line_chart,
    make_room,
    new_axes,
    readings,
    sizes,
    thinned,
)
from penstock.addons.reports.figures import drawing, label_numbers, numeral
from penstock.addons.reports.importance import Importance
from penstock.addons.reports.sweep_data import Repeated, SweepJob, SweepRecord, number
from penstock.terminal import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_COLORED = 6  # groups
_MOST_POINTS = 100  # of a curve
_MOST_LINES = 200  # jobs in a chart of curves
_MOST_LEVELS = 24  # of a key whose values have names
_LOG = 10  # largest value by the smallest from which on an axis is logarithmic
_SHORT = 18  # characters of a value on an axis


def color_of(sweep: SweepRecord, group: Repeated) -> str:
    """The colour of a group in all charts."""
    best = sweep.groups[:MOST_COLORED]
    return COLORS[best.index(group)] if group in best and group.mean is not None else MUTED


def label_of(sweep: SweepRecord, group: Repeated) -> str:
    """A group's place in the leaderboard and its values, short enough for a legend."""
    place = sweep.groups.index(group) + 1
    return short(f"{place}. {_words(group.settings) or 'all jobs'}")


def _words(settings: Mapping[str, str]) -> str:
    names = short_keys(list(settings))
    return " ".join(f"{names[key]}={value}" for key, value in settings.items())


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """The last part of each key, or as many as tell it from the others: `lr`, `fold`."""
    names = {}
    for key in keys:
        parts = key.split(".")
        ends = [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]
        others = [f".{other}" for other in keys if other != key]
        names[key] = next(
            (end for end in ends if not any(other.endswith(f".{end}") for other in others)), key
        )
    return names


def short(text: str, most: int = 60) -> str:
    """A text that came from a file, for a chart or a legend."""
    text = one_line(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def has_curves(sweep: SweepRecord, name: str) -> bool:
    """Whether a job has a measurement in several epochs; lone points are no lines."""
    return any(len(job.epochs.finite(name)) > 1 for job in sweep.jobs)


def curves(sweep: SweepRecord, name: str, title: str, size: Size = "broad") -> Markup:
    """A measurement over the epochs, of all jobs; nothing where no job has it."""
    named, others, lines = list[Curve](), list[Curve](), list[Curve]()
    if len(sweep.groups) == 1 and sweep.repeated:  # each repetition has a name of its own
        for place, job in enumerate(sweep.ranked):
            color = COLORS[place] if place < MOST_COLORED else MUTED
            line = _curve(job, name, color)
            if line is not None and color != MUTED:
                settings = {key: job.settings.get(key, "default") for key in sweep.repeated}
                named.append(replace(line, label=short(f"{place + 1}. {_words(settings)}")))
            elif line is not None:
                others.append(line)
    for group in sweep.groups if not named else ():
        color = color_of(sweep, group)
        own = [curve for job in group.jobs if (curve := _curve(job, name, color)) is not None]
        if own and color != MUTED:
            label = label_of(sweep, group)
            named.append(_mean(own, label, color) if len(own) > 1 else replace(own[0], label=label))
            lines += own if len(own) > 1 else []
        else:
            others += own
    others = others[: max(0, _MOST_LINES - len(lines))]
    return line_chart(
        title,
        named,
        x_label="epoch",
        size=size,
        behind=[*others, *lines],
        others=f"{len(others)} other jobs" if others else "",
        summary="; ".join(
            f"{curve.label}: {numeral(curve.y[-1] or 0.0)} at last" for curve in named
        )
        or "no job is done",
    )


@drawing()
def scatter(sweep: SweepRecord, key: str, size: Size = "third") -> Markup:
    """The metric over one key: a point for each job that is done."""
    jobs = [job for job in sweep.jobs if job.value is not None]
    axis = _Axis([job.settings.get(key) for job in jobs])
    group_of = {job.name: group for group in sweep.groups for job in group.jobs}
    colors = [color_of(sweep, group_of[job.name]) for job in jobs]
    points = [
        (
            axis.place(job.settings.get(key)),
            f"{short(key)}={short(job.settings.get(key, 'default'))}",
            0,
            job.value or 0.0,
            f"{numeral(job.value or 0.0, 5)} by job {short(job.name, 20)}",
        )
        for job in jobs
    ]
    figures, pointed = [], []
    for part_of_row in sizes(size):
        figure, axes = new_axes(part_of_row)
        for (x, _, _, value, _), color in zip(points, colors, strict=True):
            axes.plot([x], [value], "o", color=color, markersize=5, alpha=0.85)
        label_numbers(axes.yaxis)
        axis.draw_below(axes)
        axes.set_xlabel(short(key))
        make_room(figure, axes)
        figures.append(figure)
        pointed.append(readings(figure, axes, [("", COLORS[0])], points))
    title = f"{short(sweep.metric)} by {short(key)}"
    order = sorted(points, key=lambda point: point[0])
    summary = "; ".join(f"{note}: {text}" for _, note, _, _, text in order[:40])
    return embed(figures, title, f"{summary}.", size=size, readings=pointed)


class _Axis:
    """Where the values of a key lie: numbers by size, others by name, side by side."""

    def __init__(self, texts: Sequence[str | None]) -> None:
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

    def draw_below(self, axes: Axes) -> None:
        """Settle the axis of a chart below its points."""
        if self.numeric:
            if self.log:
                axes.set_xscale("log")
            if len(set(self.levels)) <= 6:
                axes.set_xticks([number(level) or 0.0 for level in self.levels])
            elif self.log:
                pass
            elif all(float(level).is_integer() for level in self.levels):
                _whole_numbers(axes)
            if self.low == self.high:
                axes.set_xlim(self.low - 1, self.high + 1)
            axes.xaxis.set_major_formatter(lambda value, place: numeral(value, 3))
            axes.xaxis.set_minor_formatter(lambda value, place: "")
            return
        step = math.ceil(len(self.levels) / 4)
        axes.set_xticks(
            range(0, len(self.levels), step),
            [short(level, _SHORT) for level in self.levels[::step]],
        )
        axes.set_xlim(-0.5, len(self.levels) - 0.5)


def _curve(job: SweepJob, name: str, color: str) -> Curve | None:
    places = job.epochs.finite(name)
    places = places[values.thinned(job.epochs.column(name)[places], 10 * _MOST_POINTS)]
    if not len(places):
        return None
    x, y = (job.epochs.column(column)[places].astype(float).tolist() for column in ("epoch", name))
    notes = [f"epoch {epoch:.0f}" for epoch in x]
    return thinned(Curve(job.name, x, y, notes), color, _MOST_POINTS)


def _mean(lines: Sequence[Curve], label: str, color: str) -> Curve:
    """The mean of curves, where all of them have a value."""
    at: dict[float, list[float]] = {}
    for line in lines:
        for x, y in zip(line.x, line.y, strict=True):
            if y is not None:
                at.setdefault(x, []).append(y)
    kept = sorted((x, ys) for x, ys in at.items() if len(ys) == len(lines))
    kept = kept or sorted(at.items())
    notes = [f"epoch {x:.0f}, mean of {len(ys)}" for x, ys in kept]
    return Curve(label, [x for x, _ in kept], [sum(ys) / len(ys) for _, ys in kept], notes, color)


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


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
