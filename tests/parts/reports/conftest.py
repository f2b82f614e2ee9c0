"""Run folders of every kind, made once by real runs."""

import os
import signal
import subprocess
import sys
import time

import pytest

from penstock import command
from penstock.runs.run import Run
from tests.support import warm
from tests.support.program import ROOT

SMALL = [
    "dataset.count=60",
    "dataset.size=48",
    "batch.size=8",
    "loader=debug",
    "tracker=none",
    "trainer.pictures=false",
    "trainer.log_every=2",
    "trainer.device=cpu",
    "trainer.progress=none",
]


@pytest.fixture(scope="session")
def runs(tmp_path_factory, faces_root):
    """A folder with a run that is `done`, one that was `resumed`, one that `failed`."""
    top = tmp_path_factory.mktemp("runs")
    data = [f"dataset.root={faces_root}", f"cache_dir={top / 'cache'}", *SMALL]

    def fit(name, *more, code=0):
        assert command.main([*data, f"run_dir={top / name}", *more]) == code

    fit("done", "trainer.max_epochs=3")
    fit("resumed", "trainer.max_epochs=1")
    fit("resumed", f"resume={top / 'resumed'}", "trainer.max_epochs=3")
    fit("failed", "trainer.max_epochs=3", "optimizer.lr=1e25", "scheduler=none", code=1)
    return top


@pytest.fixture(scope="session")
def preempted(tmp_path_factory, faces_root):
    """The folder of a run that a SIGTERM stopped, and what it printed."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    words = [f"dataset.root={faces_root}", *SMALL, "trainer.max_epochs=1000", f"run_dir={folder}"]
    process = warm.start(
        [sys.executable, "run.py", *words],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    until = time.monotonic() + 100
    while not (folder / "metrics.jsonl").exists() or len(Run(folder).metrics) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=600)
    return folder, process.returncode, out, err
