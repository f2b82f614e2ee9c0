"""A pool whose worker processes are played by hand: who gets which request, and who is replaced."""

import logging
import os
import re
import signal
import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from penstock.errors import ConfigError
from penstock.loading import memory, worker_status
from penstock.loading.fetch import Fetch
from penstock.loading.workers import failures
from penstock.loading.workers import pool as pools
from penstock.loading.workers.channel import ChannelError
from penstock.loading.workers.options import LoaderOptions
from penstock.loading.workers.pool import ProcessBackend, WorkerPool
from penstock.loading.workers.results import Failure, WorkerError
from penstock.order.plan import Request
from penstock.torch_internals import ExceptionWrapper
from tests import toy
from tests.loading import played

READ, STARTING = worker_status.READ, worker_status.STARTING


def request(step):
    rows = np.arange(step, step + 1)
    return Request(0, step, rows, rows, 1)


def taken(process):
    """Steps of all the requests that a process can take now."""
    return [asked.step for asked in iter(process.take, None)]


@pytest.fixture
def make(monkeypatch, caplog):
    """A function that makes a pool, and the list of its processes, played by hand."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(failures, "ask_for_stack", lambda *what: f"asked {what[-1]}")
    made = []

    def make(workers=2, method="fork", in_turn=False, pin=False, **options):
        context = played.Context(method)
        fetch = SimpleNamespace(dataset=None, in_turn=in_turn)
        with monkeypatch.context() as patch:
            patch.setattr(pools.multiprocessing, "get_context", lambda name: context)
            options = LoaderOptions("process", workers, **options)
            made.append(WorkerPool(fetch, 7, method, options, pin))
        return made[-1], context.processes

    yield make
    for pool in made:
        pool.shut_down()


def submit(pool, *steps):
    return [pool.submit(request(step)) for step in steps]


def last_words(caplog):
    return caplog.records[-1].getMessage()


def test_whoever_is_free_takes_the_next_request(make):
    pool, (first, second) = make()
    tasks = submit(pool, 0, 1, 2)
    assert not pool.wait(0)
    assert second.take().step == 0
    assert taken(first) == [1, 2]
    first.give("batch 1")
    assert pool.wait(0)
    assert [task.result for task in tasks] == [None, "batch 1", None]
    first.give("batch 2")
    second.give("batch 0")
    assert pool.wait(0)
    assert [task.result for task in tasks] == ["batch 0", "batch 1", "batch 2"]
    assert not pool.wait(0)
    assert pool.late(3) == ""
    assert pool._pinned.empty()  # no thread reports here
    assert pool.deaths == 0


@pytest.mark.parametrize("dealt", [{"in_turn": True}, {"keyed": False}])
def test_requests_are_dealt_in_turn_where_batches_depend_on_the_worker(dealt, make):
    pool, (first, second) = make(**dealt)
    submit(pool, 0, 1, 2)
    assert (taken(first), taken(second)) == ([0, 2], [1])
    pool.begin()
    submit(pool, 3, 4)
    assert (taken(first), taken(second)) == ([3], [4])


def test_requests_are_dealt_to_the_least_busy_where_order_is_free(make):
    pool, (first, second) = make(in_turn=True, in_order=False)
    submit(pool, 0, 1, 2)
    assert (taken(first), taken(second)) == ([0, 2], [1])
    second.give("batch 1")
    pool.wait(0)
    submit(pool, 3, 4)
    assert (taken(first), taken(second)) == ([], [3, 4])


def test_a_request_may_choose_its_worker(make):
    pool, (first, second) = make(in_turn=True)
    submit(pool, 0)
    seen = []
    asked = SimpleNamespace(assigned=lambda loads: seen.append(loads) or (1, request(5)))
    assert pool.submit(asked).request.step == 5
    assert seen == [[1, 0]]
    assert (taken(first), taken(second)) == ([0], [5])


def test_another_run_knows_nothing_of_what_the_last_one_left(make):
    pool, (first, _) = make()
    submit(pool, 0, 1)
    pool.begin()
    submit(pool, 2)
    assert taken(first) == [2]


def test_idle_workers_that_died_are_replaced_when_there_is_work(make, caplog):
    pool, processes = make()
    processes[0].die(-9)
    pool.begin()
    assert (len(processes), pool.workers[0].process, pool.deaths) == (2, None, 1)
    assert last_words(caplog).endswith("\n    it is started again when there is work")
    assert not pool.wait(0)
    assert len(processes) == 2
    submit(pool, 0)
    assert len(processes) == 3
    assert taken(processes[2]) == [0]


def test_all_that_a_dead_worker_had_is_made_again_first(make, caplog, monkeypatch):
    monkeypatch.setattr(memory, "kills", lambda: 0)
    pool, processes = make()
    first, second = processes
    tasks = submit(pool, 0, 1, 2)
    first.take()
    first.take()
    first.stand(0, 1, 0, READ)
    pool.workers[0].size = 2**30
    os.write(first.worker_context.stack.fileno(), b"its stack")
    first.die(-9)
    assert not pool.wait(0)
    assert len(processes) == 3
    assert taken(second) == [0, 1, 2]
    assert [task.deaths for task in tasks] == [0, 1, 0]  # it stood at the second
    text = last_words(caplog)
    assert text.startswith(
        f"DataLoader worker 0 (pid {first.pid}) was killed by signal 9 (SIGKILL)\n"
        "    it was at stage 'read' of epoch 0, step 1, sample 1, 1 of 1\n"
        "    it held epoch 0, step 0: samples 0\n"
        "    it held epoch 0, step 1: samples 1\n"
        "    SIGKILL leaves no stack behind"
    )
    assert "It had 1.00 GiB of memory" in text
    assert text.endswith(
        "    its stack:\n      its stack\n"
        "    death 1 of 3 at this address; another process makes the same batches"
    )


def test_what_a_worker_sent_before_it_died_counts(make):
    pool, (first, second) = make()
    tasks = submit(pool, 0, 1)
    taken(first)
    first.give("batch 0")
    first.die(-9)
    assert pool.wait(0)
    assert [task.result for task in tasks] == ["batch 0", None]
    assert taken(second) == [1]
    assert tasks[1].deaths == 1


def test_too_many_deaths_at_one_address_are_its_result(make):
    pool, processes = make(1, max_deaths=2)
    (task, after) = submit(pool, 4, 5)
    for _ in range(2):
        processes[-1].take()
        processes[-1].die(3)
        pool.wait(0)
    assert isinstance(task.result, Failure)
    assert task.result.request.step == 4
    assert isinstance(task.result.error, WorkerError)
    assert task.result.error.died == (processes[1].pid, 3)
    text = str(task.result.error)
    assert "exited unexpectedly with code 3" in text
    assert "\n    death 2 at this address, and loader.max_deaths=2. Look at its samples" in text
    assert after.deaths == 0
    assert taken(processes[2]) == [5]
    assert pool.deaths == 2


def test_a_worker_that_cannot_start_is_blamed_on_the_next_request(make):
    pool, processes = make(1)
    tasks = submit(pool, 0, 1)
    for _ in range(3):
        processes[-1].die(1)
        pool.wait(0)
    assert "it was starting\n" in str(tasks[0].result.error)
    assert "death 3" in str(tasks[0].result.error)
    assert "step 1" not in str(tasks[0].result.error)
    assert (tasks[1].deaths, tasks[1].result) == (0, None)
    processes[-1].stand(0, 0, -1, worker_status.IDLE)
    processes[-1].die(1)
    pool.wait(0)
    assert tasks[1].deaths == 0  # it had begun, and died of nothing that was asked for


def test_dealt_requests_of_a_dead_worker_go_to_its_successor(make):
    pool, processes = make(in_turn=True)
    first, second = processes
    submit(pool, 0, 1, 2)
    taken(second)
    first.die(-9)
    pool.wait(0)
    assert taken(processes[2]) == [0, 2]
    assert taken(second) == []
    assert [len(worker.tasks) for worker in pool.workers] == [2, 1]


FAULT = -signal.SIGSEGV


@pytest.mark.parametrize(
    ("method", "codes", "steps", "again"),
    [
        ("spawn", (FAULT, FAULT), (4, 4), True),
        ("forkserver", (-signal.SIGBUS, -signal.SIGBUS), (4, 4), True),
        ("fork", (FAULT, FAULT), (4, 4), False),
        ("spawn", (-9, -9), (4, 4), False),
        ("spawn", (FAULT, -signal.SIGABRT), (4, 4), False),
        ("spawn", (FAULT, FAULT), (3, 3), False),  # no address that it had
    ],
)
def test_a_fault_at_the_same_place_ends_the_tries_where_a_start_takes_long(
    method, codes, steps, again, make, caplog
):
    pool, processes = make(1, method)
    (task,) = submit(pool, 4)
    for code, step in zip(codes, steps, strict=True):
        processes[-1].take()
        processes[-1].stand(0, step, 0, READ)
        processes[-1].die(code)
        pool.wait(0)
    assert len(processes) == (2 if again else 3)
    assert (task.result is not None) == again
    assert pool.workers[0].rests == again
    if again:
        assert (
            "death 2 at this address, at the same place as the one before, so that it would come "
            "again. Look"
        ) in str(task.result.error)
        assert submit(pool, 5)[0].result is None
        assert len(processes) == 2  # it rests until somebody waits for more
        pool.wait(0)
        assert not pool.workers[0].rests
        assert taken(processes[2]) == [5]


def test_the_same_fault_at_another_sample_is_another(make):
    pool, processes = make(1, "spawn")
    (task,) = submit(pool, 4)
    for place in (0, 1):
        processes[-1].take()
        processes[-1].stand(0, 4, place, READ)
        processes[-1].die(FAULT)
        pool.wait(0)
    assert task.result is None
    assert task.last_death == (FAULT, (0, 4, 1, READ))


def test_others_that_are_ready_make_it_where_a_start_takes_long(make):
    pool, processes = make(4, "spawn", in_turn=True)
    submit(pool, *range(10))
    starting, busy, ready, dead = processes
    for process in (busy, ready, dead):
        taken(process)
        process.stand(-1, -1, -1, worker_status.IDLE)
    pool.workers[3].take(pool.workers[1].tasks.pop())
    taken(dead)
    dead.die(-9)
    pool.wait(0)
    loads = [len(worker.tasks) for worker in pool.workers]
    assert loads == [3, 2 + 3, 2, 0]
    assert taken(busy) == [3, 7, 9]
    assert len(processes) == 5  # for the tasks to come
    assert starting.exitcode is ready.exitcode is None


def test_nothing_is_handed_to_another_that_is_gone(make):
    pool, processes = make(3, "spawn", in_turn=True)
    submit(pool, 0, 1, 2)
    for process in list(processes):
        taken(process)
        process.stand(-1, -1, -1, worker_status.IDLE)
    processes[0].give("batch 0")
    pool.wait(0)
    processes[0].die(0)
    pool.wait(0)
    processes[2].die(-9)
    pool.wait(0)
    assert [len(worker.tasks) for worker in pool.workers] == [0, 2, 0]
    assert pool.workers[0].process is None


def test_the_only_worker_makes_its_own_again_where_a_start_takes_long(make):
    pool, processes = make(2, "spawn", in_turn=True)
    submit(pool, 0, 1)
    processes[0].die(-9)
    pool.wait(0)  # the other one starts
    assert taken(processes[2]) == [0]
    assert taken(processes[1]) == [1]


def test_a_batch_for_which_too_many_files_are_open_is_an_error(make):
    pool, processes = make(1)
    tasks = submit(pool, 0, 1)
    taken(processes[0])

    def take():
        raise ChannelError("too many files")

    pool.workers[0]._receiver.take = take
    assert pool.wait(0)
    assert isinstance(tasks[0].result.error, ChannelError)
    assert tasks[1].result is None
    assert processes[0].log[0] == "kill"
    assert taken(processes[1]) == [1]
    assert tasks[1].deaths == 0


@pytest.fixture
def clock(monkeypatch):
    made = SimpleNamespace(now=500.0)
    monkeypatch.setattr(pools, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def test_only_time_spent_waiting_counts(make, clock, monkeypatch):
    pool, _ = make(1)
    passed = []
    pool.workers[0].look = passed.append
    for seconds in (0.0, 0.125, 0.375, 3.0):
        clock.now += seconds
        pool.wait(0)
    assert passed == [0.0, 0.125, 0.375, 2 * pools._POLL]


@pytest.mark.parametrize(
    ("limit", "state", "stage", "silent", "stopped", "locked", "sign"),
    [
        (100, "S", READ, 0.0, 4.9, 0.0, ""),
        (100, "S", READ, 0.0, 5.0, 0.0, "had been stopped for 5 s"),
        (0, "S", READ, 999.0, 99.0, 99.0, ""),
        (100, "S", READ, 0.0, 0.0, 29.9, ""),
        (
            100,
            "S",
            READ,
            0.0,
            0.0,
            30.0,
            "waited for a lock that nobody was there to release, for 30 s,",
        ),
        (100, "S", READ, 99.9, 0.0, 0.0, ""),
        (100, "S", READ, 100.0, 0.0, 0.0, "gave no sign of life for 100 s (loader.timeout)"),
        (50, "S", STARTING, 55.0, 0.0, 0.0, ""),
        (50, "S", READ, 55.0, 0.0, 0.0, "gave no sign of life for 50 s (loader.timeout)"),
        (50, "S", STARTING, 60.0, 0.0, 0.0, "gave no sign of life for 50 s (loader.timeout)"),
        (50, "T", STARTING, 55.0, 0.0, 0.0, "gave no sign of life for 50 s (loader.timeout)"),
        (50, "t", STARTING, 55.0, 0.0, 0.0, "gave no sign of life for 50 s (loader.timeout)"),
    ],
)
def test_signs_of_a_worker_that_hangs(
    limit, state, stage, silent, stopped, locked, sign, make, monkeypatch
):
    monkeypatch.setattr(failures, "state_of", lambda pid: state)
    pool, processes = make(1, timeout=limit)
    (worker,) = pool.workers
    processes[0].stand(0, 1, 0, stage)
    worker.silent, worker.stopped, worker.locked = silent, stopped, locked
    assert pool._hangs(worker) == sign


def test_another_worker_may_hold_the_lock(make):
    pool, _ = make(3)
    worker, other, idle = pool.workers
    worker.locked = 30.0
    worker.tasks.append("task")
    assert pool._hangs(worker)
    other.tasks.append("task")
    assert not pool._hangs(worker)
    other.locked = 0.5
    assert pool._hangs(worker)
    assert idle.locked == 0


@pytest.mark.parametrize(("state", "stopped"), [("T", True), ("t", True), ("D", False)])
def test_a_worker_that_hangs_is_killed(state, stopped, make, monkeypatch, caplog):
    monkeypatch.setattr(failures, "state_of", lambda pid: state)
    pool, processes = make(1, timeout=10)
    submit(pool, 0)
    processes[0].take()
    processes[0].stand(0, 0, 0, READ)
    pool.wait(0)
    pool.workers[0].silent = 20.0
    pool.wait(0)
    assert processes[0].log[0] == "kill"
    assert taken(processes[1]) == [0]
    text = last_words(caplog)
    assert "gave no sign of life for 10 s (loader.timeout) and was killed\n" in text
    assert f"      asked {stopped}\n" in text
    assert ("it had been stopped" in text) == stopped
    assert ("it waits inside the kernel" in text) != stopped
    assert pool.deaths == 1


def test_what_is_waited_for(make, monkeypatch):
    pool, (first, second) = make(in_turn=True)
    waits, real = [], pools.wait

    def wait(sources, seconds):
        waits.append((set(sources), seconds))
        return real(sources, 0)

    monkeypatch.setattr(pools, "wait", wait)
    socks, sentinels = [worker.sock for worker in pool.workers], [first.sentinel, second.sentinel]
    pool.wait(9)
    assert waits.pop() == ({pool._rings, *socks, *sentinels}, 0.2)
    pool.wait(0.1)
    assert waits.pop()[1] == 0.1
    pool.submit(SimpleNamespace(text="x" * 3_000_000))  # more than fits into a socket
    pool.wait(0.1)
    assert waits.pop()[1] == 0.01
    while first.take() is None:
        pool.wait(0.1)  # which sends the rest
    pool._bell.send(b"\0\0")
    pool.wait(0.1)
    with pytest.raises(BlockingIOError):
        pool._rings.recv(1)
    second.sock.close()
    pool.wait(0)
    pool.wait(0)
    assert waits.pop()[0] == {pool._rings, socks[0], *sentinels}
    second.die(0)
    pool.wait(0)
    pool.wait(0)
    assert waits.pop()[0] == {pool._rings, socks[0], first.sentinel}


def test_what_did_not_fit_into_the_queue_follows(make):
    pool, (first, _) = make()
    submit(pool, *range(2100))
    done = len(taken(first))
    assert done < 2100
    pool.wait(0)
    assert taken(first)[0] == done


def test_workers_end_in_good_order(make):
    pool, (first, second) = make()
    assert first.sock.getblocking()
    pool.shut_down()
    assert first.log == second.log == ["join 0.1", "close"]
    assert pool.deaths == 0
    pool.shut_down()
    assert first.log == ["join 0.1", "close"]
    assert pool._bell.fileno() == pool._rings.fileno() == -1
    assert pool._queue.reader._pipe.closed


def test_workers_are_woken_before_they_are_waited_for(make):
    pool, (process,) = make(1)
    woken = []

    def join(timeout):
        woken.append(process.sock.recv(1))
        process.die(0)

    process.join = join
    pool.shut_down()
    assert woken == [b""]


def test_workers_are_killed_at_once_where_the_run_is_to_stop(make, monkeypatch):
    pool, (first, second) = make()
    first.die(-9)
    monkeypatch.setattr(pools, "asked", lambda: True)
    pool.shut_down()
    assert second.log == ["kill", "close"]
    assert pool.deaths == 1  # the one that died by itself


def test_a_pool_belongs_to_the_process_that_made_it(make):
    pool, (first, _) = make()
    pool._owner += 1
    pool.shut_down()
    assert not pool._shared.is_done
    assert first.log == []
    pool._owner -= 1


def test_a_death_after_the_end_is_not_reported(make, caplog):
    pool, (first, _) = make()
    pool._shared.end()
    first.die(-9)
    pool.wait(0)
    assert (pool.workers[0].process, caplog.records) == (None, [])
    pool._end_all()


def test_a_worker_that_cannot_be_started_ends_the_others(make, monkeypatch):
    started = []

    def start(process):
        started.append(process)
        if len(started) == 2:
            raise OSError("no more processes")
        real(process)

    real = played.Process.start
    monkeypatch.setattr(played.Process, "start", start)
    with pytest.raises(OSError, match="no more processes"):
        make(3)
    assert len(started) == 2
    assert started[0].log[0] == "kill"


@pytest.fixture
def pinning(monkeypatch):
    """An accelerator that is none, and what was pinned for which device in which thread."""
    pinned = []

    def pin(result, device):
        pinned.append((result, device, threading.current_thread().name, torch.get_num_threads()))
        if result == "unpinnable":
            raise RuntimeError("no pages")
        return f"pinned {result}"

    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
    monkeypatch.setattr(pools, "pin_memory", pin)
    return pinned


def test_a_thread_pins_and_reports_each_result(make, pinning, monkeypatch):
    pool, (process,) = make(1, pin=True)
    tasks = submit(pool, 0, 1, 2)
    pool.begin()  # takes nothing from the thread
    tasks += submit(pool, 3, 4, 5)
    try:
        raise KeyError("x")
    except KeyError:
        wrapped = ExceptionWrapper(where="in a worker")
    asked = [process.take() for _ in range(3)]
    assert [item.step for item in asked] == [3, 4, 5]
    for result in ("batch", wrapped, "unpinnable"):
        process.give(result)
        assert pool.wait(30)
    assert tasks[3].result == "pinned batch"
    assert tasks[4].result.where == wrapped.where
    assert tasks[5].result.where == "in pin memory thread for device 3"
    assert [call[:3] for call in pinning] == [
        ("batch", "cpu", "penstock-pin"),
        ("unpinnable", "cpu", "penstock-pin"),
    ]
    assert {call[3] for call in pinning} == {1}
    assert not pool.wait(0)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)
    pool._pin("last")
    assert pinning[-1][1] is None


def test_an_error_of_the_thread_that_pins_is_raised_again_and_again(make, pinning):
    pool, _ = make(1, pin=True)

    def supervise():
        raise MemoryError("none left")

    pool._supervise = supervise
    submit(pool, 0)
    for _ in range(2):
        with pytest.raises(MemoryError, match="none left"):
            pool.wait(30)


def test_the_thread_that_pins_is_woken(make):
    pool, _ = make()
    submit(pool, 0)
    with pytest.raises(BlockingIOError):  # nobody is to be woken
        pool._rings.recv(1)
    heard = []
    pool._pinner = SimpleNamespace(join=lambda: heard.append(pool._rings.recv(9)))
    submit(pool, 1)
    assert pool._rings.recv(9) == b"\0"
    pool.shut_down()
    assert heard == [b"\0"]


def test_the_thread_that_pins_may_end_the_pool(make):
    pool, (first, _) = make()
    pool._pinner = threading.current_thread()  # which cannot wait for itself
    pool.shut_down()
    assert first.exitcode == 0


@pytest.mark.parametrize(
    ("default", "method"), [("spawn", "spawn"), ("loky", "fork"), (None, "fork")]
)
def test_the_start_method_is_the_default_or_as_asked(default, method, monkeypatch):
    known = pools.multiprocessing
    monkeypatch.setattr(known, "get_all_start_methods", lambda: ["fork", "spawn"])
    monkeypatch.setattr(known, "get_start_method", lambda allow_none: default)
    assert pools.start_method(LoaderOptions()) == method
    assert pools.start_method(LoaderOptions(multiprocessing_context="spawn")) == "spawn"


def backend(fetch=None, pin=False, workers=1, **options):
    fetch = fetch or Fetch(toy.Pictures(), None, toy.Stack(), 5)
    return ProcessBackend(fetch, LoaderOptions("process", workers, **options), pin)


@pytest.mark.parametrize("keyed", [False, True])
def test_worker_seeds_are_drawn_or_are_as_asked(keyed, monkeypatch):
    seeds = []
    monkeypatch.setattr(pools, "WorkerPool", lambda fetch, seed, *rest: seeds.append(seed))
    made = backend(generator=11, keyed=keyed)
    made._new_pool()
    made._new_pool()
    generator = torch.Generator().manual_seed(11)
    drawn = [
        torch.empty((), dtype=torch.int64).random_(generator=generator).item() for _ in range(2)
    ]
    assert seeds == (drawn if keyed else [11, 11])


def test_a_device_to_pin_for_is_ignored_as_in_torch():
    with pytest.warns(UserWarning, match="pin_memory_device='cuda:1' is ignored") as caught:
        backend(pin=True, pin_memory_device="cuda:1")
    assert caught[0].filename == __file__
    assert 0 < caught[0].lineno - backend.__code__.co_firstlineno < 4  # where it is made
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backend(pin=False, pin_memory_device="cuda:1")
        backend(pin=True)


@pytest.mark.parametrize(
    ("method", "before", "after"),
    [
        ("forkserver", ["__main__"], ["__main__", pools.__name__]),
        ("forkserver", ["mine"], ["mine"]),
        ("spawn", ["__main__"], ["__main__"]),
    ],
)
def test_the_fork_server_imports_what_workers_need(method, before, after, monkeypatch):
    server = SimpleNamespace(_preload_modules=before)

    def preload(modules):
        server._preload_modules = modules

    monkeypatch.setattr(pools, "forkserver", SimpleNamespace(_forkserver=server))
    pools.forkserver.set_forkserver_preload = preload
    backend(multiprocessing_context=method)
    assert server._preload_modules == after


def test_parts_that_cannot_be_sent_are_refused_where_they_are_sent(monkeypatch):
    fetch = Fetch(toy.Pictures(), lambda sample: sample, toy.Stack(), 5)
    with pytest.raises(ConfigError, match=r"(?s)transform.*cannot be sent to .* by 'spawn'"):
        backend(fetch, multiprocessing_context="spawn")
    backend(fetch, workers=0, multiprocessing_context="spawn")
    made = backend(fetch, multiprocessing_context="fork")

    def fail(*arguments):
        raise TypeError("cannot pickle this")

    monkeypatch.setattr(pools, "WorkerPool", fail)
    with pytest.raises(ConfigError, match=r"(?s)transform.*cannot be sent"):
        made._new_pool()
    with pytest.raises(TypeError, match="cannot pickle this"):
        backend()._new_pool()


def test_workers_of_a_backend():
    made = backend()
    assert (made.workers(), made.pids()) == ([], [])
    assert re.search("worker process", made.executor)
