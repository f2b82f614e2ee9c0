"""Signals, sent to real processes."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

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


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGTERM, Stop), (signal.SIGINT, KeyboardInterrupt)]
)
def test_an_error_that_an_interrupted_library_raises_is_the_request_to_stop(number, kind):
    def compose():
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
        finally:
            sys.exit(1)  # as Hydra does, when OmegaConf has failed

    with pytest.raises(kind), Preemption(at_once=True):
        compose()


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
    with Preemption(say=lambda text: print(text, file=sys.stderr, flush=True)):
        print("ready", flush=True)
        lock = threading.Lock()
        lock.acquire()
        lock.acquire(timeout=60)  # the main thread runs no Python code meanwhile
    print("left by itself")
"""


def test_a_second_signal_leaves_at_once_even_where_python_is_stuck():
    code, out, err = run(STUCK, signal.SIGTERM, signal.SIGINT, pause=2.3)
    assert code == PREEMPTED
    assert "left by itself" not in out
    assert err.splitlines()[-1].startswith("SIGINT: leaving at once")


def test_an_echo_is_no_second_signal(monkeypatch):
    """`timeout` signals a process and its group; a launcher hands on what all have had already."""
    now, said, left = [100.0], [], []
    monkeypatch.setattr(preemption, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(preemption.os, "_exit", left.append)
    asked = Preemption(say=said.append)
    for now[0], name, exits in [
        (100.0, "SIGINT", []),
        (101.9, "SIGTERM", []),
        (102.0, "SIGTERM", [PREEMPTED]),
    ]:
        asked._take(name)
        assert left == exits
    assert asked.asked == "SIGINT"
    assert said == [
        "SIGINT: saving after this step; a second one leaves at once",
        "SIGTERM: leaving at once, with what the last checkpoint holds",
    ]


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

    def look():
        usual = all(signal.getsignal(number) is signal.SIG_DFL for number in SIGNALS)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        return int(not usual or bool(blocked) or signal.set_wakeup_fd(-1) != -1)

    with Preemption() as asked:
        assert exit_code(die) == -signal.SIGTERM
        assert exit_code(look) == 0
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
        preemption._mask(signal.SIG_BLOCK)
        assert signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS) == set(SIGNALS)
        time.sleep(0.05)
        assert asked.asked is None
    before = [signal.getsignal(number) for number in SIGNALS]
    assert exit_code(lambda: int(before != [signal.getsignal(one) for one in SIGNALS])) == 0
    preemption._mask(signal.SIG_BLOCK)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


@pytest.mark.parametrize("begun", [False, True])
def test_a_signal_while_modules_are_imported_ends_the_program(begun, monkeypatch, tmp_path):
    def told():
        os.dup2(os.open(tmp_path / "said", os.O_WRONLY | os.O_CREAT), 2)
        preemption.leave_early()
        signal.raise_signal(signal.SIGINT)
        return 5

    monkeypatch.setattr(preemption, "_has_begun", begun)
    assert exit_code(told) == (5 if begun else PREEMPTED)
    said = "SIGINT: nothing was begun; the same command starts it again\n"
    assert (tmp_path / "said").read_text() == ("" if begun else said)


def in_a_thread(work):
    given = []
    thread = threading.Thread(target=lambda: given.append(work()))
    thread.start()
    thread.join()
    return given[0]


def test_threads_leave_the_signals_to_the_main_thread():
    def work():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        with Preemption() as asked, preemption.job(), preemption.others(), preemption.held():
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
            with preemption.waiting():
                return asked.asked, blocked

    before = [signal.getsignal(number) for number in SIGNALS]
    with Preemption():
        preemption.forget()
        assert in_a_thread(work) == (None, {signal.SIGINT})
    assert in_a_thread(work) == (None, {signal.SIGINT})
    assert before == [signal.getsignal(number) for number in SIGNALS]


def test_others_may_have_the_signals_for_a_time():
    with Preemption() as asked:
        with preemption.others():
            assert (descriptor := signal.set_wakeup_fd(-1)) == -1
        descriptor = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(descriptor)
        assert descriptor == asked._ends[1].fileno()


