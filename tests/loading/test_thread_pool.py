"""Threads that load: how the first batch is made, which threads hang, and how a pool ends."""

import random
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from penstock.loading import intra_batch, worker_status
from penstock.loading.sampled_rows import SampleRequest
from penstock.loading.workers import thread_backend
from penstock.loading.workers.backends import Requests
from penstock.loading.workers.options import LoaderOptions
from penstock.loading.workers.results import Failure, WorkerError
from penstock.loading.workers.thread_backend import ThreadBackend, _Thread, _ThreadPool
from penstock.loading.workers.window import POLL
from penstock.order.plan import Request
from penstock.order.seeding import SharedGeneratorError
from penstock.order.streams import StreamRequest
from tests.deaths import Files, until


def request(step, count=1):
    rows = np.arange(step, step + count)
    return Request(0, step, rows, rows, count)


class Noting:
    """A fetch that notes its requests, and how many threads each may use.

    Attributes:
        gate: open to let requests be made.
    """

    dataset = Files()
    draws_nothing = True

    def __init__(self):
        self.log, self.tried, self.gate = [], [], threading.Event()
        self.repeat_checked = False
        self.gate.set()
        self.begun = threading.Semaphore(0)

    def __call__(self, asked, draws):
        threads = intra_batch._threads
        self.log.append((asked.step, threads.count, threads.after))
        self.begun.release()
        self.gate.wait(30)
        if asked.step == 13:
            raise KeyError("thirteen")
        return f"batch {asked.step}"

    def make(self, asked, draws):
        self.tried.append((asked, self.repeat_checked))


@pytest.fixture
def make():
    """A function that makes pools of threads, and their fetch."""
    made = []

    def make(workers=1, fetch=None, **options):
        fetch = fetch or Noting()
        pool = _ThreadPool(fetch, LoaderOptions("thread", workers, **options))
        made.append((pool, fetch))
        return pool, fetch

    yield make
    for pool, fetch in made:
        fetch.gate.set()
        pool.close()


def test_the_first_batch_has_helpers_and_the_others_wait_for_it(make):
    pool, fetch = make(2)
    fetch.gate.clear()
    first = pool.submit(request(0))
    assert fetch.begun.acquire(timeout=30)
    second = pool.submit(request(1))
    assert fetch.begun.acquire(timeout=30)
    assert fetch.log == [(0, 16, None), (1, 1, pool._first_is_there)]
    assert not pool._first_is_there.is_set()
    assert not pool.wait(0.001)
    fetch.gate.set()
    assert pool.wait(30)
    assert pool.wait(30)
    assert (first.result, second.result) == ("batch 0", "batch 1")
    assert pool._first_is_there.is_set()
    pool.submit(request(2))
    assert pool.wait(30)
    assert fetch.log[2] == (2, 1, None)


def test_the_first_batch_is_there_once_it_is_made(make):
    pool, fetch = make(1)
    fetch.gate.clear()
    first = pool.submit(request(0))
    assert fetch.begun.acquire(timeout=30)
    pool.submit(request(1))
    pool._done.put(False)  # as if another one were made
    assert pool.wait(0)
    assert not pool._first_is_there.is_set()
    fetch.gate.set()
    assert pool.wait(30)
    assert pool._first is first
    assert pool._first_is_there.is_set()


def test_nothing_that_was_made_before_anybody_asked(make):
    pool, _ = make(1)
    pool._done.put(False)
    assert pool.wait(0)
    assert not pool._first_is_there.is_set()


def test_the_first_batch_was_there_before_anybody_waited(make):
    """Those behind it waited for five seconds then, which nobody needs."""
    pool, _ = make(1)
    first = pool.submit(request(0))
    assert until(lambda: first.result is not None)
    assert first.take() == "batch 0"
    assert not pool._first_is_there.is_set()
    assert pool.wait(30)
    assert pool._first_is_there.is_set()


def test_an_unexpected_error_is_the_result(make):
    pool, _ = make()
    task = pool.submit(request(13))
    assert pool.wait(30)
    with pytest.raises(KeyError, match="thirteen"):
        task.take()


@pytest.mark.parametrize("draws_nothing", [False, True])
def test_a_draw_that_threads_share_fails_its_batch(draws_nothing, make):
    fetch = Noting()
    fetch.draws_nothing = draws_nothing
    pool, _ = make(1, fetch)
    state = random.getstate()
    random.random()
    task = pool.submit(request(0))
    assert pool.wait(30)
    random.setstate(state)
    if draws_nothing:
        assert task.result == "batch 0"
    else:
        assert isinstance(task.result, Failure)
        assert isinstance(task.result.error, SharedGeneratorError)


