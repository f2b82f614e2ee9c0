"""Where a process stands, for others that wait for it."""

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from penstock.distributed import standing
from penstock.distributed.standing import Described


def test_a_process_gives_its_stacks_to_one_file_for_good():
    before = standing.description().dump
    thread = threading.Thread(target=standing.listen)
    thread.start()
    thread.join()
    assert standing.description().dump == before  # only the main thread can register a signal
    standing.listen()
    dump = standing.description().dump
    assert dump >= 0
    standing.listen()
    assert standing.description().dump == dump


def test_a_thread_for_which_the_main_thread_waits_is_shown():
    done, seen = threading.Event(), []

    def look():
        until = time.monotonic() + 20
        while time.monotonic() < until:
            seen.append(standing.own(["reads"]))
            if threading.__file__ in seen[-1].stack[0]:  # the main thread has come to `join`
                break
        done.set()

    reads = threading.Thread(target=done.wait, name="reads")
    looks = threading.Thread(target=look)
    reads.start()
    looks.start()
    reads.join()
    looks.join()
    stack = seen[-1].stack
    inner = stack[stack.index("in its thread 'reads':") + 1 :]
    assert "in wait" in inner[0]
    assert not seen[-1].waits  # for other ranks


def stuck(ready):
    os.write(ready, b"ready")
    while True:
        time.sleep(0.01)


@pytest.fixture
def other():
    """The description of a child of this process that stands in `stuck`."""
    here, there = os.pipe()
    pid = os.fork()
    if not pid:
        standing._dump = -1
        standing.listen()
        os.write(there, json.dumps(vars(standing.description())).encode() + b"\n")
        stuck(there)
    with os.fdopen(here, "rb") as said:
        described = Described(**json.loads(said.readline()))
        assert said.read(5) == b"ready"
        yield described
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    os.close(there)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_another_process_is_asked_where_it_stands(other):
    assert standing.ask(replace(other, host="elsewhere")) is None
    assert standing.ask(replace(other, began=other.began + 1)) is None
    state = standing.ask(other)
    assert state.how == "does not answer (a library may be holding Python's lock, the GIL)"
    assert re.fullmatch(rf'File "{__file__}", line \d+, in stuck', state.stack[0])
    assert len(state.stack) == 8
    assert not state.waits
    os.kill(other.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, other.pid, os.WSTOPPED)
    assert standing.before_joining(other.pid).how == "has not come; it is stopped (SIGSTOP)"
    assert standing.state_of(other.pid) != "T"  # it was continued
    assert standing.before_joining(other.pid).how == "has not come; it is still on its way"
    os.kill(other.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, other.pid, os.WSTOPPED)
    again = standing.ask(replace(other, main=None))  # of a process that did not tell
    assert again.how == "is stopped (SIGSTOP)"
    assert again.stack[0].endswith("in stuck")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_is_killed_if_it_is_the_one_that_was_described(other):
    for strange in (replace(other, host="elsewhere"), replace(other, began=other.began + 1)):
        standing.kill(strange)
        assert standing.state_of(other.pid) not in "ZX"
    standing.kill(other)
    assert os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT).si_status == signal.SIGKILL
    assert standing.state_of(other.pid) == "Z"
    assert not standing.is_there(other)


@pytest.mark.parametrize(
    ("pid", "began", "state", "there"),
    [
        (2, 5, "S", True),
        (1, 5, "S", False),
        (2, 6, "S", False),
        (2, 5, "Z", False),
        (2, 5, "X", False),
        (2, 5, "", False),
    ],
)
def test_who_is_still_there(pid, began, state, there, monkeypatch):
    monkeypatch.setattr(standing, "_stat", lambda pid: [state, *["0"] * 18, str(began)])
    assert standing.is_there(Described(pid, "here", 5, 6, 7)) == there
    monkeypatch.setattr(standing, "_stat", lambda pid: ["S"] * 19)
    assert standing.began(2) == 0
    assert standing.state_of(2**22 + 1) == "S"
    monkeypatch.undo()
    assert standing.state_of(2**22 + 1) == ""


def test_a_dump_is_read_once_it_is_whole(monkeypatch):
    """It grows with each look, every 0.05 s, and is read when it has not grown any more."""
    now, looks = [0.0], [b"old", b"old", b"old", b"old+a", b"old+ab", b"old+ab", b"never"]
    described = standing.description()

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(standing.os, "kill", lambda *given: None)
    monkeypatch.setattr(standing, "_dumped", lambda described: looks[0])
    fake = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: (sleep(s), looks.pop(0)))
    monkeypatch.setattr(standing, "time", fake)
    assert standing.ask(described).stack == []
    assert looks == [b"old+ab", b"never"]
    now[0], looks[:] = 0.0, [b""] * 60
    standing.ask(described)
    assert 1.5 <= now[0] < 1.6


TORCH = str(Path(torch.__file__).parent)


@pytest.mark.parametrize(
    ("paths", "waits"),
    [
        ([], False),
        (["own.py", f"{TORCH}/distributed/x.py"], False),
        ([f"{TORCH}/distributed/x.py", "own.py"], True),
        ([f"{TORCH}/_ops.py", f"{TORCH}/utils/x.py", f"{TORCH}/distributed/x.py"], True),
        ([f"{TORCH}/autograd/graph.py"], True),
        ([f"{TORCH}/nn/parallel/distributed.py"], True),
        ([f"{TORCH}/nn/modules/linear.py", f"{TORCH}/distributed/x.py"], False),
        ([f"{TORCH}/utils/x.py"], False),
    ],
)
def test_who_waits_for_other_ranks(paths, waits, monkeypatch):
    assert standing.waits(paths) == waits
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not standing.waits(paths)


@pytest.mark.parametrize(
    ("file", "waits"), [(threading.__file__, True), ("/own.py", False), (None, False)]
)
def test_a_main_thread_that_waits_for_a_thread_waits_as_that_one_does(file, waits, monkeypatch):
    inner = [(f"{TORCH}/distributed/x.py", 7, "all_reduce")]
    stacks = iter([[] if file is None else [(file, 1, "wait")] * 9, inner])
    monkeypatch.setattr(standing, "_frames_of", lambda frame: next(stacks))
    state = standing.own([threading.current_thread().name])
    assert state.waits == waits
    assert state.stack[-1] == f'File "{TORCH}/distributed/x.py", line 7, in all_reduce'
    assert len(state.stack) == (2 if file is None else 10)