def test_requests_are_those_of_a_job():
    assert preemption.asked() is None
    with Preemption() as outer:
        assert preemption.asked() is None
        with Preemption() as inner:
            inner._take("SIGINT")
            assert preemption.asked() == inner.asked == "SIGINT"
            assert outer.asked is None
        assert preemption.asked() == outer.asked == "SIGINT"
        preemption.forget()
        assert preemption.asked() is outer.asked is None
        with pytest.raises(Stop), preemption.waiting():
            signal.raise_signal(signal.SIGTERM)


def test_a_program_that_ends_with_an_error_takes_no_request(monkeypatch):
    monkeypatch.setattr(preemption, "_is_ending", False)
    preemption.ignore()
    with Preemption(at_once=True) as asked:
        signal.raise_signal(signal.SIGTERM)
        asked._take("SIGTERM")
    assert asked.asked is None


@pytest.mark.parametrize(
    ("state", "rest"),
    [
        ({}, 0.5),
        ({"_raised": "SIGINT"}, 4.8),
        ({"_held": "SIGINT"}, 4.8),
        ({"_at_once": False}, None),
        ({"_first": None}, None),
        ({"_inherited": True}, None),
    ],
)
def test_in_set_up_a_process_that_does_not_stop_has_seconds_to_do_so(state, rest, monkeypatch):
    """It is asked at 100.0 s, and looked at 0.2 s later."""
    now, asked = [100.2], Preemption(at_once=True)
    left, patience = [], []
    vars(asked).update({"_first": ("SIGINT", 100.0)} | state)

    class Ends:
        """Of a socket: the other end is closed once the process has left, or has no limit."""

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def settimeout(self, seconds):
            patience.append(seconds)

        def recv(self, count):
            if not patience[-1] or len(patience) > 2:
                return b""
            now[0] += patience[-1]  # at the very end of it
            raise TimeoutError

    monkeypatch.setattr(preemption, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(asked, "_leave", left.append)
    asked._listen(Ends())
    assert patience[0] == (None if rest is None else pytest.approx(rest))
    text = "SIGINT: nothing was begun; the same command starts it again"
    assert left == ([] if rest is None else [text] * len(left))
    assert bool(left) == (rest is not None)


@pytest.mark.parametrize("code", [2, PREEMPTED])
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


@pytest.fixture
def end(monkeypatch):
    """What the end of a program does, in turn."""
    did = []
    monkeypatch.setattr(sys, "gettrace", lambda: None)
    monkeypatch.setattr(threading, "_shutdown", lambda: did.append("threads"))
    monkeypatch.setattr(preemption.atexit, "_run_exitfuncs", lambda: did.append("functions"))
    monkeypatch.setattr(preemption.os, "_exit", did.append)
    return did


@pytest.mark.parametrize("code", [0, 1, PREEMPTED])
def test_threads_are_waited_for_but_after_a_request_to_stop(code, end):
    preemption.leave(code)
    assert end == (["threads"] if code != PREEMPTED else []) + ["functions", code]


@pytest.mark.parametrize("name", ["getprofile", "gettrace"])
def test_leaving_under_a_profiler_gives_it_its_turn(name, end, monkeypatch):
    monkeypatch.setattr(sys, name, lambda: print)
    with pytest.raises(SystemExit) as ended:
        preemption.leave(3)
    assert ended.value.code == 3
    assert end == []


def test_a_run_that_has_been_stopped_may_take_its_time_to_end(monkeypatch):
    """It still writes a report, and says how to resume, while the signal comes once more."""
    left = []
    monkeypatch.setattr(preemption, "_UNWINDING", 0.0)
    monkeypatch.setattr(preemption.os, "_exit", left.append)
    with Preemption(at_once=True, say=left.append) as outer:
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
        with pytest.raises(KeyboardInterrupt):  # this one hears it all the same
            waits_in_small_steps()
        assert outer.asked == "SIGINT"
    assert not blocked_in_a_child()
