"""Numbers, times, addresses and command lines from run folders, which anybody may have written."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any

import yaml

from pipeline.config.composition import Composer
from pipeline.config.own_command import suggested
from pipeline.config.schema import TASK_KEYS
from pipeline.order.skipped import Skipped
from pipeline.runs.record import RunRecord
from pipeline.runs.resumption import why_not

_OF_A_START = ("task", "run_dir", "resume", "resume_despite", "hydra", *TASK_KEYS)


def number(values: Any, name: str) -> float | None:
    """A finite number in what ought to be a mapping."""
    value = values.get(name) if isinstance(values, dict) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) else None


def moment(values: Any, name: str) -> datetime | None:
    """A time in what ought to be a mapping."""
    try:
        found = datetime.fromisoformat(values[name])
    except (KeyError, TypeError, ValueError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def clock(values: Any, name: str) -> str:
    """The same in words, to the second."""
    found = moment(values, name)
    return "–" if found is None else found.strftime("%Y-%m-%d %H:%M:%S %Z")


def duration(seconds: float) -> str:
    """Seconds in the largest units that fit, e.g. 3 h 20 min."""
    if seconds < 99.95:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"


def weighted(run: RunRecord, name: str) -> float | None:
    """The mean of an epoch's value, each epoch weighing as long as it took."""
    pairs = [(number(one, name), number(one, "seconds")) for one in run.epochs]
    known = [(value, seconds) for value, seconds in pairs if value is not None and seconds]
    total = sum(seconds for _, seconds in known)
    return sum(value * seconds for value, seconds in known) / total if total else None


def stages(run: RunRecord) -> dict[str, float]:
    """Milliseconds that a sample takes in each stage, the mean over epochs."""
    names = dict.fromkeys(name for one in run.epochs for name in one if name.startswith("ms/"))
    return {name[3:]: mean for name in names if (mean := weighted(run, name)) is not None}


class Steps:
    """Addresses of a run as numbers of optimizer steps, the axis of its curves."""

    def __init__(self, run: RunRecord) -> None:
        trainer = run.config.get("trainer")
        self.accumulate = int(number(trainer, "accumulate") or 1)
        self._skipped = Skipped()
        with suppress(ValueError, TypeError):  # written by anybody
            for one in run.sessions:
                self._skipped |= Skipped.of(one.get("skipped"))
        self._before = {0: 0} | {one["epoch"] + 1: one["step"] for one in run.epochs}

    def at(self, epoch: int, step: int) -> float | None:
        """Optimizer steps when that batch was through; None if its epoch's start is unknown."""
        before = self._before.get(epoch)
        done = step + 1 - self._skipped.count(epoch, 0, step + 1)
        return None if before is None else before + done / self.accumulate

    def note(self, record: Any) -> str:
        """The address that a line of metrics.jsonl was written after, and its optimizer steps."""
        epoch, steps = record["epoch"], record["step"]
        taken = f"{steps:,} optimizer steps"
        before = self._before.get(epoch)
        if record["event"] == "epoch":
            return f"epoch {epoch}, whole · {taken}"
        if before is None or self.accumulate > 1 or steps <= before or self._skipped:
            return f"epoch {epoch} · {taken}"
        return f"epoch {epoch}, step {steps - before - 1} · {taken}"


def command(run: RunRecord, *words: str, again: bool = False) -> str | None:
    """A command line of this program, for a person to paste.

    Of the folder, only overrides go into it, which name keys that there are and can be parsed:
    nothing that it says it was started by, and no option. `resume=` takes no other ones either.

    Args:
        words: overrides that are made here.
        again: after those that the run was asked for, of other keys.

    Returns:
        None where one of the folder's overrides cannot go into a command.
    """
    keys = {word.partition("=")[0] for word in words}
    given = overrides(run) if again else []
    asked = tuple(word for word in given if word.partition("=")[0].lstrip("+") not in keys)
    return suggested(*asked, *words) if _are_overrides(asked) else None


def replay(run: RunRecord, epoch: int, step: int) -> str | None:
    """The command that makes a batch of the run again; None as for `command`."""
    return command(run, "task=replay", f"epoch={epoch}", f"step={step}", again=True)


@cache
def _are_overrides(words: tuple[str, ...]) -> bool:
    return not any(map(why_not, words)) and not (words and Composer().parse(words)[1])


def overrides(run: RunRecord) -> list[str]:
    """What the run was asked for, without its task and folders; anybody may have written it."""
    words: list[str] = run.manifest.get("overrides", [])
    return [word for word in words if _first_key(word) not in _OF_A_START]


def _first_key(word: str) -> str:
    return re.split(r"[=./@]", word.lstrip("+~"))[0]


def as_yaml(given: Any) -> str:
    """A value as it would stand in a YAML file, on one line."""
    text = yaml.safe_dump(given, default_flow_style=True, allow_unicode=True, width=10**6)
    return str(text).removesuffix("\n").removesuffix("\n...").strip()
