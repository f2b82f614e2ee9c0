"""The window of requests under way at its borders, and the pool behind it, played by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from penstock.loading.fetch import Fetch
from penstock.loading.workers import window as windows
from penstock.loading.workers.backends import MainBackend, Requests
from penstock.loading.workers.options import LoaderOptions
from penstock.loading.workers.window import POLL, PoolBackend, Task, Window, windowed
from penstock.order.plan import Request
from penstock.order.randomness import hash64
from penstock.torch_internals import ExceptionWrapper
from tests import toy


def request(step):
    rows = np.arange(step, step + 1)
    return Request(0, step, rows, rows, 1)


def requests(count):
    return iter(list(map(request, range(count))))


def pending(there, missing, size=10):
    done = [SimpleNamespace(result=b"x" * size) for _ in range(there)]
    return [SimpleNamespace(result=None) for _ in range(missing)] + done


class Hand:
    """A pool that makes a batch in each wait, in the order of `finishes`."""

    def __init__(self, finishes=()):
        self.finishes, self.tasks, self.waits, self.log = list(finishes), {}, [], []
        self.deaths = 0

    def submit(self, asked):
        self.log.append(asked.step)
        self.tasks[asked.step] = task = Task(asked)
        assert (task.result, task.deaths, task.last_death) == (None, 0, None)
        return task

    def wait(self, seconds):
        self.waits.append(seconds)
        if not self.finishes:
            return False
        step = self.finishes.pop(0)
        if step is not None:
            self.tasks[step].result = f"batch {step}"
        return step is not None

    def late(self, limit):
        return f" after all, {limit}"

    def begin(self):
        self.log.append("begin")

    def shut_down(self):
        self.log.append("shut down")


def options(workers=1, **others):
    return LoaderOptions("process", workers, **others)


def test_a_window_as_it_begins():
    window = Window(3, 4, 1000)
    assert (window.extra, window.early, window.largest, window.measures) == (0, 0, 0, False)
    assert (window.size, window.most, window.has_room) == (12, 24, False)


@pytest.mark.parametrize(
    ("there", "missing", "grows"),
    [
        (5, 3, True),  # two workers: one task for each, and one more, are not too few
        (6, 2, True),
        (4, 4, True),
        (3, 5, False),
        (4, 3, False),  # it is not full
    ],
)
def test_a_window_grows_while_workers_get_idle(there, missing, grows):
    window = Window(4, 2, 1000)
    assert window.grow(pending(there, missing)) == grows
    assert window.extra == int(grows)
    assert window.size == 8 + grows
    assert window.largest == (10 if grows else 0)


def test_the_newest_batch_is_measured_while_a_window_grows():
    window, held = Window(2, 2, 1000), pending(4, 0)
    held[-2].result = b"x" * 50
    assert window.grow(held)
    assert window.largest == 10


def test_the_window_of_one_worker_and_one_batch_grows_when_it_is_there():
    assert not Window(1, 1, 1000).grow(pending(0, 1))
    assert Window(1, 1, 1000).grow(pending(1, 0))


def test_a_window_grows_to_the_most_and_no_further():
    window, held = Window(1, 1, 10**6), pending(1, 0)
    for extra in range(8):
        assert window.extra == extra
        assert window.grow(held)
        held += pending(1, 0)
    assert not window.grow(held)
    assert window.size == 9


def test_early_batches_leave_the_normal_window():
    window = Window(2, 2, 100)
    window.early, window.largest = 50, 10
    assert window.size == 4
    window.extra = 1
    assert window.size == 4
    window.early = 9
    assert window.size == 5
    window.largest, window.early, window.extra = 1, 0, 60
    assert window.size == 64


def test_a_window_whose_growth_changes_nothing_hands_out_nothing():
    window = Window(2, 2, 100)
    window.early = 10
    assert not window.grow(pending(4, 0))
    assert window.extra == 1  # of which the early ones take the room
    assert not window.grow(pending(4, 0))
    assert window.extra == 1


@pytest.mark.parametrize(
    ("largest", "early", "extra", "has_room"),
    [
        (0, 0, 0, False),
        (1, 0, 0, True),
        (10, 1, 0, True),
        (10, 2, 0, False),  # as many as there are workers
        (10, 0, 10, False),
        (10, 0, 9, True),
        (10, 1, 9, False),
    ],
)
def test_one_more_is_begun_early_where_there_is_room(largest, early, extra, has_room):
    window = Window(2, 2, 100)
    window.largest, window.early, window.extra = largest, early, extra
    assert window.has_room == has_room


def test_a_window_shrinks_by_one_for_each_64_batches():
    window = Window(1, 1, 10**6)
    window.deliver(b"x" * 70)  # which is not measured, and does not count
    assert window.largest == 0
    window.extra = 3
    for count in range(1, 129):
        window.deliver(b"x" * count)
        assert window.extra == 3 - count // 64
    assert window.largest == 128
    window.extra, window.measures = 0, True
    window.deliver(SimpleNamespace(value=b"x" * 300))
    assert window.largest == 300


def test_a_result_is_taken_once_and_errors_are_raised():
    task = Task(request(0))
    task.result = "batch"
    assert (task.take(), task.result) == ("batch", None)
    task.result = KeyError("a key")
    with pytest.raises(KeyError, match="a key"):
        task.take()
    try:
        raise ValueError("over there")
    except ValueError:
        task.result = ExceptionWrapper(where="in worker 1")
    with pytest.raises(ValueError, match="Caught ValueError in worker 1"):
        task.take()


@pytest.mark.parametrize(
    ("in_order", "finishes", "results"),
    [(True, [1, 0, 3, 2], [0, 1, 2, 3]), (False, [1, 0, 3, 2], [1, 0, 3, 2])],
)
def test_results_come_in_order_or_as_they_are_made(in_order, finishes, results):
    pool = Hand(finishes)
    taken = windowed(pool, requests(4), options(2, prefetch_factor=1, in_order=in_order))
    assert pool.log == [0, 1]  # the first window, before anybody asks
    assert list(taken) == [f"batch {step}" for step in results]
    assert pool.log == [0, 1, 2, 3]
    assert set(pool.waits) == {POLL}


def test_a_window_grows_while_its_first_batch_is_waited_for():
    pool = Hand([1, 2, 0])
    taken = windowed(pool, requests(50), options(2, prefetch_factor=1))
    assert next(taken) == "batch 0"
    # Two of the first window, one for each that was made meanwhile, and one for the first.
    assert pool.log == [0, 1, 2, 3, 4]
    assert LoaderOptions().ahead == 2


def test_a_window_is_filled_again_before_a_batch_is_handed_over():
    pool = Hand([0, 1, 2])
    taken = windowed(pool, requests(5), options(1, prefetch_factor=3))
    assert next(taken) == "batch 0"
    assert pool.log == [0, 1, 2, 3]


@pytest.fixture
def clock(monkeypatch):
    """A clock of the windows that each look moves on by `step` seconds."""
    made = SimpleNamespace(now=100.0, step=0.0)

    def monotonic():
        made.now += made.step
        return made.now

    monkeypatch.setattr(windows, "time", SimpleNamespace(monotonic=monotonic))
    return made


def test_a_batch_that_does_not_come_in_time_ends_the_run(clock):
    clock.step, pool = 0.25, Hand([None, None, None])
    with pytest.raises(RuntimeError) as caught:
        next(windowed(pool, requests(2), options(batch_timeout=0.5)))
    assert str(caught.value) == "DataLoader timed out after 0.5 seconds after all, 0.5"
    assert pool.waits == [0.5, 0.5]  # looks a quarter and half a second after the first


def test_time_counts_from_the_last_batch_that_was_made(clock):
    clock.step, pool = 0.25, Hand([None, 1, None, 0])
    assert next(windowed(pool, requests(2), options(batch_timeout=0.75))) == "batch 0"
    assert len(pool.waits) == 4


def test_waits_are_as_short_as_the_limit(clock):
    pool = Hand([0])
    next(windowed(pool, requests(2), options(batch_timeout=0.125)))
    assert pool.waits == [0.125]


def test_no_limit_waits_for_ever(clock):
    clock.step, pool = 1000.0, Hand([None] * 5 + [0])
    assert next(windowed(pool, requests(2), options())) == "batch 0"


def early(finishes, slow, count=40, **others):
    pool = Hand(finishes)
    asked = Requests(requests(count), lambda coming: coming.step in slow)
    return pool, windowed(pool, asked, options(1, prefetch_factor=2, **others))


def test_slow_batches_are_begun_before_their_turn():
    pool, taken = early(range(40), slow=(6,))
    results = [next(taken) for _ in range(3)]
    assert results == ["batch 0", "batch 1", "batch 2"]
    assert pool.log == [0, 1, 2, 6, 3, 4]
    assert [*results, *taken] == [f"batch {step}" for step in range(40)]
    assert sorted(pool.log) == list(range(40))


@pytest.mark.parametrize("others", [{"in_order": False}, {"slow_memory": 0}])
def test_no_batch_is_begun_before_its_turn_where_that_helps_nobody(others):
    pool, taken = early(range(40), slow=(6,), **others)
    list(taken)
    assert pool.log == list(range(40))


def test_nobody_is_asked_which_batches_are_slow_where_order_is_free():
    asked = Requests(requests(4), pytest.fail)
    assert len(list(windowed(Hand(range(4)), asked, options(2, in_order=False)))) == 4


def test_requests_are_looked_at_two_a_batch_as_far_as_the_window_can_reach():
    looked = []
    pool = Hand(range(99))
    asked = Requests(requests(99), lambda coming: bool(looked.append(coming.step)))
    window = Window(1, 2, 1000)
    window.largest = 1
    feed = windows._Feed(pool, asked, window, 8)
    assert window.measures
    assert [task.request.step for task in feed.next(2)] == [0, 1]
    assert looked == [2, 3, 4, 5]
    assert feed.next(0) == []
    assert looked == [2, 3, 4, 5, 6, 7]
    assert [task.request.step for task in feed.next(1)] == [2]
    assert [task.request.step for task in feed.next(1)] == [3]
    assert looked == list(range(2, 12))
    assert len(feed._coming) == 8
    feed.next(0)
    assert looked == list(range(2, 12))


def test_a_batch_that_was_begun_early_is_so_until_its_turn():
    asked = Requests(requests(9), lambda coming: coming.step == 2)
    window = Window(1, 2, 1000)
    window.largest = 1
    feed = windows._Feed(Hand(), asked, window, 8)
    early = []
    for _ in range(4):
        feed.next(1)
        early.append(window.early)
    assert early == [1, 1, 0, 0]


class HandBackend(PoolBackend):
    def _new_pool(self):
        self.made.append(Hand([0]))
        return self.made[-1]


def backend(**others):
    made = HandBackend(Fetch(toy.Pictures(), None, toy.Stack(), 5), options(1, **others))
    made.made = []
    return made


def test_a_pool_lives_for_one_run_or_is_persistent():
    plain, persistent = backend(), backend(persistent_workers=True)
    for made in (plain, persistent):
        assert made.deaths == 0
        for _ in range(2):
            with made.run(requests(1)):
                pass
    assert [pool.log for pool in plain.made] == [["begin", 0, "shut down"]] * 2
    assert [pool.log for pool in persistent.made] == [["begin", 0, "begin", 0]]
    persistent.made[0].deaths = 2
    assert persistent.deaths == 2
    persistent.close()
    persistent.close()
    assert persistent.made[0].log[-2:] == [0, "shut down"]
    assert persistent.deaths == 2
    with persistent.run(requests(1)):
        persistent.made[1].deaths = 3
        assert persistent.deaths == 5
    persistent.__del__()
    assert persistent.made[1].log[-1] == "shut down"
    HandBackend.__new__(HandBackend).__del__()  # of one whose making was refused


def test_workers_are_seeded_by_the_run_or_as_asked():
    assert backend()._seed == hash64(5, "workers")
    assert backend(generator=0)._seed == 0


@pytest.mark.parametrize(
    ("keyed", "leaves", "scoped"),
    [(True, False, True), (True, True, False), (False, False, False), (False, True, False)],
)
def test_this_process_keeps_its_generators_where_batches_are_keyed(keyed, leaves, scoped):
    fetch = SimpleNamespace(leaves_generators=leaves)
    assert MainBackend(fetch, keyed)._is_scoped == scoped
