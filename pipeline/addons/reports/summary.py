"""What a list of runs shows of each: a few facts, without its configuration and measurements.

Cost: 0.3 ms for a run that has ended; for others also the lines of their epochs. No torch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.files import plain_json
from penstock.files.plain_json import mapping
from penstock.files.regular_file import open_regular
from penstock.runs.manifest import read_manifest
from penstock.runs.record import METRICS, state_of

DAMAGED = "damaged"

_TAIL = 4 << 20  # bytes of metrics.jsonl that are looked at, from its end
_EPOCH = b'"event": "epoch"'


@dataclass(frozen=True)
class RunSummary:
    """A run's folder in a line.

    Attributes:
        state: as `RunRecord.state`, or DAMAGED.
        started: the first time; None if it is not known.
        epochs: that were finished.
        steps: of the optimizer.
        metric: the name of what is monitored.
        best: its best value so far; None without a validation.
        mode: "min" or "max" of it.
        overrides: as on the command line.
        command: all of it.
        problem: why it is damaged; empty if it is not.
    """

    path: Path
    state: str
    started: datetime | None = None
    epochs: int = 0
    steps: int = 0
    metric: str = ""
    best: float | None = None
    mode: str = "min"
    overrides: tuple[str, ...] = ()
    command: str = ""
    problem: str = ""

    @classmethod
    def read(cls, path: Path) -> RunSummary:
        """The run in `path`; never fails, a damaged one says why in `problem`."""
        try:
            manifest = read_manifest(path, "runs")
            return cls(path, state_of(path, manifest), **_facts(path, manifest))
        except ConfigError as error:
            return cls(path, DAMAGED, problem=error.problems[0].message.split(". ")[0])
        except (OSError, ValueError) as error:
            return cls(path, DAMAGED, problem=f"{path / METRICS}: {error}")


def _facts(path: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    metric = str(manifest.get("monitor") or "")
    fingerprint = manifest.get("fingerprint")
    before = fingerprint.get("trainer.mode") if isinstance(fingerprint, dict) else None
    mode = "max" if manifest.get("mode", before) == "max" else "min"
    last, best = (_mapping(manifest.get(name)) for name in ("last", "best"))
    if not last and metric:  # it has not ended
        for last in _epochs(path / METRICS):
            value, best_value = _number(last, f"val/{metric}"), _number(best, f"val/{metric}")
            better = value is not None and (
                best_value is None or (value > best_value if mode == "max" else value < best_value)
            )
            best = last if better else best
    return {
        "started": _time(manifest.get("started")),
        "epochs": _count(last, "epoch", -1) + 1,
        "steps": _count(last, "step", 0),
        "metric": metric,
        "best": _number(best, f"val/{metric}"),
        "mode": mode,
        "overrides": tuple(manifest.get("overrides", ())),
        "command": str(manifest.get("command", "")),
    }


def _epochs(path: Path) -> Iterator[Mapping[str, object]]:
    """The measurements of the last epochs, oldest first; raises OSError, or JsonError."""
    try:
        opened = open_regular(path)
    except FileNotFoundError:
        return
    with opened as file:
        start = max(0, os.fstat(file.fileno()).st_size - _TAIL)
        file.seek(start)
        lines = file.read(_TAIL).split(b"\n")[1 if start else 0 : -1]  # no incomplete one
    for line in lines:
        if _EPOCH in line:
            yield mapping(plain_json.parse(line))


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _number(values: Mapping[str, object], name: str) -> float | None:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _count(values: Mapping[str, object], name: str, otherwise: int) -> int:
    value = _number(values, name)
    return int(value) if value is not None and 0 <= value < 1e15 else otherwise


def _time(text: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone()
    except (TypeError, ValueError, OverflowError, OSError):
        return None
