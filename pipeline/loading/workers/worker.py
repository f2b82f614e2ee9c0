"""The worker process.

1. It ends with the process that it works for, however that ends.
2. Its stack can be had from outside: a crash writes it, and so does DUMP when it hangs.
3. Its cell says where it stands (worker_status.py).
4. It is seeded and described (`get_worker_info()`) as torch does it, then works on requests.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import gc
import os
import pickle
import random
import signal
import socket
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.loading import worker_status
from penstock.loading.workers.executors import attempt
from penstock.loading.workers.message import Arena, receive, send
from penstock.torch_internals import ExceptionWrapper, WorkerInfo, numpy_seed, share_by, worker_info

DUMP = getattr(signal, "SIGRTMAX", signal.SIGUSR2)  # asks a worker for its stack
_PR_SET_PDEATHSIG = 1


@dataclass
class WorkerContext:
    """Everything that a worker process is given.

    Attributes:
        worker_init_fn: called with the worker's number before its first request.
        workers: how many there are.
        seed: of the first worker's generators, the next number for the next worker's.
        owner: pid of the process that it works for, one of whose threads has started it.
        method: how that was done: fork, forkserver or spawn.
        requests, results: its ends of the sockets that all workers share.
        cells: where all workers stand; an array of multiprocessing, for any start method.
        stack: where its stack is written; a Connection, which can be passed to a new process.
    """

    fetch: Any
    worker_init_fn: Callable[[int], None] | None
    workers: int
    seed: int
    owner: int
    method: str
    requests: socket.socket
    results: socket.socket
    cells: Any
    number: int = 0
    stack: Connection | None = None

    @property
    def cell(self) -> worker_status.Cell:
        start = self.number * worker_status.FIELDS
        cells = memoryview(self.cells).cast("B").cast("q")
        return cells[start : start + worker_status.FIELDS]


def run(context: WorkerContext) -> None:
    """The worker process."""
    stack = context.stack.fileno() if context.stack else -1
    # What a fork has copied is its owner's to collect: finalizers of libraries with threads, such
    # as Ray's, crash here. Memory that nobody goes through also stays shared. A new interpreter has
    # copied nothing, and at its end what is frozen would be reported as leaked.
    if context.method != "spawn":
        gc.freeze()
        sockets = context.requests.fileno(), context.results.fileno()
        _reopen_files({0, 1, 2, stack, *sockets})
    # Linux kills it when the thread that started it ends, which the pool's does last of all. Where
    # a server has started it, nobody is left to send a request then.
    if sys.platform == "linux" and os.getppid() == context.owner:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != context.owner:  # it ended in the meantime
            os._exit(1)
    # Enabled twice, it would not take its signals back from others, such as Ray.
    faulthandler.disable()
    faulthandler.enable(stack, all_threads=False)
    faulthandler.register(DUMP, stack, all_threads=False, chain=False)
    # Signals that stop a run may reach the whole group; the main process ends its workers itself.
    # SIG_IGN would be inherited by programs that are started from here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for signal_number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(signal_number, lambda number, frame: None)
    arena, number, cell = Arena(), context.number, context.cell
    share_by(arena.allocate)  # for default_collate, too
    worker_status.use(cell)
    torch.set_num_threads(1)
    random.seed(context.seed + number)
    torch.manual_seed(context.seed + number)
    np.random.seed(numpy_seed(context.seed, number))
    info = WorkerInfo(
        id=number,
        num_workers=context.workers,
        seed=context.seed + number,
        dataset=context.fetch.dataset_of_worker(),
    )
    error: Any = None
    with worker_info(info), suppress(EOFError, ConnectionError):
        try:
            if context.worker_init_fn is not None:
                context.worker_init_fn(number)
        except Exception as failed:
            error = wrapped(failed, number)  # the first result
        worker_status.report(worker_status.WHOLE, worker_status.IDLE)
        while True:
            task, load = receive(context.requests)
            cell[worker_status.TASK] = task
            try:
                result = error or attempt(context.fetch, load())
                error = None
                send(context.results, task, result, arena)
            except ConnectionError:
                raise
            except BaseException as failed:  # sys.exit() in a sample, or what cannot be pickled
                send(context.results, task, wrapped(failed, number))
            result = None  # the next one may need its memory


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


def wrapped(error: BaseException, worker: int) -> ExceptionWrapper:
    """An error as it travels to the process that raises it again: its type and its text.

    A type that cannot be sent, or made of a text alone, becomes RuntimeError: torch's wrapper would
    lose the text. So does SystemExit, which would end that process.
    """
    kind: Any = type(error)
    try:
        pickle.dumps(kind)
        is_plain = isinstance(error, Exception) and not getattr(kind, "message", None)
    except Exception:
        is_plain = False
    where = f"in DataLoader worker process {worker}"
    return ExceptionWrapper(
        (kind if is_plain else RuntimeError, error, error.__traceback__), where=where
    )
