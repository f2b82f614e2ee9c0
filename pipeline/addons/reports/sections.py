"""The sections of a run's report below its curves, each made from the files of its folder."""

from __future__ import annotations

from itertools import pairwise
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml
from markupsafe import Markup

from penstock import program
from penstock.addons.reports import page
from penstock.addons.reports.charts import COLORS, chart
from penstock.addons.reports.curves import curve
from penstock.addons.reports.facts import MADE, Sample, lines_of, read
from penstock.addons.reports.page import Section
from penstock.addons.reports.values import (
    Steps,
    clock,
    column,
    command,
    counted,
    duration,
    moment,
    numeral,
    overrides,
    replay,
    seconds_of,
    stages,
)
from penstock.runs.folder import PACKAGES
from penstock.runs.run import Run

_AGAIN = "outputs/again"
_SHAPES = {"clips": "strips", "signals": "wide-ones", "views": "wide-ones"}
_MOST = 200  # rows of a table
_NAMED = 20  # samples that were left out


def settings(run: Run) -> Section:
    """The command, the git state, the keys that were typed, and the whole configuration, folded."""
    whole = yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True, width=88)
    git = run.manifest.get("git") or {}
    dirty = ", and files differed from it" if git.get("dirty") else ""
    facts = {
        "started": clock(run.manifest, "started"),
        "started by": run.manifest.get("command"),
        "folder": run.path,
        "git": f"{git.get('commit')}{dirty}" if git else "not a checkout, or without git",
        "seed": run.config.get("seed"),
    }
    pairs = [(key, value) for key, _, value in (word.partition("=") for word in overrides(run))]
    return Section(
        "Settings",
        page.together(
            page.facts(facts),
            page.table("What was typed", ("key", "value"), pairs)
            if pairs
            else page.paragraph("Nothing was typed: every key has its default."),
            page.folded("The whole configuration", page.code(whole, "config.yaml")),
        ),
    )


def environment(run: Run) -> Section:
    """Machine and versions, and the lines that make the same run again and compare it."""
    manifest, git = run.manifest, run.manifest.get("git") or {}
    packages = {name: version for name, version in manifest.get("packages", {}).items() if version}
    keys = ("device", "gpus", "cpus", "threads", "platform", "python", "penstock")
    machine = {**{key: _text(manifest.get(key)) for key in keys}, **packages}
    lines = [program.joined(["git", "checkout", git["commit"]])] if git.get("commit") else []
    pinned = [f"{name}=={packages[name]}" for name in PACKAGES if name in packages]
    lines += [program.joined(["python", "-m", "pip", "install", *pinned])] if pinned else []
    lines.append(command(run, program.override("run_dir", _AGAIN), again=True))
    lines.append(command(run, "task=diff", f"runs=[{program.literal(run.path)},{_AGAIN}]"))
    what = "To reproduce the run, and to check that it is the same one:"
    changed = (
        "Files differed from that commit when the run was started; their changes are not kept."
    )
    return Section(
        "Environment, and the same run again",
        page.together(
            page.facts(machine, short=True),
            page.command("\n".join(lines), what),
            page.paragraph(changed) if git.get("dirty") else None,
        ),
    )


