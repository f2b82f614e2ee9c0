"""The sections of a run's report, each made of the files of its folder.

SECTIONS lists them in their order: each is a function of a `Run` that returns its Section, or
None where the run has nothing for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import yaml
from markupsafe import Markup

from penstock.addons.reports import page
from penstock.addons.reports.page import COLORS, MUTED, Section, chart, curve
from penstock.addons.reports.values import (
    clock,
    column,
    counted,
    duration,
    furthest,
    moment,
    number,
    numeral,
    overrides,
    replay,
    seconds_of,
    stages,
)
from penstock.addons.reports.verdict import levels
from penstock.runs.run import Run

FACTS = "report/facts.json"  # which samples.py writes
Sample = dict[str, Any]  # row, path, truth, predicted, wrong, words, uri, group, loss

_MOST_CURVES = 8  # of the classes of a metric
# Of a table: a run of 10,000 epochs or starts must still give a page that opens at once.
_MOST_ROWS = 200  # of a table
_DRAWN = {
    "": "",
    "marks": " The truth is green, predictions are orange.",
    "boxes": " The truth is green, predictions are orange.",
    "masks": " The true mask is on the left, the predicted one on the right.",
}
# Boxes have labels, and two masks stand side by side: a square of 100 pixels is too small.
_SHAPES = {
    **{"clips": "strips", "signals": "wide-ones", "views": "wide-ones"},
    **{"boxes": "marked", "masks": "marked"},
}


def curves(run: Run) -> Section | None:
    """Charts of the loss, of each metric and of the learning rate, and their numbers."""
    last = furthest(run)
    if last is None:
        return None
    charts, marks = list[Markup](), []
    # The only epoch is trivially the best one, so a mark would say nothing.
    if len(run.metrics) > 1 and (at := number(run.manifest.get("best"), "step")) is not None:
        marks.append((at, "best"))
    ends = dict(zip(column(run.metrics, "epoch"), column(run.metrics, "step"), strict=True))
    # A batch and an optimizer step differ where gradients are accumulated; the axis counts
    # optimizer steps, and addresses count batches.
    accumulate = number(run.config.get("trainer"), "accumulate") or 1
    for epoch, step in (start["at"] for start in run.sessions[1:] if start.get("at")):
        marks.append((ends.get(epoch - 1, 0) + step / accumulate, "resumed"))
    axis: dict[str, Any] = {"x_label": "optimizer steps", "span": (0, last["step"]), "marks": marks}
    names = [name for name in run.metrics.columns if name.startswith("val/") and name != "val/loss"]
    panels: dict[str, dict[str, str]] = {}  # val/recall/cat is a line of the chart of recall
    for name in names:
        title, _, label = name.removeprefix("val/").partition("/")
        panels.setdefault(title, {})[label or "validation"] = name

    def line(name: str, label: str, rows: Any = run.metrics, **style: Any) -> dict[str, Any]:
        x, at = column(rows, "step"), column(rows, "epoch")
        notes = (f"epoch {e:.0f} · {counted(int(s), 'step')}" for e, s in zip(at, x, strict=True))
        return curve(label, x, column(rows, name), notes, **style)

    # The training loss is the mean over the epoch, so it can be above that of validation after it.
    own = [line("train/loss", "training", color=COLORS[1]), line("val/loss", "validation")]
    # The ledger has each batch; without it the logs have every few steps.
    fine = line("train/loss", "between two logs", run.logs, color=MUTED, thin=True)
    if run.ledger is not None:
        epochs, steps = run.ledger["epoch"].tolist(), run.ledger["step"].tolist()
        # A ledger knows no optimizer steps, so they are counted from the end of the epoch before.
        x = [ends.get(e - 1, 0) + (s + 1) / accumulate for e, s in zip(epochs, steps, strict=True)]
        notes = (f"epoch {e}, step {s}" for e, s in zip(epochs, steps, strict=True))
        fine = curve("each step", x, run.ledger["loss"], notes, color=MUTED, thin=True)
    # A curve alone does not tell whether 0.4 is good; the horizontal line of a constant does.
    charts.append(chart("Loss", [fine, *own], True, levels=levels(run, "loss"), **axis))
    for title, labels in panels.items():
        # A thousand classes would be a thousand lines in eight colours.
        shown = list(labels.items())[:_MOST_CURVES]
        more = f" ({len(shown)} of {len(labels)} classes)" if len(labels) > len(shown) else ""
        lines = [line(name, label, color=COLORS[i]) for i, (label, name) in enumerate(shown)]
        charts.append(chart(title + more, lines, levels=levels(run, title), **axis))
    rates = run.metrics if run.logs.empty else run.logs
    charts.append(
        chart("Learning rate", [line("lr", "learning rate", rates, color=COLORS[2])], **axis)
    )
    wanted = ("epoch", "step", "train/loss", "val/loss", *names, "lr", "seconds")
    columns = [name for name in wanted if name in run.metrics]
    rows = [
        [value if name in ("epoch", "step") else numeral(value) for name, value in row.items()]
        for row in run.metrics[columns].tail(_MOST_ROWS).to_dict("records")
    ]
    table = page.table("Measurements of whole epochs", columns, rows, range(len(columns)))
    return Section(
        "Curves",
        page.together(
            page.part("charts", charts),
            page.part("folded", "The numbers, epoch by epoch", table),
        ),
    )


def read(folder: Path) -> dict[str, Any] | None:
    """What the run in `folder` has kept of its data; None if it kept nothing."""
    path = folder / FACTS
    # A run of before the first step, or with trainer.report=false, has kept nothing.
    return json.loads(path.read_bytes()) if path.exists() else None


def lines_of(sample: Sample) -> list[str]:
    """A sample's caption: what was predicted, the truth if it differs, the loss, and its row."""
    truth, guess, wrong = (sample.get(name) for name in ("truth", "predicted", "wrong"))
    lines = [str(guess or truth)] if guess or truth else []
    # A right prediction has other words than the truth too, such as its probability.
    if guess and truth and guess != truth and wrong is not False:
        lines.append(f"truth: {truth}")
    if sample.get("loss") is not None:
        lines.append(f"loss {sample['loss']:.3g}")
    lines.append(f"row {sample['row']}" + (f", {sample['words']}" if sample["words"] else ""))
    return lines


