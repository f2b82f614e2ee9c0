"""Trackers: what they keep of runs, of killed and resumed ones too, and what they cannot harm."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.addons.trackers import tracker
from tests.support import tracked, warm
from tests.support.program import ROOT, run
from tests.support.stopping import DATASET

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
