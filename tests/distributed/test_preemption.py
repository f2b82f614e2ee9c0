"""Signals, sent to real processes."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from penstock.distributed import preemption
from penstock.distributed.preemption import SIGNALS, Preemption, Stop
from penstock.errors import PREEMPTED
from tests.program import ROOT


def wait_for(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    return condition()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_a_wish(number):
    before = signal.getsignal(number)
    said = []
    with Preemption(say=said.append) as preemption:
        assert preemption.asked is None
        os.kill(os.getpid(), number)
        assert wait_for(lambda: preemption.asked)
        assert preemption.asked == number.name
    assert signal.getsignal(number) == before
    assert said == [f"{number.name}: saving after this step; a second one leaves at once"]


def test_it_can_be_used_again():
    for _ in range(3):
        with Preemption() as preemption:
            assert preemption.asked is None
            os.kill(os.getpid(), signal.SIGUSR1)
            assert wait_for(lambda p=preemption: p.asked)


def run(code, *signals, pause=0.3):
    """Run Python code that prints a line when it is ready, and send it signals."""
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        bufsize=0,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout.readline()  # unbuffered: a buffer would keep more than this line
    for number in signals:
        child.send_signal(number)
        time.sleep(pause)
    out, err = child.communicate(timeout=90)
    return child.returncode, out.decode(), err.decode()


STUCK = """
    import sys, threading
    from penstock.distributed.preemption import Preemption
    with Preemption({}, say=lambda text: print(text, file=sys.stderr, flush=True)):
        print("ready", flush=True)
        lock = threading.Lock()
        lock.acquire()
        lock.acquire(timeout={})  # the main thread runs no Python code meanwhile
    print("left by itself")
"""


def test_a_second_signal_leaves_at_once_even_where_python_is_stuck():
    code, out, err = run(STUCK.format(0.0, 60), signal.SIGTERM, signal.SIGINT)
    assert code == PREEMPTED
    assert "left by itself" not in out
    assert err.splitlines()[-1].startswith("SIGINT: leaving at once")


def test_an_echo_is_no_second_signal():
    code, out, _ = run(STUCK.format(60.0, 3), signal.SIGINT, signal.SIGINT)
    assert (code, out.strip()) == (0, "left by itself")


def test_forked_children_have_the_usual_signals():
    code = """
        import os, signal, time
        from penstock.distributed.preemption import Preemption
        with Preemption() as preemption:
            child = os.fork()
            if not child:
                time.sleep(30)
                os._exit(0)
            os.kill(child, signal.SIGTERM)
            _, status = os.waitpid(child, 0)
            time.sleep(0.2)
            print(os.WTERMSIG(status), preemption.asked, flush=True)
    """
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert child.stdout.split() == ["15", "None"], child.stderr


@pytest.mark.parametrize("code", [0, 2, PREEMPTED])
def test_leaving_does_what_python_does_at_the_end(code):
    """Output is flushed, exit functions run and threads are waited for, but those of a stop."""
    script = f"""
        import atexit, sys, threading, time
        from penstock.distributed import preemption

        class Slow:
            def __del__(self):
                print("taken to pieces")

        kept = Slow()
        kept.itself = kept
        atexit.register(print, "at exit")
        threading.Thread(target=lambda: (time.sleep(0.3), print("thread"))).start()
        print("main")
        preemption.leave({code})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == code, done.stderr
    thread = [] if code == PREEMPTED else ["thread"]
    assert done.stdout.splitlines() == ["main", *thread, "at exit"]
    assert done.stderr == ""


def test_leaving_under_a_profiler_gives_it_its_turn(monkeypatch):
    monkeypatch.setattr(sys, "getprofile", lambda: print)
    with pytest.raises(SystemExit) as ended:
        preemption.leave(3)
    assert ended.value.code == 3


def test_a_run_that_has_been_stopped_may_take_its_time_to_end(monkeypatch):
    """It still writes a report, and says how to resume, while the signal comes once more."""
    left = []
    monkeypatch.setattr(preemption, "_UNWINDING", 0.0)
    monkeypatch.setattr(preemption.os, "_exit", left.append)
    with Preemption(repeats_after=60, at_once=True, say=left.append) as outer:
        with Preemption() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
            assert wait_for(lambda: inner.asked)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
        assert outer.asked == "SIGTERM"
        assert left == []


def blocked_in_a_child():
    """Whether a program that is started now begins with SIGINT blocked."""
    code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout == "True\n"


def waits_in_small_steps():
    os.kill(os.getpid(), signal.SIGINT)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        time.sleep(0.005)


def test_a_launchers_process_hears_of_ctrl_c_when_its_job_begins():
    with Preemption(at_once=True) as outer, preemption.job():
        preemption.keep_from_children()
        assert blocked_in_a_child()
        with preemption.job():
            assert not blocked_in_a_child()
        assert blocked_in_a_child()
        with pytest.raises(Stop):  # this one hears it all the same
            waits_in_small_steps()
        assert outer.asked == "SIGINT"
    assert not blocked_in_a_child()
