"""The head of a run's report: its result, its bottleneck, and what to type next."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from markupsafe import Markup

from penstock import program
from penstock.addons.reports import page
from penstock.addons.reports.values import (
    column,
    command,
    counted,
    duration,
    finite,
    furthest,
    number,
    numeral,
    replay,
    seconds_of,
    stages,
    weighted,
)
from penstock.loading.worker_status import WAITS
from penstock.runs.run import Run

_MUCH, _LITTLE = 0.1, 0.01  # of a loss: a rise that means something, and a fall that does not
_ADDRESS = re.compile(r"epoch (\d{1,12}), step (\d{1,12})", re.ASCII)
_STOPPED = {
    "preempted": "It was asked to stop",
    "interrupted": "It was interrupted",
    "failed": "It failed",
    "killed": "Its process was killed, or the machine went down",
    "running": "It is running",
}


def title(run: Run) -> str:
    """The names of the model and the dataset."""
    model, data = (program.name_of(run.config.get(part)) for part in ("model", "dataset"))
    return f"{model} on {data}"


def lead(run: Run) -> Markup:
    """State, verdict, the most important numbers, and the commands that come next."""
    verdict = Markup('<p class="verdict"><span class="state {0}">{0}</span> {1}</p>').format(
        page.shown(run.state), page.shown(sentence(run))
    )
    lines = [page.command(line, what) for line, what in to_type(run)]
    return page.together(verdict, page.part("figures", figures(run)), *lines)


def sentence(run: Run) -> str:
    """The verdict in a line, without the state."""
    parts = [_stopped(run), result(run), _bound(run)]
    return " ".join(part for part in parts if part) or "It ended before the first step."


def result(run: Run) -> str:
    """The best value beside the baseline's, and what is wrong with the losses."""
    return f"{_reached(run)} {concern(run)}".strip()


def _stopped(run: Run) -> str:
    if run.state not in _STOPPED:
        return ""
    last, start = furthest(run), run.sessions[-1] if run.sessions else {}
    reason = str(start.get("reason") or "")
    where = f" in epoch {last['epoch']}, after {counted(last['step'], 'step')}" if last else ""
    # The records end before the batch that a reason names.
    how = _STOPPED[run.state] + ("" if _ADDRESS.search(reason) else where)
    text = f"{how}: {reason}." if reason else f"{how}."
    return text + _smaller(run) if reason.startswith("the loss is") else text


def monitored(run: Run) -> tuple[str, float | None, float | None, int | None]:
    """The metric that decides, its best value, that of the baseline, and the epoch."""
    name, record = str(run.manifest.get("monitor") or "loss"), run.manifest.get("best")
    epoch = number(record, "epoch")
    return (
        name,
        number(record, f"val/{name}"),
        baseline_of(run, name)[1],
        None if epoch is None else int(epoch),
    )


def _reached(run: Run) -> str:
    name, own, constant, epoch = monitored(run)
    if own is None:
        if "monitor" in run.manifest and run.manifest["monitor"] is None:
            return "It had no validation."
        seen = column(run.metrics, f"val/{name}")[finite(run.metrics, f"val/{name}")]
        if not len(seen):
            return f"{name} was never a number." if len(run.metrics) else ""
        return f"{name} was {numeral(seen[-1])} when last measured."
    text = f"{name} reached {numeral(own)} in epoch {epoch}"
    if constant is None:
        return f"{text}."
    # Whether less or more is better depends on the metric, so the sentence has to say it.
    how = "no better" if own == constant else "better" if is_better(run) else "worse"
    return f"{text}, {how} than {numeral(constant)} ({baseline_of(run, name)[0]})."


def is_better(run: Run) -> bool:
    """Whether the best value is better than the baseline's, as far as there is one."""
    _, own, constant, _ = monitored(run)
    if own is None or constant is None:
        return own is not None
    return own != constant and (own > constant) == (run.manifest.get("mode") == "max")


def levels(run: Run, metric: str) -> dict[str, float]:
    """What a result has to beat, the baseline first: values of a metric by name."""
    every = {
        run.manifest.get("baseline_name") or "a constant prediction": run.manifest.get("baseline"),
        **(run.manifest.get("comparisons") or {}),
    }
    values = ((str(name), number(level, metric)) for name, level in every.items())
    return {name: value for name, value in values if value is not None}


def baseline_of(run: Run, metric: str) -> tuple[str, float | None]:
    """What a metric is compared with first: a name and a value; "" and None without a baseline."""
    return next(iter(levels(run, metric).items()), ("", None))


