"""Runs of an MLflow server or database."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from penstock.addons.trackers.tracker import TrackedRun, Tracker
from penstock.config.identity import leaves

# Read at import. Otherwise MLflow reports its usage, and retries for minutes.
os.environ |= {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
} | os.environ

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

_RUN = "penstock.run"  # the tag by which a resumed run finds itself
_LONGEST = 5000  # characters of a value


class MLflow(Tracker):
    """A run in an experiment of MLflow; the jobs of a sweep share the tag `penstock.sweep`.

    A resumed run continues in the same one, behind the last step that MLflow has: it cannot delete
    points, and steps that are taken again have the same losses.

    Args:
        uri: of the server or database (sqlite:///FILE); None: MLFLOW_TRACKING_URI, or MLflow's own
            default, ./mlflow.db.
        experiment: made where it does not exist.
    """

    def __init__(
        self, run: TrackedRun, uri: str | None = None, experiment: str = "penstock"
    ) -> None:
        self._client = client = MlflowClient(uri)
        with suppress(MlflowException):  # it is there
            client.create_experiment(experiment)
        where = client.get_experiment_by_name(experiment).experiment_id  # type: ignore[union-attr]
        if runs := client.search_runs([where], f"tags.`{_RUN}` = '{run.id}'"):
            self._id = runs[0].info.run_id
            client.update_run(self._id, status="RUNNING")
        else:
            tags = {
                _RUN: run.id,
                "penstock.folder": str(run.folder.absolute()),
                "penstock.command": str(run.manifest.get("command", ""))[:_LONGEST],
                "penstock.sweep": str(run.sweep.absolute()) if run.sweep else "",
                "mlflow.source.git.commit": str((run.manifest.get("git") or {}).get("commit", "")),
                "mlflow.user": os.environ.get("USER", ""),
            }
            self._id = client.create_run(where, run_name=run.name, tags=tags).info.run_id
            params = [Param(_name(key), str(value)[:_LONGEST]) for key, value in leaves(run.config)]
            client.log_batch(self._id, params=params)
        self._last = {
            name: max(point.step for point in client.get_metric_history(self._id, name))
            for name in client.get_run(self._id).data.metrics
        }

    def log(self, metrics: dict[str, float], step: int) -> None:
        now, named = int(time.time() * 1000), {_name(name): metrics[name] for name in metrics}
        new = {name: float(named[name]) for name in named if step > self._last.get(name, -1)}
        self._client.log_batch(self._id, [Metric(*point, now, step) for point in new.items()])

    def file(self, path: Path) -> None:
        self._client.log_artifact(self._id, str(path))

    def close(self, status: str) -> None:
        ending = {"done": "FINISHED", "failed": "FAILED"}.get(status, "KILLED")
        self._client.set_terminated(self._id, ending)


def _name(key: str) -> str:
    """A name as MLflow takes it."""
    return re.sub(r"[^\w.\- :/]", "_", key, flags=re.ASCII)[:250]
