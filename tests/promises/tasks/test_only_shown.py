"""What is only shown never fails a run: a warning, state done, exit code 0, the same weights."""

import json

import pytest
import torch

from penstock.distributed.stop import Preempted, Stop
from penstock.runs import checkpoint
from penstock.runs.only_shown import only_shown
from tests.support.program import run

HOSTILE = [
    "~dataset",
    "+dataset={_target_: tests.support.hostile_shown.Rows}",
    "transform=none",
    "~collate",
    "+collate={_target_: tests.support.hostile_shown.collate}",
    "model={_target_: tests.support.hostile_shown.Net}",
    "objective=regression",
    "objective._target_=tests.support.hostile_shown.Goal",
    "objective.inputs=[rows]",
    "batch.size=4",
    "loader=debug",
    "trainer.max_epochs=2",
    "scheduler=none",
    "trainer.progress=plain",
]
NOTHING = (
    "trainer.pictures=false trainer.report=false trainer.baseline=false trainer.progress=none "
    "tracker=none"
).split()


@pytest.fixture
def folder(tmp_path, monkeypatch, reports):
    monkeypatch.setenv("PENSTOCK_TRUST", "tests")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def warnings_of(done):
    return [line for line in done.err.splitlines() if line.startswith("WARNING: ")]


def finished(folder):
    """The weights of a run that is done, and its checkpoint's metrics."""
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == "done"
    assert manifest["reason"] == "max_epochs"
    assert manifest["best"]["epoch"] == 1
    state = checkpoint.load(folder / "checkpoints" / "best.safetensors")
    return state["model"], state["metrics"]


def test_everything_that_is_shown_fails_and_the_run_does_not(folder, capsys):
    bare = run(capsys, *HOSTILE, *NOTHING, "run_dir=bare")
    assert bare.code == 0, bare.err
    assert not warnings_of(bare)
    done = run(
        capsys, *HOSTILE, "tracker={_target_: tests.support.hostile_shown.Tracker}", "run_dir=run"
    )
    assert done.code == 0, done.err
    for what, why in {
        "the best and the worst samples": "IndexError",
        "the baseline": "RuntimeError: no constant",
        "what else the result is compared with": "OSError: nothing to compare with",
        "the picture of predictions": "AttributeError",
    }.items():
        (line,) = [
            one for one in warnings_of(done) if one.startswith(f"WARNING: {what} is missing")
        ]
        assert f" is missing: {why}" in line
        assert line.endswith(". The run is not affected")
    assert "WARNING: tracker: SystemExit: the tracker fails in log" in done.err
    assert "Traceback" not in done.err
    (weights, metrics), (others, others_metrics) = (
        finished(folder / "run"),
        finished(folder / "bare"),
    )
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert metrics == others_metrics
    again = run(capsys, *HOSTILE, "resume=run", "trainer.report=false")
    assert again.code == 0, again.err
    assert "the picture of predictions is missing" in again.err
    finished(folder / "run")


@pytest.mark.parametrize("stop", [Preempted("asked to"), Stop("SIGTERM"), KeyboardInterrupt()])
def test_what_stops_a_run_comes_through(stop):
    with pytest.raises(type(stop)), only_shown("a picture"):
        raise stop
