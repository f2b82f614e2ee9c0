"""A pool of worker processes, which are replaced when they die or hang.

Whichever is free takes the next request (request_queue.py), so that one with a slow sample holds up
nothing else. Where batches depend on the worker, requests are dealt to workers in turn, as torch's.

Deaths are looked for while somebody waits for a result: the main thread, another one, or the thread
that pins. The other workers continue; only what the dead one had not handed over is made again.
After `max_deaths` at one address, an error takes that batch's place in the order.

A result is noticed at once, a death too, one that hangs within 0.2 s.
"""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import pickle
import queue
import signal
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from multiprocessing import context, forkserver
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from types import SimpleNamespace
from typing import Any

import torch

from penstock.distributed.preemption import asked, waiting
from penstock.errors import ConfigError, Problem
from penstock.loading import memory, worker_status
from penstock.loading.fetch import Fetch
from penstock.loading.workers import failures
from penstock.loading.workers.backends import Asked, Failure, WorkerError
from penstock.loading.workers.channel import ChannelError
from penstock.loading.workers.failures import FailureReport
from penstock.loading.workers.options import LoaderOptions
from penstock.loading.workers.request_queue import RequestQueue
from penstock.loading.workers.window import PoolBackend, Task
from penstock.loading.workers.worker import Worker
from penstock.loading.workers.worker_side import SharedState, WorkerContext
from penstock.torch_internals import ExceptionWrapper, pin_memory

log = logging.getLogger(__name__)

_POLL = 0.2  # seconds between two looks at workers that report nothing
# A worker that is stopped (SIGSTOP) does not continue by itself; nor does one of which every thread
# waits for a lock, as after a fork that copied a lock in use (Linux tells). One that sleeps, reads
# or waits for the network may well be at work.
_STOPPED, _LOCKED = 5.0, 60.0  # seconds
# A fault of the code, which comes again where it is not for the memory of the machine.
_FAULTS = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL)
_START = 60.0  # seconds that a process may take to start, whatever the limit
_END = 5.0  # seconds that one may take to end by itself


