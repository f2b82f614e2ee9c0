"""Worker processes, which are replaced when they die or hang.

    submit -> a socket that all workers read from -> a worker -> a socket back -> a thread here

Each packet of the first socket goes to one worker, so that whoever is free takes the next request:
a slow sample delays no other worker, and no worker waits for the training loop. Each worker
writes the request's number into its cell, so that a death shows which one it had. A thread starts
the workers, receives and pins results, and replaces those who died or give no sign of life. Then
what no living worker has is handed out again; a batch that two have made is the same batch, and the
first one counts. After `max_deaths` at one address, an error takes that batch's place.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import gc
import logging
import multiprocessing
import os
import pickle
import random
import select
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
from array import array
from collections import deque
from contextlib import suppress
from itertools import count
from multiprocessing import context, forkserver
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from penstock.distributed.stop import requested
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.loading import worker_status
from penstock.loading.worker_status import FIELDS, WorkerStatus
from penstock.loading.workers.executors import (
    POLL,
    LoaderOptions,
    Silence,
    Task,
    WorkerError,
    attempt,
    by_exit_code,
    report_of,
)
from penstock.loading.workers.message import Arena, anonymous_file, receive, send, socket_pair
from penstock.torch_internals import (
    ExceptionWrapper,
    WorkerInfo,
    numpy_seed,
    pin_memory,
    share_by,
    worker_info,
)

log = logging.getLogger(__name__)

_START = 60.0  # seconds that a process may take to start, whatever the limit
_END = 5.0  # seconds that one may take to end by itself
_DUMP = getattr(signal, "SIGRTMAX", signal.SIGUSR2)  # asks a worker for its stack
_PR_SET_PDEATHSIG = 1
_FORKED = (
    "if it waits for a lock: a fork copies no threads, and what waits for one of a library waits "
    "for ever. Start workers by forkserver (loader.multiprocessing_context, or "
    "multiprocessing_context= of a DataLoader)"
)


class Pool:
    """Worker processes, as an executor.

    Args:
        fetch: what they do; its dataset knows paths.
        seed: of the first worker's generators.
        pin: put results into page-locked memory.

    Raises:
        ConfigError: they cannot be started.
    """

    def __init__(self, fetch: Any, options: LoaderOptions, seed: int, pin: bool) -> None:
        self._options, self._dataset = options, fetch.dataset
        self._device = torch.accelerator.current_device_index() if pin else None
        self.finished, self.deaths, self._is_closed = threading.Event(), 0, False
        self._lock, self._numbers = threading.RLock(), count()
        self._tasks: dict[int, Task] = {}  # without a result
        self._unsent: deque[int] = deque()  # of these, such as did not fit into the socket
        self._requests, self._taken = socket_pair()
        self._results, self._made = socket_pair()
        self._requests.setblocking(False)
        method = start_method(options)
        start: Any = multiprocessing.get_context(method)
        cells = start.RawArray("q", options.num_workers * FIELDS)
        arguments = fetch, options, seed, os.getpid(), method, self._taken, self._made, cells
        self._workers = [_Worker(n, start.Process, arguments) for n in range(options.num_workers)]
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._live, name="penstock-pool", daemon=True)
        self._thread.start()
        self.finished.wait()
        if isinstance(self._error, OSError):
            of_path = (  # of the forkserver's socket
                f" in {tempfile.gettempdir()!r}; set TMPDIR to a folder with a short path"
                if "AF_UNIX" in str(self._error)
                else ""
            )
            raise ConfigError(
                Problem(
                    "loader.num_workers", f"{method} cannot start workers: {self._error}{of_path}"
                )
            ) from self._error
        self.check()

    def processes(self) -> list[Any]:
        return [worker.process for worker in self._workers if worker.process is not None]

    def statuses(self) -> list[WorkerStatus]:
        """Where each worker stands."""
        return [WorkerStatus(*worker.cell) for worker in self._workers]

    def submit(self, request: Any) -> Task:
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
        with self._lock:
            self._tasks.clear()
            if not self._is_closed:  # as it is at the interpreter's end
                self._hand_out()

    def _hand_out(self) -> None:
        """Put what no worker has, and only that, into their socket again."""
        with suppress(BlockingIOError):
            while True:
                receive(self._taken, socket.MSG_DONTWAIT)[1]()
        in_work = {status.task for status in self.statuses()}
        self._unsent = deque(number for number in self._tasks if number not in in_work)
        self._send()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the workers: by themselves if they do so soon, at once when the run is to stop."""
        if self._thread.is_alive():  # in a fork it is not, and the lock may be held for ever
            with self._lock:  # or the thread could close the socket in between
                if not self._is_closed:
                    self.drop()
                    self._requests.shutdown(socket.SHUT_WR)
                    self._is_closed = True
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
            self.finished.set()
            while not self._is_closed:
                self._turn()
        except BaseException as error:
            self._error = error
            self.finished.set()
        finally:
            with self._lock:
                self._is_closed, ends = True, time.monotonic() + _END
            for worker in self._workers:
                self.deaths += worker.end(ends)
            for end in (self._requests, self._taken, self._results, self._made):
                end.close()

    def _turn(self) -> None:
        """Wait for results or deaths, and see to them."""
        poll, results = select.poll(), self._results.fileno()
        for file in (results, *(process.sentinel for process in self.processes())):
            poll.register(file, select.POLLIN)
        ready = [file for file, _ in poll.poll(POLL * 1000)]
        self._receive()
        with self._lock:
            if not self._is_closed and ready != [results]:
                self._look()

    def _receive(self) -> None:
        """Give the results that are there to their tasks."""
        with suppress(BlockingIOError):
            while True:
                number, load = receive(self._results, socket.MSG_DONTWAIT)
                try:
                    result = load() if self._device is None else pin_memory(load())
                except Exception as error:
                    result = PenstockError(
                        f"a batch cannot be received: {error}. Each large tensor is an open file "
                        "until it is freed; ulimit -n says how many there may be"
                    )
                self._finish(number, result)

    def _finish(self, number: int, result: Any) -> None:
        with self._lock:
            if number in self._tasks:  # else it was made twice, or is of a run that was left
                self._tasks.pop(number).result = result
                self.finished.set()
            self._send()

    def _look(self) -> None:
        """Replace the workers that died, and end those that hang."""
        is_waiting = not self._tasks.keys() <= {status.task for status in self.statuses()}
        for worker in self._workers:
            if worker.process is None:
                if self._tasks:
                    worker.start()
                continue
            code, limit = worker.process.exitcode, self._options.timeout
            status = WorkerStatus(*worker.cell)
            silent = worker.silence.look(status, is_waiting or status.task in self._tasks)
            if status.stage == worker_status.STARTING and limit:
                limit = max(limit, _START)
            if code is not None:
                self._replace(worker, status, *by_exit_code(code))
            elif limit and silent >= limit:
                hint = worker.write_stack()
                how = f"gave no sign of life for {limit:g} s (loader.timeout) and was killed"
                self._replace(worker, status, how, hint)

    def _replace(self, worker: _Worker, status: WorkerStatus, how: str, hint: str) -> None:
        """Report a death, and continue with another process, or with an error."""
        number, pid, most = status.task, worker.process.pid, self._options.max_deaths
        if status.stage == worker_status.STARTING:  # else who cannot start would be started forever
            number = next(iter(self._tasks), number)
        task = self._tasks.get(number)
        who, request = f"DataLoader worker {worker.number} (pid {pid})", task and task.request
        text = report_of(who, how, status, request, self._dataset, worker.stack(), hint)
        worker.end()
        self._receive()  # what it had sent before
        self.deaths += 1
        if task is None or task.result is not None:
            log.warning("%s\n    it is started again when there is work", text)
        else:
            task.deaths += 1
            text += f"\n    death {task.deaths} of {most} at this address"
            if task.deaths < most:
                log.warning("%s; another process makes the same batches", text)
            else:
                error = WorkerError(
                    f"{text} (loader.max_deaths). Look at its samples (task=replay makes that one "
                    "batch again in this process), or leave them out"
                )
                error.pid = pid
                self._finish(number, error)
        if self._tasks:
            worker.start()
        self._hand_out()


