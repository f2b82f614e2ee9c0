"""Runs of an MLflow server or database."""

from __future__ import annotations

import logging
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.addons.trackers.tracker import Points, TrackedRun, Tracker, require
from penstock.config.identity import leaves

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # MLflow reports its use to its makers
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
}
_LONGEST_NAME, _LONGEST_VALUE = 250, 5000  # characters
_MOST_PARAMS = 100  # a request
_ENDINGS = {"done": "FINISHED", "failed": "FAILED"}  # and KILLED
_RUN = "penstock.run"  # the tag by which a resumed run finds itself


require("mlflow")


class MLflow(Tracker):
    """A run in an experiment of MLflow; the jobs of a sweep share the tag `penstock.sweep`.

    A resumed run continues in the same one. MLflow cannot delete points, so of steps that are taken
    again it has both.

    Args:
        uri: of the server or database (sqlite:///FILE); None: MLFLOW_TRACKING_URI, or MLflow's own
            default, ./mlflow.db.
        experiment: made where it does not exist.
    """

    _client: MlflowClient
    _id: str

    def __init__(
        self,
        folder: str | Path,
        run: TrackedRun,
        uri: str | None = None,
        experiment: str = "penstock",
    ) -> None:
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        import mlflow.tracking

        for library in ("mlflow", "alembic"):
            logging.getLogger(library).setLevel(logging.ERROR)
        self.run, self.experiment = run, experiment
        self.uri = uri or mlflow.tracking.get_tracking_uri()

    def start(self) -> None:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        client: Any = MlflowClient(self.uri)
        with suppress(MlflowException):  # it is there
            client.create_experiment(self.experiment)
        experiment = client.get_experiment_by_name(self.experiment).experiment_id
        found = client.search_runs([experiment], f"tags.`{_RUN}` = '{self.run.id}'")
        if found:
            self._id = found[0].info.run_id
            client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._created(client, experiment)
        self._client = client

    def log(self, metrics: Points, step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        sent = [Metric(_name(name), float(value), now, step) for name, value in metrics.items()]
        self._client.log_batch(self._id, metrics=sent)

    def picture(self, name: str, path: Path, step: int) -> None:
        self._client.log_artifact(self._id, str(path), "pictures")

    def file(self, path: Path) -> None:
        self._client.log_artifact(self._id, str(path))

    def close(self, ending: str = "done") -> None:
        self._client.set_terminated(self._id, _ENDINGS.get(ending, "KILLED"))

    def _created(self, client: MlflowClient, experiment: str) -> str:
        from mlflow.entities import Param

        git = self.run.manifest.get("git") or {}
        tags = {
            _RUN: self.run.id,
            "penstock.folder": str(self.run.folder.absolute()),
            "penstock.command": str(self.run.manifest.get("command", "")),
            "penstock.sweep": str(self.run.sweep.absolute()) if self.run.sweep else "",
            "mlflow.source.git.commit": str(git.get("commit", "")),
            "mlflow.user": os.environ.get("USER", ""),
        }
        tags = {name: value[:_LONGEST_VALUE] for name, value in tags.items() if value}
        made = client.create_run(experiment, run_name=self.run.name, tags=tags).info.run_id
        values = leaves(self.run.config)
        params = [Param(_name(key), str(value)[:_LONGEST_VALUE]) for key, value in values]
        for at in range(0, len(params), _MOST_PARAMS):
            client.log_batch(made, params=params[at : at + _MOST_PARAMS])
        return str(made)


def _name(key: str) -> str:
    """A name as MLflow takes it."""
    return re.sub(r"[^\w.\- :/]", "_", key, flags=re.ASCII)[:_LONGEST_NAME]
