"""A trainer that is killed a hundred times ends with the weights of one that was left alone.

Each attempt is a forked process that runs the program's own command line with resume=auto, and is
ended by SIGKILL at a random moment; every fifth one while a checkpoint is being written.
"""

import json
import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from tests import port

pytestmark = pytest.mark.stress
KILLS = int(os.environ.get("PENSTOCK_TEST_KILLS", "100"))
RUN = (
    "dataset=sequences",
    "dataset.count=2000",
    "batch.size=8",
    f"trainer.max_epochs={max(4, KILLS // 5)}",
    "trainer.checkpoint.every_steps=1",
    "trainer.checkpoint.keep_last=2",
    "trainer.ledger=true",
    "trainer.baseline=false",
    "trainer.pictures=false",
    "trainer.report=false",
    "trainer.progress=none",
    "tracker=none",
    "loader.num_workers=2",
    "trainer.log_every=10",
)


def start(folder, log):
    """The program in a process and a session of its own."""
    words = [
        *RUN,
        f"run_dir={folder}",
        f"cache_dir={folder.parent}/cache",
        f"dataset.root={folder.parent}/data",
        "resume=auto",
    ]
    return port.fork(words, log, log, before=os.setsid)


def is_writing(folder):
    found = (folder / "checkpoints").glob(".*") if (folder / "checkpoints").exists() else ()
    return any(True for _ in found)


def killed(child, folder, moment, while_writing):
    """Kill the process after `moment` seconds, or at the write after that; False if it ended."""
    until = time.monotonic() + moment
    while time.monotonic() < until or (
        while_writing and not is_writing(folder) and time.monotonic() < until + 60
    ):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert os.WEXITSTATUS(status) == 0, "the run failed by itself"
            return False
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def alive(session):
    found = subprocess.run(["ps", "-o", "pid=,stat=", "-s", str(session)], capture_output=True)
    return [line for line in found.stdout.decode().splitlines() if " Z" not in line]


def left_in_shared_memory():
    """Files there that no process has mapped: other programs on this machine may use theirs."""
    used = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # the process has ended, or is somebody else's
            used += maps.read_text()
    names = [path.name for path in Path("/dev/shm").iterdir()]
    return {name for name in names if name.startswith(("torch_", "sem.")) and name not in used}


def test_kills(tmp_path):
    torch.set_num_threads(1)
    draw, began = random.Random(0), time.monotonic()
    folder, log = tmp_path / "run", tmp_path / "log"
    shared = left_in_shared_memory()
    whole = start(tmp_path / "whole", log)
    assert os.waitpid(whole, 0)[1] == 0, log.read_text()

    kills = writing = 0
    seen = False
    while True:
        child = start(folder, log)
        targeted = kills % 5 == 4
        moment = draw.uniform(0.05, 1.8) if kills < KILLS else 10_000
        if not killed(child, folder, moment, targeted):
            break
        kills += 1
        writing += is_writing(folder)
        until = time.monotonic() + 60
        while alive(child) and time.monotonic() < until:
            time.sleep(0.02)
        assert alive(child) == [], "processes stay behind"
        if seen or port.has_checkpoint(folder):
            seen = True
            assert port.unreadable(folder) == [], "a checkpoint was not whole"
    print(f"\n{kills} kills, {writing} of them inside a write, {time.monotonic() - began:.0f} s")

    assert kills >= KILLS, f"the run was done after {kills} kills: make it longer"
    first, second = (port.weights_of(tmp_path / name) for name in ("whole", "run"))
    assert torch.equal(first, second)
    ledgers = [(tmp_path / name / "ledger.jsonl").read_text() for name in ("whole", "run")]
    assert ledgers[0] == ledgers[1]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == "done"
    assert [path for path in folder.rglob("*") if path.name.startswith(".")] == []
    assert left_in_shared_memory() <= shared, "shared memory stays behind"
