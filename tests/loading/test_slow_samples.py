"""Slow samples: later batches are made meanwhile, within bounds, and all come in their order."""

import multiprocessing
import os
import random
import sys
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from penstock.loading.batch import Batch
from penstock.loading.fetch import Fetch
from penstock.loading.sizes import nbytes
from penstock.loading.slow_rows import SlowRows, slow_among
from penstock.loading.workers.backends import Requests
from penstock.loading.workers.options import LoaderOptions
from penstock.loading.workers.request_queue import RequestQueue
from penstock.loading.workers.window import Task, Window, windowed
from penstock.order.plan import Plan, Request
from penstock.order.samplers import Sequential
from tests import toy

SIZE = 1000  # bytes of a batch of the simulation


class Simulated:
    """Workers in simulated time, which take requests in the order in which they come."""

    def __init__(self, workers, seconds, sizes):
        self.seconds, self.sizes = seconds, sizes
        self.now, self.idle = 0.0, workers
        self.waiting, self.busy, self.asked = deque(), [], []
        self.most_bytes = self.most = self.delivered = 0

    def submit(self, request):
        task = Task(request)
        self.asked.append(request.step)
        self.waiting.append(task)
        self._begin()
        return task

    def _begin(self):
        while self.waiting and self.idle:
            task = self.waiting.popleft()
            self.idle -= 1
            self.busy.append((self.now + self.seconds[task.request.step], task))

    def finish(self, until):
        for ends, task in sorted(self.busy, key=lambda one: one[0]):
            if ends <= until:
                self.now = max(self.now, ends)
                self.busy.remove((ends, task))
                self.idle += 1
                task.result = np.zeros(self.sizes[task.request.step], np.uint8)
                self._begin()
                return True
        return False

    def pass_time(self, seconds):
        until = self.now + seconds
        while self.finish(until):
            pass
        self.now = until

    def wait(self, seconds):
        assert self.busy, "nobody works, and a batch is waited for"
        return self.finish(float("inf"))

    def late(self, limit):
        return ""


def requests(count):
    for step in range(count):
        rows = np.arange(4) + 4 * step
        yield Request(0, step, rows, rows, 4)


def simulate(seed, budget=20 * SIZE, known=True, count=300, workers=4, share=0.1):
    """Steps as they were delivered, the pool, and the share of the time waited."""
    draws = random.Random(seed)
    slow = [draws.random() < share for _ in range(count)]
    seconds = [draws.uniform(0.9, 1.1) * (8 if one else 1) for one in slow]
    pool = Simulated(workers, seconds, [SIZE] * count)
    expects = (lambda request: slow[request.step]) if known else None
    options = LoaderOptions("process", workers, slow_memory=budget)
    step, waited, steps = sum(seconds) / count / workers / 0.85, 0.0, []
    asked = pool.now
    for result in windowed(pool, Requests(requests(count), expects), options):
        assert len(result) == SIZE
        steps.append(len(steps))
        waited += pool.now - asked
        under_way = len(pool.asked) - len(steps)
        pool.most = max(pool.most, under_way)
        pool.pass_time(step)
        asked = pool.now
    return steps, pool, waited / pool.now


@pytest.mark.parametrize("known", [False, True])
def test_dealing_keeps_the_order_and_its_bounds_and_waits_less(known):
    for seed in range(6):
        steps, pool, share = simulate(seed, known=known)
        assert steps == list(range(300))
        assert sorted(pool.asked) == steps  # each once
        assert pool.most <= 8 + 20  # the window, and what 20 batches' bytes allow
        _, plain, before = simulate(seed, budget=0, known=known)
        assert plain.asked == steps  # in order, as torch asks
        assert plain.most <= 8
        assert share < before / 3


