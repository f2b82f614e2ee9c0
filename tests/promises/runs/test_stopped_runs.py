"""Runs that are stopped by signals and gone on with, as a person or a cluster does it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from penstock.runs import checkpoint
from tests.support import warm
from tests.support.program import ROOT, run

SMALL = (
    "dataset=sequences",
    "dataset.count=240",
    "dataset.longest=12",
    "batch.size=8",
    "trainer.max_epochs=3",
    "trainer.log_every=5",
    "trainer.checkpoint.every_steps=7",
    "trainer.baseline=false",
    "trainer.pictures=false",
    "trainer.report=false",
    "model.hidden=8",
    "tracker=none",
    "trainer.ledger=true",
    "trainer.digest=true",
    "loader.num_workers=1",
    "+transform.train.pause._target_=tests.support.own_parts.Pause",
)
TRUST = {"PENSTOCK_TRUST": "tests"}
PAUSE = {"PENSTOCK_TEST_PAUSE": "0.002"}  # at each sample, so that a signal comes in mid-run


def start(folder, *more, ranks=0, program=("run.py",)):
    """A real process that trains into `folder`."""
    many = (f"distributed.nproc={ranks}", "distributed=ddp") if ranks else ()
    command = [
        sys.executable,
        *program,
        *SMALL,
        *many,
        f"run_dir={folder}",
        f"cache_dir={folder.parent}/cache",
        *more,
    ]
    # A group of its own, so that what a test sends it does not reach the tests.
    return warm.start(
        command,
        cwd=ROOT,
        env=os.environ | TRUST | PAUSE,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def wait_for_steps(folder, count, process, seconds=1500):
    """Wait until the ledger has that many lines."""
    path, until = folder / "ledger.jsonl", time.monotonic() + seconds
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "the run never came that far"
        time.sleep(0.01)


def weights(folder):
    state = checkpoint.find_newest(folder).state["model"]
    return torch.cat([value.flatten().double() for value in state.values()])


def ledger(folder):
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def left_behind(folder):
    """Files of writers that never finished."""
    return [path for path in folder.rglob("*") if path.name.startswith(".") or "tmp" in path.name]


@pytest.fixture(autouse=True)
def trusted(monkeypatch):
    for name, value in TRUST.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    process = start(folder, "loader.num_workers=0")  # the same, whoever loads
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return folder


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(pytest.param(one, marks=pytest.mark.stress) for one in (signal.SIGINT, signal.SIGUSR1)),
    ],
)
def test_a_signal_stops_a_run_that_can_go_on(number, undisturbed, tmp_path, capsys):
    folder = tmp_path / "run"
    process = start(folder)
    wait_for_steps(folder, 30, process)
    os.killpg(process.pid, number)  # as a terminal and a cluster do, to all processes of it
    _, err = process.communicate(timeout=600)
    assert process.returncode == 75, err
    assert f"{number.name}: saving after this step" in err
    assert f"python run.py --trust tests resume={folder}" in err
    assert "Traceback" not in err
    assert json.loads((folder / "manifest.json").read_text())["status"] == "preempted"
    assert 30 <= len(ledger(folder)) < 72
    found = run(capsys, f"resume={folder}", "loader.num_workers=0")
    assert found.code == 0, found.err
    assert f"resuming {folder} at epoch" in found.err
    assert torch.equal(weights(folder), weights(undisturbed))
    assert ledger(folder) == ledger(undisturbed)
    assert left_behind(folder) == []
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == "done"
    assert len(manifest["sessions"]) == 2


def test_another_run_is_refused_by_key_with_both_values(undisturbed, capsys):
    found = run(capsys, f"resume={undisturbed}", "seed=1", "batch.size=16")
    assert found.code == 2
    assert "seed: is 1 here and was 0" in found.err
    assert "batch.size: is 16 here and was 8" in found.err
    assert "resume_despite=[seed]" in found.err


def test_what_cannot_be_resumed_is_explained(tmp_path, capsys):
    missing = run(capsys, *SMALL, f"resume={tmp_path}/nothing")
    assert (missing.code, "neither a run's folder" in missing.err) == (2, True)
    (tmp_path / "empty").mkdir()
    empty = run(capsys, *SMALL, f"resume={tmp_path}/empty")
    assert (empty.code, "neither a run's folder" in empty.err) == (2, True)
    timed = run(capsys, *SMALL, "resume=auto")
    assert (timed.code, "set run_dir=outputs/<name>" in timed.err) == (2, True)


def test_a_stopped_launcher_stops_its_ranks(undisturbed, tmp_path, capsys):
    folder = tmp_path / "run"
    process = start(folder, ranks=2)
    wait_for_steps(folder, 30, process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 75, err
    assert "Traceback" not in err
    assert err.count("python run.py --trust tests resume=") == 1
    # In a world of another size.
    found = run(capsys, f"resume={folder}", "distributed=none", "loader.num_workers=0")
    assert found.code == 0, found.err
    digests = (folder / "digests.jsonl").read_text()
    assert digests == (undisturbed / "digests.jsonl").read_text()
    assert len(digests.splitlines()) == 72
