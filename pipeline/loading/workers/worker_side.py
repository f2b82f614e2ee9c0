"""The worker process.

1. The process ends with the one that it works for, however that ends.
2. Its stack can be had from outside: a crash writes it, and so does DUMP when it hangs.
3. Its status says where it stands.
4. It is seeded and described (`get_worker_info()`) as torch does it, then works on requests.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import gc
import os
import pickle
import queue
import random
import select
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from penstock.loading import worker_status
from penstock.loading.fetch import Fetch
from penstock.loading.workers.backends import attempt
from penstock.loading.workers.channel import Receiver, pack, send, share_anonymously, unpack
from penstock.loading.workers.request_queue import QueueReader
from penstock.torch_internals import ExceptionWrapper, WorkerInfo, numpy_seed, worker_info

DUMP = getattr(signal, "SIGRTMAX", signal.SIGUSR2)  # asks a worker for its stack

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_PARENT_SECONDS = 5.0  # between two looks whether the parent is there


class SharedState:
    """int64 numbers that a pool's processes share: a flag, then a status cell for each worker.

    An array of multiprocessing, for any start method. It has no lock that a killed process keeps.
    """

    def __init__(self, context: Any, workers: int) -> None:
        self._array = context.RawArray("q", 1 + workers * worker_status.FIELDS)

    @property
    def _numbers(self) -> memoryview:
        return memoryview(self._array).cast("B").cast("q")

    @property
    def is_done(self) -> bool:
        """Whether the workers are to end."""
        return bool(self._numbers[0])

    def end(self) -> None:
        self._numbers[0] = 1

    def cell(self, worker: int) -> worker_status.Cell:
        start = 1 + worker * worker_status.FIELDS
        return self._numbers[start : start + worker_status.FIELDS]


@dataclass
class WorkerContext:
    """Everything that a worker process is given.

    Attributes:
        worker_init_fn: called with the worker's number before its first request.
        workers: how many there are.
        seed: of the first worker's generators, the next number for the next worker's.
        owner: pid of the process that it works for.
        queue: to take requests from; None: they come by `sock`.
        steady: whether the thread that starts it lives as long as that process.
        spawned: whether it is a new interpreter.
        sock: to the pool.
        stack: descriptor to write the stack to, in a `multiprocessing.connection.Connection`, which
            can be passed to a new process.
    """

    fetch: Fetch
    worker_init_fn: Callable[[int], None] | None
    workers: int
    seed: int
    shared: SharedState
    owner: int
    queue: QueueReader | None
    number: int = 0
    steady: bool = False
    spawned: bool = False
    sock: Any = None
    stack: Any = None


def run(context: WorkerContext) -> None:
    """The worker process."""
    # What a fork has copied is its owner's to collect: finalizers of libraries with threads, such
    # as Ray's, crash here. Memory that nobody goes through also stays shared. A new interpreter has
    # copied nothing, and at its end what is frozen would be reported as leaked.
    if not context.spawned:
        gc.freeze()
        _reopen_files({0, 1, 2, context.stack.fileno()})
    _end_with(context.owner, context.steady)
    # Enabled twice, it would not take its signals back from others, such as Ray.
    faulthandler.disable()
    faulthandler.enable(context.stack.fileno(), all_threads=True)
    faulthandler.register(DUMP, context.stack.fileno(), all_threads=True, chain=False)
    # Signals that stop a run may reach the whole group; the main process ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for signal_number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(signal_number, _ignore)
    share_anonymously()
    number, fetch = context.number, context.fetch
    worker_status.use(context.shared.cell(number))
    torch.set_num_threads(1)
    random.seed(context.seed + number)
    torch.manual_seed(context.seed + number)
    np.random.seed(numpy_seed(context.seed, number))
    info = WorkerInfo(
        id=number,
        num_workers=context.workers,
        seed=context.seed + number,
        dataset=fetch.dataset_of_worker(),
    )
    requests = PoolConnection(context)
    where = f"in DataLoader worker process {number}"
    with worker_info(info):
        error: Any = None
        try:
            if context.worker_init_fn is not None:
                context.worker_init_fn(number)
        except Exception as failed:
            error = _wrapped(failed, where)  # the first result
        while (request := requests.get()) is not None:
            try:
                result = error or attempt(fetch, request)
            except BaseException as failed:  # sys.exit() in a sample, too
                result = _wrapped(failed, where)
            error = None
            requests.put(result)
            del request, result  # the next one may need their memory


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


def _end_with(owner: int, steady: bool) -> None:
    """Let this process end when process `owner` does.

    Linux kills it when the thread that started it ends. Where that thread may end earlier, or where
    somebody else is the parent, a thread here waits for the owner. On other systems the worker
    looks every five seconds whether its parent is there.
    """
    if not hasattr(os, "pidfd_open"):
        return
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_NAME, b"pt_data_worker")  # torch's name for them, in top
    if steady and os.getppid() == owner:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != owner:  # it ended in the meantime
            os._exit(1)
        return
    try:
        descriptor = os.pidfd_open(owner)
    except ProcessLookupError:
        os._exit(1)
    threading.Thread(target=_wait_for_end, args=(descriptor,), daemon=True).start()


def _wait_for_end(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()
    os.kill(os.getpid(), signal.SIGKILL)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN, which programs started from here would inherit."""


class PoolConnection:
    """The worker's side of its socket."""

    def __init__(self, context: WorkerContext) -> None:
        sock: socket.socket = context.sock
        self._sock, self._shared = sock, context.shared
        self._queue, self._number = context.queue, context.number
        self._parent = os.getppid()
        self._receiver = Receiver(sock)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        if self._queue is not None:
            self._poll.register(self._queue, select.POLLIN)
        self._out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # A thread sends, so that the next batch is worked on while one is under way.
        threading.Thread(target=self._send_all, name="penstock-send", daemon=True).start()

    def get(self) -> Any:
        """The next request; None once all is done."""
        while not self._shared.is_done and os.getppid() == self._parent:
            if self._queue is not None and (request := self._queue.take(self._number)) is not None:
                return request
            try:
                message = self._receiver.take()
            except (EOFError, OSError):
                sys.exit(0)  # the main process is gone
            if message is not None:
                return unpack(message)
            self._poll.poll(_PARENT_SECONDS * 1000)
        return None

    def put(self, result: Any) -> None:
        self._out.put(result)

    def _send_all(self) -> None:
        while True:
            self._send(self._out.get())

    def _send(self, result: object) -> None:
        try:
            packed = pack(result)
        except Exception as error:
            where = f"in loader worker process {os.getpid()}, while its batch was sent"
            packed = pack(_wrapped(error, where))
        del result
        try:
            send(self._sock, packed)
        except OSError:
            sys.exit(0)  # of this thread; the main process is gone


def _wrapped(error: BaseException, where: str) -> ExceptionWrapper:
    """An error as it travels to the process that raises it again: its type and its text.

    A type that cannot be sent, or made of a text alone, becomes RuntimeError: torch's wrapper would
    lose the text. So does SystemExit, which would end that process.
    """
    kind = (
        type(error)
        if isinstance(error, Exception) and not getattr(type(error), "message", None)
        else RuntimeError
    )
    try:
        pickle.dumps(kind)
    except Exception:
        kind = RuntimeError
    return ExceptionWrapper((kind, error, error.__traceback__), where=where)
