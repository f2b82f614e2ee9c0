"""The side of the worker process, run in this process."""

import ctypes
import os
import random
import signal
import socket
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info

from penstock.loading import worker_status
from penstock.loading.workers import channel, worker_side
from penstock.loading.workers.request_queue import RequestQueue
from penstock.loading.workers.results import Failure
from penstock.loading.workers.window import Task
from penstock.loading.workers.worker_side import PoolConnection, SharedState, WorkerContext
from penstock.order.plan import Request
from penstock.order.randomness import scope
from penstock.torch_internals import ExceptionWrapper, numpy_seed
from tests.loading import played


def request(step):
    rows = np.arange(step, step + 1)
    return Request(0, step, rows, rows, 1)


@pytest.fixture
def make():
    """A function that makes what a worker gets, the pool's socket and its queue."""
    opened = []

    def make(queued=True, workers=2, **parts):
        context = played.Context()
        queue = RequestQueue(context, workers) if queued else None
        ours, theirs = socket.socketpair()
        opened.extend([ours, theirs, *([] if queue is None else [queue])])
        worker_context = WorkerContext(
            parts.pop("fetch", None),
            parts.pop("worker_init_fn", None),
            workers,
            40,
            SharedState(context, workers),
            os.getpid(),
            None if queue is None else queue.reader,
            sock=theirs,
            **parts,
        )
        return worker_context, ours, queue

    yield make
    for resource in opened:
        resource.close()


def received(receiver):
    while (message := receiver.take()) is None:
        pass
    return channel.unpack(message)


def test_requests_come_from_the_queue_or_by_the_socket(make, monkeypatch):
    worker_context, ours, queue = make()
    pool = PoolConnection(worker_context)
    assert pool._poll.poll(0) == []
    queue.put(Task(request(4)))
    assert len(pool._poll.poll(0)) == 1
    assert pool.get().step == 4
    ours.sendall(channel.framed("by hand"))
    assert len(pool._poll.poll(0)) == 1
    assert pool.get() == "by hand"
    queue.put(Task(request(5)))
    monkeypatch.setattr(os, "getppid", lambda: -1)
    assert pool.get() is None  # another one is its parent now
    monkeypatch.undo()
    worker_context.shared.end()
    assert pool.get() is None


def test_a_worker_looks_every_five_seconds_whether_its_parent_is_there(make):
    worker_context, _, _ = make()
    pool, naps = PoolConnection(worker_context), []

    def poll(milliseconds):
        naps.append(milliseconds)
        worker_context.shared.end()

    pool._poll = SimpleNamespace(poll=poll)
    assert pool.get() is None
    assert naps == [5000]


def test_results_are_sent_or_the_reason_why_not(make):
    worker_context, ours, _ = make()
    pool, receiver = PoolConnection(worker_context), channel.Receiver(ours)
    for result in ("first", lambda: None, "second"):  # a function cannot be sent
        pool.put(result)
    assert received(receiver) == "first"
    error = received(receiver)
    assert error.where == f"in loader worker process {os.getpid()}, while its batch was sent"
    assert received(receiver) == "second"


def test_a_worker_whose_pool_is_gone_ends(make):
    worker_context, ours, _ = make(queued=False)
    pool = PoolConnection(worker_context)
    ours.close()
    for do in (pool.get, lambda: pool._send("result")):
        with pytest.raises(SystemExit) as caught:
            do()
        assert caught.value.code == 0


class Seen:
    """A fetch that says how its worker was set up, and ends with step 9."""

    def __init__(self):
        self.shared = None

    def dataset_of_worker(self):
        return "the dataset"

    def __call__(self, asked):
        if asked.step == 1:
            raise KeyError("a key")
        if asked.step == 9:
            self.shared.end()
        draws = torch.initial_seed(), random.random(), np.random.rand()
        info = get_worker_info()
        return draws, (info.id, info.num_workers, info.seed, info.dataset)


@pytest.fixture
def alone(monkeypatch):
    """`worker_side.run` without effect on this process; a log of what it would have done."""
    log = []
    handler = SimpleNamespace(
        disable=lambda: log.append("disable"),
        enable=lambda *what, **how: log.append(("enable", *what)),
        register=lambda *what, **how: log.append(("register", *what)),
    )
    monkeypatch.setattr(worker_side, "faulthandler", handler)
    monkeypatch.setattr(worker_side.gc, "freeze", lambda: log.append("freeze"))
    monkeypatch.setattr(worker_side.signal, "signal", lambda *what: log.append(what))
    monkeypatch.setattr(worker_side, "share_anonymously", lambda: log.append("share"))
    monkeypatch.setattr(worker_side, "_end_with", lambda *what: log.append(("ends", *what)))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: log.append(("threads", count)))
    with scope():
        yield log
    worker_status.use(memoryview(bytearray(8 * worker_status.FIELDS)).cast("q"))


