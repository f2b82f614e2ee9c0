"""Worker processes, which are replaced when they die or hang.

    submit -> a socket that all workers read from -> a worker -> a socket back -> a thread here

Each packet of the first socket goes to one worker, so that whoever is free takes the next request:
one with a slow sample holds up nothing else, and nobody waits for the training loop. The worker
writes the request's number into its cell, so that a death shows which one it had. A thread starts
the workers, receives and pins results, and replaces those who died or give no sign of life. Then
what no living worker has is handed out again; a batch that two have made is the same batch, and the
first one counts. After `max_deaths` at one address, an error takes that batch's place.
"""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import pickle
import queue
import select
import signal
import socket
import tempfile
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from itertools import count
from multiprocessing import context, forkserver
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from penstock.distributed.preemption import asked
from penstock.errors import ConfigError, Problem
from penstock.loading import worker_status
from penstock.loading.worker_status import WorkerStatus
from penstock.loading.workers.executors import (
    POLL,
    Failure,
    Silence,
    Task,
    WorkerError,
    by_exit_code,
    report_of,
)
from penstock.loading.workers.message import anonymous_file, receive, send, socket_pair
from penstock.loading.workers.options import LoaderOptions
from penstock.loading.workers.worker import DUMP, WorkerContext, run
from penstock.torch_internals import pin_memory

log = logging.getLogger(__name__)

_START = 60.0  # seconds that a process may take to start, whatever the limit
_END = 5.0  # seconds that one may take to end by itself
_FORKED = (
    "if it waits for a lock: a fork copies no threads, and what waits for one of a library waits "
    "for ever. Start workers by forkserver (loader.multiprocessing_context, or "
    "multiprocessing_context= of a DataLoader)"
)


