"""A rank that hangs, in any way and anywhere: one message names it, and all ranks end soon."""

import contextlib
import itertools
import os
import re
import signal
import socket
import sys
import threading
import time

import pytest
import torch

from pipeline.distributed.group import join
from pipeline.distributed.presence import LateError
from pipeline.distributed.world import World

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
    told = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            **({"PENSTOCK_MEETING": str(tmp_path / "met")} if notes else {})}  # fmt: skip
    begun, pids = time.monotonic(), []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 2)
            sys.stderr = open(2, "w", closefd=False)  # noqa: PTH123, SIM115
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


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("notes", [True, False], ids=["our launcher", "a store of rank 0"])
@pytest.mark.parametrize("kind", HANGS)
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
    assert re.match(rf"error: rank {late} \(process {pids[late]} on {re.escape(os.uname()[1])}\) "
                    rf"{how}.*\. The others have waited for 2 s \(distributed.timeout\)$", first)  # fmt: skip
    assert said.count("error") == 1
    assert "Traceback" not in said
    assert any(line.endswith(frame) for line in rest), said
