"""`task=test run=RUN`: loss and metrics of the best weights on the test split.

No training reads that split. Its first measurement goes into the run's manifest and report; the
task then shows that one, because what is looked at again and again is a validation split.
"""

from __future__ import annotations

import json
import math
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.addons.predicting.trained import trained
from penstock.config.schema import Config
from penstock.distributed.group import join
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.files.disk import write_atomically
from penstock.runs.manifest import NAME, read_manifest
from penstock.runs.record import RunRecord
from penstock.runs.run_folder import finite
from penstock.tasks import progress
from penstock.tasks.validate import baselines, monitored, print_table
from penstock.terminal import put, say
from penstock.training.runner import validate


def run(config: Config) -> float | None:
    """Measure `config.run` on its test split, once; returns the monitored metric."""
    ready = trained(config)
    assert config.run is not None
    folder = Path(config.run)
    manifest = read_manifest(folder, "run")
    known, best = manifest.get("test"), manifest.get("best")
    known = known if isinstance(known, dict) else {}
    name, _ = monitored(ready.parts.config, ready.objective)
    wanted, data = ready.parts.config.distributed, ready.parts.data
    # A run that went on may have other weights.
    if known.get("best") == best and isinstance(known.get("metrics"), dict):
        say(f"measured once, at {known.get('at')}; a test split is not for choosing among models")
        return _shown({"test": known["metrics"]}, name, known.get("checkpoint"))
    if RunRecord.read(folder, "run").state == "running":
        raise ConfigError(Problem("run", f"{folder} is still training; test it when it has ended"))
    with join(ready.parts.world, wanted.backend, wanted.timeout) as group:
        shows = ready.parts.config.trainer.progress if group.is_first else "none"
        with (
            data.split("test").loader() as loader,
            closing(progress.make(shows, loader, 0)) as display,
        ):
            precision, watching = ready.parts.config.trainer.precision, [display]
            measured = validate(
                ready.model, ready.objective, loader, precision, group, observers=watching
            )
            columns: dict[str, Any] = {"test": measured}
            if ready.parts.config.trainer.baseline:
                split = data.split("test")
                columns |= baselines(data, split, ready.objective, name, loader, group, watching)
        if not group.is_first:
            return measured.get(name)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        kept = {"metrics": measured, "at": at, "checkpoint": str(ready.path), "best": best}
        manifest = finite({**read_manifest(folder, "run"), "test": kept})
        text = json.dumps(manifest, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        write_atomically(folder / NAME, text.encode(errors="backslashreplace"))
        return _shown(columns, name, ready.path)


def _shown(columns: dict[str, Any], name: str, path: object) -> float | None:
    numbers = {
        title: {
            key: math.nan if value is None else float(value)  # as the manifest has NaN
            for key, value in column.items()
            if value is None or _is_number(value)
        }
        for title, column in columns.items()
    }
    print_table(numbers, name)
    put(f"checkpoint   {path}")
    value = numbers["test"].get(name)
    if value is None:
        raise PenstockError(f"trainer.monitor is {name!r}, which the test does not give")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