def test_the_budget_holds_for_batches_that_get_larger():
    window = Window(2, 2, 10 * SIZE)
    pending = [SimpleNamespace(result=None)] + [SimpleNamespace(result=b"x" * SIZE)] * 3
    while window.grow(pending):
        pending.append(SimpleNamespace(result=b"x" * SIZE))
    assert window.size == 4 + 10
    window.deliver(b"x" * 5 * SIZE)
    assert window.size == 4 + 2
    window.deliver(b"x" * 11 * SIZE)
    assert window.size == 4


def test_batches_that_were_begun_early_take_from_the_budget():
    window = Window(2, 2, 10 * SIZE)
    pending = [SimpleNamespace(result=None)] + [SimpleNamespace(result=b"x" * SIZE)] * 3
    window.grow(pending)
    assert (window.size, window.has_room) == (5, True)
    window.extra, window.early = 9, 1
    assert (window.size, window.has_room) == (4 + 9, False)
    window.extra, window.early = 9, 3
    assert window.size == 4 + 7


def test_the_window_shrinks_again():
    window = Window(2, 2, 10 * SIZE)
    assert window.grow([SimpleNamespace(result=None)] + [SimpleNamespace(result=b"x")] * 3)
    sizes = []
    for _ in range(100):
        window.deliver(b"x")
        sizes.append(window.size)
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (5, 4)


def test_a_window_that_keeps_its_workers_busy_does_not_grow():
    ready, unready = SimpleNamespace(result=b"x"), SimpleNamespace(result=None)
    assert not Window(2, 2, SIZE).grow([unready, ready, unready, unready])
    assert not Window(2, 2, 0).grow([unready, ready, ready, ready])


def test_bytes_of_values():
    tensor = torch.zeros(3, 4)
    parts = [[tensor, np.zeros(5, np.int16)], ("é" * 9, 1, 2.5)]
    value = {"x": tensor, "y": parts[0], "z": parts[1], "w": b"ab", "v": None}
    objects = [value, *parts, *parts[1]]
    assert nbytes(value) == 48 + 48 + 10 + 2 + sum(map(sys.getsizeof, objects))
    nested = []
    for _ in range(100_000):  # deeper than a function may call itself
        nested = [nested]
    assert nbytes(nested) > 100_000 * 56
    assert nbytes(None) == 0


def test_slow_rows_are_those_far_above_the_others():
    rows = np.array([7, 8, 9, 5])
    assert slow_among(rows, 0.0, [0.01, 0.02, 0.52, 0.53]) == (9,)
    assert slow_among(rows, 0.0, [0.01, 0.02, 0.05, 0.06]) == ()
    assert slow_among(rows, 0.0, [1e-5, 2e-5, 1e-2, 1e-2]) == ()  # too short to matter
    assert slow_among(rows[:2], 0.0, [0.01, 1.0]) == ()


def test_slow_rows_are_learned_and_unlearned():
    slow, request = SlowRows(), next(requests(1))
    batch = Batch({}, request, np.arange(4), slow=(2, 3))
    assert not slow
    slow.note(batch)
    assert slow
    assert slow.expects(request)
    assert not slow.expects(next(Requests(iter([Request(0, 1, *[np.array([1, 5])] * 2, 2)]))))
    assert not slow.expects(object())
    slow.note(batch.replace(slow=()))
    assert not slow


def test_slow_rows_by_cost_stay():
    slow, request = SlowRows([1.0, 2.0, 1.0, 100.0, float("nan")]), next(requests(1))
    slow.note(Batch({}, request, np.arange(4)))
    assert slow.expects(request)
    assert not SlowRows([0.0] * 9)


class Blocked(Dataset):
    """Row 3 is there once `others` have been read: so many rows, or one row by name."""

    def __init__(self, folder, others):
        self.folder, self.others = Path(folder), others

    def __len__(self):
        return 64

    def __getitem__(self, index):
        ends = time.monotonic() + 60
        while index == 3 and not self.may_go_on():
            assert time.monotonic() < ends, "nobody read the other rows"
            time.sleep(0.001)
        if index != 3:
            (self.folder / str(index)).touch()
        return {"x": index}

    def may_go_on(self):
        if isinstance(self.others, str):
            return (self.folder / self.others).exists()
        return len(list(self.folder.iterdir())) >= self.others


