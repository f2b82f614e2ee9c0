"""Starts, stops, and deaths of workers of a run, and what they cost."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup

from penstock.addons.reports import page
from penstock.addons.reports.page import Section
from penstock.addons.reports.values import clock, duration, moment, number, seconds_of
from penstock.runs.record import RunRecord

_MOST_ROWS = 200


def section(run: RunRecord) -> Section | None:
    """A table of starts, where the time between them went, and a table of deaths."""
    if not run.sessions:
        return None
    rows = [_row(run, session) for session in run.sessions[-_MOST_ROWS:]]
    head = ("start", "ended as", "took", "ranks", "from", "steps repeated", "reason")
    return Section(
        "Starts and stops",
        page.together(
            page.table("Every start of the run", head, rows, (2, 3, 5)),
            _cost(run),
            _deaths(run),
        ),
    )


def _row(run: RunRecord, session: dict[str, Any]) -> tuple[object, ...]:
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
    for epoch in map(run.epochs.__getitem__, np.flatnonzero(died)[:_MOST_ROWS].tolist()):
        speed = number(epoch, "samples_per_second") or 0.0
        beside = f"{speed / usual - 1:+.0%}" if usual else "–"
        rows.append((epoch["epoch"], epoch["worker_deaths"], f"{speed:,.0f}", beside))
    return page.table(
        "Workers that died and were replaced; no batch differs by that",
        ("epoch", "deaths", "samples per second", "beside the median epoch without"),
        rows,
        range(4),
    )
