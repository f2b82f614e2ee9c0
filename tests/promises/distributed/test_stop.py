"""Signals, sent to real processes."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from penstock.distributed import stop
from penstock.distributed.stop import SIGNALS, Stop, requested, requests, waiting
from penstock.errors import PREEMPTED
from penstock.training.loop import in_turns
from tests.support.program import ROOT


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_a_wish(number):
    before, said = signal.getsignal(number), []
    with requests("note", said.append):
        assert requested() is None
        signal.raise_signal(number)
        assert requested() == number.name
    assert signal.getsignal(number) == before
    assert requested() is None
    assert said == [f"{number.name}: saving after this step; a second one leaves at once"]


def run(code, first, second=None):
    """Run Python code that prints a line when it is ready for the next signal."""
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        bufsize=0,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for number in filter(None, (first, second)):
        assert child.stdout.readline()  # unbuffered: a buffer would keep more than this line
        child.send_signal(number)
    out, err = child.communicate(timeout=600)
    return child.returncode, out.decode(), err.decode()


BUSY = """
    import sys, time
    from penstock.distributed import stop
    with stop.requests("note", lambda text: print(text, file=sys.stderr, flush=True)):
        print("ready", flush=True)
        while not stop.requested():
            time.sleep(0.01)
        time.sleep({pause})
        print("ready", flush=True)
        time.sleep(60)
"""


def test_a_second_signal_leaves_at_once():
    code, _, err = run(BUSY.format(pause=2.1), signal.SIGTERM, signal.SIGINT)
    assert code == PREEMPTED
    assert err.splitlines()[-1].startswith("SIGINT: leaving at once")


def test_an_echo_is_no_second_signal():
    """`timeout` signals a process and its group; a launcher hands on what all have had already."""
    said = []
    with requests("note", said.append):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert requested() == "SIGINT"
    assert said == ["SIGINT: saving after this step; a second one leaves at once"]


def exit_code(work):
    """How a forked child ends that does that work."""
    pid = os.fork()
    if not pid:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_forked_children_have_the_usual_signals():
    def die():
        os.kill(os.getpid(), signal.SIGTERM)
        return 5

    with requests("note"):
        assert exit_code(die) == -signal.SIGTERM
        usual = all(signal.getsignal(number) == stop._take for number in SIGNALS)
        assert usual
        assert requested() is None


IMPORTS = """
    from penstock.distributed import stop
    with stop.requests("leave"):
        print("ready", flush=True)
        import time
        time.sleep(60)
"""


def test_a_signal_while_modules_are_imported_ends_the_program():
    code, _, err = run(IMPORTS, signal.SIGINT)
    assert code == PREEMPTED
    assert err == "SIGINT: nothing was begun; the same command starts it again\n"


def test_threads_leave_the_signals_to_the_main_thread():
    handlers, found = [signal.getsignal(number) for number in SIGNALS], []

    def work():
        with requests("raise"), waiting():
            found.append([signal.getsignal(number) for number in SIGNALS])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [handlers]


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGTERM, Stop), (signal.SIGINT, KeyboardInterrupt)]
)
def test_an_error_that_an_interrupted_library_raises_is_the_request_to_stop(number, kind):
    def compose():
        try:
            signal.raise_signal(number)
        finally:
            sys.exit(1)  # as Hydra does, when OmegaConf has failed

    with pytest.raises(kind), requests("raise"):
        compose()


def test_a_request_is_that_of_a_job():
    with requests("raise"):
        for _ in range(2):
            with requests("note", len):
                assert requested() is None
                signal.raise_signal(signal.SIGINT)
        assert requested() == "SIGINT"  # of the outer one too, which may take its time to end
    assert requested() is None


def test_data_code_that_catches_every_exception_does_not_keep_a_run():
    def stubborn():
        while True:
            try:
                signal.raise_signal(signal.SIGUSR1)
            except Exception:
                continue

    with requests("note", len):
        with pytest.raises(Stop), waiting():
            stubborn()
        assert requested() == "SIGUSR1"
        with pytest.raises(Stop), waiting():  # also where it was asked before
            pytest.fail("this is not waited for")


def test_each_batch_and_their_end_are_announced():
    turns = []
    assert list(in_turns(iter("ab"), turns.append)) == ["a", "b"]
    assert turns == [False] * 3

    def broken():
        yield "a"
        raise Stop("SIGTERM")

    with pytest.raises(Stop):
        list(in_turns(broken(), turns.append))
    assert turns == [False] * 4 + [True]