def settings(run: Run) -> Section:
    """The command, the git state, the machine, the keys that were typed, and the configuration."""
    whole = yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True, width=88)
    manifest, git = run.manifest, run.manifest.get("git") or {}
    # A commit does not give the code of a run whose files differed from it.
    dirty = ", and files differed from it" if git.get("dirty") else ""
    facts = {
        "started": clock(manifest, "started"),
        "started by": manifest.get("command"),
        "folder": run.path,
        "git": f"{git.get('commit')}{dirty}" if git else "not a checkout, or without git",
        "seed": run.config.get("seed"),
    }
    keys = ("device", "gpus", "cpus", "threads", "platform", "python", "penstock")
    machine = {key: manifest.get(key) for key in keys} | manifest.get("packages", {})
    texts = {key: ", ".join(of) if isinstance(of, list) else of for key, of in machine.items()}
    # Of 300 keys, those that somebody typed are what makes this run another than the next.
    pairs = [(key, value) for key, _, value in (word.partition("=") for word in overrides(run))]
    return Section(
        "Settings",
        page.together(
            page.facts(facts),
            page.table("What was typed", ("key", "value"), pairs) if pairs else None,
            page.part("folded", "The whole configuration", page.part("code", whole, "config.yaml")),
            page.part("folded", "Machine and versions", page.facts(texts, short=True)),
        ),
    )


def time_spent(run: Run) -> Section | None:
    """Share of waiting and speed over the epochs (or the logs of one), and the work by stage."""
    # One epoch would be one point, which is no curve; its logs are some.
    x = "epoch" if len(run.metrics) > 1 else "step"
    records, spent = run.metrics if x == "epoch" else run.logs, stages(run)
    waiting, speed = (
        curve(name, column(records, x), column(records, name), (), color=color)
        for name, color in (("wait_share", COLORS[1]), ("samples_per_second", COLORS[0]))
    )
    charts = [
        chart("Share of the time spent waiting for data", [waiting], x_label=x, percent=True),
        chart("Samples per second", [speed], x_label=x),
    ]
    total = sum(spent.values())
    # Stages run in other processes at the same time, so their sum is work and not time.
    rows = [(name, numeral(ms, 3), f"{ms / total:.0%}") for name, ms in spent.items() if total]
    caption = "Work on a sample by stage, on average; workers do it ahead of the training"
    table = page.table(caption, ("stage", "ms a sample", "share"), rows, (1, 2))
    parts = [
        page.part("charts", charts) if len(waiting["x"]) > 1 else None,
        table if rows else None,
    ]
    return Section("Where the time went", page.together(*parts)) if any(parts) else None


def starts(run: Run) -> Section | None:
    """A table of starts, and how many workers died."""
    rows = []
    for session in run.sessions[-_MOST_ROWS:]:
        began, ended, at = moment(session, "started"), moment(session, "ended"), session.get("at")
        rows.append(
            (
                clock(session, "started"),
                # A start without an end was killed, so no process wrote its status.
                session.get("status") or (run.state if session is run.sessions[-1] else "killed"),
                duration((ended - began).total_seconds()) if began and ended else "–",
                session.get("world", 1),
                f"epoch {at[0]}, step {at[1]}" if at else "the beginning",
                session.get("reason") or "–",
            )
        )
    head = ("start", "ended as", "took", "ranks", "from", "reason")
    table = page.table("Every start of the run", head, rows, (2, 3))
    # An epoch without workers may have no such number.
    deaths = int(np.nansum(column(run.metrics, "worker_deaths")))
    lines = [
        f"{duration(seconds_of(run))} of training in finished epochs.",
        f"{counted(deaths, 'worker')} died and were replaced; no batch differs by that."
        if deaths
        else "No worker died.",
    ]
    return (
        Section("Starts and stops", page.together(table, page.part("listed", lines)))
        if rows
        else None
    )


