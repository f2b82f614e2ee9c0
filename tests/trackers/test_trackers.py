"""Trackers: what they keep of runs, of killed and resumed ones too, and what they cannot harm."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from penstock.addons.trackers import tracker
from tests import tracked, warm
from tests.ports import free_port
from tests.program import ROOT, run
from tests.stopping import DATASET

BATCHES = 16  # in an epoch
SAVED, KILLED = (
    20,
    21,
)  # steps: of the checkpoint, and the last one that is measured before the kill
ALL = "tracker=[tensorboard,mlflow,wandb]"


@pytest.fixture
def words(tmp_path, monkeypatch):
    """The command line of a run with three trackers in the folder `run`, without a server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(tracker.END_SECONDS, "done", 300.0)  # a busy machine is no failure
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "conf" / "dataset").mkdir(parents=True)
    (tmp_path / "conf" / "dataset" / "stalling.yaml").write_text(DATASET)
    return [
        "--config-dir",
        f"{tmp_path}/conf",
        "--trust",
        "tests",
        "dataset=stalling",
        "batch.size=4",
        f"dataset.gate={tmp_path}/gate",
        "trainer.max_epochs=3",
        "trainer.log_every=1",
        "trainer.checkpoint.every_steps=5",
        "trainer.progress=none",
        "loader=debug",
        "scheduler=none",
        f"cache_dir={tmp_path}/cache",
        f"run_dir={tmp_path}/run",
        "resume=auto",
    ]


def of(folder):
    return [
        ALL,
        f"tracker.mlflow.uri=file:{folder}/mlruns",
        "tracker.wandb.mode=offline",
        "tracker.tensorboard.flush_seconds=0",
    ]


def kill_when_sent(process, folder):
    """SIGKILL the run when its trackers have what it measured, two steps after a checkpoint."""
    until, metric = time.monotonic() + 300, "metrics/train/loss"
    while time.monotonic() < until:
        assert process.poll() is None, process.communicate()
        sent = [path.read_text() for path in (folder / "mlruns").glob(f"*/*/{metric}")]
        rows = {step for _, step, _ in tracked.wandb(folder / "run")}
        if sent and len(sent[0].splitlines()) == KILLED and max(rows, default=0) == KILLED - 1:
            break
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert time.monotonic() < until