class _Worker:
    """One worker: a process, replaced when it dies, and what it leaves to be read.

    Attributes:
        process: None before the first, and between two.
        cell: where it stands.
    """

    def __init__(self, number: int, process: Any, arguments: tuple[Any, ...]) -> None:
        self.number, self._new, self._arguments = number, process, arguments
        self.process: Any = None
        cells = memoryview(arguments[-1]).cast("B").cast("q")
        self.cell, self.silence = cells[number * FIELDS :][:FIELDS], Silence()

    def start(self) -> None:
        self.cell[:] = memoryview(array("q", (-1, -1, -1, worker_status.STARTING, -1)))
        self._stack = Connection(anonymous_file())
        args = self.number, self._stack, *self._arguments
        process = self._new(target=_run, args=args, daemon=True)
        process.start()
        process.terminate = process.kill  # it lets SIGTERM pass, which a whole group may get
        self.process = process

    def stack(self) -> str:
        """What it has written, most recent call first."""
        text = os.pread(self._stack.fileno(), 1 << 16, 0).decode(errors="replace")
        return text.partition("(most recent call first):\n")[2]

    def write_stack(self) -> str:
        """Have a process that hangs write its stack, within a second; a hint on it."""
        os.kill(self.process.pid, _DUMP)
        os.kill(self.process.pid, signal.SIGCONT)  # it may have been stopped
        ends = time.monotonic() + 1
        while not self.stack() and time.monotonic() < ends:
            time.sleep(0.05)
        return _FORKED if self._arguments[4] == "fork" else ""

    def end(self, until: float = 0.0) -> bool:
        """Wait for its end, then kill it, and release what was its own; whether it had died."""
        process, self.process = self.process, None
        while process and process.exitcode is None and time.monotonic() < until and not requested():
            process.join(POLL / 4)
        code = process.exitcode if process else 0
        if process:
            process.kill()
            process.join()
            self._stack.close()
        return bool(code)


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
    # The program has set no preloads. The server imports what workers need once; they would import
    # it in 3 s each.
    if method == "forkserver" and server._preload_modules == ["__main__"]:
        forkserver.set_forkserver_preload(["__main__", __name__])
    outside = context.get_spawning_popen()
    passes_nothing: Any = SimpleNamespace(duplicate_for_child=int, DupFd=int)
    context.set_spawning_popen(passes_nothing)  # else multiprocessing's locks cannot be sent
    try:
        for key in ("dataset", "transform", "collate", "batch_transform"):
            ForkingPickler.dumps(getattr(fetch, key, None))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        reason = f"cannot be sent to worker processes started by {method!r}: {error}. Define it "
        reason += "at the top level of a module, or use loader.multiprocessing_context=fork"
        raise ConfigError(Problem(key, reason)) from error
    finally:
        context.set_spawning_popen(outside)