def run(make, steps, **parts):
    """Results of a worker with number 1 for requests with these steps."""
    fetch = Seen()
    worker_context, ours, queue = make(fetch=fetch, number=1, steady=True, **parts)
    worker_context.stack = SimpleNamespace(fileno=lambda: 77)
    fetch.shared = worker_context.shared
    for step in steps:
        queue.put(Task(request(step)))
    worker_side.run(worker_context)
    assert worker_status.read(worker_context.shared.cell(1)).step == steps[-1]
    receiver = channel.Receiver(ours)
    return [received(receiver) for _ in steps]


@pytest.mark.parametrize("spawned", [False, True])
def test_a_worker_is_seeded_and_described_as_in_torch(spawned, make, alone):
    ((draws, info),) = run(make, [9], spawned=spawned)
    assert draws == (
        41,
        random.Random(41).random(),
        np.random.RandomState(numpy_seed(40, 1)).rand(),
    )
    assert info == (1, 2, 41, "the dataset")
    assert alone == [
        *([] if spawned else ["freeze"]),
        ("ends", os.getpid(), True),
        "disable",
        ("enable", 77),
        ("register", worker_side.DUMP, 77),
        (signal.SIGINT, signal.SIG_IGN),
        (signal.SIGTERM, worker_side._ignore),
        (signal.SIGUSR1, worker_side._ignore),
        "share",
        ("threads", 1),
    ]


def test_an_error_takes_the_place_of_its_own_batch_alone(make, alone):
    called = []
    results = run(make, [0, 1, 9], worker_init_fn=called.append)
    assert called == [1]
    assert isinstance(results[1], ExceptionWrapper)
    assert results[1].where == "in DataLoader worker process 1"
    assert results[0][1] == results[2][1] == (1, 2, 41, "the dataset")


def test_an_error_of_the_start_is_the_first_result(make, alone):
    def fail(number):
        raise ValueError(f"no {number}")

    first, second = run(make, [0, 9], worker_init_fn=fail)
    with pytest.raises(ValueError, match="no 1"):
        first.reraise()
    assert not isinstance(second, ExceptionWrapper | Failure)


class Exit(BaseException):
    pass


@pytest.mark.parametrize(
    ("steady", "parents", "is_there", "log"),
    [
        (True, [5, 5], True, ["name", "signal"]),
        (True, [5, 1], True, ["name", "signal", "exit 1"]),
        (True, [4], True, ["name", "wait for 50"]),
        (False, [5], True, ["name", "wait for 50"]),
        (False, [5], False, ["name", "exit 1"]),
    ],
)
def test_how_a_worker_learns_of_the_end_of_its_owner(steady, parents, is_there, log, monkeypatch):
    done, parents = [], iter(parents)

    def prctl(option, value):
        done.append("name" if value == b"pt_data_worker" else "signal")
        assert (option, value) in ((15, b"pt_data_worker"), (1, signal.SIGKILL))

    def leave(code):
        done.append(f"exit {code}")
        raise Exit

    def pidfd_open(pid):
        if not is_there:
            raise ProcessLookupError
        return 10 * pid

    def thread(target, args, daemon):
        assert (target, daemon) == (worker_side._wait_for_end, True)
        return SimpleNamespace(start=lambda: done.append(f"wait for {args[0]}"))

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(prctl=prctl))
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(os, "pidfd_open", pidfd_open, raising=False)
    monkeypatch.setattr(worker_side, "threading", SimpleNamespace(Thread=thread))
    try:
        worker_side._end_with(5, steady)
    except Exit:
        assert log[-1] == "exit 1"
    assert done == log
    monkeypatch.delattr(os, "pidfd_open")
    worker_side._end_with(5, steady)  # not Linux
    assert done == log


def test_cells_of_a_pool_lie_side_by_side():
    shared = SharedState(played.Context(), 3)
    assert not shared.is_done
    for number in range(3):
        cell = shared.cell(number)
        assert len(cell) == worker_status.FIELDS
        for field in range(worker_status.FIELDS):
            cell[field] = 10 * number + field + 1
    assert shared._numbers.tolist() == [0, 1, 2, 3, 4, 11, 12, 13, 14, 21, 22, 23, 24]
    shared.end()
    assert shared.is_done
    assert shared._numbers.tolist()[:2] == [1, 1]
