"""One worker of a pool, whose process is played by hand."""

import os
import threading
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from penstock.loading import memory, worker_status
from penstock.loading.workers import channel, failures
from penstock.loading.workers import worker as workers
from penstock.loading.workers.request_queue import RequestQueue
from penstock.loading.workers.results import Failure
from penstock.loading.workers.window import Task
from penstock.loading.workers.worker import Worker
from penstock.loading.workers.worker_side import DUMP, SharedState, WorkerContext
from penstock.order.plan import Request
from tests import deaths
from tests.loading import played


def request(step):
    rows = np.arange(step, step + 1)
    return Request(0, step, rows, rows, 1)


def task(step):
    return Task(request(step))


def steps(requests):
    return [getattr(item, "request", item).step for item in requests]


@pytest.fixture
def make():
    """A function that makes workers, by method and whether they share a queue."""
    made = []

    def make(queued=True, method="fork", count=1):
        context = played.Context(method)
        queue = RequestQueue(context, count) if queued else None
        shared = SharedState(context, count)
        worker_context = WorkerContext(
            None, None, count, 7, shared, os.getpid(), None if queue is None else queue.reader
        )
        for number in range(count):
            made.append(Worker(number, context, worker_context, queue))
        if queue is not None:
            made.append(SimpleNamespace(end=queue.close))
        return (*made[-count - queued :][:count], queue)

    yield make
    for resource in made:
        resource.end()


def test_a_worker_before_its_first_process(make):
    worker, _ = make()
    assert (worker.pid, worker.exitcode, worker.deaths) == (-1, None, 0)
    assert not worker.is_alive()
    for do in (worker.join, worker.terminate, worker.kill, worker.wake, worker.flush, worker.end):
        do()
    assert worker.status == (-1, -1, -1, worker_status.STARTING)
    assert (worker.size, worker.silent, worker.stopped, worker.locked) == (0, 0, 0, 0)


def test_a_worker_as_multiprocessing_shows_a_process(make):
    worker, _ = make()
    worker.start()
    process = worker.process
    assert (worker.pid, worker.exitcode, worker.is_alive()) == (played.FIRST_PID, None, True)
    worker.join(3)
    worker.terminate()
    assert process.log == ["join 3", "terminate"]
    process.exitcode = 0
    assert (worker.exitcode, worker.is_alive()) == (0, False)
    process.exitcode = None
    process.die(-11)
    worker.end()
    assert (worker.pid, worker.exitcode, worker.is_alive()) == (played.FIRST_PID, -11, False)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_process_is_told_how_it_was_started(method, make):
    worker, _ = make(method=method)
    worker.start()
    first = worker.process
    assert first.is_wrapped == (method != "fork")
    assert first.worker_context.spawned == (method == "spawn")
    assert (first.worker_context.number, first.worker_context.steady) == (0, True)
    worker.end()
    thread = threading.Thread(target=worker.start)
    thread.start()
    thread.join()
    assert worker.process is not first
    assert not worker.process.worker_context.steady


def test_a_process_that_cannot_start_leaves_nothing_open(make, monkeypatch):
    worker, _ = make()
    before = deaths.open_files()

    def fail(process):
        raise OSError("no more processes")

    monkeypatch.setattr(played.Process, "start", fail)
    with pytest.raises(OSError, match="no more processes"):
        worker.start()
    assert (worker.process, deaths.open_files()) == (None, before)


def test_tasks_of_its_own_are_sent_and_sent_again(make):
    worker, _ = make(queued=False)
    worker.take(task(1))  # which starts it
    process = worker.process
    worker.take(task(2))
    assert steps([process.take(), process.take()]) == [1, 2]
    process.give("result of 1")
    assert [(steps([done]), result) for done, result in worker.results()] == [([1], "result of 1")]
    process.die(-9)
    worker.end()
    worker.replace()
    assert worker.process is not process
    assert steps([worker.process.take()]) == [2]
    assert worker.process.take() is None
    worker.end()
    worker.rests = True
    worker.take(task(3))
    assert worker.process is None
    assert steps(worker.tasks) == [2, 3]


def test_tasks_of_a_queue_are_not_sent(make):
    worker, queue = make()
    queue.put(task(1))
    worker.start()
    assert steps([worker.process.take()]) == [1]
    worker.note_claims()
    assert steps(worker.tasks) == [1]
    worker.end()
    worker.start()
    assert not worker.unsent
    assert worker.process._receiver.take() is None


def test_a_worker_is_replaced_where_there_is_work(make):
    idle, _ = make(queued=False)
    idle.rests = True
    idle.replace()
    assert (idle.rests, idle.process) == (False, None)
    busy, _ = make(queued=False)
    busy.tasks.append(task(1))
    busy.replace()
    assert busy.process is not None
    asked, queue = make()
    asked.replace()
    assert asked.process is None
    queue.put(task(1))
    asked.replace()
    assert asked.process is not None
    had, _ = make()
    had.tasks.append(task(1))
    had.replace()
    assert had.process is not None


