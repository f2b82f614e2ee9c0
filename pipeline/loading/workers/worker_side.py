"""What runs in a worker process, around torch's worker loop.

1. The process ends with the one that it works for, however that ends.
2. Its stack can be had from outside: a crash writes it, and so does DUMP when it hangs.
3. It says on its board where it stands.
4. torch's loop runs, with a `Connection` in the place of both of its queues.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import queue
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from types import FrameType
from typing import Any

from pipeline.loading import worker_status
from pipeline.loading.workers.channel import Receiver, pack, send, share_anonymously, unpack
from pipeline.torch_internals import ExceptionWrapper

DUMP = getattr(signal, "SIGRTMAX", signal.SIGUSR2)  # asks a worker for its stack

_PR_SET_PDEATHSIG = 1
_OF_THE_RUN = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)
)

_stacks = 2  # where this process writes them


class Memory:
    """int64 numbers that processes share, under any start method: an array of multiprocessing."""

    def __init__(self, context: Any, size: int) -> None:
        self._array = context.RawArray("q", size)

    @property
    def numbers(self) -> memoryview:
        return memoryview(self._array).cast("B").cast("q")


class Flag:
    """An event without a lock, which a killed process could keep: one number, set once."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def set(self) -> None:
        self.memory.numbers[0] = 1

    def is_set(self) -> bool:
        return bool(self.memory.numbers[0])


class File:
    """A file descriptor that goes along when a process is started."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> Any:
        return _file, (DupFd(self.descriptor),)


def _file(sent: Any) -> File:
    return File(sent.detach())


@dataclass
class WorkerContext:
    """What a worker process is given besides torch's arguments.

    Attributes:
        owner: pid of the process that it works for.
        steady: whether the thread that starts it lives as long as that process.
        memory: the status cells of all workers.
        cell: number of the first field of the worker's cell.
        stack: where to write the stack.
    """

    owner: int
    steady: bool
    memory: Memory
    cell: int
    stack: File


def run(
    worker_context: WorkerContext,
    connection: Connection,
    target: Callable[..., None],
    args: tuple[Any, ...],
) -> None:
    """The worker process: settle down, then run torch's loop."""
    end_with(worker_context.owner, worker_context.steady)
    write_stacks(worker_context.stack.descriptor)
    share_anonymously()
    worker_status.use(
        worker_context.memory.numbers[
            worker_context.cell : worker_context.cell + worker_status.FIELDS
        ]
    )
    connection.open()
    target(*args)


def end_with(owner: int, steady: bool) -> None:
    """Let this process end when process `owner` does.

    Linux kills it when the thread that started it ends; where that thread may end earlier, or
    where somebody else is the parent, a thread of ours waits for the owner. Elsewhere torch's loop
    looks every five seconds whether its parent is there.
    """
    if not hasattr(os, "pidfd_open"):
        return
    if steady and os.getppid() == owner:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
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


def write_stacks(descriptor: int) -> None:
    """Write the stacks of all threads to `descriptor` on a crash, and when DUMP comes."""
    global _stacks
    _stacks = descriptor
    faulthandler.enable(descriptor, all_threads=True)
    faulthandler.register(DUMP, descriptor, all_threads=True, chain=False)


def settle() -> None:
    """What torch's loop undoes on its way to `worker_init_fn`: crash stacks and signals.

    Signals that stop a run may reach the whole group; the main process ends its workers itself.
    """
    faulthandler.disable()
    faulthandler.enable(_stacks, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _OF_THE_RUN:
        signal.signal(number, _leave_it)


def _leave_it(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN, which programs started from here would inherit."""


class Connection:
    """The worker's side of its socket; to torch's loop it is both of its queues."""

    def __init__(self, sock: socket.socket, done: Flag) -> None:
        self._sock = sock
        self._done = done

    def open(self) -> None:
        """Begin to work, in the worker process."""
        self._receiver = Receiver(self._sock)
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)
        self._out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # A thread sends, so that a batch is worked on while the last one is under way.
        threading.Thread(target=self._send_all, name="penstock-send", daemon=True).start()

    def get(self, timeout: float) -> Any:
        """The next task; None once all is done."""
        try:
            message = self._receiver.take()
            if message is None and self._poll.poll(timeout * 1000):
                message = self._receiver.take()
        except (EOFError, OSError):
            sys.exit(0)  # the main process is gone
        if self._done.is_set():
            return None
        if message is None:
            raise queue.Empty
        return unpack(message)

    def put(self, result: Any) -> None:
        self._out.put(result)

    def cancel_join_thread(self) -> None:
        """Nothing waits for the sending thread anyway."""

    def close(self) -> None:
        """The socket is closed with the process."""

    def _send_all(self) -> None:
        while True:
            self._send(self._out.get())

    def _send(self, result: Any) -> None:
        try:
            packed = pack(result)
        except Exception:
            where = f"in loader worker process {os.getpid()}, while its batch was sent"
            packed = pack((result[0], ExceptionWrapper(where=where)))
        del result
        try:
            send(self._sock, packed)
        except OSError:
            sys.exit(0)  # of this thread; the main process is gone
