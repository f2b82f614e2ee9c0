"""The head of a run's report: its result, its bottleneck, and what to type next."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup

from penstock import program
from penstock.addons.reports import page
from penstock.addons.reports.figures import numeral
from penstock.addons.reports.values import (
    command,
    duration,
    furthest,
    number,
    replay,
    seconds_of,
    stages,
    weighted,
)
from penstock.config.announcement import name_of
from penstock.loading.stage_timer import WAITS, slower_side
from penstock.runs.record import RunRecord

_ADDRESS = re.compile(r"epoch (\d{1,12}), step (\d{1,12})", re.ASCII)
_STOPPED = {
    "preempted": "It was asked to stop",
    "interrupted": "It was interrupted",
    "failed": "It failed",
    "killed": "Its process was killed, or the machine went down",
    "running": "It is running",
}


def title(run: RunRecord) -> str:
    """The names of the model and the dataset."""
    model, data = (name_of(run.config.get(part)) for part in ("model", "dataset"))
    return f"{model} on {data}"


def lead(run: RunRecord) -> Markup:
    """State, verdict, the most important numbers, and the commands that come next."""
    verdict = Markup('<p class="verdict"><span class="state {0}">{0}</span> {1}</p>').format(
        page.shown(run.state), page.shown(sentence(run))
    )
    lines = [page.command(line, what) for line, what in to_type(run)]
    if run.state == "done" and len(lines) > 1:
        lines[1:] = [page.folded("Other next steps", page.together(*lines[1:]))]
    return page.together(verdict, page.figures(figures(run)), *lines)


def sentence(run: RunRecord) -> str:
    """The verdict in a line, without the state."""
    parts = [_stopped(run), _reached(run), _bound(run)]
    return " ".join(part for part in parts if part) or "It did not get to its first step."


def _stopped(run: RunRecord) -> str:
    if run.state not in _STOPPED:
        return ""
    last = furthest(run)
    how = _STOPPED[run.state]
    where = f", {last['step']:,} optimizer steps and epoch {last['epoch']} into it" if last else ""
    reason = run.sessions[-1].get("reason") if run.sessions else None
    return f"{how}{where}: {reason}." if reason else f"{how}{where}."


def monitored(run: RunRecord) -> tuple[str, float | None, float | None, int | None]:
    """The metric that decides, its best value, that of the best constant, and the epoch."""
    name, record = str(run.manifest.get("monitor") or "loss"), run.manifest.get("best")
    epoch = number(record, "epoch")
    return (
        name,
        number(record, f"val/{name}"),
        number(run.manifest.get("baseline"), name),
        None if epoch is None else int(epoch),
    )


def _reached(run: RunRecord) -> str:
    name, own, constant, epoch = monitored(run)
    if own is None:
        if "monitor" in run.manifest and run.manifest["monitor"] is None:
            return "It had no validation."
        seen = run.epochs.column(f"val/{name}")[run.epochs.finite(f"val/{name}")]
        return f"{name} was {numeral(seen[-1])} when last measured." if len(seen) else ""
    text = f"{name} reached {numeral(own)} in epoch {epoch}"
    if constant is None:
        return f"{text}."
    return f"{text}; the best constant prediction has {numeral(constant)}."


def _bound(run: RunRecord) -> str:
    """The bottleneck, by the rule of `task=profile`, where its records tell."""
    waited, speed = weighted(run, "wait_share"), weighted(run, "samples_per_second")
    if waited is None:
        return ""
    waiting = f"{waited:.0%} of the time went into waiting for data"
    spent, workers = stages(run), _workers(run)
    if waited < WAITS:
        return f"Training is the bottleneck: {waiting}."
    if workers is None or not speed:
        return f"{_capital(waiting)}; task=profile finds what bounds it."
    ranks = number(run.sessions[-1], "world") if run.sessions else None
    work, sample = sum(spent.values()), 1000 * (ranks or 1) / speed  # ms of this rank
    busy = work / sample / workers if workers else 1.0
    side = slower_side(waited, work, (1 - waited) * sample, workers, busy)
    if side == "training":
        return f"Training is the bottleneck: {waiting}."
    if side == "neither":
        return (
            f"{_capital(waiting)}, though workers had work for {busy:.0%} of it: batches came "
            "late at the starts of epochs, or unevenly; task=profile finds why."
        )
    most = max(spent, key=lambda stage: spent[stage], default="")
    mostly = f", most of it for {most}" if most else ""
    return f"Loading is the bottleneck: {waiting}. A sample takes {numeral(work, 3)} ms{mostly}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _workers(run: RunRecord) -> int | None:
    """How many make batches; None where that was found while it ran."""
    loader = run.config.get("loader")
    workers = loader.get("num_workers") if isinstance(loader, dict) else None
    if isinstance(loader, dict) and loader.get("backend") == "main":
        return 0
    return workers if isinstance(workers, int) and not isinstance(workers, bool) else None


def figures(run: RunRecord) -> list[tuple[str, object, object]]:
    """The most important numbers: name, value, and a note or None."""
    numbers: list[tuple[str, object, object]] = []
    name, own, constant, epoch = monitored(run)
    speed, waited = weighted(run, "samples_per_second"), weighted(run, "wait_share")
    if own is not None:
        numbers.append((f"best {name}", numeral(own), f"in epoch {epoch}"))
    if constant and own is not None:
        numbers.append(("best constant", numeral(constant), f"ratio {own / constant:.2f}"))
    numbers += [(f"test {name}", numeral(value), "measured once") for value in _tested(run, name)]
    if run.epochs:
        steps = f"{run.epochs[-1]['step']:,} optimizer steps"
        numbers.append(("epochs", len(run.epochs), steps))
        numbers.append(("training", duration(seconds_of(run)), None))
    if speed is not None:
        numbers.append(("samples per second", f"{speed:,.0f}", None))
    if waited is not None:
        numbers.append(("waiting for data", f"{waited:.0%}", "of the training time"))
    return numbers


def _tested(run: RunRecord, name: str) -> list[float]:
    """What `task=test` has measured, if it has."""
    test: Any = run.manifest.get("test")
    metrics = test.get("metrics") if isinstance(test, dict) else None
    value = metrics.get(name.removeprefix("val/")) if isinstance(metrics, dict) else None
    return [float(value)] if isinstance(value, (int, float)) else []


def to_type(run: RunRecord) -> list[tuple[str, str]]:
    """Commands, each with what it is for."""
    return [(line, what) for line, what in _next(run) if line is not None]


def _next(run: RunRecord) -> list[tuple[str | None, str]]:
    resume = program.override("resume", run.path)
    if run.state in ("preempted", "interrupted", "killed"):
        return [(command(run, resume), "To resume it where it stopped:")]
    if run.state == "failed":
        address = _ADDRESS.search(str(run.sessions[-1].get("reason"))) if run.sessions else None
        lines = [(command(run, resume), "When the cause is mended, to resume it:")]
        if address is not None:
            batch = replay(run, int(address[1]), int(address[2]))
            lines.insert(0, (batch, "To see that batch:"))
        return lines
    if run.state != "done":
        return []
    lines = []
    if (weighted(run, "wait_share") or 0.0) >= WAITS:
        lines.append((command(run, "task=profile", again=True), "To see where the time goes:"))
    *_, epoch = monitored(run)
    if epoch is not None and run.epochs and run.manifest.get("reason") == "max_epochs":
        last = run.epochs[-1]["epoch"]
        if epoch == last:
            more = f"trainer.max_epochs={2 * (last + 1)}"
            lines.append(
                (command(run, resume, more), "It was still getting better. To train longer:")
            )
        elif last - epoch > 2:
            sooner = f"trainer.patience={max(2, (last - epoch) // 2)}"
            lines.append(
                (
                    command(run, sooner, again=True),
                    f"Epoch {epoch} was best. To stop sooner next time:",
                )
            )
    if not lines:
        best = program.override("checkpoint", run.path)
        lines.append(
            (command(run, "task=validate", best, again=True), "To measure its best weights again:")
        )
    return lines
