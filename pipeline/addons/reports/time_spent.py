"""Where a run's time went: waiting, and the work on a sample by stage; its starts, stops and deaths
of workers, and what they cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup

from penstock.addons.reports import page
from penstock.addons.reports.charts import (
    COLORS,
    MOST_POINTS,
    Curve,
    is_curve,
    line_chart,
    size_of,
)
from penstock.addons.reports.figures import numeral
from penstock.addons.reports.page import Section
from penstock.addons.reports.values import (
    Steps,
    clock,
    duration,
    moment,
    number,
    seconds_of,
    stages,
    thinned,
)
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
    waiting = [curve("wait_share", "waiting", COLORS[1])]
    speed = [curve("samples_per_second", "speed", COLORS[0])]
    drawn: list[tuple[str, list[Curve], dict[str, Any]]] = [
        ("Share of the time spent waiting for data", waiting, {"percent": True}),
        ("Work on a sample, in milliseconds", stacked, {"stacked": True}),
        ("Samples per second", speed, {}),
    ]
    drawn = [chart for chart in drawn if any(map(is_curve, chart[1]))]
    size = size_of(len(drawn))
    charts = [
        line_chart(title, lines, size=size, x_label=label, **how) for title, lines, how in drawn
    ]
    return Section(
        "Where the time went",
        page.together(page.charts_of(charts) if charts else None, _table(stages(run))),
    )


def _table(spent: dict[str, float]) -> Markup | None:
    total = sum(spent.values())
    if not total:
        return None
    rows: list[tuple[str, str, str]] = [
        (name, numeral(ms, 3), f"{ms / total:.0%}") for name, ms in spent.items()
    ]
    rows.append(("together", numeral(total, 3), ""))
    return page.table(
        "Work on a sample by stage, on average; workers do it side by side, ahead of the training",
        ("stage", "ms a sample", "share"),
        rows,
        (1, 2),
    )


_MOST_STARTS = 200


def starts(run: RunRecord) -> Section | None:
    """A table of starts, where the time between them went, and a table of deaths."""
    if not run.sessions:
        return None
    rows = [_row(run, session) for session in run.sessions[-_MOST_STARTS:]]
    head = ("start", "ended as", "took", "ranks", "from", "steps repeated", "reason")
    return Section(
        "Starts and stops",
        page.together(
            page.table("Every start of the run", head, rows, (2, 3, 5)),
            _cost(run),
            _deaths(run),
        ),
    )


def _row(run: RunRecord, session: dict[str, object]) -> tuple[object, ...]:
    began, ended, at = moment(session, "started"), moment(session, "ended"), session.get("at")
    is_last = session is run.sessions[-1]
    state = session.get("status") or (run.state if is_last else "killed")
    took = duration((ended - began).total_seconds()) if began and ended else "–"
    where = "the beginning"
    if isinstance(at, list) and len(at) == 2:
        where = f"epoch {at[0]}, step {at[1]}"
    repeated = session.get("repeated", 0)
    return (
        clock(session, "started"),
        state,
        took,
        session.get("world", 1),
        where,
        repeated,
        session.get("reason") or "–",
    )


def _cost(run: RunRecord) -> Markup | None:
    """How much of the time was training, and how much lay between the starts."""
    times = [(moment(session, "started"), moment(session, "ended")) for session in run.sessions]
    whole = [(began, ended) for began, ended in times if began and ended]
    if not whole:
        return None
    wall = sum((ended - began).total_seconds() for began, ended in whole)
    training = seconds_of(run)
    idle = sum(
        max((after[0] - before[1]).total_seconds(), 0.0)
        for before, after in pairwise(times)
        if before[1] and after[0]
    )
    facts = {
        "in its processes": duration(wall),
        "training": f"{duration(training)} of finished epochs",
        "the rest": f"{duration(max(wall - training, 0.0))}: set-up, validation, checkpoints, "
        "unfinished epochs"
        if wall > training
        else None,
        "between starts": duration(idle) if len(times) > 1 else None,
    }
    return page.facts(facts)


def _deaths(run: RunRecord) -> Markup:
    """Workers that died, by epoch, with the speed of that epoch beside the others'."""
    deaths, speeds = run.epochs.column("worker_deaths"), run.epochs.column("samples_per_second")
    died = np.isfinite(deaths) & (deaths != 0)
    if not died.any():
        return page.paragraph("No worker died.")
    others = speeds[~died & np.isfinite(speeds)]
    usual = float(np.median(others)) if len(others) else 0.0
    rows = []
    for epoch in map(run.epochs.__getitem__, np.flatnonzero(died)[:_MOST_STARTS].tolist()):
        speed = number(epoch, "samples_per_second") or 0.0
        beside = f"{speed / usual - 1:+.0%}" if usual else "–"
        rows.append((epoch["epoch"], epoch["worker_deaths"], f"{speed:,.0f}", beside))
    return page.table(
        "Workers that died and were replaced; no batch differs by that",
        ("epoch", "deaths", "samples per second", "beside the median epoch without"),
        rows,
        range(4),
    )
