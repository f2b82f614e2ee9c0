"""The curves of a run: loss, metrics and learning rate over its steps, with what happened."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from pipeline.reports import page
from pipeline.reports.charts import COLORS, MUTED, Curve, Mark, line_chart
from pipeline.reports.page import Section
from pipeline.reports.verdict import number
from pipeline.runs.record import RunRecord


def section(run: RunRecord) -> Section | None:
    """A chart for the loss, for each metric and for the learning rate."""
    if not run.logs and not run.epochs:
        return None
    drawn = [_loss(run), *_metrics(run), _rate(run)]
    return Section("Curves", page.charts_of(one for one in drawn if one is not None))


def _curve(
    records: list[dict[str, Any]], name: str, label: str, color: str = "", **more: Any
) -> Curve:
    known = [one for one in records if number(one, name) is not None]
    notes = [f"epoch {one['epoch']}, {one['step']} steps" for one in known]
    return Curve(label, [one["step"] for one in known], [one[name] for one in known], notes, color,
                 **more)  # fmt: skip


def marks_of(run: RunRecord) -> list[Mark]:
    """Where the run was best."""
    step = number(run.manifest.get("best"), "step")
    return [] if step is None else [Mark(step, "best")]


def _loss(run: RunRecord) -> Markup | None:
    lines = [_curve(run.logs, "train/loss", "training, between logs", MUTED, thin=True, dots=False),
             _curve(run.epochs, "train/loss", "training, whole epochs", COLORS[1]),
             _curve(run.epochs, "val/loss", "validation", COLORS[0])]  # fmt: skip
    return line_chart("Loss", [one for one in lines if one.x], marks=marks_of(run), broad=True)


def _metrics(run: RunRecord) -> list[Markup]:
    names = dict.fromkeys(name[4:] for one in run.epochs for name in one if name.startswith("val/"))
    baseline, found = run.manifest.get("baseline"), []
    for name in names:
        level = number(baseline, name)
        if name != "loss":
            found.append(line_chart(
                name, [_curve(run.epochs, f"val/{name}", "validation", COLORS[0])],
                marks=marks_of(run), levels={} if level is None else {"baseline": level},
            ))  # fmt: skip
    return found


def _rate(run: RunRecord) -> Markup:
    return line_chart(
        "Learning rate",
        [_curve(run.logs or run.epochs, "lr", "learning rate", COLORS[2], dots=False)],
    )