class WorkerPool:
    """Worker processes, and the results that they send.

    Args:
        fetch: what they do; its dataset knows paths.
        seed: of the first worker's generators.
        method: how processes are started.
        options: how many there are, and when one is given up.
        pin: put results into page-locked memory, in a thread that waits for workers.
    """

    def __init__(
        self, fetch: Fetch, seed: int, method: str, options: LoaderOptions, pin: bool
    ) -> None:
        context = multiprocessing.get_context(method)
        self._owner, size = os.getpid(), options.num_workers
        self._options, self._dataset = options, fetch.dataset
        self._shared = SharedState(context, size)
        deals = not options.keyed or fetch.in_turn
        self._queue = None if deals else RequestQueue(context, size)
        reader = None if self._queue is None else self._queue.reader
        shared_context = WorkerContext(
            fetch, options.worker_init_fn, size, seed, self._shared, self._owner, reader
        )
        self.workers = [
            Worker(number, context, shared_context, self._queue) for number in range(size)
        ]
        self._turns = count()
        self._lock = threading.RLock()
        self._ready: deque[tuple[Task, object]] = deque()
        # The thread that pins is woken by the bell, and reports each result or its own error.
        self._bell, self._rings = socket.socketpair()
        self._rings.setblocking(False)
        self._bell.setblocking(False)
        self._pinned: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._pinner: threading.Thread | None = None
        self._looked = time.monotonic()
        self._kills = memory.kills()
        self._is_slow_to_start = method != "fork"
        # multiprocessing waits for its processes at exit, for one that does not end without end.
        # This comes before, also where this process is itself one of multiprocessing's.
        # It holds all that it takes, since nothing else may be left at the interpreter's end.
        closed = [self._bell, self._rings, *([] if self._queue is None else [self._queue])]
        things = self.workers, self._shared, self._lock, closed
        self._end_all = Finalize(self, _end_all, args=things, exitpriority=100)
        try:
            for worker in self.workers:
                worker.start()
        except BaseException:
            self._end_all()
            raise
        if pin:
            self._pinner = threading.Thread(target=self._pin_all, name="penstock-pin", daemon=True)
            self._device = torch.accelerator.current_device_index()
            self._pinner.start()

    @property
    def deaths(self) -> int:
        return sum(worker.deaths for worker in self.workers)

    def begin(self) -> None:
        """Another run: its first request goes to the first worker."""
        self._turns = count()
        with self._lock:
            if self._queue is not None:
                self._queue.take_back()  # of a run that was left
        if self._pinner is None:  # which looks all the time for workers that died while idle
            with self._lock:
                self._supervise()

    def submit(self, request: Asked) -> Task:
        """Hand a request to a worker; never waits."""
        with self._lock:
            if self._queue is None:
                task = self._deal(request)
            else:
                task = Task(request)
                self._queue.put(task)
                for worker in self.workers:
                    if worker.process is None and not worker.rests:
                        worker.start()
        if self._pinner is not None:  # there may be a new process to wait for
            _ring(self._bell)
        return task

    def _deal(self, request: Any) -> Task:
        loads = [len(worker.tasks) for worker in self.workers]
        if hasattr(request, "assigned"):
            number, request = request.assigned(loads)
        elif self._options.in_order:
            number = next(self._turns) % len(loads)
        else:
            number = loads.index(min(loads))
        task = Task(request)
        self.workers[number].take(task)
        return task

    def wait(self, seconds: float) -> bool:
        """Wait at most so long for a result; whether there is one."""
        if self._pinner is None:
            return self._listen(seconds)
        try:
            with waiting():
                error = self._pinned.get(timeout=seconds)
        except queue.Empty:
            return False
        if error is not None:
            self._pinned.put(error)  # that thread has ended
            raise error
        return True

    def late(self, limit: float) -> str:
        return ""

    def shut_down(self) -> None:
        """End the workers in good order, or at once when the run is to stop."""
        if self._shared.is_done or self._owner != os.getpid():
            return
        self._shared.end()
        try:
            if self._pinner is not None and self._pinner is not threading.current_thread():
                _ring(self._bell)
                self._pinner.join()
            if not asked():
                with self._lock:
                    for worker in self.workers:
                        worker.wake()
                    for worker in self.workers:
                        worker.wait_for_end(_END)
        finally:
            self._end_all()

    def _pin_all(self) -> None:
        try:
            torch.set_num_threads(1)  # of this thread: copies shall not take all cores
            torch.accelerator.set_device_index(self._device)
            while not self._shared.is_done:
                self._listen(_POLL)
        except BaseException as error:
            self._pinned.put(error)

    def _pin(self, result: object) -> object:
        if isinstance(result, ExceptionWrapper):
            return result
        try:
            device = torch.accelerator.current_accelerator()
            return pin_memory(result, None if device is None else device.type)
        except Exception:
            return ExceptionWrapper(where=f"in pin memory thread for device {self._device}")

    def _listen(self, seconds: float) -> bool:
        """Look after the workers, then wait at most so long for results; whether there are any."""
        with self._lock:
            for worker in self.workers:
                if worker.rests:  # the error was taken, and somebody waits for more
                    worker.replace()
            self._supervise()
            there = [worker for worker in self.workers if worker.process is not None]
            sources: list[Any] = [self._rings]
            sources += [worker.sock for worker in there if not worker.is_cut_off]
            sources += [worker.process.sentinel for worker in there]
            busy = any(worker.unsent for worker in there)
            if self._queue is not None:
                self._queue.flush()
        if not self._ready:
            with waiting():
                heard = wait(sources, min(seconds, 0.01 if busy else _POLL))
            with self._lock:
                if self._rings in heard:
                    self._rings.recv(1 << 12)
                for worker in self.workers:
                    if worker.process is not None:
                        worker.flush()
                        self._receive(worker)
        if not self._ready:
            return False
        while self._ready:
            task, result = self._ready.popleft()
            if self._pinner is None:
                task.result = result
            else:
                task.result = self._pin(result)
                self._pinned.put(None)
        return True

    def _receive(self, worker: Worker) -> None:
        try:
            self._ready.extend(worker.results())
        except ChannelError as error:  # and nothing after it can be read
            worker.note_claims()
            self._fail(worker, worker.tasks[0], error)
            worker.end()
            self._take_back(worker)
            worker.replace()

    def _fail(self, worker: Worker, task: Task, error: Exception) -> None:
        """Let an error be the result of one of a worker's tasks."""
        worker.tasks.remove(task)
        self._ready.append((task, Failure(task.request, error)))

    def _supervise(self) -> None:
        """Replace the workers that died, and end those that hang."""
        now = time.monotonic()
        # Only time spent waiting counts: this process may have been stopped meanwhile.
        passed, self._looked = min(now - self._looked, 2 * _POLL), now
        for worker in self.workers:
            if worker.process is None:
                continue
            code = worker.exitcode
            if code is not None:
                self._receive(worker)
                hint = failures.hint_for(code, self._kills)
                self._reap(worker, failures.by_exit_code(code), worker.stack, hint)
                continue
            worker.look(passed)
            how = self._hangs(worker)
            if how:
                state = failures.state_of(worker.pid)
                stack = partial(worker.stack, state in ("T", "t"))
                hint = failures.hint_for_state(state)
                is_lost = bool(worker.threads and worker.locked)
                self._reap(worker, f"{how} and was killed", stack, hint, is_lost)

    def _hangs(self, worker: Worker) -> str:
        """The sign that it hangs; "" if there is none."""
        limit = self._options.limit
        if not (limit or worker.threads):
            return ""
        if limit and worker.stopped >= _STOPPED:
            return f"had been stopped for {_STOPPED:g} s"
        # Another worker that works may hold the lock that this one waits for.
        others = (other for other in self.workers if other.tasks and other is not worker)
        if worker.locked >= _LOCKED and all(other.locked for other in others):
            return f"waited for a lock that nobody was there to release, for {_LOCKED:g} s,"
        if not limit or worker.silent < limit:
            return ""
        starts = worker.status.stage == worker_status.STARTING and worker.silent < _START
        if starts and failures.state_of(worker.pid) not in ("T", "t"):
            return ""
        return f"gave no sign of life for {limit:g} s (loader.timeout)"

    def _reap(self, worker: Worker, how: str, stack: Any, hint: str, is_lost: bool = False) -> None:
        """Report a death, and continue with another process, or with an error.

        Args:
            is_lost: it waits for a thread that its fork has not copied, as any other fork would.
        """
        if self._shared.is_done:
            worker.end()
            return
        worker.deaths += 1
        worker.is_reported = True
        self._blame_for_start(worker)
        who = f"DataLoader worker {worker.number} (pid {worker.pid})"
        held = [task.request for task in worker.tasks]
        report = FailureReport(who, how, worker.status, held, stack(), hint)
        if is_lost:
            report.hint = failures.hint_for_fork(report.stack, worker.threads)
        text = report.report(self._dataset)
        worker.end()
        worker.note_claims()
        if not worker.tasks:
            log.warning("%s\n    it is started again when there is work", text)
            self._take_back(worker)
            worker.replace()
            return
        code, address = worker.exitcode, report.status[:2]
        # Results of those before it may have died with it.
        task = next(
            (task for task in worker.tasks if task.request.address == address), worker.tasks[0]
        )
        task.deaths += 1
        last, task.last_death = task.last_death, (code, report.status)
        # Each try takes seconds where processes are slow to start.
        repeats = (
            self._is_slow_to_start
            and code in _FAULTS
            and last == task.last_death
            and address == task.request.address
        )
        limit = self._options.max_deaths
        if task.deaths < limit and not (repeats or is_lost):
            log.warning(
                "%s\n    death %d of %d at this address; another process makes the same batches",
                text,
                task.deaths,
                limit,
            )
            self._replace(worker)
            return
        again = "at the same place as the one before, so that it would come again"
        why = again if repeats else f"and loader.max_deaths={limit}"
        advice = (
            f"\n    death {task.deaths} at this address, {why}. Look at its samples "
            "(task=replay makes that one batch again in this process), or leave them out"
        )
        error = WorkerError(text + ("" if is_lost else advice))
        error.died = None if code is None or is_lost else (worker.pid, code)
        self._fail(worker, task, error)
        if self._is_slow_to_start:
            self._take_back(worker)
            worker.rests = True
        else:
            self._replace(worker)

    def _replace(self, worker: Worker) -> None:
        """Have what a dead worker held made again: from a queue by any free one, else by it."""
        self._take_back(worker)
        worker.replace()

    def _take_back(self, dead: Worker) -> None:
        """Put what a dead worker had taken before everything else in the queue."""
        if self._queue is None:
            return
        for worker in self.workers:
            worker.note_claims()
        self._queue.put_first(dead.tasks)
        dead.tasks.clear()

    def _blame_for_start(self, worker: Worker) -> None:
        """Let a worker that died before it took anything have died of the next request.

        Else workers that cannot start would be started for ever.
        """
        worker.note_claims()
        starts = worker.status.stage == worker_status.STARTING
        if self._queue is not None and starts and not worker.tasks:
            worker.tasks.extend(self._queue.take_back(1))


