"""Worker processes that are replaced when they die or hang, under torch's DataLoader.

    DataLoader(..., multiprocessing_context=CrewContext("fork", terms, dataset))

torch's iterator makes its queues, its event and its processes through that context, and gets ours:
the pool is the queue of results, a worker (worker.py) is a process and its queue of tasks.
All of torch's options keep their meaning, since its iterator and its worker loop run unchanged.

A death is looked for wherever torch asks for a result, be it in the main thread, another one, or
torch's thread that pins. The others work on meanwhile; only what the dead one had not handed over
is made again. After `max_deaths` at one address, an error takes that batch's place in the order.

Cost: 30 us a batch. A result is noticed at once, a death too, one that hangs within 0.2 s.
"""

from __future__ import annotations

import logging
import multiprocessing
import queue
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from typing import Any

from pipeline.distributed.preemption import waiting
from pipeline.loading import memory, worker_status
from pipeline.loading.workers import failures
from pipeline.loading.workers.backends import WorkerError
from pipeline.loading.workers.channel import ChannelError
from pipeline.loading.workers.failures import FailureReport
from pipeline.loading.workers.worker import Handle, Task, Worker
from pipeline.loading.workers.worker_side import Flag, Memory

log = logging.getLogger(__name__)

_POLL = 0.2  # seconds between two looks at workers of which nothing is heard
# What is asked of the system once nothing is heard (Linux): one that is stopped (SIGSTOP) does not
# go on by itself; nor does one of which every thread waits for a lock, as after a fork that copied
# a lock in use. One that sleeps, reads or waits for the network may well be at work.
_STOPPED, _LOCKED = 5.0, 30.0  # seconds
# A fault of the code, which comes again where it is not for the memory of the machine.
_FAULTS = tuple(
    -getattr(signal, name) for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")
    if hasattr(signal, name)
)  # fmt: skip
_START = 60.0  # seconds that a process may take to start, whatever the limit


@dataclass(frozen=True)
class WorkerLimits:
    """When a worker is given up.

    Attributes:
        workers: how many there are.
        limit: seconds without a sign of life; 0: for ever.
        max_deaths: at one address, after which the run stops.
    """

    workers: int
    limit: float
    max_deaths: int


class PoolContext(BaseContext):
    """What torch's iterator takes for a multiprocessing context.

    Args:
        method: how processes are started.
        dataset: the person's, which knows paths.

    Attributes:
        deaths: of all crews so far.
    """

    def __init__(self, method: str, limits: WorkerLimits, dataset: Any) -> None:
        self._deaths = [0]
        self._context: Any = multiprocessing.get_context(method)
        self._limits = limits
        self._dataset = dataset
        self._pool: WorkerPool | None = None

    # In the order in which torch's iterator calls them: one queue for results, one event, and for
    # each worker a queue of tasks and a process.

    def Queue(self, maxsize: int = 0) -> Any:
        if self._pool is None:
            count = partial(_add_one, self._deaths)
            self._pool = WorkerPool(self._context, self._limits, self._dataset, count)
            return self._pool
        return self._pool.spawn()

    def Event(self) -> Any:
        assert self._pool is not None
        return self._pool.done

    def Process(self, target: Any = None, args: Any = ()) -> Any:
        assert self._pool is not None
        worker = self._pool.workers[-1]
        worker.prepare(target, args)
        return worker

    def shut_down(self) -> None:
        """End all workers that are left; the next iterator gets another pool."""
        if self._pool is not None:
            self._pool.shut_down()
            self._pool = None

    def end_workers(self) -> None:
        """Kill them; torch is told afterwards."""
        if self._pool is not None:
            self._pool.end_workers()

    def pids(self) -> list[int]:
        """Of the workers that are there."""
        return self._pool.pids() if self._pool else []

    def handles(self) -> list[Handle]:
        """The workers' processes, those that have ended included."""
        return [Handle(worker) for worker in self._pool.workers] if self._pool else []

    @property
    def deaths(self) -> int:
        return self._deaths[0]


