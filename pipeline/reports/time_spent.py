"""Where a run's time went: waiting, and the work on a sample by stage."""

from __future__ import annotations

import base64
from typing import Any

from markupsafe import Markup

from pipeline.files.regular_file import open_regular
from pipeline.reports import page
from pipeline.reports.charts import COLORS, Curve, line_chart
from pipeline.reports.page import Section
from pipeline.reports.values import Steps, number, stages
from pipeline.runs.record import RunRecord

TIMELINE = "timeline.png"  # of task=profile
_LARGEST = 600 << 10  # bytes of a picture
_PNG = b"\x89PNG\r\n\x1a\n"


def section(run: RunRecord) -> Section | None:
    """Share of waiting, speed, and milliseconds by stage, over the epochs (or the logs of one)."""
    timeline = _timeline(run)
    by_epoch = len(run.epochs) > 1
    records = run.epochs if by_epoch else run.logs or run.epochs
    if not records:
        return Section("Where the time went", timeline) if timeline else None
    steps, x = Steps(run), "epoch" if by_epoch else "step"
    label = "epoch" if by_epoch else "optimizer steps"

    def curve(name: str, title: str, color: str) -> Curve:
        notes = [steps.note(one) for one in records]
        return Curve(title, [one[x] for one in records],
                     [number(one, name) for one in records], notes, color)  # fmt: skip

    names = list(dict.fromkeys(name for one in records for name in one if name[:3] == "ms/"))[:8]
    whole = [one for one in records if all(number(one, name) is not None for name in names)]
    stacked = [
        Curve(name[3:], [one[x] for one in whole], [one[name] for one in whole],
              [steps.note(one) for one in whole], COLORS[place])
        for place, name in enumerate(names)
    ]  # fmt: skip
    charts = [
        line_chart("Share of the time spent waiting for data",
                   [curve("wait_share", "waiting", COLORS[1])], percent=True, x_label=label),
        line_chart("Work on a sample, in milliseconds", stacked, stacked=True, x_label=label),
        line_chart("Samples per second", [curve("samples_per_second", "speed", COLORS[0])],
                   x_label=label),
    ]  # fmt: skip
    return Section("Where the time went", page.together(
        page.charts_of(charts), _table(stages(run)), timeline))  # fmt: skip


def _table(spent: dict[str, float]) -> Markup | None:
    total = sum(spent.values())
    if not total:
        return None
    rows: list[Any] = [(name, f"{ms:.3g}", f"{ms / total:.0%}") for name, ms in spent.items()]
    rows.append(("together", f"{total:.3g}", ""))
    return page.table(
        "Work on a sample by stage, on average; workers do it side by side, ahead of the training",
        ("stage", "ms a sample", "share"), rows, (1, 2),
    )  # fmt: skip


def _timeline(run: RunRecord) -> Markup | None:
    """The picture of `task=profile`, if it was drawn in this folder."""
    try:
        with open_regular(run.path / TIMELINE) as file:
            content = file.read(_LARGEST + 1)
    except OSError:
        return None
    if len(content) > _LARGEST or not content.startswith(_PNG):
        return None
    return page.picture(
        f"data:image/png;base64,{base64.b64encode(content).decode()}",
        "Timeline of task=profile: a row for the training loop and one for each worker, "
        "with what each was doing", "The timeline that task=profile drew",
    )  # fmt: skip