# In a worker process.


def _run(
    number: int,
    stack: Connection,
    fetch: Any,
    options: LoaderOptions,
    seed: int,
    owner: int,
    method: str,
    requests: socket.socket,
    results: socket.socket,
    cells: Any,
) -> None:
    """Work on requests until there will be none.

    Args:
        stack: where the stack is written when this process crashes, or is asked for it by a signal;
            a Connection, as that can be passed to a new process.
        owner: pid of the process that it works for, whose pool's thread has started it.
        requests, results: ends of the sockets that all workers share.
    """
    # What a fork has copied is its owner's to collect: finalizers of libraries with threads, such
    # as Ray's, crash here. Memory that the collector does not visit also stays shared. A new
    # interpreter has copied nothing, and at its end what is frozen would be reported as leaked.
    if method != "spawn":
        gc.freeze()
        _reopen_files({0, 1, 2, stack.fileno(), requests.fileno(), results.fileno()})
    # Linux kills it when the thread that started it ends, which the pool's does last of all. Where
    # a server has started it, nobody is left to send a request then.
    if sys.platform == "linux" and os.getppid() == owner:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != owner:  # it ended in the meantime
            os._exit(1)
    # Enabled twice, it would not take its signals back from others, such as Ray.
    faulthandler.disable()
    faulthandler.enable(stack.fileno(), all_threads=False)
    faulthandler.register(_DUMP, stack.fileno(), all_threads=False, chain=False)
    # Signals that stop a run may reach the whole group; the main process ends its workers itself.
    # SIG_IGN would be inherited by programs that are started from here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for signal_number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(signal_number, lambda number, frame: None)
    arena, error = Arena(), None
    share_by(arena.allocate)  # for default_collate, too
    cell = memoryview(cells).cast("B").cast("q")[number * FIELDS :][:FIELDS]
    worker_status.current.cell = cell
    with as_worker(fetch, number, options.num_workers, seed), suppress(EOFError, ConnectionError):
        try:
            if options.worker_init_fn is not None:
                options.worker_init_fn(number)
        except Exception as failed:
            error = wrapped(failed, number)  # the first result
        worker_status.report(worker_status.WHOLE, worker_status.IDLE)
        while True:
            task, load = receive(requests)
            cell[worker_status.TASK] = task
            try:
                result = error or attempt(fetch, load())
            except BaseException as failed:  # sys.exit() in a sample, too
                result = wrapped(failed, number)
            try:
                send(results, task, result, arena)
            except ConnectionError:  # the pool has closed
                raise
            except Exception as failed:
                send(results, task, wrapped(failed, number))
            error = result = None  # the next one may need the memory


