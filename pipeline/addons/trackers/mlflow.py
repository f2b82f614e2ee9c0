"""Runs of an MLflow server or database."""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from penstock.addons.trackers import known
from penstock.addons.trackers.tracker import Points, TrackedRun, Tracker
from penstock.config.changes import leaves
from penstock.files.one_writer import one_writer
from penstock.files.own_files import check_own, check_tree

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # MLflow reports its use to its makers
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
}
_ODD = re.compile(r"[^\w.\- :/]", re.ASCII)  # in names
_LONGEST_NAME, _LONGEST_VALUE = 250, 6000  # characters
_MOST_PARAMS, _MOST_METRICS = 100, 500  # a request
_ENDINGS = {"done": "FINISHED", "failed": "FAILED"}  # and KILLED
_TOKEN, _SWEEP = "penstock.token", "penstock.sweep"  # tags


class MLflow(Tracker):
    """A run in an experiment of MLflow; the jobs of a sweep are children of one run.

    A resumed run continues in the same one. MLflow cannot delete points, so of steps that are taken
    again it keeps the first ones. Points that could not be sent are sent with the next ones.

    Args:
        uri: of the server or database (sqlite:///FILE); None: MLFLOW_TRACKING_URI, or MLflow's own
            default, ./mlflow.db.
        experiment: made where it does not exist.
    """

    needs = "mlflow"

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
        self.folder, self.run = Path(folder), run
        self.uri = uri or mlflow.tracking.get_tracking_uri()
        self._is_configured = uri not in (None, "", os.environ.get("MLFLOW_TRACKING_URI"))
        self.experiment = experiment
        self._client: MlflowClient | None = None
        self._id = ""
        self._seen: set[tuple[str, int]] = set()  # before this session
        self._unsent: list[Metric] = []

    def start(self) -> None:
        from mlflow.tracking import MlflowClient

        client = MlflowClient(self.uri)
        self._id = self._resumed(client) or self._created(client)
        self._client = client
        for metrics, step in self.run.before:
            self._keep(metrics, step)
        self._send()

    def log(self, metrics: Points, step: int) -> None:
        self._keep(metrics, step)
        self._send()

    def picture(self, name: str, path: Path, step: int) -> None:
        self._upload(path, "pictures")

    def file(self, path: Path) -> None:
        self._upload(path)

    def close(self, ending: str = "done") -> None:
        self._send()
        self._open().set_terminated(self._id, _ENDINGS.get(ending, "KILLED"))

    def _open(self) -> MlflowClient:
        """The client; connects again where that failed."""
        if self._client is None:
            self.start()
        assert self._client is not None
        return self._client

    def _resumed(self, client: MlflowClient) -> str | None:
        """The run that this one was sent to before, with its token; None if there is none."""
        from mlflow.exceptions import MlflowException

        kept = known.read(self.folder)
        if kept is None:
            return None
        try:
            run = client.get_run(kept["id"])
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None  # it was deleted, or this is another server
        if run.data.tags.get(_TOKEN) != kept.get("token"):
            return None
        folder = self._folder_of_files(str(run.info.artifact_uri), str(kept["id"]))
        if folder is not None and folder.parent.exists():
            check_tree(folder.parent)  # a database and a run folder may come from one stranger
        if not self.run.altered:
            for name in run.data.metrics:
                history = client.get_metric_history(kept["id"], name)
                self._seen.update((name, measurement.step) for measurement in history)
        client.update_run(kept["id"], status="RUNNING")
        return str(kept["id"])

    def _created(self, client: MlflowClient) -> str:
        from mlflow.entities import Param

        token, experiment = secrets.token_hex(8), self._experiment(client)
        git = self.run.manifest.get("git") or {}
        tags = {
            _TOKEN: token,
            "penstock.folder": str(self.run.folder.absolute()),
            "penstock.command": str(self.run.manifest.get("command", "")),
            "mlflow.source.git.commit": str(git.get("commit", "")),
            "mlflow.user": os.environ.get("USER", ""),
        }
        if self.run.sweep is not None:
            tags[_SWEEP] = str(self.run.sweep.absolute())
            tags["mlflow.parentRunId"] = self._parent(client, experiment, self.run.sweep)
        made: str = client.create_run(
            experiment,
            run_name=self.run.name,
            tags={name: value[: _LONGEST_VALUE - 1000] for name, value in tags.items() if value},
        ).info.run_id
        values = [
            Param(_ODD.sub("_", key)[:_LONGEST_NAME], str(value)[:_LONGEST_VALUE])
            for key, value in leaves(self.run.config)
        ]
        for at in range(0, len(values), _MOST_PARAMS):
            client.log_batch(made, params=values[at : at + _MOST_PARAMS])
        known.write(self.folder, made, token)
        return made

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

    def _parent(self, client: MlflowClient, experiment: str, sweep: Path) -> str:
        """The run of the sweep, which its first job makes."""
        where = sweep / "tracker" / "mlflow"
        where.mkdir(parents=True, exist_ok=True)
        with one_writer(where / known.NAME, "makes the sweep's run in MLflow"):
            kept = known.read(where)
            if kept is not None:
                return str(kept["id"])
            token = secrets.token_hex(8)
            tags = {_TOKEN: token, _SWEEP: str(sweep.absolute())}
            name = "/".join(sweep.absolute().parts[-2:])
            made: str = client.create_run(experiment, run_name=name, tags=tags).info.run_id
            client.set_terminated(made)  # it groups its jobs, and does nothing itself
            known.write(where, made, token)
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
        from mlflow.exceptions import MlflowException

        client = self._open()
        while self._unsent:
            try:
                client.log_batch(self._id, metrics=self._unsent[:_MOST_METRICS])
            except MlflowException as error:
                if error.error_code != "INVALID_PARAMETER_VALUE":  # that would fail each time
                    raise
                self._unsent = self._unsent[_MOST_METRICS:]
                raise
            self._unsent = self._unsent[_MOST_METRICS:]

    def _upload(self, path: Path, folder: str | None = None) -> None:
        client = self._open()
        try:
            files = self._folder_of_files(str(client.get_run(self._id).info.artifact_uri), self._id)
        except ValueError as error:
            raise ValueError(f"{error}, so {path.name} is not sent") from None
        if files is not None:
            copy = (files / folder if folder else files) / path.name
            if os.path.lexists(copy):
                check_own(copy)
        client.log_artifact(self._id, str(path), folder)

    def _folder_of_files(self, address: str, run: str) -> Path | None:
        """Where MLflow puts a run's files on this machine; None if they are sent to a server.

        A database says so of each run, and a trigger in it can change what MLflow has written. So
        it is the folder that MLflow makes for a new run, or no files are written.

        Raises:
            ValueError: it is another one, or a store that the configuration alone has named.
        """
        scheme = re.match(r"([A-Za-z][\w+.\-]*):", address)
        if scheme is not None and scheme[1].lower() != "file":
            if scheme[1] == "mlflow-artifacts" or _is_remote(self.uri) or not self._is_configured:
                return None
            raise ValueError(
                f"{self.uri} names a store of {scheme[1]}: for files; name it in "
                "MLFLOW_TRACKING_URI of the environment if that is right"
            )
        if _is_remote(self.uri):
            raise ValueError(
                "the server names a folder of this machine for files (start it with "
                "--artifacts-destination)"
            )
        folder = Path(url2pathname(urlsplit(address).path) if scheme else address).resolve()
        if folder.parts[-2:] != (run, "artifacts"):
            raise ValueError(
                f"{self.uri} names the folder {folder} for files, which is not one "
                "that MLflow makes"
            )
        return folder


def _is_remote(uri: str) -> bool:
    local = re.match(r"https?://(localhost|127\.0\.0\.1|\[::1\])([:/]|$)", uri)
    return uri.startswith("http") and local is None
