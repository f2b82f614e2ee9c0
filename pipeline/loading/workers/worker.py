"""A worker process that is replaced when it dies; to torch it is a process and a task queue.

torch's iterator puts tasks into the queue and takes results from the pool. Results of a worker come
in the order of its tasks, so what has no result yet is a queue of its own: a new process is handed
it again, and torch notices nothing.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from pipeline.distributed.preemption import asked
from pipeline.loading import memory, worker_status
from pipeline.loading.worker_status import WorkerStatus
from pipeline.loading.workers import failures
from pipeline.loading.workers.backends import Asked, Failure, WorkerError
from pipeline.loading.workers.channel import Message, Receiver, framed, unpack
from pipeline.loading.workers.worker_side import (
    DUMP,
    Connection,
    File,
    Flag,
    Memory,
    WorkerContext,
    run,
)

_PATIENCE = 2.0  # seconds for a killed process to be gone
_WEIGHED = 0.1  # seconds between two looks at its memory
_QUIET = 1.0  # seconds without a sign of life from which on more is asked


class Task:
    """Something that torch has put for a worker, without a result yet.

    Attributes:
        item: (number, request), or what torch sends to start another epoch.
        deaths: of the workers that had it before them.
        last_death: how and where the last of them died.
    """

    def __init__(self, item: Any) -> None:
        self.item = item
        self.deaths = 0
        self.last_death: Any = None

    @property
    def request(self) -> Asked | None:
        """What is asked for; None where torch only wants to hear of it."""
        return self.item[1] if isinstance(self.item, tuple) else None

    def answer(self, result: Any) -> Any:
        """What torch expects for it, with `result` in the place of the batch."""
        return (self.item, None) if self.request is None else (self.item[0], result)

    def failed(self, error: Exception) -> Any:
        """What torch is given when there will be no batch."""
        return self.answer(None if self.request is None else Failure(self.request, error))


class Worker:
    """One worker; the pool's lock is held wherever it is changed.

    Args:
        number: torch's id of it.
        context: multiprocessing's, of the start method.
        memory: the status cells of the pool; the worker's own follows the `done` flag in it.
        done: set when torch is through.
        changed: called when there is something new to wait for.
        died: called when a process of its own has died, that the pool has not told of.
        peers: all workers of the pool, this one included.

    Attributes:
        tasks: without a result, in order.
        rests: whether its process died and another is not to be started with the next task.
        pid_and_code: of its process, or of the last that it had.
        silent: seconds without a sign of life, as the main process has seen it.
        stopped, locked: seconds of these in which it was stopped by a signal, or each of its
            threads waited for a lock and did not wake once.
        size: bytes that it had in memory when it was last looked at; 0: not known.
        is_cut_off: whether nothing more can come from its process.
    """

    def __init__(
        self, number: int, context: Any, memory: Memory, done: Flag, lock: Any,
        changed: Callable[[], None], died: Callable[[], None], peers: list[Worker],
    ) -> None:  # fmt: skip
        self.number = number
        self.rests = False
        self.pid_and_code: tuple[int, int | None] = (-1, None)
        self._peers = peers
        self.daemon = True
        self.tasks: deque[Task] = deque()
        self.silent = self.stopped = self.locked = 0.0
        self.is_cut_off = False
        self.process: Any = None
        self._context, self._memory, self._done = context, memory, done
        self._lock, self._changed, self._died = lock, changed, died
        self.is_told_of = False
        self._place = 1 + number * worker_status.FIELDS
        self._cell = memory.numbers[self._place : self._place + worker_status.FIELDS]
        self._call: tuple[Callable[..., None], tuple[Any, ...]] | None = None
        self._unsent: deque[memoryview] = deque()  # of tasks, what did not fit into the socket
        self._seen: tuple[Any, ...] = ()
        self._waits: Any = None
        self.size, self._weighed = 0, 0.0
        self.sock: socket.socket | None = None
        self._stack = -1

    # What torch's iterator calls.

    @property
    def pid(self) -> int:
        """This process, not the worker's.

        torch's handler of SIGCHLD raises in the main thread, in whatever line of the training loop
        is running, when a child of a registered pid has failed. It ignores what is no child.
        """
        return os.getpid()

    def prepare(self, target: Callable[..., None], args: tuple[Any, ...]) -> None:
        """What the process is to run; arguments that are ours become its side of them."""
        self._call = target, args

    def start(self) -> None:
        with self._lock:
            self._start()

    def put(self, item: Any) -> None:
        """Hand a task over; never waits."""
        with self._lock:
            if item is None:  # torch is through; the flag says so, too
                self._send(item)
            elif isinstance(item, tuple) and hasattr(item[1], "assigned"):
                number, request = item[1].assigned([len(peer.tasks) for peer in self._peers])
                self._peers[number]._take((item[0], request))
            else:
                self._take(item)

    def _take(self, item: Any) -> None:
        self.tasks.append(Task(item))
        if self.process is not None:
            self._send(item)
        elif self._call is not None and not self.rests:
            self._start()
            self._changed()

    def cancel_join_thread(self) -> None:
        """There is no thread to wait for."""

    def is_alive(self) -> bool:
        """Whether torch is to count on it: one that is dead will be replaced."""
        return not self._done.is_set() or self.exit_code is None

    def join(self, timeout: float | None = None) -> None:
        ends = time.monotonic() + (timeout if timeout is not None else _PATIENCE)
        while self.process is not None and self.process.exitcode is None:
            if asked() or failures.state_of(self.process.pid) in ("T", "t"):
                break  # in haste; and a stopped process ends when it is killed, and not before
            if time.monotonic() > ends:
                break
            self.process.join(0.1)

    def terminate(self) -> None:
        """End it; SIGTERM would not reach one that is stopped."""
        with self._lock:
            self.end()

    def close(self) -> None:
        with self._lock:
            self.end()

    # What the pool calls.

    @property
    def exit_code(self) -> int | None:
        """As of multiprocessing; None while it runs, 0 where there is none."""
        return 0 if self.process is None else self.process.exitcode

    @property
    def status(self) -> WorkerStatus:
        """Where it stands."""
        return worker_status.read(self._cell)

    def look(self, passed: float) -> None:
        """Count the time without a sign of life: a step on its board, or bytes that came."""
        seen = (self.status, self._receiver.arrived)
        self._weigh()
        alive = seen != self._seen or not self.tasks
        self.silent = 0.0 if alive else self.silent + passed
        self._seen = seen
        if self.silent < _QUIET:  # so that nothing of this is asked of one that works
            self.stopped = self.locked = 0.0
            return
        is_stopped = failures.state_of(self.process.pid) == "T"  # not "t", a debugger's
        self.stopped = self.stopped + passed if is_stopped else 0.0
        waits = failures.waits_for_locks(self.process.pid)
        same = waits is not None and waits == self._waits
        self.locked, self._waits = self.locked + passed if same else 0.0, waits

    def _weigh(self) -> None:
        now = time.monotonic()
        if now - self._weighed >= _WEIGHED:
            # A process that has just ended has no size any more.
            self.size, self._weighed = memory.size_of(self.process.pid) or self.size, now

    @property
    def is_ready(self) -> bool:
        """Whether it could begin with a task at once, or after those that it has."""
        return self.exit_code is None and self.status.stage != worker_status.STARTING

    def replace(self) -> None:
        """Start another process if there is anything to do; else with the next task."""
        self.rests = False
        if self.tasks:
            self._start()

    def take_over(self, dead: Worker) -> None:
        """Make what another one had not handed over, after what it has itself."""
        self.tasks.extend(dead.tasks)
        for task in dead.tasks:
            self._send(task.item)
        dead.tasks.clear()

    def results(self) -> Iterator[Any]:
        """What has arrived, in full."""
        while True:
            try:
                message = self._receiver.take()
            except (EOFError, OSError):
                self.is_cut_off = True  # dead, as a rule; its exit code will tell
                return
            if message is None:
                return
            result = self._unpacked(message, self.tasks[0])
            if result is None:
                return
            self.tasks.popleft()
            yield result

    def _unpacked(self, message: Message, task: Task) -> Any:
        """The result of a task; None if it is to be made again."""
        try:
            return unpack(message)
        except Exception as error:
            if isinstance(error, OSError) and self.exit_code is not None:
                return None  # a part of it was still to be had from the dead
            text = f"a batch cannot be received: {type(error).__name__}: {error}"
            return task.failed(WorkerError(text))

    def flush(self) -> None:
        """Send what did not fit before."""
        while self._unsent and self.sock is not None:
            try:
                sent = self.sock.send(self._unsent[0])
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()  # dead; its exit code will tell
                return
            self._unsent[0] = self._unsent[0][sent:]
            if not self._unsent[0]:
                self._unsent.popleft()

    @property
    def waits_to_send(self) -> bool:
        return bool(self._unsent)

    def ask_for_stack(self, stopped: bool) -> str:
        """The stack of one that hangs."""
        return failures.ask_for_stack(self.process.pid, DUMP, self._stack, stopped)

    def stack(self) -> str:
        """What one that died has left."""
        return failures.stack_of(self._stack)

    def end(self) -> None:
        """Kill it if it is there, and let go of all that was its own."""
        if self.process is not None:
            if self.process.exitcode is None:
                self.process.kill()
                self.process.join(_PATIENCE)
            elif self.process.exitcode and not self.is_told_of:
                self._died()  # while it was idle, or when the epoch was over
            code = self.process.exitcode
            self.pid_and_code = self.process.pid, code
            if code is not None and code != 0:
                failures.remove_shared_files(self.process.pid)
            if code is not None:
                self.process.close()
            self.process = None
        if self.sock is not None:
            self._receiver.drop()
            self.sock.close()
            os.close(self._stack)
            self.sock = None
        self._unsent.clear()

    def _start(self) -> None:
        assert self._call is not None
        target, args = self._call
        self.sock, theirs = socket.socketpair()
        self.sock.setblocking(False)
        self._receiver = Receiver(self.sock)
        self._stack = _anonymous_file()
        self.silent = self.stopped = self.locked = 0.0
        self._seen, self._waits = (), None
        self.size, self._weighed = 0, 0.0
        self.is_cut_off = self.is_told_of = False
        worker_status.clear(self._cell)
        connection = Connection(theirs, self._done)
        own = tuple(connection if hasattr(arg, "cancel_join_thread") else arg for arg in args)
        steady = threading.current_thread() is threading.main_thread()
        worker_context = WorkerContext(
            os.getpid(), steady, self._memory, self._place, File(self._stack)
        )
        with theirs:
            self.process = self._context.Process(
                target=run, args=(worker_context, connection, target, own), daemon=self.daemon
            )
            try:
                self.process.start()
            except BaseException:
                self.process = None
                self.end()
                raise
        for task in self.tasks:
            self._send(task.item)

    def _send(self, item: Any) -> None:
        self._unsent.append(framed(item))
        self.flush()


class Handle:
    """A worker's process as multiprocessing shows one, for code that looks after processes."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    @property
    def pid(self) -> int:
        process = self._worker.process
        return int(self._worker.pid_and_code[0] if process is None else process.pid)

    @property
    def exitcode(self) -> int | None:
        process = self._worker.process
        return self._worker.pid_and_code[1] if process is None else process.exitcode

    def is_alive(self) -> bool:
        return self._worker.exit_code is None

    def join(self, timeout: float | None = None) -> None:
        process = self._worker.process
        if process is not None:
            process.join(timeout)

    def terminate(self) -> None:
        """End this process; the pool may start another one in its place."""
        process = self._worker.process
        if process is not None:
            process.terminate()

    kill = terminate


def _anonymous_file() -> int:
    """A file that has no name, so that nothing stays behind however this process ends."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("penstock", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
