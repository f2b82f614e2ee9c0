"""Numbers, times, addresses and command lines of a run, for people to read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from penstock import program
from penstock.config.hydra import of_run
from penstock.runs.run import Run


def numeral(value: float | None, digits: int = 4) -> str:
    """A number with so many digits at most: 1,300; 0.00105; 2e-08; whole ones up to 10 million;
    "" for None.
    """
    if value is None:
        return ""
    # A loss of 12,345 is read faster than 1.234e+04.
    is_large = 10**digits <= abs(value) < 1e7
    return f"{value:,.0f}" if is_large else f"{value:,.{digits}g}"


def number(values: object, name: str) -> float | None:
    """A finite number of a mapping; None without it."""
    value = values.get(name) if isinstance(values, dict) else None
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)


def moment(values: Mapping[str, Any], name: str) -> datetime | None:
    """A time of a mapping; None without it."""
    if not values.get(name):
        return None
    time = datetime.fromisoformat(values[name])
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def clock(values: Mapping[str, Any], name: str) -> str:
    """The same in words, to the second."""
    time = moment(values, name)
    return "–" if time is None else time.strftime("%Y-%m-%d %H:%M:%S %Z")


def duration(seconds: float) -> str:
    """Seconds in the largest units that fit, e.g. 3 h 20 min."""
    if seconds < 99.95:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"


def counted(count: int, noun: str) -> str:
    """A count with its noun: 1 step, 2 steps."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def column(frame: pd.DataFrame, name: str) -> np.ndarray:
    """A number of each row of a run's metrics or logs; NaN where it was not measured."""
    return frame[name].to_numpy() if name in frame else np.full(len(frame), np.nan)


def finite(frame: pd.DataFrame, name: str) -> np.ndarray:
    """The rows that have a finite number of that name."""
    return np.flatnonzero(np.isfinite(column(frame, name)))


def weighted(run: Run, name: str) -> float | None:
    """The mean of an epoch's value, each epoch weighing as long as it took."""
    values, seconds = column(run.metrics, name), column(run.metrics, "seconds")
    # An epoch that began in its middle is short, and must not weigh as much as a whole one.
    known = np.isfinite(values) & np.isfinite(seconds)
    total = float(seconds[known].sum())
    return float((values[known] * seconds[known]).sum()) / total if total else None


def seconds_of(run: Run) -> float:
    """Of training, in the epochs that have ended."""
    return float(column(run.metrics, "seconds")[finite(run.metrics, "seconds")].sum())


def furthest(run: Run) -> dict[str, Any] | None:
    """Epoch and step of the record of the latest step; None if there is no record."""
    last = [
        {name: int(frame[name].iloc[frame["step"].argmax()]) for name in ("epoch", "step")}
        for frame in (run.logs, run.metrics)
        if len(frame)
    ]
    return max(last, key=lambda record: record["step"], default=None)


def stages(run: Run) -> dict[str, float]:
    """Milliseconds that a sample takes in each stage, the mean over epochs."""
    names = [name for name in run.metrics.columns if name.startswith("ms/")]
    return {name[3:]: mean for name in names if (mean := weighted(run, name)) is not None}


def command(run: Run, *words: str, again: bool = False) -> str:
    """A command line of this program with the overrides `words`.

    Args:
        again: after those that the run was asked for, of other keys.
    """
    # A key that the run was asked for and `words` set anew would stand twice in the line.
    keys = {word.partition("=")[0] for word in words}
    own = [word for word in overrides(run) if word.partition("=")[0].lstrip("+") not in keys]
    return program.text(*(own if again else ()), *words)


def replay(run: Run, epoch: int, step: int) -> str:
    """The command that makes a batch of the run again."""
    return command(run, "task=replay", f"epoch={epoch}", f"step={step}", again=True)


def overrides(run: Run) -> list[str]:
    """What the run was asked for, without its task and folders."""
    return of_run(run.manifest.get("overrides", []))
