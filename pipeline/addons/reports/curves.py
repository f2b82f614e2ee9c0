"""The curves of a run: loss, metrics and learning rate over its steps, with what happened."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from penstock.addons.reports import page
from penstock.addons.reports.charts import COLORS, MUTED, Curve, Mark, chart
from penstock.addons.reports.page import Section
from penstock.addons.reports.values import (
    Steps,
    column,
    finite,
    furthest,
    number,
    numeral,
    thinned,
)
from penstock.addons.reports.verdict import baseline_of
from penstock.runs.run import Run

_MOST_CHARTS, _MOST_CURVES = 30, 8
_MOST_POINTS = 9000  # of all metrics together
_MOST_STEPS = 10_000  # of a curve, before the chart thins it
_MOST_ROWS = 400  # of the table of epochs
_COLUMNS = 12  # of the table of epochs


def section(run: Run) -> Section | None:
    """Charts of the loss, of each metric and of the learning rate, and their numbers, folded.

    Measurements of one epoch alone are a table and no chart.
    """
    if run.logs.empty and run.metrics.empty:
        return None
    steps, last = Steps(run), furthest(run)
    marks, sentences = events(run, steps)
    axis: dict[str, Any] = {"x_label": "optimizer steps"}
    axis["span"] = (0.0, float(last["step"] if last else 0))
    charts = [_loss(run, steps, marks, axis), *_metrics(run, steps, marks, axis)]
    rate = curve(
        steps, run.metrics if run.logs.empty else run.logs, "lr", "learning rate", COLORS[2]
    )
    if len(rate.x) > 1:
        charts.append(chart("Learning rate", [rate], **axis))
    happened = page.listed(sentences) if sentences else None
    return Section(
        "Curves", page.together(_single(run), page.charts_of(charts), happened, _numbers(run))
    )


def curve(
    steps: Steps, records: pd.DataFrame, name: str, label: str, color: str = "", x: str = "step"
) -> Curve:
    """A measurement over the steps, or over another number of its records."""
    places = finite(records, name)
    at = places[thinned(column(records, name)[places], _MOST_STEPS)].tolist()
    values = column(records, name)[at].tolist()
    notes = [steps.note(records, row) for row in at]
    return Curve(label, column(records, x)[at].tolist(), values, notes, color, thin=color == MUTED)


def events(run: Run, steps: Steps) -> tuple[list[Mark], list[str]]:
    """Marks for what happened, and the same as sentences: best, resumed, left out."""
    marks, sentences = [], []
    best = run.manifest.get("best")
    if len(run.metrics) > 1 and (at := number(best, "step")) is not None:
        marks.append(Mark(at, "best"))
        sentences.append(f"best: epoch {int(number(best, 'epoch') or 0)}, after {at:,.0f} steps")
    for session in run.sessions[1:]:
        if session.get("at"):
            epoch, step = session["at"]
            sentences.append(f"resumed at epoch {epoch}, step {step}")
            if (at := steps.at(epoch, step - 1)) is not None:
                marks.append(Mark(at, "resumed"))
    addresses = sorted({(row.epoch, row.step) for row in run.left_out if row.split == "train"})
    for epoch, step in addresses:
        if (at := steps.at(epoch, step)) is not None:
            marks.append(Mark(at))
    if addresses:
        first = ", ".join(f"epoch {epoch}, step {step}" for epoch, step in addresses[:5])
        more = f" and {len(addresses) - 5} more" if len(addresses) > 5 else ""
        sentences.append(f"marks at the bottom: batches with samples left out ({first}{more})")
    return marks, sentences


def of_ledger(ledger: pd.DataFrame, steps: Steps) -> Curve:
    """The loss of every step; of a long run the lowest and the highest of some at a time."""
    chosen = ledger.iloc[thinned(ledger["loss"].to_numpy(), _MOST_STEPS)]
    columns = (chosen[name].tolist() for name in ("epoch", "step", "loss"))
    points = [
        (x, loss, f"epoch {epoch}, step {step}")
        for epoch, step, loss in zip(*columns, strict=True)
        if (x := steps.at(epoch, step)) is not None
    ]
    xs, losses, notes = zip(*points, strict=True) if points else ((), (), ())
    return Curve("each step", xs, losses, notes, MUTED, thin=True)


def _loss(run: Run, steps: Steps, marks: list[Mark], axis: dict[str, Any]) -> Markup:
    if run.ledger is not None:
        fine = of_ledger(run.ledger, steps)
    else:
        fine = curve(steps, run.logs, "train/loss", "between two logs", MUTED)
    lines = [
        fine,
        curve(steps, run.metrics, "train/loss", "training", COLORS[1]),
        curve(steps, run.metrics, "val/loss", "validation", COLORS[0]),
    ]
    values = [value for line in lines[1:] for value in line.y]
    level = number(run.manifest.get("baseline"), "loss")
    return chart(
        "Loss",
        [line for line in lines if len(line.x) > 1],
        marks=marks,
        wide=True,
        log=bool(values) and min(values) > 0 and max(values) > 20 * min(values),
        levels={} if level is None else {baseline_of(run): level},
        **axis,
    )


def _metrics(run: Run, steps: Steps, marks: list[Mark], axis: dict[str, Any]) -> list[Markup]:
    """A chart for each metric that was measured more than once.

    Its values for classes (`val/recall/cat`) are lines of one chart.
    """
    panels: dict[str, dict[str, str]] = {}
    for name in run.metrics.columns:
        split, _, rest = name.partition("/")
        title, _, label = rest.partition("/")
        if split == "val" and rest != "loss" and len(finite(run.metrics, name)) > 1:
            panels.setdefault(title, {})[label or "validation"] = name
    shown = dict(list(panels.items())[:_MOST_CHARTS])
    count = sum(min(len(lines), _MOST_CURVES) for lines in shown.values())
    charts = []
    for title, lines in shown.items():
        kept = list(lines.items())[:_MOST_CURVES]
        more = f" ({len(kept)} of {len(lines)} classes)" if len(lines) > len(kept) else ""
        charts.append(
            chart(
                title + more,
                [curve(steps, run.metrics, name, label) for label, name in kept],
                marks=[mark for mark in marks if mark.label],
                most=max(40, _MOST_POINTS // max(count, 1)),
                levels={
                    name: level
                    for name, values in _levels(run).items()
                    if (level := number(values, title)) is not None
                },
                **axis,
            )
        )
    return charts


def _levels(run: Run) -> dict[str, Any]:
    """The metrics that the run is compared with, by name."""
    baseline = {baseline_of(run): run.manifest.get("baseline")}
    return {**baseline, **(run.manifest.get("comparisons") or {})}


def _single(run: Run) -> Markup | None:
    """A table of what one epoch alone has measured, beside the levels to compare it with."""
    names = [
        name
        for name in run.metrics.columns
        if name.startswith(("train/", "val/")) and len(finite(run.metrics, name)) == 1
    ]
    if not names:
        return None
    rows = []
    for name in names[:_MOST_CHARTS]:
        place = int(finite(run.metrics, name)[0])
        split, _, short = name.partition("/")
        others = [number(values, short) for values in _levels(run).values()]
        rows.append(
            (
                f"{short}, {'validation' if split == 'val' else 'training'}",
                numeral(float(column(run.metrics, name)[place])),
                int(column(run.metrics, "epoch")[place]),
                *("" if split != "val" or value is None else numeral(value) for value in others),
            )
        )
    head = ["measurement", "value", "epoch", *_levels(run)]
    return page.table("Measured once", head, rows, range(1, len(head)), without_empty=True)


def _numbers(run: Run) -> Markup | None:
    names = [
        name
        for name in run.metrics.columns
        if name.startswith(("train/", "val/")) or name in ("lr", "seconds")
    ][:_COLUMNS]
    if not names:
        return None
    some = np.unique(np.linspace(0, len(run.metrics) - 1, _MOST_ROWS).round().astype(int))
    columns = [column(run.metrics, name)[some].tolist() for name in ("epoch", "step", *names)]
    rows = [
        (epoch, step, *(numeral(value) if math.isfinite(value) else "–" for value in values))
        for epoch, step, *values in zip(*columns, strict=True)
    ]
    head = ("epoch", "steps", *names)
    table = page.table("Measurements of whole epochs", head, rows, range(len(head)))
    return page.folded("The numbers, epoch by epoch", table)