def _end_all(workers: list[Worker], shared: SharedState, lock: Any, closed: list[Any]) -> None:
    # multiprocessing calls it once, and only in the process in which the pool was made. It knows no
    # pool, which could not be collected if its own finalizer led back to it.
    shared.end()
    with lock:
        for worker in workers:
            if worker.is_alive():
                worker.is_reported = True  # it did not die by itself
                worker.process.kill()
        for worker in workers:
            worker.end()
        for resource in closed:
            resource.close()


def _ring(bell: socket.socket) -> None:
    with suppress(OSError):  # it rings already, or nobody is there
        bell.send(b"\0")


_NOT_SENT = (pickle.PicklingError, AttributeError, TypeError)


class ProcessBackend(PoolBackend):
    """Works in worker processes.

    Raises:
        ConfigError: names the parts that cannot be sent to one; all are pickled to find out.
    """

    pins = True
    executor = "worker process"

    def __init__(self, fetch: Fetch, options: LoaderOptions, pin: bool) -> None:
        self._method = start_method(options)
        if options.num_workers and self._method != "fork":  # refused before anything has begun
            problems = _unpicklable(fetch, self._method)
            if problems:
                raise ConfigError(problems)
        server: Any = forkserver._forkserver
        # Nobody has asked for anything else. What workers need is imported once by the server, and
        # not in each of them, where it takes 3 s.
        if self._method == "forkserver" and server._preload_modules == ["__main__"]:
            forkserver.set_forkserver_preload(["__main__", __name__])
        super().__init__(fetch, options)
        self._pin, self._generator = pin, torch.Generator().manual_seed(self._seed)

    def pids(self) -> list[int]:
        """Of the worker processes that are there."""
        return [worker.pid for worker in self.workers() if worker.is_alive()]

    def workers(self) -> list[Worker]:
        """The workers, those that have ended included."""
        return self._pool.workers if isinstance(self._pool, WorkerPool) else []

    def _new_pool(self) -> WorkerPool:
        options, seed = self._options, self._seed
        if options.keyed:  # else draws are as torch's from that very seed
            drawn = torch.empty((), dtype=torch.int64).random_(generator=self._generator)
            seed = int(drawn.item())
        try:
            return WorkerPool(self._fetch, seed, self._method, options, self._pin)
        except _NOT_SENT as error:
            problems = _unpicklable(self._fetch, self._method)
            if problems:
                raise ConfigError(problems) from error
            raise
        except OSError as error:
            reason = str(error)
            if "AF_UNIX" in reason:  # of the server's socket
                reason = (
                    f"the path of the temporary folder {tempfile.gettempdir()!r} is too long for "
                    "its socket. Set TMPDIR to a shorter one"
                )
            elif error.errno == errno.EMFILE:
                reason += " (ulimit -n). Raise that limit, or use fewer workers"
            raise ConfigError(
                Problem("loader.num_workers", f"{self._method} cannot start workers: {reason}")
            ) from error