def blocked(folder, others, backend="main", costs=None, **options):
    """A loader of batches of two rows by two workers, whose window is four batches."""
    folder.mkdir()
    fetch = Fetch(Blocked(folder, others), None, toy.Stack(), 0, hashed=True)
    options = LoaderOptions(backend, 2, **options)
    return toy.Loader(Plan(Sequential(64), 2), fetch, options, costs=costs)


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_a_slow_sample_holds_up_its_own_batch_alone(backend, tmp_path):
    expected = toy.hashes(blocked(tmp_path / "main", 0))
    # Nine other batches: with those before it, a window of four has only four.
    assert toy.hashes(blocked(tmp_path / "workers", 18, backend)) == expected


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_takes_no_request_that_it_does_not_begin(persistent, tmp_path):
    # The other worker makes all others of the window.
    options = {"slow_memory": 0, "persistent_workers": persistent}
    expected = toy.hashes(blocked(tmp_path / "main", 0))
    with blocked(tmp_path / "workers", 8, "process", **options) as loader:
        assert toy.hashes(loader) == expected


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_a_batch_that_will_take_long_is_begun_early(backend, tmp_path):
    # The window can grow to 20 batches; row 46 is in the 23rd after the one that waits for it.
    costs = np.ones(64)
    costs[46] = 100
    expected = toy.hashes(blocked(tmp_path / "main", 0))
    assert toy.hashes(blocked(tmp_path / "workers", "46", backend, costs)) == expected


class Stalls(toy.Pictures):
    """Row 5 takes a second."""

    def __getitem__(self, index):
        time.sleep(1.0 if index == 5 else 0.0)
        return super().__getitem__(index)


def test_a_batch_tells_its_slow_rows():
    loader = toy.loader(dataset=Stalls())
    # The first row of all takes the longest to read, and may be slow, too.
    assert 5 in sum((batch.slow for batch in loader.epoch(0)), ())
    assert loader._slow


def requests_in(tasks):
    return [task.request for task in tasks]


@pytest.fixture
def queue():
    made = RequestQueue(multiprocessing.get_context("fork"), 2)
    yield made
    made.close()


def test_each_request_is_taken_once_and_in_order(queue):
    asked = [Task(f"{number} {'x' * 1000 * number}") for number in range(20)]  # some need blocks
    for task in asked:
        queue.put(task)
    taken = [queue.reader.take(number % 2) for number in range(20)]
    assert taken == requests_in(asked)
    assert queue.reader.take(0) is None
    assert queue.has_open
    assert queue.claimed(0) == asked[::2]
    assert queue.claimed(1) == asked[1::2]
    assert not queue.has_open
    before = os.fstat(queue._file).st_size
    for task in asked:
        queue.put(task)
    assert [queue.reader.take(0) for _ in asked] == requests_in(asked)
    assert os.fstat(queue._file).st_size == before  # their places are used again


def test_what_nobody_took_comes_back_and_what_is_lost_is_known(queue):
    asked = [Task(number) for number in range(6)]
    for task in asked:
        queue.put(task)
    queue.reader.take(0)
    os.read(queue.reader.fileno(), 32)  # a process that is killed before it says so
    assert queue.claimed(0) == asked[:1]
    assert queue.take_back() == asked[2:]
    assert queue.lost() == asked[1:2]
    assert queue.lost() == queue.take_back() == []
    queue.forget(0)
    queue.put(asked[1])
    assert queue.reader.take(0) == 1
    assert queue.claimed(0) == asked[1:2]


def test_more_requests_than_a_pipe_holds(queue):
    asked = [Task(number) for number in range(5000)]
    for task in asked:
        queue.put(task)
    taken, known = [], []
    while len(taken) < 5000:
        while (request := queue.reader.take(1)) is not None:
            taken.append(request)
        known += queue.claimed(1)
        queue.flush()
    assert taken == requests_in(asked) == requests_in(known)