def as_worker(fetch: Any, number: int, workers: int, seed: int) -> Any:
    """Seed this process as torch seeds a worker; a context in which it describes itself as one."""
    torch.set_num_threads(1)
    random.seed(seed + number)
    torch.manual_seed(seed + number)
    np.random.seed(numpy_seed(seed, number))
    dataset = getattr(fetch, "dataset_of_worker", lambda: fetch.dataset)()
    info = WorkerInfo(id=number, num_workers=workers, seed=seed + number, dataset=dataset)
    return worker_info(info)


def _reopen_files(kept: set[int]) -> None:
    """Give files that were open for reading before the fork positions of this process's own.

    A fork shares the positions: what one worker reads by seek() and read() would be what another
    has sought. Linux only; elsewhere workers are spawned, and an open file cannot be sent there.
    """
    for descriptor in {int(path.name) for path in Path("/proc/self/fd").glob("*")} - kept:
        with suppress(OSError):  # the one of the listing is closed again
            mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
            if mode != os.O_WRONLY and stat.S_ISREG(os.fstat(descriptor).st_mode):
                own = os.open(f"/proc/self/fd/{descriptor}", mode)
                os.lseek(own, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
                os.dup2(own, descriptor, inheritable=False)
                os.close(own)


def wrapped(error: BaseException, worker: int) -> Any:
    """An error as it travels to the process that raises it again: its type and its text.

    One of ours travels as it is. A type that cannot be sent, or made of a text alone, becomes
    RuntimeError: torch's wrapper would lose the text. So does SystemExit, which would end that
    process.
    """
    if isinstance(error, PenstockError):
        return error
    kind: Any = type(error)
    try:
        pickle.dumps(kind)
        is_plain = isinstance(error, Exception) and not getattr(kind, "message", None)
    except Exception:
        is_plain = False
    parts = kind if is_plain else RuntimeError, error, error.__traceback__
    return ExceptionWrapper(parts, where=f"in DataLoader worker process {worker}")