def data(run: Run) -> Section:
    """Rows, fingerprints, the order, and what was left out."""
    splits = (read(run.path) or {}).get("splits", [])
    rows = [(one["name"], one["dataset"], one["rows"], one["fingerprint"]) for one in splits]
    head = ("split", "dataset", "rows", "fingerprint")
    parts = [page.table("Splits", head, rows, [2]) if rows else None]
    # Of 10,000 unreadable files the first ones tell the cause; the page must stay one to open.
    left_out, order = run.left_out, run.manifest.get("order")
    if len(left_out):
        lines = left_out[["split", "index", "path", "cause"]].head(_MOST_ROWS).to_numpy().tolist()
        more = f"; the first {_MOST_ROWS} of quarantine.csv" if len(left_out) > _MOST_ROWS else ""
        caption = f"Left out, as they could not be read: {counted(len(left_out), 'sample')}{more}"
        parts.append(page.table(caption, ("split", "row", "file", "cause"), lines, [1]))
    else:
        parts.append(page.paragraph("No sample was left out by this run."))
    if order:
        # The hash is of rows and positions alone: other pixels in the same order have the same one.
        text = "Runs with the same order hash put the same row numbers into the same batches."
        parts += [page.facts({"order of the samples": order}), page.paragraph(text)]
    return Section("Data", page.together(*parts))


def samples(run: Run) -> Section | None:
    """The first batches, each with the line that makes it again, and predictions."""
    facts = read(run.path)
    if facts is None:
        return None
    # Validation samples look as training ones do, and the shape of tiles depends on it.
    kind, parts = next((batch["kind"] for batch in facts["batches"]), ""), list[Markup]()
    for batch in facts["batches"]:
        epoch, step, count = batch["epoch"], batch["step"], len(batch["samples"])
        parts += [
            page.part("heading", "h3", f"Training batch: epoch {epoch}, step {step}"),
            page.paragraph(f"As the model got them: {count} of its {batch['rows']} rows."),
            _shown(batch["samples"], kind),
            page.command(replay(run, epoch, step), "To make this batch again:"),
        ]
    groups: dict[str, list[Sample]] = {}
    for sample in facts["predictions"]:
        groups.setdefault(sample["group"], []).append(sample)
    if groups:
        parts += [page.part("heading", "h3", "Validation samples"), page.paragraph(_chosen(facts))]
    for group, chosen in groups.items():
        parts += [page.part("heading", "h4", group.capitalize()), _shown(chosen, kind)]
    if examples := facts.get("examples"):
        parts.append(page.table("What the model continues", examples[0], examples[1:]))
    parts += map(page.paragraph, facts["notes"])
    return Section("Samples", page.together(*parts)) if parts else None


def _chosen(facts: dict[str, Any]) -> str:
    """How predictions were chosen, and what the colours of tiles mean."""
    # Classes are in words below a tile; only what is drawn needs its colours explained.
    text = next(filter(None, (_DRAWN[one.get("drawn", "")] for one in facts["predictions"])), "")
    if not (losses := facts["losses"]):
        return f"Evenly spaced samples, because this objective has no per-sample loss.{text}"
    ranks = f", the first of {losses['ranks']} ranks' share" if losses["ranks"] > 1 else ""
    count = f"{losses['samples']:,} samples{ranks}"
    where = f"in the validation of epoch {losses['epoch']}"
    return f"Chosen by their loss among {count}, {where}.{text}"


def _shown(samples: list[Sample], kind: str) -> Markup:
    """Samples as tiles, or as a table where they are words."""
    # Texts side by side are read as a table; tiles without an image are empty boxes.
    if not any("uri" in sample for sample in samples):
        keys = ("row", "words", "truth", "predicted")
        rows = [[*map(one.get, keys), numeral(one.get("loss"), 3)] for one in samples]
        head = ("row", "sample", "truth", "prediction", "loss")
        return page.table("Samples", head, rows, (0, 4), without_empty=True)
    tiles = [
        {
            "uri": sample.get("uri"),
            "lines": lines_of(sample),
            "path": sample.get("path", ""),
            "name": PurePath(sample.get("path", "")).name,
            "wrong": bool(sample.get("wrong")),
            "alt": ", ".join(lines_of(sample)),
        }
        for sample in samples
    ]
    drawn = str(samples[0].get("drawn"))
    return page.part("tiles", tiles, _SHAPES.get(kind) or _SHAPES.get(drawn, "square"))


SECTIONS: tuple[Callable[[Run], Section | None], ...] = (
    curves,
    settings,
    time_spent,
    samples,
    data,
    starts,
)
