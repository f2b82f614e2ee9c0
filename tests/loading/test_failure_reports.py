"""Reports on workers that died or hang, word by word."""

import os
import signal
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest

from penstock.loading import memory, worker_status
from penstock.loading.worker_status import WorkerStatus
from penstock.loading.workers import failures
from penstock.loading.workers.failures import FailureReport
from penstock.order.plan import Request
from tests.deaths import Files


def request(step, count=3, first=5):
    rows = np.arange(first, first + count)
    return Request(0, step, rows, rows, count)


def keyed(keys):
    return SimpleNamespace(epoch=1, step=4, address=(1, 4), keys=keys)


HELD = "    it held epoch 0, step 2: samples 5 pictures/5.png, 6 pictures/6.png, 7 pictures/7.png"
AT_READ = "    it was at stage 'read' of epoch 0, step 2"


@pytest.mark.parametrize(
    ("status", "held", "lines"),
    [
        (worker_status.UNKNOWN, [], []),
        (WorkerStatus(-1, -1, -1, worker_status.STARTING), [], ["    it was starting"]),
        (WorkerStatus(0, 2, -1, worker_status.IDLE), [], ["    it was idle"]),
        (
            WorkerStatus(0, 2, -1, worker_status.IDLE),
            [request(2)],
            ["    it was between two batches", HELD],
        ),
        (WorkerStatus(0, 2, -1, worker_status.READ), [request(2)], [AT_READ, HELD]),
        (WorkerStatus(0, 2, 3, worker_status.READ), [request(2)], [AT_READ, HELD]),
        (
            WorkerStatus(0, 2, 0, worker_status.READ),
            [request(2)],
            [f"{AT_READ}, sample 5 (pictures/5.png), 1 of 3", HELD],
        ),
        (
            WorkerStatus(0, 2, 2, worker_status.READ),
            [request(2)],
            [f"{AT_READ}, sample 7 (pictures/7.png), 3 of 3", HELD],
        ),
        (
            WorkerStatus(0, 3, 0, worker_status.READ),
            [],
            ["    it was at stage 'read' of epoch 0, step 3"],
        ),
    ],
)
def test_a_report_says_where_a_worker_stood(status, held, lines):
    report = FailureReport("worker 1", "ended", status, held, "")
    assert report.report(Files()) == "\n".join(["worker 1 ended", *lines])


def test_a_hint_and_the_stack_come_last():
    report = FailureReport("worker 1", "ended", worker_status.UNKNOWN, [], "a\n  b", "perhaps so")
    text = "worker 1 ended\n    perhaps so\n    its stack:\n      a\n        b"
    assert report.report(None) == text


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (keyed([7, 8]), "epoch 1, step 4: samples 7 pictures/7.png, 8 pictures/8.png"),
        (keyed(7), "epoch 1, step 4: samples 7 pictures/7.png"),
        (keyed(["a", 7]), "epoch 1, step 4 of a stream"),
        (keyed(None), "epoch 1, step 4 of a stream"),
    ],
)
def test_requests_of_other_kinds_are_described(held, text):
    assert failures._described(held, Files()) == text


@pytest.mark.parametrize(("count", "more"), [(32, ""), (33, " and 1 more"), (40, " and 8 more")])
def test_long_batches_are_cut(count, more):
    listed = ", ".join(str(row) for row in range(32))
    text = failures._described(request(2, count, 0), None)
    assert text == f"epoch 0, step 2: samples {listed}{more}"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exited unexpectedly with code 0"),
        (3, "exited unexpectedly with code 3"),
        (-1, "was killed by signal 1 (SIGHUP)"),
        (-100, "was killed by signal 100"),
    ],
)
def test_exit_codes_in_words(code, text):
    assert failures.by_exit_code(code) == text


def test_hints(monkeypatch):
    monkeypatch.setattr(memory, "limit", lambda: (2**31, "of a test"))
    monkeypatch.setattr(memory, "kills", lambda: 1)
    assert failures.hint_for(-signal.SIGKILL) == (
        "SIGKILL: the kernel ended it because memory ran out. the limit is 2.00 GiB, of a test"
    )
    assert failures.hint_for(-signal.SIGKILL, 2**30, 1) == (
        "SIGKILL leaves no stack behind; the system also sends it when memory runs out (dmesg "
        "tells). It had 1.00 GiB of memory when last looked at; the limit is 2.00 GiB, of a test"
    )
    assert failures.hint_for(-signal.SIGBUS).startswith("SIGBUS also comes when shared memory")
    assert failures.hint_for(-signal.SIGSEGV) == failures.hint_for(1) == ""
    assert failures.hint_for_state("T") == failures.hint_for_state("t")
    assert failures.hint_for_state("T").startswith("it had been stopped")
    assert failures.hint_for_state("D").startswith("it waits inside the kernel")
    assert failures.hint_for_state("R") == ""


def test_a_process_waits_for_locks_if_all_its_threads_do(tmp_path, monkeypatch):
    monkeypatch.setattr(failures, "Path", lambda text: tmp_path / text.removeprefix("/proc/"))
    assert failures.waits_for_locks(7) is None  # it has ended

    def thread(number, where, times):
        folder = tmp_path / "7" / "task" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "wchan").write_text(where)
        (folder / "status").write_text(f"State:\tS\nvoluntary_ctxt_switches:\t{times}\n")

    thread(7, "futex_wait_queue", 3)
    thread(8, "futex_wait", 5)
    assert failures.waits_for_locks(7) == [["3"], ["5"]]
    thread(8, "poll_schedule_timeout", 5)
    assert failures.waits_for_locks(7) is None


RECENT = "(most recent call first):\n"
SENDER = f'Thread 1 {RECENT}  File "x/loading/workers/worker_side.py", line 9 in _send_all'
WORK = f'Thread 2 {RECENT}  File "data.py", line 3 in read'
START = '  File "x/loading/workers/results.py", line 40 in attempt\n  File "run.py", line 1 in main'


def test_a_stack_is_shown_without_our_own_threads_and_start():
    with tempfile.TemporaryFile() as file:
        assert failures.stack_of(file.fileno()) == ""
        file.write(f"{SENDER}\n\n{WORK}\n{START}\n".encode())
        file.flush()
        assert failures.stack_of(file.fileno()) == WORK


@pytest.mark.parametrize(
    ("growth", "looks"),
    [
        ([0, 0, 5, 5, 0, 5], 5),  # until it grows no more
        ([5, 0, 5], 2),
        ([0] * 40, 20),  # a second
        ([5] * 40, 20),
    ],
)
@pytest.mark.parametrize("stopped", [False, True])
def test_a_stack_is_waited_for(growth, looks, stopped, monkeypatch):
    sent, naps, coming = [], [], iter(growth)
    with tempfile.TemporaryFile() as file:

        def sleep(seconds):
            assert seconds == 0.05
            naps.append(seconds)
            os.write(file.fileno(), b"x" * next(coming))

        clock = SimpleNamespace(monotonic=lambda: len(naps) / 20, sleep=sleep)
        monkeypatch.setattr(failures, "time", clock)
        monkeypatch.setattr(os, "kill", lambda *what: sent.append(what))
        text = failures.ask_for_stack(77, signal.SIGUSR2, file.fileno(), stopped)
    assert len(naps) == looks
    assert text == "x" * sum(growth[:looks])
    assert sent == [(77, signal.SIGUSR2), (77, signal.SIGCONT)][: 1 + stopped]