class WorkerPool:
    """The workers of one iterator of torch's, and the queue of their results.

    Args:
        count: called at each death.
    """

    def __init__(
        self, context: Any, limits: WorkerLimits, dataset: Any, count: Callable[[], None]
    ) -> None:
        self.workers: list[Worker] = []
        self._memory = Memory(context, 1 + limits.workers * worker_status.FIELDS)
        self.done = Flag(self._memory)
        self._context, self._limits, self._dataset, self._count = context, limits, dataset, count
        self._lock = threading.RLock()
        self._ready: deque[Any] = deque()
        self._bell, self._rings = socket.socketpair()
        self._rings.setblocking(False)
        self._bell.setblocking(False)
        self._looked = time.monotonic()
        self._kills = memory.kills()
        self._is_slow_to_start = context.get_start_method() != "fork"
        # multiprocessing waits for its processes at exit, for one that does not end without end.
        # This comes before, also where this process is itself one of multiprocessing's.
        # It holds all that it takes, since nothing else may be left at the interpreter's end.
        things = self.workers, self.done, self._lock, (self._bell, self._rings)
        self._end_all = Finalize(self, _end_all, args=things, exitpriority=100)

    def spawn(self) -> Worker:
        """One more worker, not yet started."""
        changed = partial(_ring, self._bell)
        worker = Worker(len(self.workers), self._context, self._memory, self.done, self._lock,
                        changed, self._count, self.workers)  # fmt: skip
        self.workers.append(worker)
        return worker

    def pids(self) -> list[int]:
        """Of the workers that are there."""
        with self._lock:
            return [one.process.pid for one in self.workers if one.exit_code is None]

    # What torch's iterator and its pinning thread call.

    def get(self, timeout: float) -> Any:
        """The next result.

        Raises:
            queue.Empty: none came within `timeout` seconds.
        """
        ends = time.monotonic() + timeout
        while True:
            with self._lock:
                if self._ready:
                    return self._ready.popleft()
                for worker in self.workers:
                    if worker.rests:  # the error was taken, and somebody waits for more
                        worker.replace()
                self._supervise()
                sources, busy = self._sources()
            rest = ends - time.monotonic()
            if not self._ready:
                with waiting():
                    heard = wait(sources, min(max(rest, 0), 0.01 if busy else _POLL))
                self._listen(heard)
            if rest <= 0 and not self._ready:
                raise queue.Empty

    def put(self, item: Any) -> None:
        """From the main process: wakes the thread that pins."""
        with self._lock:
            self._ready.append(item)
        _ring(self._bell)

    def cancel_join_thread(self) -> None:
        """There is no thread to wait for."""

    def close(self) -> None:
        """`shut_down` closes it."""

    # The rest is ours.

    def shut_down(self) -> None:
        """End all workers at once, and what they talk through."""
        self._end_all()

    def end_workers(self) -> None:
        """End all workers at once."""
        _end_workers(self.workers, self.done, self._lock)

    def _sources(self) -> tuple[list[Any], bool]:
        """What to wait for, and whether there is something to send, too."""
        there = [worker for worker in self.workers if worker.process is not None]
        sources = [self._rings, *(worker.sock for worker in there if not worker.is_cut_off)]
        sources += [worker.process.sentinel for worker in there]
        return sources, any(worker.waits_to_send for worker in there)

    def _listen(self, heard: list[Any]) -> None:
        with self._lock:
            if self._rings in heard:
                self._rings.recv(1 << 12)
            for worker in self.workers:
                if worker.process is not None:
                    worker.flush()
                    self._receive(worker)

    def _receive(self, worker: Worker) -> None:
        try:
            self._ready.extend(worker.results())
        except ChannelError as error:  # and nothing after it can be read
            task = worker.tasks.popleft()
            self._ready.append(task.failed(error))
            worker.end()
            worker.replace()

    def _supervise(self) -> None:
        """Replace the workers that died, and end those that hang."""
        now = time.monotonic()
        # Only time that was spent waiting counts: this process may have been stopped meanwhile.
        passed, self._looked = min(now - self._looked, 2 * _POLL), now
        for worker in self.workers:
            if worker.process is None:
                continue
            code = worker.exit_code
            if code is not None:
                self._receive(worker)
                self._reap(worker, FailureReport(
                    self._name(worker), failures.by_exit_code(code), worker.status,
                    self._held(worker), worker.stack(),
                    failures.hint_for(code, worker.size, self._kills),
                ))  # fmt: skip
                continue
            worker.look(passed)
            how = self._hangs(worker)
            if how:
                self._end(worker, how)

    def _hangs(self, worker: Worker) -> str:
        """What shows that it hangs; "" if nothing does."""
        limit = self._limits.limit
        if not limit:
            return ""
        if worker.stopped >= _STOPPED:
            return f"had been stopped for {_STOPPED:g} s"
        if worker.locked >= _LOCKED and not self._others_work(worker):
            return f"waited for a lock that nobody was there to release, for {_LOCKED:g} s,"
        if worker.silent < limit:
            return ""
        starts = worker.status.stage == worker_status.STARTING and worker.silent < _START
        if starts and failures.state_of(worker.process.pid) not in ("T", "t"):
            return ""
        return f"gave no sign of life for {limit:g} s (loader.timeout)"

    def _others_work(self, worker: Worker) -> bool:
        """Whether another worker may hold a lock that this one waits for."""
        return any(one.tasks and one is not worker and not one.locked for one in self.workers)

    def _end(self, worker: Worker, how: str) -> None:
        """Kill one that hangs."""
        state = failures.state_of(worker.process.pid)
        how += " and was killed"
        hint = failures.hint_for_state(state)
        found = FailureReport(self._name(worker), how, worker.status, self._held(worker), "", hint)
        found.stack = worker.ask_for_stack(state in ("T", "t"))
        self._reap(worker, found)

    def _reap(self, worker: Worker, found: FailureReport) -> None:
        """Report a death, and go on with another process or with an error."""
        if self.done.is_set():
            worker.end()
            return
        self._count()
        worker.is_told_of = True
        text = found.report(self._dataset)
        worker.end()
        pid, code = worker.pid_and_code
        task = worker.tasks[0] if worker.tasks else None
        if task is None:
            log.warning("%s\n    it is started again when there is work", text)
            return
        task.deaths += 1
        most = self._limits.max_deaths
        last, task.last_death = task.last_death, (code, found.status)
        # Each try takes seconds where processes are slow to start.
        repeats = (
            self._is_slow_to_start and code in _FAULTS and last == task.last_death
            and task.request is not None and found.status[:2] == task.request.address
        )  # fmt: skip
        if task.deaths >= most or repeats:
            worker.tasks.popleft()
            error = self._given_up(task, text, repeats)
            error.died = None if code is None else (pid, code)
            self._ready.append(task.failed(error))
            if self._is_slow_to_start:
                worker.rests = True
                return
        else:
            log.warning("%s\n    death %d of %d at this address; another process makes the same "
                        "batches", text, task.deaths, most)  # fmt: skip
        self._replace(worker)

    def _replace(self, worker: Worker) -> None:
        """Have what a dead worker held made again, as soon as can be.

        A fork is there at once. Where a process takes seconds to start, one that is there makes it
        meanwhile; unless torch waits to hear from this very one before another epoch begins.
        """
        batches = all(task.request is not None for task in worker.tasks)
        ready = [one for one in self.workers if one is not worker and one.is_ready]
        if self._is_slow_to_start and ready and batches:
            min(ready, key=lambda one: len(one.tasks)).take_over(worker)
            worker.start()  # for the tasks to come
        else:
            worker.replace()

    def _given_up(self, task: Task, text: str, repeats: bool) -> WorkerError:
        limit = f"loader.max_deaths={self._limits.max_deaths}"
        why = "at the same place as the one before, so that it would come again"
        return WorkerError(
            f"{text}\n    death {task.deaths} at this address, {why if repeats else f'and {limit}'}"
            f". Look at its samples (task=replay makes that one batch "
            "again in this process), or leave them out"
        )

    def _held(self, worker: Worker) -> list[Any]:
        return [task.request for task in worker.tasks if task.request is not None]

    def _name(self, worker: Worker) -> str:
        return f"DataLoader worker {worker.number} (pid {worker.process.pid})"


def _end_all(workers: list[Worker], done: Flag, lock: Any, bells: tuple[Any, Any]) -> None:
    # multiprocessing calls it once, and only in the process in which the pool was made.
    _end_workers(workers, done, lock)
    with lock:
        for bell in bells:
            bell.close()


def _end_workers(workers: list[Worker], done: Flag, lock: Any) -> None:
    done.set()
    with lock:
        for worker in workers:
            if worker.exit_code is None:
                worker.is_told_of = True  # it did not die by itself
                worker.process.kill()
        for worker in workers:
            worker.end()


def _ring(bell: socket.socket) -> None:
    with suppress(OSError):  # it rings already, or nobody is there
        bell.send(b"\0")


def _add_one(count: list[int]) -> None:
    # Knows no pool, which could not be collected if its own finalizer led back to it.
    count[0] += 1