def test_a_worker_takes_over_after_its_own_tasks(make):
    worker, other, _ = make(queued=False, count=2)
    worker.take(task(1))
    other.tasks.extend([task(2), task(3)])
    worker.take_over(other)
    assert steps(worker.tasks) == [1, 2, 3]
    assert not other.tasks


@pytest.fixture
def system(monkeypatch):
    """The clock, and what the system says of a process."""
    seen = SimpleNamespace(now=1000.0, state="S", waits=None, size=50, asked=[])
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: seen.now))
    monkeypatch.setattr(memory, "size_of", lambda pid: seen.asked.append(pid) or seen.size)
    monkeypatch.setattr(failures, "state_of", lambda pid: seen.state)
    monkeypatch.setattr(failures, "waits_for_locks", lambda pid: seen.waits)
    return seen


def times(worker, passed=0.5):
    worker.look(passed)
    return worker.silent, worker.stopped, worker.locked


def test_time_without_a_sign_of_life_is_counted(make, system):
    worker, _ = make(queued=False)
    worker.take(task(1))
    process = worker.process
    assert times(worker) == (0, 0, 0)
    assert times(worker, 0.25) == (0.25, 0, 0)
    assert times(worker) == (0.75, 0, 0)
    process.stand(0, 1, 0, worker_status.READ)
    assert times(worker) == (0, 0, 0)
    assert times(worker) == (0.5, 0, 0)
    channel_bytes = channel.framed("result")
    process.sock.sendall(channel_bytes[:7])
    assert list(worker.results()) == []
    assert times(worker) == (0, 0, 0)  # bytes came
    assert times(worker) == (0.5, 0, 0)
    worker.tasks.clear()
    assert times(worker) == (0, 0, 0)  # it has nothing to do
    assert times(worker) == (0, 0, 0)


def test_a_worker_that_takes_nothing_from_a_queue_is_silent(make, system):
    worker, queue = make()
    worker.start()
    times(worker)
    assert times(worker) == (0, 0, 0)
    queue.put(task(1))
    assert times(worker) == (0.5, 0, 0)
    worker.process.take()
    assert times(worker) == (1.0, 0, 0)
    assert steps(worker.tasks) == [1]
    assert not queue.has_open


def test_a_silent_worker_may_be_stopped_or_locked(make, system):
    worker, _ = make(queued=False)
    worker.take(task(1))
    system.state, system.waits = "T", [["1"]]
    assert times(worker) == (0, 0, 0)
    assert times(worker) == (0.5, 0, 0)  # not asked before a second
    assert times(worker) == (1.0, 0.5, 0)  # one look at locks tells nothing
    assert times(worker) == (1.5, 1.0, 0.5)
    assert times(worker) == (2.0, 1.5, 1.0)
    system.state, system.waits = "t", [["2"]]
    assert times(worker) == (2.5, 0, 0)
    system.waits = None
    assert times(worker) == (3.0, 0, 0)
    assert times(worker) == (3.5, 0, 0)
    system.waits = [["3"]]
    times(worker)
    assert times(worker) == (4.5, 0, 0.5)
    worker.process.stand(0, 1, 0, worker_status.READ)
    assert times(worker) == (0, 0, 0)


def test_its_memory_is_looked_at_from_time_to_time(make, system, monkeypatch):
    monkeypatch.setattr(workers, "_SIZE_SECONDS", 0.125)
    worker, _ = make(queued=False)
    worker.take(task(1))
    system.now = 64.0
    times(worker)
    assert (worker.size, system.asked) == (50, [worker.pid])
    system.now, system.size = 64.0625, 60
    times(worker)
    assert (worker.size, len(system.asked)) == (50, 1)
    system.now = 64.125
    times(worker)
    assert (worker.size, len(system.asked)) == (60, 2)
    system.now, system.size = 65.0, 0  # it has just ended
    times(worker)
    assert (worker.size, len(system.asked)) == (60, 3)


def test_results_belong_to_the_tasks_in_turn(make):
    worker, queue = make()
    for step in (1, 2, 3):
        queue.put(task(step))
    worker.start()
    process = worker.process
    process.take()
    process.give("one")
    assert [(done.request.step, result) for done, result in worker.results()] == [(1, "one")]
    assert not worker.tasks
    process.take()
    assert list(worker.results()) == []
    assert not worker.tasks  # nothing has come: nothing is looked for
    worker.note_claims()
    process.take()
    process.give("two")
    process.give("three")
    assert [(done.request.step, result) for done, result in worker.results()] == [
        (2, "two"),
        (3, "three"),
    ]
    process.die(0)
    assert not worker.is_cut_off
    assert list(worker.results()) == []
    assert worker.is_cut_off


