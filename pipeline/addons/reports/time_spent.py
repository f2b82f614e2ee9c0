"""Where a run's time went: waiting, and the work on a sample by stage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from penstock.addons.reports import page
from penstock.addons.reports.charts import COLORS, MOST_POINTS, Curve, line_chart
from penstock.addons.reports.page import Section
from penstock.addons.reports.values import Steps, stages, thinned
from penstock.runs.record import RunRecord


def section(run: RunRecord) -> Section | None:
    """Share of waiting, speed, and milliseconds by stage, over the epochs (or the logs of one)."""
    by_epoch = len(run.epochs) > 1
    records = run.epochs if by_epoch else run.logs or run.epochs
    if not records:
        return None
    steps, x = Steps(run), "epoch" if by_epoch else "step"
    label = "epoch" if by_epoch else "optimizer steps"

    def curve(name: str, title: str, color: str, chosen: Sequence[int] | None = None) -> Curve:
        if chosen is None:
            finite = records.finite(name)
            chosen = finite[thinned(records.column(name)[finite], 10 * MOST_POINTS)].tolist()
        notes = [steps.note(records.address(row)) for row in chosen]
        return Curve(
            title,
            records.column(x)[chosen].tolist(),
            records.column(name)[chosen].tolist(),
            notes,
            color,
        )

    names = [name for name in records.names if name[:3] == "ms/"][:8]
    complete = np.ones(len(records), np.bool_)
    for name in names:
        complete &= np.isfinite(records.column(name))
    whole = np.flatnonzero(complete)
    # Areas on top of each other need the same records, so they are not thinned one by one.
    even = whole[np.linspace(0, len(whole) - 1, min(len(whole), MOST_POINTS)).astype(int)].tolist()
    stacked = [curve(name, name[3:], COLORS[number], even) for number, name in enumerate(names)]
    charts = [
        line_chart(
            "Share of the time spent waiting for data",
            [curve("wait_share", "waiting", COLORS[1])],
            percent=True,
            x_label=label,
        ),
        line_chart("Work on a sample, in milliseconds", stacked, stacked=True, x_label=label),
        line_chart(
            "Samples per second", [curve("samples_per_second", "speed", COLORS[0])], x_label=label
        ),
    ]
    return Section(
        "Where the time went", page.together(page.charts_of(charts), _table(stages(run)))
    )


def _table(spent: dict[str, float]) -> Markup | None:
    total = sum(spent.values())
    if not total:
        return None
    rows: list[tuple[str, str, str]] = [
        (name, f"{ms:.3g}", f"{ms / total:.0%}") for name, ms in spent.items()
    ]
    rows.append(("together", f"{total:.3g}", ""))
    return page.table(
        "Work on a sample by stage, on average; workers do it side by side, ahead of the training",
        ("stage", "ms a sample", "share"),
        rows,
        (1, 2),
    )