def _text(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def time_spent(run: Run) -> Section | None:
    """Share of waiting and speed over the epochs (or the logs of one), and the work by stage."""
    by_epoch = len(run.metrics) > 1
    records = run.metrics if by_epoch or run.logs.empty else run.logs
    if records.empty:
        return None
    steps, x = Steps(run), "epoch" if by_epoch else "step"
    label = "epoch" if by_epoch else "optimizer steps"
    waiting = curve(steps, records, "wait_share", "waiting", COLORS[1], x)
    speed = curve(steps, records, "samples_per_second", "speed", COLORS[0], x)
    charts = [
        chart("Share of the time spent waiting for data", [waiting], x_label=label, percent=True),
        chart("Samples per second", [speed], x_label=label),
    ]
    spent = stages(run)
    total = sum(spent.values())
    rows = [(name, numeral(ms, 3), f"{ms / total:.0%}") for name, ms in spent.items() if total]
    caption = "Work on a sample by stage, on average; workers do it ahead of the training"
    return Section(
        "Where the time went",
        page.together(
            page.charts_of(charts) if len(waiting.x) > 1 else None,
            page.table(caption, ("stage", "ms a sample", "share"), rows, (1, 2)) if rows else None,
        ),
    )


def starts(run: Run) -> Section | None:
    """A table of starts, where the time between them went, and a table of workers' deaths."""
    if not run.sessions:
        return None
    rows, times = [], []
    for session in run.sessions[-_MOST:]:
        began, ended, at = moment(session, "started"), moment(session, "ended"), session.get("at")
        times.append((began, ended))
        is_last = session is run.sessions[-1]
        rows.append(
            (
                clock(session, "started"),
                session.get("status") or (run.state if is_last else "killed"),
                duration((ended - began).total_seconds()) if began and ended else "–",
                session.get("world", 1),
                f"epoch {at[0]}, step {at[1]}" if at else "the beginning",
                session.get("repeated", 0),
                session.get("reason") or "–",
            )
        )
    head = ("start", "ended as", "took", "ranks", "from", "steps repeated", "reason")
    whole = [(ended - began).total_seconds() for began, ended in times if began and ended]
    idle = [
        max((after - before).total_seconds(), 0.0)
        for (_, before), (after, _) in pairwise(times)
        if before and after
    ]
    facts = {
        "in its processes": duration(sum(whole)),
        "training": f"{duration(seconds_of(run))} of finished epochs",
        "between starts": duration(sum(idle)) if idle else None,
    }
    table = page.table("Every start of the run", head, rows, (2, 3, 5))
    return Section("Starts and stops", page.together(table, page.facts(facts), _deaths(run)))


def _deaths(run: Run) -> Markup:
    """Workers that died, by epoch, with the speed of that epoch beside the others'."""
    deaths, speeds = column(run.metrics, "worker_deaths"), column(run.metrics, "samples_per_second")
    died = np.isfinite(deaths) & (deaths != 0)
    if not died.any():
        return page.paragraph("No worker died.")
    others = speeds[~died & np.isfinite(speeds)]
    usual = float(np.median(others)) if len(others) else 0.0
    rows = [
        (
            int(column(run.metrics, "epoch")[row]),
            int(deaths[row]),
            f"{speeds[row]:,.0f}",
            f"{speeds[row] / usual - 1:+.0%}" if usual else "–",
        )
        for row in np.flatnonzero(died)[:_MOST].tolist()
    ]
    return page.table(
        "Workers that died and were replaced; no batch differs by that",
        ("epoch", "deaths", "samples per second", "beside the median epoch without"),
        rows,
        range(4),
    )


class Spike(NamedTuple):
    """A step whose loss stands out; `times` the median of the steps around it."""

    epoch: int
    step: int
    loss: float
    times: float
    samples: int


_AROUND = 25  # steps on each side that a step is compared with
_OUTLYING = 5.0  # deviations from which on a loss is a spike
_MOST_SPIKES = 8


def spikes_of(ledger: pd.DataFrame) -> list[Spike]:
    """The steps whose loss is far above that of the steps around, the farthest first.

    A loss is compared with the median around it, since losses fall; the deviation is the median
    one of all steps, times 1.4826, as that of normal noise.
    """
    loss, width = ledger["loss"].to_numpy(float), 2 * _AROUND + 1
    if len(loss) < width:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(loss, width)[:: max(1, len(loss) // 50_000)]
    usual = np.interp(
        np.arange(len(loss)),
        np.linspace(_AROUND, len(loss) - 1 - _AROUND, len(windows)),
        np.median(windows, axis=1),
    )
    above = loss - usual
    inner = above[_AROUND:-_AROUND]  # at the ends, a falling loss is above or below the median
    deviation = 1.4826 * float(np.median(np.abs(inner - np.median(inner))))
    above[:_AROUND] = 0
    far = np.flatnonzero(np.isfinite(above) & (above > _OUTLYING * max(deviation, 1e-12)))
    far = far[np.argsort(-above[far], kind="stable")][:_MOST_SPIKES]
    epoch, step, samples = (ledger[name].to_numpy() for name in ("epoch", "step", "samples"))
    columns = (epoch, step, loss, loss / usual, samples)
    return [Spike(*(column[i].item() for column in columns)) for i in far]


def spikes(run: Run) -> Section | None:
    """A table of spikes with the commands that make their batches again."""
    if run.ledger is None:
        trainer: Any = run.config.get("trainer") or {}
        text = "No ledger was written; with trainer.ledger=true, steps of unusual loss are here."
        return None if trainer.get("ledger") else Section("Spikes", page.paragraph(text))
    found = spikes_of(run.ledger)
    if not found:
        return None
    rows = [
        (
            f"epoch {spike.epoch}, step {spike.step}",
            numeral(spike.loss),
            f"{spike.times:.2f}",
            spike.samples,
        )
        for spike in found
    ]
    caption = f"Steps whose loss is far above that of the {2 * _AROUND} steps around"
    head = ("address", "loss", "times their median", "samples")
    what = "The first one's batch, made again with its rows:"
    first = page.command(replay(run, found[0].epoch, found[0].step), what)
    return Section("Spikes", page.together(page.table(caption, head, rows, (1, 2, 3)), first))


def data(run: Run) -> Section:
    """Rows, fingerprints, counts of classes, the order, and what was left out."""
    facts, parts = read(run.path) or {}, []
    splits: list[dict[str, Any]] = facts.get("splits", [])
    if splits:
        rows = [
            (
                split["name"],
                split["dataset"],
                "a stream" if split["rows"] is None else f"{split['rows']:,}",
                split["fingerprint"],
            )
            for split in splits
        ]
        head = ["split", "dataset", "rows", f"fingerprint, by {facts['mode']}"]
        parts.append(page.table("Splits", head, rows, numbers=[2]))
    for name in dict.fromkeys(name for split in splits for name in split["counts"]):
        parts.append(_counts(splits, name))
    parts.append(_left_out(run))
    if order := run.manifest.get("order"):
        text = "Runs with the same order hash put the same row numbers into the same batches."
        parts += [page.facts({"order of the samples": order}), page.paragraph(text)]
    return Section("Data", page.together(*parts))


def _counts(splits: list[dict[str, Any]], name: str) -> Markup:
    """How often each value of a column occurs in each split."""
    counts = {split["name"]: split["counts"].get(name, {}) for split in splits}
    values = dict.fromkeys(value for of in counts.values() for value in of)
    totals = {key: sum(of.values()) or 1 for key, of in counts.items()}
    rows = []
    for value in values:
        cells = []
        for key, of in counts.items():
            cells += [f"{of.get(value, 0):,}", f"{of.get(value, 0) / totals[key]:.1%}"]
        rows.append((value, *cells))
    head = ["value", *(text for key in counts for text in (key, "share"))]
    caption = f"How often each {name} occurs"
    table = page.table(caption, head, rows, range(1, len(head)))
    return (
        page.folded(f"{caption}: {counted(len(rows), 'value')}", table) if len(rows) > 20 else table
    )


def _left_out(run: Run) -> Markup:
    if not run.left_out:
        return page.paragraph("No sample was left out by this run.")
    rows = [(row.split, row.index, row.path, row.cause) for row in run.left_out[:_NAMED]]
    more = "" if len(rows) == len(run.left_out) else f"; the first {len(rows)} of quarantine.csv"
    caption = f"Left out, as they could not be read: {counted(len(run.left_out), 'sample')}{more}"
    return page.table(caption, ["split", "row", "file", "cause"], rows, numbers=[1])


def samples(run: Run) -> Section | None:
    """The first batches, each with the line that makes it again, and predictions."""
    facts = read(run.path)
    if facts is None:
        return None
    kind = next((batch["kind"] for batch in facts["batches"]), "")
    parts: list[Markup | None] = []
    for batch in facts["batches"]:
        epoch, step, count = batch["epoch"], batch["step"], len(batch["samples"])
        of = f"{count} of its {batch['rows']}" if count < batch["rows"] else f"its {count}"
        parts += [
            _heading("h3", f"Training batch: epoch {epoch}, step {step}"),
            page.paragraph(f"As the model got it, after augmentation: {of} rows."),
            _shown(batch["samples"], kind),
            page.command(replay(run, epoch, step), "To make this batch again:"),
        ]
    if facts["predictions"]:
        parts += _predictions(facts, kind)
    parts += map(page.paragraph, facts["notes"])
    return Section("Samples", page.together(*parts)) if parts else None


def _predictions(facts: dict[str, Any], kind: str) -> list[Markup]:
    groups: dict[str, list[Sample]] = {}
    for sample in facts["predictions"]:
        groups.setdefault(sample["group"], []).append(sample)
    parts = [] if MADE in groups else [_heading("h3", "Predictions of validation")]
    losses = facts["losses"]
    if losses:
        text = f"Chosen by their loss in the validation of epoch {losses['epoch']}"
        if losses["quantiles"]:
            least, median, high, most = (numeral(value, 3) for value in losses["quantiles"])
            text += (
                f": of {losses['samples']:,} samples, half have a loss below {median}, 95 % "
                f"below {high}; the least is {least}, the largest {most}"
            )
        if losses["ranks"] > 1:
            text += f". They are the first rank's share, of {losses['ranks']} ranks"
        parts.append(page.paragraph(f"{text}."))
    elif MADE not in groups:
        text = "Evenly spaced samples, because this objective has no per-sample loss."
        parts.append(page.paragraph(text))
    if kind in ("pictures", "clips", "signals") and any("uri" in s for s in facts["predictions"]):
        text = "Truth that is drawn is green, and predictions are orange; a true mask is left."
        drawn = any("uri" in s and not s.get("truth") for s in facts["predictions"])
        parts += [page.paragraph(text)] if drawn and MADE not in groups else []
    for group, chosen in groups.items():
        parts += [_heading("h4", group.capitalize()), _shown(chosen, kind)]
    return parts


def _shown(samples: list[Sample], kind: str) -> Markup:
    """Samples as tiles, or as a table where they are words."""
    if not any("uri" in sample for sample in samples):
        keys = ("row", "words", "truth", "predicted", "loss")
        rows = [[sample.get(key) for key in keys] for sample in samples]
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
    return page.part("tiles", tiles, _SHAPES.get(kind, "square"))


def _heading(level: str, text: str) -> Markup:
    return Markup("<{0}>{1}</{0}>").format(Markup(level), page.shown(text))