def start_method(options: LoaderOptions) -> str:
    """How worker processes are started."""
    # The platform's default comes first; asking for it by name would fix it for good.
    known = multiprocessing.get_all_start_methods()
    chosen = options.multiprocessing_context or multiprocessing.get_start_method(allow_none=True)
    # In a process of joblib's the default is "loky", which is joblib's own and pickles everything.
    return chosen if chosen in known else known[0]


def parts_of(fetch: Fetch) -> dict[str, object]:
    """The parts of a fetch, by key; each goes to workers."""
    steps = getattr(fetch.transform, "steps", {"": fetch.transform})
    parts = {"dataset": fetch.dataset, "collate": fetch.collate}
    parts |= {f"transform.{name}".rstrip("."): step for name, step in steps.items()}
    of_batches = getattr(fetch.batch_transform, "steps", {})
    return parts | {f"transform.*_batch.{name}": step for name, step in of_batches.items()}


def _unpicklable(fetch: Fetch, method: str) -> list[Problem]:
    """The parts that cannot be sent to a worker, by name."""
    problems = []
    for key, part in parts_of(fetch).items():
        try:
            with _as_if_spawning():
                ForkingPickler.dumps(part)
        except _NOT_SENT as error:
            problems.append(
                Problem(
                    key,
                    f"cannot be sent to worker processes started by {method!r}: {error}. "
                    "Define it at the top level of a module (no lambda, no local class), or "
                    "use loader.multiprocessing_context=fork",
                )
            )
    return problems


@contextmanager
def _as_if_spawning() -> Iterator[None]:
    """Let multiprocessing's Values and Locks be pickled, which only works for a new process."""
    outside = context.get_spawning_popen()
    nobody: Any = SimpleNamespace(duplicate_for_child=int, DupFd=int)  # nothing is passed on
    context.set_spawning_popen(nobody)
    try:
        yield
    finally:
        context.set_spawning_popen(outside)
