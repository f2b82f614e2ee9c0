"""A rank that hangs, in any way and anywhere: one message names it, and all ranks end soon."""

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import torch

from penstock.distributed import presence, standing
from penstock.distributed.group import join
from penstock.distributed.presence import LateError, Presence
from penstock.distributed.world import World

TIMEOUT = 2.0  # seconds; production has 300
SOON = 28.0  # after that; machines are busy


def stop(group):
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)


def spin(group):
    while True:
        pass


def hold_the_lock(group):
    sum(itertools.repeat(0))  # in C, without a moment for another thread


def deadlock(group):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def wait_elsewhere(group):
    group.gather("nobody else does")


HANGS = {
    "stopped": (stop, r"is stopped \(SIGSTOP\)", "in stop"),
    "spinning": (spin, "lives, but does not come", "in spin"),
    "holding the GIL": (hold_the_lock, "does not answer", "in hold_the_lock"),
    "deadlocked": (deadlock, "lives, but does not come", "in deadlock"),
}


def run_ranks(size, tmp_path, work, notes):
    """Ranks as a launcher starts them; exit codes, what they said, and seconds until the last end.

    Args:
        notes: they meet in a folder, as with our launcher; otherwise rank 0 serves a store.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "met").mkdir(mode=0o700)
    told = {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **({"PENSTOCK_MEETING": str(tmp_path / "met")} if notes else {}),
    }
    begun, pids = time.monotonic(), []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 2)
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            os.environ.update(told, RANK=str(rank), LOCAL_RANK=str(rank))
            code = 1
            with contextlib.suppress(LateError):
                try:
                    with join(World(rank, size, rank, local_size=size), "gloo", TIMEOUT) as group:
                        group.meet()
                        work(group)
                    code = 0
                except LateError as error:
                    code = error.exit_code
            os._exit(code)
        pids.append(pid)
    codes = {}
    try:
        while len(codes) < size and time.monotonic() - begun < TIMEOUT + SOON:
            for rank, pid in enumerate(pids):
                if rank not in codes:
                    done, status = os.waitpid(pid, os.WNOHANG)
                    if done:
                        codes[rank] = os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
    finally:
        for rank in set(range(size)) - set(codes):
            os.kill(pids[rank], signal.SIGKILL)
            os.waitpid(pids[rank], 0)
    return codes, pids, (tmp_path / "log").read_text(), time.monotonic() - begun


QUICK = {("stopped", True, 1), ("holding the GIL", False, 0)}
CASES = [
    pytest.param(*case, marks=[] if case in QUICK else pytest.mark.stress)
    for case in itertools.product(HANGS, (True, False), (0, 1))
]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("kind", "notes", "late"), CASES)
def test_a_rank_that_hangs_is_named_and_ended(kind, notes, late, tmp_path):
    hang, how, frame = HANGS[kind]

    def work(group):
        if group.world.rank == late:
            hang(group)
        group.sum(torch.ones(1))

    codes, pids, said, seconds = run_ranks(3, tmp_path, work, notes)
    print(f"{seconds:.1f} s, {codes}\n{said}")
    assert set(codes.values()) <= {75, -signal.SIGKILL}, said
    assert [codes.get(rank) for rank in range(3) if rank != late] == [75, 75]
    first, *rest = said.splitlines()
    who = rf"error: rank {late} \(process {pids[late]} on {re.escape(os.uname()[1])}\) {how}"
    assert re.match(rf"{who}.*\. The others have waited for 2 s \(distributed.timeout\)$", first)
    assert said.count("error") == 1
    assert "Traceback" not in said
    assert any(line.endswith(frame) for line in rest), said


@pytest.mark.parametrize("notes", [True, False])
def test_a_rank_that_fails_ends_the_others_wherever_they_wait(notes, tmp_path):
    def work(group):
        with contextlib.suppress(ValueError), group.ends_with_others():
            if group.world.rank == 1:
                raise ValueError("of this rank")
            time.sleep(60)

    codes, _, said, _ = run_ranks(3, tmp_path, work, notes)
    assert codes == {0: 69, 1: 0, 2: 69}, said
    ends = "rank {}: ends, as another rank is gone"
    assert sorted(said.splitlines()) == [ends.format(0), ends.format(2)]


def test_a_silent_rank_that_came_is_told_from_one_that_never_did(monkeypatch, capsys):
    """Rank 0 decides. Nobody can ask rank 1, of another machine, and rank 2 is not there."""
    monkeypatch.setattr(presence, "_ANSWERS", 0.0)
    store = torch.distributed.HashStore()
    here = Presence(World(0, 3, 0, local_size=1), TIMEOUT)
    here._store = store
    store.set("at-0", json.dumps({"stack": [], "waits": True, "asked": {}}))
    there = vars(standing.description()) | {"host": "elsewhere", "pid": 7}
    store.set("rank-1", json.dumps(there))
    here._decide()
    verdict = json.loads(store.get("end"))
    assert verdict["late"] == [1, 2]
    assert verdict["text"].startswith(
        "rank 1 (process 7 on elsewhere) gives no sign of life; rank 2 has not come. The others"
    )
    assert capsys.readouterr().err == f"error: {verdict['text']}\n"


def test_a_stopped_server_of_the_store_continues_and_is_noted_as_rank_0(monkeypatch):
    server = subprocess.Popen(["sleep", "60"])
    try:
        server.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, server.pid, os.WSTOPPED)
        monkeypatch.setattr(standing, "sibling", {0: server.pid}.get)
        here = Presence(World(1, 2, 1, local_size=2), TIMEOUT)
        here._served = True
        here._ask_server()
        assert {rank: state.how for rank, state in here._asked.items()} == {
            0: "has not come; it is stopped (SIGSTOP)"
        }
        assert standing.state_of(server.pid) != "T"
    finally:
        server.kill()
        server.wait()


@pytest.mark.stress
@pytest.mark.parametrize("notes", [True, False])
def test_ranks_in_two_places_are_both_shown(notes, tmp_path):
    def work(group):
        if group.world.rank == 1:
            wait_elsewhere(group)
        group.sum(torch.ones(1))

    codes, _, said, _ = run_ranks(2, tmp_path, work, notes)
    assert set(codes.values()) == {75}, said
    assert said.startswith("error: the ranks wait for each other, and not at the same place, for 2")
    assert "in wait_elsewhere" in said
    assert "in work" in said
    assert said.count("error") == 1
    assert "Traceback" not in said


@pytest.mark.stress
@pytest.mark.parametrize("notes", [True, False])
def test_a_rank_that_never_comes_is_named(notes, tmp_path, monkeypatch):
    class Late(World):
        """Comes when the others have given up."""

        def __init__(self, rank, *more, **named):
            super().__init__(rank, *more, **named)
            if rank == 1:
                time.sleep(60)

    monkeypatch.setattr("tests.distributed.test_hangs.World", Late)
    codes, _, said, seconds = run_ranks(2, tmp_path, lambda group: None, notes)
    print(codes, said, seconds)
    said = re.sub(r"(?m)^\[W.*\n", "", said)  # ranks of the program turn these off
    assert codes[0] == 75, said
    assert said.startswith("error: rank 1 has not come. The others have waited for 2 s")
    assert "Traceback" not in said
