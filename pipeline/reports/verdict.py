"""The head of a run's report: what it reached, what bounded it, and what to type next."""

from __future__ import annotations

import math
import shlex
from typing import Any

from markupsafe import Markup

from pipeline import program
from pipeline.reports import page
from pipeline.runs.record import RunRecord
from pipeline.tuning.verdict import WAITS


def title(run: RunRecord) -> str:
    """The model's and the dataset's names."""
    model, data = (_name(run.config.get(part)) for part in ("model", "dataset"))
    return f"{model} on {data}"


def _name(node: Any) -> str:
    target = node.get("_target_") if isinstance(node, dict) else None
    return str(target or "?").rpartition(".")[2]


def lead(run: RunRecord) -> Markup:
    """State, verdict, the most important numbers, and the command to go on with."""
    line = Markup('<p class="verdict"><span class="state {0}">{0}</span> {1}</p>').format(
        run.state, sentence(run)
    )
    lines = (page.command(words, f"{what}:") for what, words in to_type(run))
    return page.together(line, page.figures(figures(run)), *lines)


def sentence(run: RunRecord) -> str:
    """What the run reached, and what bounded it."""
    return " ".join(filter(None, (_reached(run), _bound(run))))


def number(values: Any, name: str) -> float | None:
    """A finite number in a mapping that somebody else wrote."""
    value = values.get(name) if isinstance(values, dict) else None
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and math.isfinite(value) else None


def weighted(run: RunRecord, name: str) -> float | None:
    """The mean of an epoch's value, each epoch weighing as long as it took."""
    pairs = [(number(one, name), number(one, "seconds")) for one in run.epochs]
    known = [(value, seconds) for value, seconds in pairs if value is not None and seconds]
    total = sum(seconds for _, seconds in known)
    return sum(value * seconds for value, seconds in known) / total if total else None


def command(run: RunRecord, *words: str) -> str:
    """A command line of this program with the options that the run was started with."""
    given, options = _words(str(run.manifest.get("command", ""))), []
    for place, word in enumerate(given[:-1]):
        if word in ("--trust", "--config-dir"):
            options += [word, given[place + 1]]
    return program.text(*options, *words)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return []


def _reached(run: RunRecord) -> str:
    monitor = str(run.manifest.get("monitor", "loss"))
    best = run.manifest.get("best") or next(iter(run.epochs), None)
    own = number(best, f"val/{monitor}")
    if own is None:
        return "Nothing was validated."
    constant = number(run.manifest.get("baseline"), monitor)
    text = f"{monitor} {own:.4g}"
    return (
        text if not constant else f"{text}, {own / constant:.2f} of the baseline's {constant:.4g}."
    )


def _bound(run: RunRecord) -> str:
    waited = weighted(run, "wait_share")
    if waited is None:
        return ""
    if waited < WAITS:
        return f"Training bounded it: it waited for data {waited:.0%} of the time."
    return f"Loading bounded it: it waited for data {waited:.0%} of the time."


def figures(run: RunRecord) -> list[tuple[str, object, object]]:
    """The most important numbers: name, value, and a note or None."""
    found: list[tuple[str, object, object]] = []
    speed, waited = weighted(run, "samples_per_second"), weighted(run, "wait_share")
    if run.epochs:
        found += [("epochs", len(run.epochs), f"{run.epochs[-1]['step']} steps")]
    if speed is not None:
        found += [("samples per second", f"{speed:,.0f}", None)]
    if waited is not None:
        found += [("waiting for data", f"{waited:.0%}", None)]
    return found


def to_type(run: RunRecord) -> list[tuple[str, str]]:
    """What may be done next, and the command line for it."""
    if run.state in ("preempted", "failed", "killed", "interrupted"):
        return [("To resume it", command(run, f"resume={run.path}"))]
    return []
