"""Runs of an MLflow server or database."""

from __future__ import annotations

import logging
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.addons.trackers.tracker import Points, TrackedRun, Tracker, require
from penstock.config.identity import leaves

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # MLflow reports its use to its makers
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
}
_ODD = re.compile(r"[^\w.\- :/]", re.ASCII)  # in names
_LONGEST_NAME, _LONGEST_VALUE = 250, 5000  # characters
_MOST_PARAMS, _MOST_METRICS = 100, 500  # a request
_ENDINGS = {"done": "FINISHED", "failed": "FAILED"}  # and KILLED
_RUN = "penstock.run"  # the tag by which a resumed run finds itself


require("mlflow")


class MLflow(Tracker):
    """A run in an experiment of MLflow; the jobs of a sweep share the tag `penstock.sweep`.

    A resumed run continues in the same one. MLflow cannot delete points, so of steps that are taken
    again it keeps the first ones. Points that could not be sent are sent with the next ones.

    Args:
        uri: of the server or database (sqlite:///FILE); None: MLFLOW_TRACKING_URI, or MLflow's own
            default, ./mlflow.db.
        experiment: made where it does not exist.
    """

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
        self._client: MlflowClient | None = None
        self._id = ""
        self._seen: set[tuple[str, int]] = set()  # before this session
        self._unsent: list[Metric] = []

    def start(self) -> None:
        from mlflow.tracking import MlflowClient

        client = MlflowClient(self.uri)
        experiment = self._experiment(client)
        found = client.search_runs([experiment], f"tags.`{_RUN}` = '{self.run.id}'")
        if found:
            self._id = found[0].info.run_id
            if not self.run.altered:
                for name in found[0].data.metrics:
                    history = client.get_metric_history(self._id, name)
                    self._seen.update((name, measurement.step) for measurement in history)
            client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._created(client, experiment)
        self._client = client
        for metrics, step in self.run.before:
            self._keep(metrics, step)
        self._send()

    def log(self, metrics: Points, step: int) -> None:
        self._keep(metrics, step)
        self._send()

    def picture(self, name: str, path: Path, step: int) -> None:
        self._open().log_artifact(self._id, str(path), "pictures")

    def file(self, path: Path) -> None:
        self._open().log_artifact(self._id, str(path))

    def close(self, ending: str = "done") -> None:
        self._send()
        self._open().set_terminated(self._id, _ENDINGS.get(ending, "KILLED"))

    def _open(self) -> MlflowClient:
        """The client; connects again where that failed."""
        if self._client is None:
            self.start()
        assert self._client is not None
        return self._client

    def _experiment(self, client: MlflowClient) -> str:
        from mlflow.exceptions import MlflowException

        experiment = client.get_experiment_by_name(self.experiment)
        if experiment is None:
            try:
                return str(client.create_experiment(self.experiment))
            except MlflowException:  # another run was faster
                experiment = client.get_experiment_by_name(self.experiment)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)

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
        made: str = client.create_run(
            experiment,
            run_name=self.run.name,
            tags={name: value[:_LONGEST_VALUE] for name, value in tags.items() if value},
        ).info.run_id
        values = [
            Param(_ODD.sub("_", key)[:_LONGEST_NAME], str(value)[:_LONGEST_VALUE])
            for key, value in leaves(self.run.config)
        ]
        for at in range(0, len(values), _MOST_PARAMS):
            client.log_batch(made, params=values[at : at + _MOST_PARAMS])
        return made

    def _keep(self, metrics: Points, step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        names = {_ODD.sub("_", name)[:_LONGEST_NAME]: value for name, value in metrics.items()}
        self._unsent += [
            Metric(name, float(value), now, step)
            for name, value in names.items()
            if (name, step) not in self._seen
        ]

    def _send(self) -> None:
        client = self._open()
        while self._unsent:
            client.log_batch(self._id, metrics=self._unsent[:_MOST_METRICS])
            self._unsent = self._unsent[_MOST_METRICS:]