def concern(run: Run) -> str:
    """What is wrong with the losses, and the likely way out; empty where nothing is."""
    train, val = (column(run.metrics, name) for name in ("train/loss", "val/loss"))
    # One epoch says nothing yet: its training loss is a mean from the first random weights on.
    against, level = baseline_of(run, "loss") if len(train) > 1 else ("", None)
    rate = _smaller(run)
    # A training loss that is not a number ends the run, which says so itself.
    if not len(train) or not np.isfinite(train[-1]):
        return ""
    measured = finite(run.metrics, "val/loss")
    if "val/loss" in run.metrics.columns and not np.isfinite(val[-1]):
        return f"The validation loss was not a number in the last epoch.{rate}"
    best = measured[val[measured].argmin()] if len(measured) else -1
    first, last, least = float(train[0]), float(train[-1]), float(val[best])
    # A GAN has no validation loss, and its training loss may rise while its metric improves, which
    # is best in a later epoch than the first.
    if last > first + _MUCH * abs(first) and (len(measured) or not monitored(run)[3]):
        return f"Training diverged: its loss rose from {numeral(first)} to {numeral(last)}.{rate}"
    # Before the next cases: at chance level, a rising validation loss is noise and no overfitting.
    if level is not None and last >= level and least >= level:
        # A loss that still falls is above the constant's because the run was short.
        return (
            f"Neither the training loss, {numeral(last)}, nor the validation loss, "
            f"{numeral(least)} at best, is better than {numeral(level)} ({against})."
        ) + (
            " More epochs may help: the training loss still fell."
            if last < (1 - _MUCH) * train[(len(train) - 1) // 2]
            else rate
        )
    if len(train) > 2 and np.ptp(train) < _LITTLE * abs(first):
        return f"The training loss stayed at {numeral(last)}: a larger optimizer.lr may help."
    if val[-1] > least + _MUCH * abs(least) and last < train[best]:
        return (
            f"It overfits: after epoch {column(run.metrics, 'epoch')[best]} the "
            f"validation loss rose from {numeral(least)} to {numeral(float(val[-1]))}, and the "
            "training loss fell."
        )
    if level is not None and least > level:
        return (
            f"The validation loss, {numeral(least)} at best, is worse than {numeral(level)} "
            f"({against}).{rate}"
        )
    return ""


def _smaller(run: Run) -> str:
    rate = number(run.config.get("optimizer"), "lr")
    return "" if not rate else f" A smaller learning rate may help: optimizer.lr={rate / 10:g}."


def _bound(run: Run) -> str:
    """What bounds the speed, by the rule of `task=profile`."""
    waited, spent = weighted(run, "wait_share"), stages(run)
    loader: Any = run.config.get("loader") or {}
    if waited is None:
        return ""
    waiting = f"{waited:.0%} of the time went into waiting for data"
    # The same threshold as in task=profile, so that the two never contradict each other.
    if waited < WAITS:
        return f"Training is the bottleneck: {waiting}."
    if loader.get("num_workers") == 0 or loader.get("backend") == "main":
        return f"{waiting}: training makes its own batches. Use workers: loader=fast."
    most = max(spent, key=lambda stage: spent[stage], default="")
    took = f" A sample takes {numeral(sum(spent.values()), 3)} ms; its slowest stage is {most}."
    return f"Loading is the bottleneck: {waiting}.{took if most else ''}"


def figures(run: Run) -> list[tuple[str, object, object]]:
    """The most important numbers: name, value, and a note or None."""
    name, own, constant, epoch = monitored(run)
    speed, waited = weighted(run, "samples_per_second"), weighted(run, "wait_share")
    tested = number((run.manifest.get("test") or {}).get("metrics"), name)
    steps = int(run.metrics["step"].iloc[-1]) if len(run.metrics) else 0
    numbers = [
        (f"best {name}", numeral(own), f"in epoch {epoch}"),
        (baseline_of(run, name)[0], "" if own is None else numeral(constant), f"{name} to beat"),
        # The test split is read once, at the end, so that no choice can have been made by it.
        (f"test {name}", numeral(tested), "measured once"),
        ("epochs", len(run.metrics) or "", counted(steps, "step")),
        ("training", duration(seconds_of(run)) if steps else "", None),
        ("samples per second", "" if speed is None else f"{speed:,.0f}", None),
        ("waiting for data", "" if waited is None else f"{waited:.0%}", "of the training time"),
    ]
    return [row for row in numbers if row[1]]


def to_type(run: Run) -> list[tuple[str, str]]:
    """Commands, each with what it is for."""
    resume = program.override("resume", run.path)
    if run.state in ("preempted", "interrupted", "killed"):
        return [(command(run, resume), "To resume it where it stopped:")]
    if run.state == "failed":
        # Errors of the loop name the batch in their text, which the manifest keeps.
        address = _ADDRESS.search(str(run.sessions[-1].get("reason"))) if run.sessions else None
        lines = [(command(run, resume), "After the cause is fixed, to resume it:")]
        if address is not None:
            batch = replay(run, int(address[1]), int(address[2]))
            lines.insert(0, (batch, "To see that batch:"))
        return lines
    if run.state != "done":
        return []
    lines = []
    if (weighted(run, "wait_share") or 0.0) >= WAITS:
        lines.append((command(run, "task=profile", again=True), "To see where the time goes:"))
    ended = run.manifest.get("reason") == "max_epochs"
    # A rising metric beside a loss that goes wrong, or one at chance, is not worth more epochs.
    if ended and _improves(run) and is_better(run) and not concern(run):
        more = command(run, resume, f"trainer.max_epochs={2 * len(run.metrics)}")
        lines.append((more, "It was still getting better. To train longer:"))
    if not lines and monitored(run)[1] is not None:
        words = "task=validate", program.override("checkpoint", run.path)
        lines.append((command(run, *words, again=True), "To measure its best weights again:"))
    return lines


def _improves(run: Run) -> bool:
    """Whether the last epochs were the best: three in a row, or all of two."""
    name = f"val/{monitored(run)[0]}"
    # One epoch more is no trend: after one, the last is always the best.
    values = column(run.metrics, name)[finite(run.metrics, name)][-3:]
    steps = np.diff(values) if run.manifest.get("mode") == "max" else -np.diff(values)
    return len(steps) > 0 and bool((steps > 0).all())