class Pool:
    """Worker processes; see `Executor`.

    Args:
        fetch: what they do; its dataset knows paths.
        seed: of the first worker's generators.
        pin: put results into page-locked memory.

    Raises:
        ConfigError: they cannot be started.
    """

    def __init__(self, fetch: Any, options: LoaderOptions, seed: int, pin: bool) -> None:
        method = start_method(options)
        processes = multiprocessing.get_context(method)
        self._options, self._dataset = options, fetch.dataset
        self._device = torch.accelerator.current_device_index() if pin else None
        self.finished, self.deaths = threading.Event(), 0
        self._lock, self._numbers = threading.RLock(), count()
        self._tasks: dict[int, Task] = {}  # without a result
        self._unsent: deque[int] = deque()  # of these, such as did not fit into the socket
        self._requests, theirs = socket_pair()
        self._results, senders = socket_pair()
        self._requests.setblocking(False)
        size, cells = (
            options.num_workers,
            processes.RawArray("q", options.num_workers * worker_status.FIELDS),
        )
        init, owner = options.worker_init_fn, os.getpid()
        self._given = WorkerContext(fetch, init, size, seed, owner, method, theirs, senders, cells)
        self._workers = [_Worker(replace(self._given, number=n), processes) for n in range(size)]
        self._is_closed, self._looked = False, 0.0
        self._error: BaseException | None = None
        self._begun: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._live, name="penstock-pool", daemon=True)
        self._thread.start()
        # multiprocessing waits for its processes at exit; this comes before.
        self._at_exit = Finalize(None, self.close, exitpriority=100)
        if (error := self._begun.get()) is not None:
            self._at_exit.cancel()
            reason = str(error)
            if "AF_UNIX" in reason:  # of the forkserver's socket
                reason = (
                    f"the path of the temporary folder {tempfile.gettempdir()!r} is too long for "
                    "its socket. Set TMPDIR to a shorter one"
                )
            if not isinstance(error, OSError) or error.errno == errno.EMFILE:
                raise error
            key = "loader.num_workers"
            raise ConfigError(Problem(key, f"{method} cannot start workers: {reason}")) from error

    def processes(self) -> list[Any]:
        return [worker.process for worker in self._workers if worker.process is not None]

    def statuses(self) -> list[WorkerStatus]:
        """Where each worker stands."""
        return [worker.status for worker in self._workers]

    def submit(self, request: Any) -> Task:
        """Hand a request to the workers; never waits."""
        task, number = Task(request), next(self._numbers)
        with self._lock:
            self._tasks[number] = task
            self._unsent.append(number)
            self._send()
        return task

    def _send(self) -> None:
        with suppress(BlockingIOError):
            while self._unsent:
                send(self._requests, self._unsent[0], self._tasks[self._unsent[0]].request)
                self._unsent.popleft()

    def drop(self) -> None:
        """Forget the requests of a run that was left."""
        with self._lock:
            self._tasks.clear()
            self._hand_out()

    def _hand_out(self) -> None:
        """Put what no worker has, and only that, into their socket again."""
        with suppress(BlockingIOError):
            while True:
                receive(self._given.requests, socket.MSG_DONTWAIT)[1]()
        held = {status.task for status in self.statuses()}
        self._unsent = deque(number for number in self._tasks if number not in held)
        self._send()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the workers: by themselves if they do so soon, at once when the run is to stop."""
        self._at_exit.cancel()
        if os.getpid() == self._given.owner and self._thread.is_alive() and not self._is_closed:
            self.drop()
            self._is_closed = True
            self._requests.shutdown(socket.SHUT_WR)
            if self._thread is not threading.current_thread():
                self._thread.join()

    # In the thread.

    def _live(self) -> None:
        try:
            if self._device is not None:
                torch.set_num_threads(1)  # of this thread: copies shall not take all cores
                torch.accelerator.set_device_index(self._device)
            for worker in self._workers:
                worker.start()
            self._begun.put(None)
            while not self._is_closed:
                self._turn()
        except BaseException as error:
            self._error = error
            self._begun.put(error)
            self.finished.set()
        finally:
            self._end()

    def _turn(self) -> None:
        """Wait for results or deaths, and see to them."""
        poll, results = select.poll(), self._results.fileno()
        for file in (results, *(process.sentinel for process in self.processes())):
            poll.register(file, select.POLLIN)
        ready = [file for file, _ in poll.poll(POLL * 1000)]
        self._receive()
        now = time.monotonic()
        if not self._is_closed and (ready != [results] or now - self._looked > POLL):
            self._looked = now
            with self._lock:
                self._look()

    def _receive(self) -> None:
        """Give the results that are there to their tasks."""
        while True:
            try:
                number, load = receive(self._results, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            result: Any
            try:
                result = load()
                if self._device is not None:
                    result = pin_memory(result)
            except Exception as error:
                result = WorkerError(f"a batch cannot be received: {error}")
            self._finish(number, result)

    def _finish(self, number: int, result: Any) -> None:
        with self._lock:
            if number in self._tasks:  # else it was made twice, or is of a run that was left
                self._tasks.pop(number).result = result
                self.finished.set()
            self._send()

    def _look(self) -> None:
        """Replace the workers that died, and end those that hang."""
        held = {status.task for status in self.statuses()}
        is_waiting = not self._tasks.keys() <= held
        for worker in self._workers:
            limit = self._options.limit
            if worker.process is None:
                if self._tasks:
                    worker.start()
                continue
            code, status = worker.process.exitcode, worker.status
            if code is not None:
                self._replace(worker, status, *by_exit_code(code))
                continue
            silent = worker.silence.look(status, is_waiting or status.task in self._tasks)
            if status.stage == worker_status.STARTING and limit:
                limit = max(limit, _START)
            if limit and silent >= limit:
                hint = worker.write_stack()
                how = f"gave no sign of life for {limit:g} s (loader.timeout) and was killed"
                self._replace(worker, status, how, hint)

    def _replace(self, worker: _Worker, status: WorkerStatus, how: str, hint: str) -> None:
        """Report a death, and continue with another process, or with an error."""
        pid, stack, most = worker.process.pid, worker.stack(), self._options.max_deaths
        number = status.task
        if status.stage == worker_status.STARTING:  # else who cannot start would be started forever
            number = next(iter(self._tasks), number)
        task = self._tasks.get(number)
        who, request = f"DataLoader worker {worker.number} (pid {pid})", task and task.request
        text = report_of(who, how, status, request, self._dataset, stack, hint)
        worker.end()
        self._receive()  # what it had sent before
        self.deaths += 1
        if task is None or task.result is not None:
            log.warning("%s\n    it is started again when there is work", text)
        else:
            task.deaths += 1
            count = f"death {task.deaths} of {most} at this address"
            if task.deaths < most:
                log.warning("%s\n    %s; another process makes the same batches", text, count)
            else:
                advice = (
                    f"death {most} at this address, and loader.max_deaths={most}. Look at its "
                    "samples (task=replay makes that one batch again in this process), or leave "
                    "them out"
                )
                error = WorkerError(f"{text}\n    {advice}")
                error.pid = pid
                self._finish(number, Failure(task.request, error))
        if self._tasks:
            worker.start()
        self._hand_out()

    def _end(self) -> None:
        ends = time.monotonic() + _END
        for worker in self._workers:
            process = worker.process
            while process and process.exitcode is None and time.monotonic() < ends and not asked():
                process.join(POLL / 4)
            if process and process.exitcode:
                self.deaths += 1  # while it was idle, or when the epoch was over
            worker.end()
        for end in (self._requests, self._results, self._given.requests, self._given.results):
            end.close()


class _Worker:
    """One worker: a process, replaced when it dies, and what it leaves to be read.

    Attributes:
        process: None before the first, and between two.
    """

    def __init__(self, given: WorkerContext, context: Any) -> None:
        self.number, self._given, self._context = given.number, given, context
        self.process: Any = None
        self.cell, self.silence = given.cell, Silence()

    @property
    def status(self) -> WorkerStatus:
        return worker_status.read(self.cell)

    def start(self) -> None:
        worker_status.clear(self.cell)
        self._stack = Connection(anonymous_file())
        own = replace(self._given, stack=self._stack)
        self.process = self._context.Process(target=run, args=(own,), daemon=True)
        try:
            self.process.start()
        except BaseException:
            self.process = None
            raise

    def stack(self) -> str:
        """What it has written, most recent call first."""
        text = os.pread(self._stack.fileno(), 1 << 16, 0).decode(errors="replace")
        return text.partition("(most recent call first):\n")[2]

    def write_stack(self) -> str:
        """Have a process that hangs write its stack, within a second; a hint on it."""
        state = Path(f"/proc/{self.process.pid}/stat")
        is_stopped = state.exists() and state.read_text().rpartition(") ")[2][:1] in "Tt"
        os.kill(self.process.pid, DUMP)
        os.kill(self.process.pid, signal.SIGCONT)
        ends = time.monotonic() + 1
        while not self.stack() and time.monotonic() < ends:
            time.sleep(0.05)
        if is_stopped:
            return "it had been stopped (SIGSTOP, or a debugger); the stack is from after that"
        return _FORKED if self._given.method == "fork" else ""

    def end(self) -> None:
        """Kill it if it is there, and release all that was its own."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process.close()
            self._stack.close()
            self.process = None


