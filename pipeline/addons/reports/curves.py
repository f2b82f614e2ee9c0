"""The curves of a run: loss, metrics and learning rate over its steps, with what happened."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup

from penstock.addons.reports import page
from penstock.addons.reports.charts import (
    COLORS,
    MUTED,
    Curve,
    Mark,
    Size,
    is_curve,
    line_chart,
    size_of,
)
from penstock.addons.reports.figures import numeral
from penstock.addons.reports.page import Section
from penstock.addons.reports.values import Steps, furthest, number, thinned
from penstock.runs.measurements import Series
from penstock.runs.record import Ledger, RunRecord

_MOST_CHARTS, _MOST_CURVES = 30, 8
_MOST_POINTS = 9000  # of all metrics together
_MOST_STEPS = 10_000  # of a curve, before the chart thins it
_MOST_ROWS = 400  # of the table of epochs
_COLUMNS = 12  # of the table of epochs


def section(run: RunRecord) -> Section | None:
    """Charts of the loss, of each metric and of the learning rate, and their numbers, folded.

    Measurements of one epoch alone are a table and no chart.
    """
    if not run.logs and not run.epochs:
        return None
    steps = Steps(run)
    marks, sentences = events(run, steps)
    last = furthest(run)
    axis: dict[str, Any] = {
        "x_label": "optimizer steps",
        "span": (0.0, float(last["step"] if last else 0)),
    }
    small = _metrics(run, steps, marks, axis)
    rate = _curve(steps, run.logs or run.epochs, "lr", "learning rate", COLORS[2])
    if is_curve(rate):
        small.append(partial(line_chart, "Learning rate", [rate], **axis))
    # A single one stands beside the loss.
    loss = _loss(run, steps, marks, axis, "half" if len(small) == 1 else "broad")
    size = "half" if loss and len(small) == 1 else size_of(len(small))
    charts = [loss, *(draw(size=size) for draw in small)]
    happened = page.listed(sentences) if sentences else None
    return Section(
        "Curves",
        page.together(_single(run), page.charts_of(charts), happened, _numbers(run)),
    )


def _single(run: RunRecord) -> Markup | None:
    """A table of what one epoch alone has measured, beside the levels to compare it with."""
    names = [
        name
        for name in run.epochs.names
        if name.startswith(("train/", "val/")) and len(run.epochs.finite(name)) == 1
    ]
    if not names:
        return None
    levels = {name: values for name, values in _levels(run).items() if isinstance(values, dict)}
    rows = []
    for name in names:
        place = int(run.epochs.finite(name)[0])
        split, _, short = name.partition("/")
        others = [number(values, short) if split == "val" else None for values in levels.values()]
        rows.append(
            (
                f"{short}, {'validation' if split == 'val' else 'training'}",
                numeral(float(run.epochs.column(name)[place])),
                int(run.epochs.column("epoch")[place]),
                *("" if value is None else numeral(value) for value in others),
            )
        )
    kept = [n for n in range(len(levels)) if any(row[3 + n] for row in rows)]
    head = ["measurement", "value", "epoch", *(list(levels)[n] for n in kept)]
    cells = [(*row[:3], *(row[3 + n] for n in kept)) for row in rows[:_MOST_CHARTS]]
    return page.table("Measured once", head, cells, range(1, len(head)))


def _levels(run: RunRecord) -> dict[str, object]:
    """The metrics that the run is compared with, by name, as anybody may have written them."""
    others = run.manifest.get("comparisons")
    baseline = {"best constant": run.manifest.get("baseline")}
    return {**baseline, **(others if isinstance(others, dict) else {})}


def events(run: RunRecord, steps: Steps) -> tuple[list[Mark], list[str]]:
    """Marks for what happened, and the same as sentences: best, resumed, left out."""
    marks, sentences = [], []
    best = run.manifest.get("best")
    if len(run.epochs) > 1 and (at := number(best, "step")) is not None:
        marks.append(Mark(at, "best"))
        sentences.append(
            f"best: epoch {int(number(best, 'epoch') or 0)}, {at:,.0f} optimizer steps"
        )
    for session in run.sessions[1:]:
        address = session.get("at")
        if (
            isinstance(address, list)
            and len(address) == 2
            and all(isinstance(i, int) for i in address)
        ):
            at = steps.at(address[0], address[1] - 1)
            sentences.append(f"resumed at epoch {address[0]}, step {address[1]}")
            if at is not None:
                marks.append(Mark(at, "resumed"))
    addresses = _incomplete(run)
    for epoch, step in addresses:
        if (at := steps.at(epoch, step)) is not None:
            marks.append(Mark(at))
    if addresses:
        first = ", ".join(f"epoch {epoch}, step {step}" for epoch, step in addresses[:5])
        more = f" and {len(addresses) - 5} more" if len(addresses) > 5 else ""
        sentences.append(
            f"small marks at the bottom: batches with samples left out ({first}{more})"
        )
    return marks, sentences


def _incomplete(run: RunRecord) -> list[tuple[int, int]]:
    """Addresses of batches in which samples were left out, as far as the folder tells."""
    incomplete = {(row.epoch, row.step) for row in run.left_out if row.split == "train"}
    size = number(run.config.get("batch"), "size")
    if run.ledger is not None and size and run.left_out:
        ledger = run.ledger
        ends = np.append(ledger.epoch[1:] != ledger.epoch[:-1], True)  # a last batch may be smaller
        less = (ledger.samples < size) & ~ends
        pairs = zip(ledger.epoch[less].tolist(), ledger.step[less].tolist(), strict=True)
        incomplete |= set(pairs)
    return sorted(incomplete)


def _curve(
    steps: Steps, records: Series, name: str, label: str, color: str = "", **more: Any
) -> Curve:
    places = records.finite(name)
    places = places[thinned(records.column(name)[places], _MOST_STEPS)]
    at = places.tolist()
    return Curve(
        label,
        records.column("step")[at].tolist(),
        records.column(name)[at].tolist(),
        [steps.note(records.address(row)) for row in at],
        color,
        **more,
    )


def of_ledger(ledger: Ledger, steps: Steps) -> Curve:
    """The loss of every step; of a long run the lowest and the highest of some at a time."""
    chosen = thinned(ledger.loss, _MOST_STEPS)
    pairs = list(zip(ledger.epoch[chosen].tolist(), ledger.step[chosen].tolist(), strict=True))
    places = [steps.at(epoch, step) for epoch, step in pairs]
    kept = [i for i, x in enumerate(places) if x is not None]
    losses = ledger.loss[chosen].tolist()
    return Curve(
        "each step",
        [places[i] or 0.0 for i in kept],
        [losses[i] for i in kept],
        [f"epoch {pairs[i][0]}, step {pairs[i][1]}" for i in kept],
        MUTED,
        thin=True,
        dots=False,
    )


def _loss(
    run: RunRecord, steps: Steps, marks: list[Mark], axis: dict[str, Any], size: Size
) -> Markup:
    if run.ledger is not None and len(run.ledger.loss):
        fine = of_ledger(run.ledger, steps)
    else:
        fine = _curve(
            steps, run.logs, "train/loss", "between two logs", MUTED, thin=True, dots=False
        )
    lines = [
        fine,
        _curve(steps, run.epochs, "train/loss", "training", COLORS[1]),
        _curve(steps, run.epochs, "val/loss", "validation", COLORS[0]),
    ]
    values = [value for line in lines[1:] for value in line.y if value is not None]
    far = bool(values) and min(values) > 0 and max(values) > 20 * min(values)
    level = number(run.manifest.get("baseline"), "loss")
    lines = [line for line in lines if is_curve(line)]
    if not lines:
        return Markup("")
    return line_chart(
        "Loss",
        lines,
        marks=marks,
        size=size,
        log=far,
        **axis,
        levels={} if level is None else {"best constant": level},
    )


def _metrics(
    run: RunRecord, steps: Steps, marks: list[Mark], axis: dict[str, Any]
) -> list[Callable[..., Markup]]:
    """Functions that draw a chart of a size, for each metric that was measured more than once.

    Its values for classes (`val/recall/cat`) are lines of one chart.
    """
    panels: dict[str, dict[str, str]] = {}
    for name in run.epochs.names:
        split, _, rest = name.partition("/")
        title, _, label = rest.partition("/")
        if split == "val" and rest != "loss" and len(run.epochs.finite(name)) > 1:
            panels.setdefault(title, {})[label or "validation"] = name
    shown = dict(list(panels.items())[:_MOST_CHARTS])
    count = sum(min(len(lines), _MOST_CURVES) for lines in shown.values())
    levels = _levels(run)
    charts: list[Callable[..., Markup]] = []
    for title, lines in shown.items():
        kept = list(lines.items())[:_MOST_CURVES]
        curves = [
            _curve(steps, run.epochs, name, label, COLORS[which])
            for which, (label, name) in enumerate(kept)
        ]
        more = f" ({len(kept)} of {len(lines)} classes)" if len(lines) > len(kept) else ""
        charts.append(
            partial(
                line_chart,
                title + more,
                curves,
                marks=[mark for mark in marks if mark.label],
                **axis,
                most=max(40, _MOST_POINTS // max(count, 1)),
                levels={
                    name: level
                    for name, values in levels.items()
                    if (level := number(values, title)) is not None
                },
            )
        )
    return charts


def _numbers(run: RunRecord) -> Markup | None:
    names = [
        name
        for name in run.epochs.names
        if name.startswith(("train/", "val/")) or name in ("lr", "seconds")
    ][:_COLUMNS]
    if not names:
        return None
    count = len(run.epochs)
    some = slice(None, None, 1 if count <= _MOST_ROWS else count // (_MOST_ROWS // 2))
    columns = [run.epochs.column(name)[some].tolist() for name in ("epoch", "step", *names)]
    rows = [
        (epoch, step, *(numeral(value) if math.isfinite(value) else "–" for value in values))
        for epoch, step, *values in zip(*columns, strict=True)
    ]
    head = ("epoch", "steps", *names)
    return page.folded(
        "The numbers, epoch by epoch",
        page.table("Measurements of whole epochs", head, rows, range(len(head))),
    )