@pytest.mark.stress
def test_a_killed_and_resumed_run_has_every_point(words, tmp_path, capsys):
    (tmp_path / "gate").write_text(
        json.dumps({"place": "train", "row": 0, "after": 4 * KILLED + 4})
    )
    process = warm.start(
        [sys.executable, "run.py", *words, *of(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    kill_when_sent(process, tmp_path)
    (tmp_path / "gate").unlink()
    done = run(capsys, *words, *of(tmp_path))
    assert done.code == 0, done.err
    assert "WARNING" not in done.err
    folder, uri, again = tmp_path / "run", f"file:{tmp_path}/mlruns", range(SAVED + 1, KILLED + 1)
    wanted = tracked.expected(folder)
    assert {step for _, step in wanted} == set(range(1, 3 * BATCHES + 1))
    tracked.check(tracked.tensorboard(folder), wanted, single=True)
    points = tracked.mlflow(folder, uri)
    assert len({(name, step) for name, step, _ in points}) == len(points), "a step stands twice"
    tracked.check(points, wanted, again=again)
    kept = tracked.wandb(folder)
    assert {(name, step) for name, step, _ in kept} == set(wanted)
    check_mlflow(folder, uri)
    check_wandb(folder)


def check_mlflow(folder, uri, epochs=3):
    from mlflow.tracking import MlflowClient

    client, id = MlflowClient(uri), tracked.mlflow_id(folder, uri)
    experiment = client.get_experiment_by_name("penstock")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_id, found.info.status) == (id, "FINISHED")
    assert found.data.params["trainer.max_epochs"] == str(epochs)  # of its first start
    for name in ("manifest.json", "config.yaml"):
        copy = Path(client.download_artifacts(id, name, str(folder.parent)))
        assert copy.read_bytes() == (folder / name).read_bytes()
    assert json.loads((folder.parent / "manifest.json").read_text())["status"] == "done"


def check_wandb(folder):
    starts = [record.run for record in tracked.wandb_records(folder) if record.HasField("run")]
    own = json.loads((folder / "manifest.json").read_text())["sessions"][0]["id"]
    assert {one.run_id for one in starts} == {own}
    config = {one.key: json.loads(one.value_json) for one in starts[0].config.update}
    assert config["trainer"]["max_epochs"] == 3
    (copy,) = folder.glob("tracker/wandb/wandb/*/files/manifest.json")
    assert copy.read_bytes() == (folder / "manifest.json").read_bytes()


@pytest.mark.stress
def test_the_jobs_of_a_sweep_belong_together(words, tmp_path, capsys):
    from mlflow.tracking import MlflowClient

    given = [word for word in words if not word.startswith(("run_dir=", "resume="))]
    quick = ["trainer.max_epochs=1", "trainer.pictures=false", "trainer.baseline=false"]
    done = run(
        capsys, "-m", *given, *quick, *of(tmp_path), "seed=1,2", f"hydra.sweep.dir={tmp_path}/sweep"
    )
    assert done.code == 0, done.err
    assert "WARNING" not in done.err
    client, where = MlflowClient(f"file:{tmp_path}/mlruns"), tmp_path / "sweep"
    found = client.search_runs([client.get_experiment_by_name("penstock").experiment_id])
    jobs = sorted(path.parent for path in where.glob("*/manifest.json"))
    assert len(jobs) == 2
    assert sorted(one.data.tags["penstock.folder"] for one in found) == [*map(str, jobs)]
    assert {one.data.tags["penstock.sweep"] for one in found} == {str(where)}
    for job in jobs:
        tracked.check(tracked.mlflow(job, f"file:{tmp_path}/mlruns"), tracked.expected(job))
        (start,) = [one.run for one in tracked.wandb_records(job) if one.HasField("run")]
        assert start.run_group == f"{tmp_path.name}/sweep"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A real MLflow server on a free port of this machine; its process and address."""
    port, log = free_port(), tmp_path / "server.log"
    monkeypatch.setenv("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    with log.open("w") as file:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "mlflow",
                "server",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                "--workers",
                "1",
                "--backend-store-uri",
                f"sqlite:///{tmp_path}/server.db",
                "--artifacts-destination",
                f"{tmp_path}/artifacts",
            ],
            cwd=tmp_path,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        until, uri = time.monotonic() + 120, f"http://127.0.0.1:{port}"
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{uri}/health", timeout=5):
                break
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        yield process, uri
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.stress
def test_a_real_server_of_mlflow(server, words, tmp_path, capsys, monkeypatch):
    process, uri = server
    own = ["tracker=mlflow", f"tracker.mlflow.uri={uri}"]
    done = run(capsys, *words, *own, "trainer.max_epochs=1")
    assert done.code == 0, done.err
    done = run(capsys, *words, *own)
    assert done.code == 0, done.err
    assert "WARNING" not in done.err
    folder = tmp_path / "run"
    wanted = tracked.expected(folder)
    assert {step for _, step in wanted} == set(range(1, 3 * BATCHES + 1))
    tracked.check(tracked.mlflow(folder, uri), wanted)
    check_mlflow(folder, uri, epochs=1)

    os.killpg(process.pid, signal.SIGKILL)
    monkeypatch.setitem(tracker.END_SECONDS, "done", 20.0)
    began = time.monotonic()
    done = run(capsys, *words, *own, "trainer.max_epochs=5")
    assert done.code == 0, done.err
    assert done.err.count("WARNING") == 1
    assert "WARNING: tracker.mlflow: MlflowException: API request to" in done.err
    assert time.monotonic() - began < 200
