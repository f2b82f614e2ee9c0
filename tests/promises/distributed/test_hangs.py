"""A rank that hangs, or is gone: the others end soon, and one message names it."""

import contextlib
import itertools
import os
import signal
import sys
import time

import pytest
import torch

from penstock.distributed.group import LateError, join
from penstock.distributed.world import World
from tests.support.ports import free_port

TIMEOUT = 12.0  # seconds, in which ranks also have to join; production has 300
SOON = 200.0  # after that; machines are busy


def stop(group):
    os.kill(os.getpid(), signal.SIGSTOP)


def hold_the_lock(group):
    sum(itertools.repeat(0))  # in C, without a moment for another thread


def leave(group):
    os._exit(9)


def run_ranks(size, tmp_path, work, late=None):
    """Exit codes of ranks as a launcher starts them, and what they said.

    Those that still live in the end are killed; their code is None.
    """
    port, pids, codes = free_port(), [], {}
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 2)
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            described = {"WORLD_SIZE": size, "RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in described.items()})
            os.environ["MASTER_ADDR"] = "127.0.0.1"
            code = 1
            try:
                with join(World(rank, size, rank, local_size=size), "gloo", TIMEOUT) as group:
                    work(group)
                code = 0
            except LateError as error:
                if not error.reported:
                    print(f"error: {error}", file=sys.stderr, flush=True)
                code = error.exit_code
            finally:
                os._exit(code)
        pids.append(pid)
    until = time.monotonic() + TIMEOUT + SOON
    try:
        while set(range(size)) - {*codes, late} and time.monotonic() < until:
            for rank, pid in enumerate(pids):
                if rank not in codes:
                    done, status = os.waitpid(pid, os.WNOHANG)
                    if done:
                        codes[rank] = os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
    finally:
        for rank in set(range(size)) - set(codes):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[rank], signal.SIGKILL)
            os.waitpid(pids[rank], 0)
    return [codes.get(rank) for rank in range(size)], (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("hang", "late"),
    [(stop, 1), (leave, 0), pytest.param(hold_the_lock, 1, marks=pytest.mark.stress)],
)
def test_a_rank_that_hangs_is_named(hang, late, tmp_path):
    def work(group):
        group.agree(False)  # all have joined
        if group.world.rank == late:
            hang(group)
        group.sum(torch.ones(1))

    codes, said = run_ranks(3, tmp_path, work, late)
    assert [code for rank, code in enumerate(codes) if rank != late] == [75, 75], said
    errors = [line for line in said.splitlines() if line.startswith("error")]
    assert len(errors) == 1, said
    assert f"for 12 s (distributed.timeout). Gone or late: rank {late}." in said