@pytest.fixture
def clock(monkeypatch):
    made = SimpleNamespace(now=500.0)
    monkeypatch.setattr(thread_backend, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def test_only_time_spent_waiting_counts(make, clock):
    pool, _ = make(1)
    passed = []
    pool._threads[0].hangs = lambda seconds: passed.append(seconds)
    for seconds in (0.0, 0.125, 0.375, 30.0):
        clock.now += seconds
        assert not pool.wait(0)
    assert passed == [0.0, 0.125, 0.375, 2 * POLL]


def test_a_thread_that_hangs_is_reported(make, clock, monkeypatch):
    pool, fetch = make(1, timeout=2)
    fetch.gate.clear()
    pool.submit(request(3))
    assert fetch.begun.acquire(timeout=30)
    assert not pool.wait(0)
    clock.now += 1
    assert not pool.wait(0)
    clock.now += 1
    with pytest.raises(WorkerError) as caught:
        pool.wait(0)
    text = str(caught.value)
    assert text.startswith(
        "loader thread penstock-loader-0 gave no sign of life for 2 s (loader.timeout)\n"
        "    it was at stage 'read' of epoch 0, step 3\n"
        "    it held epoch 0, step 3: samples 3 pictures/3.png\n    its stack:\n"
    )
    assert "self.gate.wait(30)" in text
    assert text.endswith("\n    threads cannot be ended and replaced; loader.backend=process can")
    assert pool._threads[0].gave_up
    monkeypatch.setattr(thread_backend, "POLL", 0.01)
    pool.close()  # which does not wait for it
    assert pool._threads[0].is_alive()


def test_threads_that_are_late_are_reported_and_left(make):
    pool, fetch = make(2)
    fetch.gate.clear()
    pool.submit(request(3))
    assert fetch.begun.acquire(timeout=30)
    text = pool.late(2.5)
    assert text.count("loader thread") == 1  # the other one has nothing to do
    assert "has made no batch in 2.5 s (timeout)\n" in text
    assert sorted(thread.gave_up for thread in pool._threads) == [False, True]


@pytest.mark.parametrize(
    ("limit", "looks"),
    [
        (1.0, [False, False, True, True]),
        (0.75, [False, False, True, True]),
        (0, [False] * 4),
    ],
)
def test_a_thread_hangs_without_a_sign_of_life(limit, looks):
    thread = _Thread(0, None, limit)
    thread.request = request(0)
    assert [thread.hangs(0.5) for _ in range(4)] == looks
    thread.request = request(0)  # another one
    assert [thread.hangs(0.5) for _ in range(4)] == looks
    thread._cell[worker_status.PLACE] = 1
    assert [thread.hangs(0.5) for _ in range(4)] == looks
    thread.request = None
    assert [thread.hangs(0.5) for _ in range(4)] == [False] * 4
    assert not thread.gave_up


def test_a_thread_before_it_works():
    thread = _Thread(4, None, 7)
    assert (thread.name, thread.daemon, thread.gave_up) == ("penstock-loader-4", True, False)
    assert worker_status.read(thread._cell) == (-1, -1, -1, worker_status.STARTING)
    report = thread.report()
    assert (report.held, report.stack) == ([], "")
    assert report.how == "gave no sign of life for 7 s (loader.timeout)"


def test_a_pool_ends_with_what_was_begun(make):
    pool, fetch = make(1)
    fetch.gate.clear()
    tasks = [pool.submit(request(step)) for step in range(3)]
    assert fetch.begun.acquire(timeout=30)
    (thread,) = pool._threads
    joins = []

    def join(seconds):
        joins.append(seconds)
        if len(joins) == 3:
            fetch.gate.set()
            threading.Thread.join(thread, 30)

    thread.join = join
    pool.close()
    assert joins == [POLL] * 3
    assert not thread.is_alive()
    assert [task.result for task in tasks] == ["batch 0", None, None]
    assert pool._first_is_there.is_set()


def test_a_pool_hardly_waits_where_the_run_is_to_stop(make, monkeypatch):
    pool, fetch = make(1)
    fetch.gate.clear()
    pool.submit(request(0))
    assert fetch.begun.acquire(timeout=30)
    joins = []
    pool._threads[0].join = joins.append
    monkeypatch.setattr(thread_backend, "asked", lambda: True)
    pool.close()
    assert joins == [0.05]
    assert pool._tasks.get_nowait() is None
    assert pool._tasks.empty()
    pool._tasks.put(None)


def probed(first):
    """What is tried before the threads work on `first` and another one, in two runs."""
    fetch = Noting()
    backend = ThreadBackend(fetch, LoaderOptions("thread", 1))
    for _ in range(2):
        asked = Requests(iter([first, request(1)]), lambda coming: False)
        with backend.run(asked) as results:
            assert len(list(results)) == 2
    assert [step for step, *_ in fetch.log] == [first.step, 1] * 2
    assert not fetch.repeat_checked
    return fetch.tried


def test_two_samples_of_the_first_batch_are_tried_once():
    ((tried, checked),) = probed(request(0, 5))
    assert tried.address == (0, 0)
    assert (tried.positions.tolist(), tried.indices.tolist()) == ([0, 1], [0, 1])
    assert tried.valid == 2
    assert checked


def test_a_stream_is_tried():
    ((tried, _),) = probed(StreamRequest(2, 0))
    assert tried == StreamRequest(2, 0, is_tried=True)


def test_what_is_only_seen_of_a_dataset_is_not_tried():
    assert probed(SampleRequest.of(3)) == []
    other = SimpleNamespace(epoch=0, step=0, address=(0, 0))
    assert probed(other) == []


def test_an_epoch_without_batches_has_nothing_to_try():
    fetch = Noting()
    with ThreadBackend(fetch, LoaderOptions("thread", 1)).run(iter([])) as results:
        assert list(results) == []
    assert fetch.tried == []
