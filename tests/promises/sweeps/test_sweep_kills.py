"""Sweeps of real fits that are killed, started again, and worked on by several processes."""

import json
import os
import random
import signal
import sys
import time

import pytest

from penstock.addons.sweeps.sweep import MEANS, TABLE, jobs_of
from tests.support import warm
from tests.support.program import ROOT

SMALL = (
    "batch.size=8 trainer.max_epochs=2 trainer.baseline=false trainer.pictures=false "
    "trainer.report=false trainer.progress=none trainer.checkpoint.every_steps=2 "
    "trainer.ledger=true tracker=none dataset.count=40 loader.backend=main cache_dir=cache"
).split()


class Sweep:
    """A sweep, each start of which is a process group of its own."""

    def __init__(self, folder, faces, *words):
        folder.mkdir()
        self.folder, self.log = folder / "sweep", folder / "log"
        self.words = ["-m", *faces, *SMALL, *words, f"hydra.sweep.dir={self.folder}"]

    def start(self):
        """The process of the same command."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with self.log.open("a") as log:
            return warm.start(
                [sys.executable, str(ROOT / "run.py"), *self.words],
                cwd=self.folder.parent,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def whole(self):
        assert self.start().wait(300) == 0, self.log.read_text()

    def steps(self):
        """How many all ledgers have together."""
        return sum(path.read_text().count("\n") for path in self.folder.glob("*/ledger.jsonl"))

    def kill(self, draw):
        """Kill a start with all its processes, while it begins or some steps later; if it lived."""
        process, at = self.start(), self.steps() + draw.choice((0, 1, 4, 9))
        begun = time.monotonic()
        while self.steps() < at and time.monotonic() - begun < 60 and process.poll() is None:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 2 if at == 0 else 0.3))
        alive = process.poll() is None
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            alive = False
        process.wait()
        return alive

    def outcome(self):
        """The tables, and what each job has left of its steps."""
        tables = [(self.folder / name).read_text() for name in (TABLE, MEANS)]
        jobs = list(jobs_of(self.folder))
        assert {job.status for job in jobs} == {"done"}
        return tables, [(job.path / "ledger.jsonl").read_text() for job in jobs]


def killed(sweep, kills, seed):
    """Kill a sweep that often, and start it a last time; how many kills met it alive."""
    draw, done, met = random.Random(seed), {}, 0
    for _ in range(kills):
        met += sweep.kill(draw)
        for job in jobs_of(sweep.folder):
            if job.status == "done":
                text = (job.path / "manifest.json").read_bytes()
                assert done.setdefault(job.name, text) == text, "a job that was done ran again"
    sweep.whole()
    return met


def test_a_sweep_that_is_killed_has_the_table_of_one_that_was_not(faces, tmp_path):
    whole = Sweep(tmp_path / "whole", faces, "seed=1,2")
    whole.whole()
    other = Sweep(tmp_path / "killed", faces, "seed=1,2")
    assert killed(other, 2, "basic") >= 1, "no kill met the sweep alive"
    assert other.outcome() == whole.outcome()


@pytest.mark.thorough
def test_two_processes_share_the_jobs_of_a_sweep(faces, tmp_path):
    sweep = Sweep(tmp_path / "shared", faces, "seed=1,2,3,4")
    codes = [process.wait(300) for process in (sweep.start(), sweep.start())]
    assert codes == [0, 0], sweep.log.read_text()
    jobs = list(jobs_of(sweep.folder))
    assert [job.status for job in jobs] == ["done"] * 4
    sessions = [json.loads((job.path / "manifest.json").read_text())["sessions"] for job in jobs]
    assert [len(one) for one in sessions] == [1] * 4, "each job ran once"
