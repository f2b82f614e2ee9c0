"""No process of a run on one machine listens where another machine could reach it."""

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

import pytest

from penstock.distributed import launch
from penstock.distributed.group import join
from penstock.distributed.meeting import announced
from penstock.distributed.world import from_environment
from tests import listening, warm
from tests.ports import free_port
from tests.program import ROOT

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc")

FIT = (
    "dataset=sequences",
    "dataset.count=100",
    "batch.size=8",
    "trainer.max_epochs=1",
    "trainer.baseline=false",
    "trainer.pictures=false",
    "trainer.checkpoint=null",
    "tracker=none",
    "loader=debug",
    "distributed.nproc=2",
)


def watched(process, seconds=120):
    """Every address at which any process of a run has listened, until it ends."""
    found, until = set(), time.monotonic() + seconds
    while process.poll() is None:
        assert time.monotonic() < until, "the run never ended"
        for pid in listening.tree(process.pid):
            found |= listening.addresses(pid)
        time.sleep(0.02)  # a look at a tree of processes takes as long
    return found


@pytest.mark.stress
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_of_two_ranks_listens_on_loopback_only(strategy, tmp_path):
    command = [
        sys.executable,
        "run.py",
        *FIT,
        f"distributed={strategy}",
        f"run_dir={tmp_path}/run",
        f"dataset.root={tmp_path}/data",
    ]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "eth0"}  # a cluster's profile sets that
    with (tmp_path / "output").open("w+") as output:
        process = warm.start(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
        try:
            found = watched(process)
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        assert process.returncode == 0, output.read()
    assert found  # gloo's own, which shows that listeners are seen
    assert {address for address, _ in found} <= set(listening.LOOPBACK), found


RESTARTED = """
import os, sys
from pathlib import Path
from penstock.distributed.group import join
from penstock.distributed.launch import leave_result
from penstock.distributed.world import from_environment, restarts
from tests import listening
with join(from_environment("cpu"), timeout=60) as group:
    assert group.gather(group.world.rank) == [0, 1]
    seen = group.gather(sorted(a for a, _ in listening.addresses(os.getpid())))
    if restarts() == 0 and group.world.rank == 1:
        os.kill(os.getpid(), 9)
    group.meet()
    if group.is_first:
        leave_result({"restarts": restarts(), "listened": sum(seen, [])})
"""


@pytest.mark.stress
def test_ranks_that_are_started_again_meet_again_and_leave_no_trace(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    before = dict(os.environ)
    found = launch.run([sys.executable, "-c", RESTARTED], 2, max_restarts=1)
    assert found["restarts"] == 1
    assert set(found["listened"]) <= set(listening.LOOPBACK)
    assert found["listened"]
    assert list(tmp_path.iterdir()) == []
    changed = {name for name in os.environ if os.environ.get(name) != before.get(name)}
    assert changed <= {"TORCHELASTIC_SIGNALS_TO_HANDLE"}  # which torch's launcher sets


def test_only_their_user_can_open_the_folder_in_which_ranks_meet():
    with launch._result_file() as result, announced(result.parent):
        assert result.parent.stat().st_mode & 0o777 == 0o700
        assert os.environ["PENSTOCK_MEETING"] == str(result.parent)
    assert "PENSTOCK_MEETING" not in os.environ


def test_a_result_goes_to_the_launcher_if_that_is_ours(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    launch.leave_result({"loss": 0.25})  # nobody wants it
    assert not launch.is_of_ours()
    with launch._result_file() as result:
        assert launch.is_of_ours()
        launch.leave_result({"loss": 0.25})
        assert json.loads(result.read_text()) == {"loss": 0.25}


def alone_with_a_store(port, answers):
    """Rank 0 of 2, until it listens; the other one never comes."""
    os.environ |= {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    rank = os.fork()
    if rank == 0:
        with join(from_environment("cpu"), timeout=60):
            pass
        os._exit(0)
    try:
        until, seen = time.monotonic() + 60, set()
        while f"{port:04X}" not in {number for _, number in seen} and time.monotonic() < until:
            seen = listening.addresses(rank)
            time.sleep(0.01)
        answers.put(seen)
    finally:
        os.kill(rank, 9)
        os.waitpid(rank, 0)


def test_a_rank_that_serves_the_store_listens_at_the_given_address():
    context = multiprocessing.get_context("fork")
    answers, port = context.Queue(), free_port()
    process = context.Process(target=alone_with_a_store, args=(port, answers))
    process.start()
    seen = answers.get(timeout=60)
    process.join(60)
    # gloo may listen as well by the time that the store is seen, on the loopback interface.
    assert {address for address, number in seen if number == f"{port:04X}"} == {"0100007F"}
    assert {address for address, _ in seen} <= set(listening.LOOPBACK), seen
