"""Numbers, times, addresses and command lines from run folders, which anybody may have written."""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np
import yaml

from penstock.config.composition import Composer
from penstock.config.own_command import of_run, suggested
from penstock.order.skipped import Skipped
from penstock.runs.record import RunRecord
from penstock.runs.resumption import why_not


def number(values: object, name: str) -> float | None:
    """A finite number in what ought to be a mapping."""
    value = values.get(name) if isinstance(values, dict) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) else None


def moment(values: object, name: str) -> datetime | None:
    """A time in what ought to be a mapping."""
    try:
        time = datetime.fromisoformat(values[name] if isinstance(values, dict) else "")
    except (KeyError, TypeError, ValueError):
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def clock(values: object, name: str) -> str:
    """The same in words, to the second."""
    time = moment(values, name)
    return "–" if time is None else time.strftime("%Y-%m-%d %H:%M:%S %Z")


def duration(seconds: float) -> str:
    """Seconds in the largest units that fit, e.g. 3 h 20 min."""
    if seconds < 99.95:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"


def weighted(run: RunRecord, name: str) -> float | None:
    """The mean of an epoch's value, each epoch weighing as long as it took."""
    values, seconds = run.epochs.column(name), run.epochs.column("seconds")
    known = np.isfinite(values) & np.isfinite(seconds)
    with np.errstate(over="ignore"):
        total = float(seconds[known].sum())
        return float((values[known] * seconds[known]).sum()) / total if total else None


def seconds_of(run: RunRecord) -> float:
    """Of training, in the epochs that have ended."""
    with np.errstate(over="ignore"):
        return float(run.epochs.column("seconds")[run.epochs.finite("seconds")].sum())


def furthest(run: RunRecord) -> dict[str, Any] | None:
    """Event, epoch and step of the first record of the latest step; None if there is no record."""
    last = [
        series.address(int(series.column("step").argmax()))
        for series in (run.logs, run.epochs)
        if series
    ]
    return max(last, key=lambda record: record["step"], default=None)


def thinned(values: np.ndarray, most: int) -> np.ndarray:
    """Places of `most` values at most: all, or the lowest and the highest of some at a time."""
    places = np.arange(len(values))
    if len(values) <= most:
        return places
    parts = np.array_split(places, most // 2)
    return np.unique([part[[values[part].argmin(), values[part].argmax()]] for part in parts])


def stages(run: RunRecord) -> dict[str, float]:
    """Milliseconds that a sample takes in each stage, the mean over epochs."""
    names = [name for name in run.epochs.names if name.startswith("ms/")]
    return {name[3:]: mean for name in names if (mean := weighted(run, name)) is not None}


class Steps:
    """Addresses of a run as numbers of optimizer steps, the axis of its curves."""

    def __init__(self, run: RunRecord) -> None:
        trainer = run.config.get("trainer")
        self.accumulate = int(number(trainer, "accumulate") or 1)
        self._skipped = Skipped()
        with suppress(ValueError, TypeError):  # written by anybody
            for session in run.sessions:
                self._skipped |= Skipped.of(session.get("skipped"))
        order = np.argsort(run.epochs.column("epoch"), kind="stable")
        self._epochs = run.epochs.column("epoch")[order]
        self._ends = run.epochs.column("step")[order]

    def _before(self, epoch: int) -> int | None:
        """Optimizer steps before an epoch; None if they are not known."""
        if not 0 <= epoch < 2**63:
            return None
        row = int(np.searchsorted(self._epochs, epoch - 1, side="right")) - 1
        if row >= 0 and self._epochs[row] == epoch - 1:
            return int(self._ends[row])
        return 0 if epoch == 0 else None

    def at(self, epoch: int, step: int) -> float | None:
        """Optimizer steps when that batch was through; None if its epoch's start is unknown."""
        before = self._before(epoch)
        done = step + 1 - self._skipped.count(epoch, 0, step + 1)
        return None if before is None else before + done / self.accumulate

    def note(self, record: Any) -> str:
        """The address that a line of metrics.jsonl was written after, and its optimizer steps."""
        epoch, steps = record["epoch"], record["step"]
        taken = f"{steps:,} optimizer steps"
        before = self._before(epoch)
        if record["event"] == "epoch":
            return f"epoch {epoch}, whole · {taken}"
        if before is None or self.accumulate > 1 or steps <= before or self._skipped:
            return f"epoch {epoch} · {taken}"
        return f"epoch {epoch}, step {steps - before - 1} · {taken}"


def command(run: RunRecord, *words: str, again: bool = False) -> str | None:
    """A command line of this program, for a person to paste.

    Of the folder, only overrides go into it, which name keys that there are and can be parsed:
    nothing that it says it was started by, and no option.

    Args:
        words: overrides that are made here.
        again: after those that the run was asked for, of other keys.

    Returns:
        None where one of the folder's overrides cannot go into a command.
    """
    keys = {word.partition("=")[0] for word in words}
    words_of_run = overrides(run) if again else []
    asked = tuple(word for word in words_of_run if word.partition("=")[0].lstrip("+") not in keys)
    if not _are_overrides(asked):
        return None
    return suggested(*asked, *words)


def replay(run: RunRecord, epoch: int, step: int) -> str | None:
    """The command that makes a batch of the run again; None as for `command`."""
    return command(run, "task=replay", f"epoch={epoch}", f"step={step}", again=True)


@cache
def _are_overrides(words: tuple[str, ...]) -> bool:
    return not any(map(why_not, words)) and not (words and Composer().parse(words)[1])


def overrides(run: RunRecord) -> list[str]:
    """What the run was asked for, without its task and folders; anybody may have written it."""
    return of_run(run.manifest.get("overrides", []))


def as_yaml(value: object) -> str:
    """A value as it would stand in a YAML file, on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
    return str(text).removesuffix("\n").removesuffix("\n...").strip()