class Unreadable:
    """Raises an error where it is unpacked."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        return fail, (self.error,)


def fail(error):
    raise error


@pytest.mark.parametrize(
    ("error", "dies", "text"),
    [
        (KeyError("x"), False, "KeyError: 'x'"),
        (KeyError("x"), True, "KeyError: 'x'"),
        (OSError("gone"), False, "OSError: gone"),
        (OSError("gone"), True, None),
    ],
)
def test_a_batch_that_cannot_be_received(error, dies, text, make):
    worker, _ = make(queued=False)
    worker.take(task(1))
    worker.take(task(2))
    worker.process.give(Unreadable(error))
    if dies:
        worker.process.die(-9)
    received = list(worker.results())
    if text is None:  # it is made again
        assert received == []
        assert steps(worker.tasks) == [1, 2]
        return
    ((done, result),) = received
    assert isinstance(result, Failure)
    assert done.request.step == result.request.step == 1
    assert str(result.error) == f"a batch cannot be received: {text}"


def test_what_does_not_fit_into_the_socket_is_sent_later(make):
    worker, _ = make(queued=False)
    large = Task(SimpleNamespace(text="x" * 3_000_000))
    worker.take(large)
    worker.take(task(2))
    assert len(worker.unsent) == 2
    asked = []
    for _ in range(1000):
        message = worker.process.take()
        asked += [] if message is None else [message]
        worker.flush()
        if len(asked) == 2:
            break
    assert asked[0].text == large.request.text
    assert asked[1].step == 2
    assert not worker.unsent
    worker.process.die(-9)
    worker.take(task(3))
    assert not worker.unsent  # nobody is there to read


def test_the_stack_of_a_dead_process_and_of_one_that_hangs(make, monkeypatch):
    worker, _ = make()
    worker.start()
    os.write(worker.process.worker_context.stack.fileno(), b"its stack")
    asked = []
    monkeypatch.setattr(failures, "ask_for_stack", lambda *what: asked.append(what) or "asked")
    assert worker.stack() == "its stack"
    assert worker.stack(False) == worker.stack(True) == "asked"
    stack = worker.process.worker_context.stack.fileno()
    assert asked == [(worker.pid, DUMP, stack, False), (worker.pid, DUMP, stack, True)]


def test_a_worker_is_woken_by_the_end_of_its_socket(make):
    worker, _ = make(queued=False)
    worker.start()
    worker.wake()
    assert worker.process.sock.recv(1) == b""
    worker.process.die(0)
    worker.sock.close()
    worker.wake()  # what is closed already is no error


@pytest.mark.parametrize(
    ("state", "haste", "joins"), [("S", False, 3), ("T", False, 0), ("t", False, 0), ("S", True, 0)]
)
def test_the_end_is_waited_for(state, haste, joins, make, system, monkeypatch):
    worker, _ = make()
    worker.start()
    process, system.state = worker.process, state
    monkeypatch.setattr(workers, "asked", lambda: haste)

    def join(timeout):
        process.log.append(timeout)
        system.now += 0.5

    process.join = join
    worker.wait_for_end(1.5)
    assert process.log == [0.1] * joins
    process.exitcode = 0
    worker.wait_for_end(1.5)
    assert process.log == [0.1] * joins


@pytest.mark.parametrize(
    ("code", "reported", "counted", "log"),
    [
        (None, False, 0, ["kill", "join 2.0", "close"]),
        (0, False, 0, ["close"]),
        (-9, False, 1, ["close"]),
        (-9, True, 0, ["close"]),
        (1, False, 1, ["close"]),
    ],
)
def test_the_end_of_a_process(code, reported, counted, log, make, monkeypatch):
    removed = []
    monkeypatch.setattr(failures, "remove_shared_files", removed.append)
    worker, _ = make()
    worker.start()
    process, worker.is_reported = worker.process, reported
    worker.unsent.append(memoryview(b"x"))
    if code is not None:
        process.die(code)
    worker.end()
    assert (worker.deaths, process.log) == (counted, log)
    assert removed == ([] if code == 0 else [process.pid])
    assert (worker.process, worker.sock, worker.unsent) == (None, None, deque())


def test_a_process_that_does_not_end_is_left(make, monkeypatch):
    removed = []
    monkeypatch.setattr(failures, "remove_shared_files", removed.append)
    worker, _ = make()
    worker.start()
    process, process.is_stubborn = worker.process, True
    worker.end()
    assert (process.log, removed, worker.deaths) == (["kill", "join 2.0"], [], 0)
    assert (worker.pid, worker.exitcode) == (process.pid, None)
    process.die(0)
    process.close()
