"""What the launcher makes of its ranks, which are small programs that import nothing."""

import logging
import signal
import sys
from types import SimpleNamespace

import pytest

from penstock.distributed import launch, world
from penstock.errors import PREEMPTED

RANK = """
import json, os, sys
rank, start = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def end(code):
    if code < 0:
        os.kill(os.getpid(), -code)
        import time; time.sleep(60)
    sys.exit(code)
"""


def launched(body, processes=2, **options):
    return launch.run([sys.executable, "-I", "-S", "-c", RANK + body], processes, **options)


def test_each_rank_has_its_place_and_rank_0_leaves_the_result(tmp_path):
    handlers = dict(zip(launch._SIGNALS, map(signal.getsignal, launch._SIGNALS), strict=True))
    result = launched(
        f"open({str(tmp_path)!r} + f'/{{rank}}', 'w').write(os.environ['WORLD_SIZE'])\n"
        "if rank == 0: open(os.environ['PENSTOCK_RESULT'], 'w').write(json.dumps({'loss': 0.5}))",
        processes=3,
    )
    assert result == {"loss": 0.5}
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys("012", "3")
    assert {number: signal.getsignal(number) for number in launch._SIGNALS} == handlers
    assert launched("") is None
    talks = logging.getLogger("torch.distributed.elastic.agent.server.api")
    assert not talks.isEnabledFor(logging.WARNING)  # of a signal, which a rank says in our words


@pytest.mark.parametrize(
    ("codes", "message", "code"),
    [
        ((2, 0), "", 2),
        ((3, 0), "", 3),
        ((0, -9), "rank 1 was ended by SIGKILL", 1),
        ((0, -15), "", 1),  # as the launcher itself ends ranks
        ((PREEMPTED, 0), "", PREEMPTED),
    ],
)
def test_the_failure_of_a_rank_is_that_of_the_run(codes, message, code):
    with pytest.raises(launch.RanksError) as caught:
        launched(f"end({codes}[rank])")
    assert (str(caught.value), caught.value.exit_code) == (message, code)


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([75, 1, 3, 2], 2),
        ([75, 1, 3], 3),
        ([75, 1], 1),
        ([75, -15], 75),
        ([-9, 0], 1),
        ([], 1),
    ],
)
def test_the_most_telling_exit_code_wins(codes, code):
    assert launch.exit_code(codes) == code


@pytest.mark.parametrize(
    ("launcher", "parents", "system", "calls"),
    [
        ("7", [7, 7], "linux", [(1, signal.SIGTERM)]),
        ("7", [7, 1], "linux", [(1, signal.SIGTERM), PREEMPTED]),  # it ended in the meantime
        ("7", [8, 8], "linux", []),
        ("7", [7, 7], "darwin", []),
        ("", [7, 7], "linux", []),
    ],
)
def test_a_rank_has_itself_stopped_with_its_launcher(launcher, parents, system, calls, monkeypatch):
    made = []
    monkeypatch.setenv("PENSTOCK_LAUNCHER", launcher)
    monkeypatch.setattr(launch.os, "getppid", lambda: parents.pop(0))
    monkeypatch.setattr(launch.os, "_exit", made.append)
    monkeypatch.setattr(launch.sys, "platform", system)
    library = SimpleNamespace(prctl=lambda *given: made.append(given))
    monkeypatch.setattr(launch.ctypes, "CDLL", lambda name: library)
    launch.end_with_launcher()
    assert made == calls


def test_the_command_of_a_rank():
    assert launch.this_program(["a=1"], "run.py") == [sys.executable, "run.py", "a=1"]
    assert launch.this_program([], None) == [sys.executable, "-m", "penstock.command"]


def test_ranks_are_started_again_as_often_as_they_may_be():
    body = (
        "if start < 2: end(-9 if rank else 0)\n"
        "if rank == 0: open(os.environ['PENSTOCK_RESULT'], 'w').write(str(start))"
    )
    assert launched(body, max_restarts=2) == 2
    with pytest.raises(launch.RanksError, match="rank 1 was ended by SIGKILL"):
        launched(body, max_restarts=1)


def test_what_is_left_of_its_restarts():
    environment = {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RESTART_COUNT": "1"}
    assert world.restarts_left(environment) == 2
    assert world.restarts_left({}) == 0
    assert world.starts_again(environment)
    assert not world.starts_again({"TORCHELASTIC_MAX_RESTARTS": "0"})