def start_method(options: LoaderOptions) -> str:
    """How worker processes are started."""
    # The platform's default comes first; asking for it by name would fix it for good.
    known = multiprocessing.get_all_start_methods()
    chosen = options.multiprocessing_context or multiprocessing.get_start_method(allow_none=True)
    # In a process of joblib's the default is "loky", which is joblib's own and pickles everything.
    return chosen if chosen in known else known[0]


def refuse_unsendable(fetch: Any, options: LoaderOptions) -> None:
    """Raise ConfigError for parts that cannot be sent to a worker, before anything has begun."""
    method = start_method(options)
    if method == "fork":
        return
    server: Any = forkserver._forkserver
    # Nobody has asked for anything else. What workers need is imported once by the server, and not
    # in each of them, where it takes 3 s.
    if method == "forkserver" and server._preload_modules == ["__main__"]:
        forkserver.set_forkserver_preload(["__main__", __name__])
    outside, key = context.get_spawning_popen(), ""
    nobody: Any = SimpleNamespace(duplicate_for_child=int, DupFd=int)  # nothing is passed on
    context.set_spawning_popen(nobody)  # else multiprocessing's locks cannot be sent
    try:
        for key in ("dataset", "transform", "collate", "batch_transform"):
            ForkingPickler.dumps(getattr(fetch, key))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        reason = f"cannot be sent to worker processes started by {method!r}: {error}. Define it "
        reason += "at the top level of a module, or use loader.multiprocessing_context=fork"
        raise ConfigError(Problem(key, reason)) from error
    finally:
        context.set_spawning_popen(outside)
