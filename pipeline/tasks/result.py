"""How one job of a sweep ended: a small JSON file in the job's folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, Problem
from pipeline.files import plain_json
from pipeline.files.disk import write_atomically
from pipeline.files.plain_json import JsonError, mapping
from pipeline.runs.manifest import check_overrides

FILE = "result.json"

_LARGEST = 4 << 20  # bytes of a result


@dataclass(frozen=True)
class Result:
    """How one job of a sweep ended.

    Attributes:
        overrides: of the job, as on a command line.
        status: "done", "failed", "preempted" or "interrupted"; in a table also "not begun".
        metric: what `value` is.
        mode: whether the metric should be "min" or "max".
        value: what the task returned; None if it failed or measures nothing.
        seconds: of wall time.
        error: first line of what went wrong.
        exit_code: that the job would have had as a run of its own.
        started: seconds since 1970.
        others: the other metrics of the validation that `value` is from.
    """

    overrides: list[str]
    status: str
    metric: str | None
    mode: str | None
    value: float | None
    seconds: float
    error: str | None
    exit_code: int
    started: float
    others: dict[str, float] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Put the result into the job's folder."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FILE, (json.dumps(asdict(self), indent=2) + "\n").encode())

    @classmethod
    def read(cls, path: Path) -> Result:
        """The result in a file that `write` made.

        Raises:
            ConfigError: it is damaged.
        """
        try:
            return cls(**_checked(mapping(plain_json.read(path, _LARGEST))))
        except (OSError, JsonError) as error:
            reason = f"{path} is damaged: {error}. Delete it, and its job is run again"
            raise ConfigError(Problem("hydra.sweep.dir", reason)) from error


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """What a result has to hold; raises JsonError."""
    known = {one.name: one for one in fields(Result)}
    odd = sorted(map(str, known.keys() ^ (values.keys() | {"others"})))
    if odd:
        raise JsonError(f"it has too much or too little: {', '.join(odd[:5])[:200]}")
    check_overrides(values["overrides"])
    texts = [values[key] for key in ("metric", "mode", "error")]
    if not isinstance(values["status"], str) or not all(isinstance(v, str | None) for v in texts):
        raise JsonError("its status, metric, mode or error is no text")
    measured = [values["value"], *mapping(values.get("others", {})).values()]
    numbers = [values["seconds"], values["started"], values["exit_code"],
               *(one for one in measured if one is not None)]  # fmt: skip
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in numbers):
        raise JsonError("its value, seconds, started or exit_code is no number")
    return values
