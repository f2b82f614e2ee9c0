"""Sweeps that are killed, started again, extended, and worked on by several processes at once."""

import json
import os
import random
import re
import signal
import sys
import time

import pytest
import torch

from penstock import command
from penstock.addons.sweeps.job_result import read_results
from penstock.runs import checkpoint
from tests.stopping import ended

SMALL = (
    "batch.size=8",
    "trainer.max_epochs=2",
    "trainer.baseline=false",
    "trainer.pictures=false",
    "trainer.progress=none",
    "trainer.checkpoint.every_steps=2",
    "trainer.checkpoint.keep_last=2",
    "trainer.ledger=true",
    "tracker=none",
    "dataset.count=40",
    "loader.backend=main",
    "cache_dir=cache",
)


class Sweep:
    """A sweep of real fits, each start of which is a process of its own."""

    def __init__(self, folder, faces, *words):
        self.folder, self.log = folder / "sweep", folder / "log"
        folder.mkdir(exist_ok=True)
        self.log.touch()
        self.words = ["-m", *faces, *SMALL, *words, f"hydra.sweep.dir={self.folder}"]

    def start(self, *words):
        """Start a process group; its pid."""
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.setsid()
            output = os.open(self.log, os.O_WRONLY | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout = sys.stderr = os.fdopen(output, "w", buffering=1)
            torch.set_num_threads(1)
            code = command.main(list(words) or self.words)
        finally:
            os._exit(code)

    def whole(self, *words):
        codes, _ = ended([self.start(*words)])
        assert codes == [0], self.log.read_text()

    def steps(self):
        """How many all ledgers have together."""
        return sum(path.read_text().count("\n") for path in self.folder.glob("*/ledger.jsonl"))

    def kill(self, pid, steps, later):
        """Kill it with all its processes some moments after that many steps; whether it lived."""
        while self.steps() < steps and not os.waitpid(pid, os.WNOHANG)[0]:
            time.sleep(0.002)
        time.sleep(later)
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:  # it came to its end
            return False
        os.waitpid(pid, 0)
        return True

    def done(self):
        """All that jobs that are done have left, by job."""
        names = [name for name, one in read_results(self.folder) if one.status == "done"]
        files = {name: (self.folder / name).glob("*.json*") for name in names}
        return {
            name: {path.name: path.read_bytes() for path in found} for name, found in files.items()
        }

    def outcome(self):
        """Values, ledgers and weights of all jobs, which are done."""
        found = {}
        for name, one in read_results(self.folder):
            assert one.status == "done", (name, one)
            run = self.folder / name
            weights = checkpoint.find_newest(run).state["model"]
            flat = torch.cat([value.flatten().double() for value in weights.values()])
            found[" ".join(one.overrides)] = (
                one.value,
                one.others,
                (run / "ledger.jsonl").read_text(),
                flat.tolist(),
            )
        return found

    def begun(self):
        """How often each job was begun or resumed."""
        return re.findall(r"^job (\w+) [^:]*: .*\bseed=", self.log.read_text(), re.MULTILINE)


def killed_and_resumed(sweep, kills, seed):
    """Kill a sweep at random moments; how many of the kills met it alive."""
    random_ = random.Random(seed)
    met = 0
    for _ in range(kills):
        before, at = sweep.done(), sweep.steps()
        pid = sweep.start()
        met += sweep.kill(pid, at + random_.randrange(25), random_.random() * 0.2)
        after = sweep.done()
        assert {name: after[name] for name in before} == before, "a job that was done ran again"
    before = sweep.done()
    sweep.whole()
    after = sweep.done()
    assert {name: after[name] for name in before} == before
    return met


@pytest.mark.stress
@pytest.mark.parametrize(
    ("grid", "kills", "seed"),
    [
        (("seed=1,2", "optimizer.lr=0.01,0.003"), 2, 0),
        *(
            pytest.param(
                ("seed=1,2,3,4", "optimizer.lr=0.01,0.003,0.001"), 5, seed, marks=pytest.mark.stress
            )
            for seed in range(4)
        ),
    ],
)
def test_a_sweep_that_is_killed_does_every_job_once(grid, kills, seed, faces, tmp_path):
    whole = Sweep(tmp_path / "whole", faces, *grid)
    whole.whole()
    killed = Sweep(tmp_path / "killed", faces, *grid)
    met = killed_and_resumed(killed, kills, seed)
    assert met >= kills // 2
    assert killed.outcome() == whole.outcome()
    names = sorted(path.name for path in killed.folder.iterdir() if path.is_dir())
    assert names == sorted(path.name for path in whole.folder.iterdir() if path.is_dir())
    # An extended grid runs only what is new.
    killed.log.write_text("")
    jobs = len(killed.done())
    killed.whole(*killed.words, "seed=1,9", "optimizer.lr=0.01")
    fresh = json.loads((killed.folder / "sweep.json").read_text())["jobs"][jobs:]
    assert killed.begun() == [one["folder"] for one in fresh]
    assert all("seed=9" in one["overrides"] for one in fresh)
    assert fresh


@pytest.mark.stress
def test_two_processes_share_the_jobs_of_a_sweep(faces, tmp_path):
    sweep = Sweep(tmp_path / "shared", faces, "seed=1,2,3")
    codes, _ = ended([sweep.start(), sweep.start()])
    assert codes == [0, 0], sweep.log.read_text()
    assert sorted(one for one in sweep.begun()) == list("012")
    assert [one.status for _, one in read_results(sweep.folder)] == ["done"] * 3
