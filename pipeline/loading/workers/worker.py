"""A worker of a pool: a process, replaced when it dies, and the tasks that it has.

Results come in the order of the tasks. They are those that its process took from the pool's queue,
or, where the pool deals, those that it was handed; then a new process is handed them again.
"""

from __future__ import annotations

import io
import pickle
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from penstock.distributed.preemption import asked
from penstock.loading import worker_status
from penstock.loading.worker_status import WorkerStatus
from penstock.loading.workers import failures
from penstock.loading.workers.backends import Failure, WorkerError
from penstock.loading.workers.channel import Message, Receiver, framed, unpack
from penstock.loading.workers.request_queue import RequestQueue, anonymous_file
from penstock.loading.workers.window import Task
from penstock.loading.workers.worker_side import DUMP, WorkerContext, run

_KILL_SECONDS = 2.0  # for a killed process to be gone
_QUIET = 1.0  # seconds without a sign of life from which on more is asked


class _Sent:
    """The arguments of a new process, and all that exists only while they are pickled.

    torch sends a tensor as a descriptor of its memory, and multiprocessing passes descriptors on
    when everything has been pickled. By then the state that a `torch.Generator` was asked for would
    be gone, and its descriptor closed, or another file's.
    """

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        buffer = io.BytesIO()
        self._pickler = ForkingPickler(buffer, pickle.HIGHEST_PROTOCOL)  # its memo keeps them
        self._pickler.dump(self._value)
        return pickle.loads, (buffer.getvalue(),)


class Worker:
    """One worker; the pool's lock is held wherever it is changed.

    Args:
        context: multiprocessing's, of the start method.
        number: its place in the pool, from 0.
        shared_context: what all workers of the pool are given.
        queue: from which its process takes requests; None: it is handed them.

    Attributes:
        tasks: without a result, in order.
        deaths: of its processes.
        rests: whether its process died and another is not to be started with the next task.
        process: None before the first, and between two.
        threads: of this program, besides the one that forked it; 0 where it is no fork.
        silent: seconds without a sign of life, as the main process has seen it.
        stopped, locked: seconds of these in which it was stopped by a signal, or each of its
            threads waited for a lock and did not wake once.
        unsent: parts of tasks that did not fit into the socket.
        is_cut_off: whether nothing more can come from its process.
        is_reported: whether the end of its process is known, or intended.
    """

    def __init__(
        self, number: int, context: Any, shared_context: WorkerContext, queue: RequestQueue | None
    ) -> None:
        self.number, self._queue = number, queue
        self.tasks: deque[Task] = deque()
        self.deaths = self.threads = 0
        self.process: Any = None
        self.sock: socket.socket | None = None
        self._context, self._given = context, shared_context
        self._cell = shared_context.shared.cell(number)
        self._last: tuple[int, int | None] = (-1, None)
        self.unsent: deque[memoryview] = deque()
        self._stack: Any = None
        self._reset()

    def _reset(self) -> None:
        self.rests = self.is_cut_off = self.is_reported = False
        self.silent = self.stopped = self.locked = 0.0
        self._seen: tuple[Any, ...] = ()
        self._waits: Any = None
        worker_status.clear(self._cell)

    # As multiprocessing shows a process, for code that looks after processes.

    @property
    def pid(self) -> int:
        """Of its process, or of the last that it had."""
        return self._last[0] if self.process is None else int(self.process.pid)

    @property
    def exitcode(self) -> int | None:
        """Of its process, or of the last that it had; None while it runs."""
        return self._last[1] if self.process is None else self.process.exitcode

    def is_alive(self) -> bool:
        return self.process is not None and self.process.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        process = self.process
        if process is not None:
            process.join(timeout)

    def terminate(self) -> None:
        """End this process; the pool may start another one in its place."""
        process = self.process
        if process is not None:
            process.terminate()

    kill = terminate

    # What the pool calls.

    @property
    def status(self) -> WorkerStatus:
        return worker_status.read(self._cell)

    def start(self) -> None:
        """Start a process and hand it the tasks that there are."""
        self._reset()
        if self._queue is not None:
            self._queue.forget(self.number)
        self.sock, theirs = socket.socketpair()
        self.sock.setblocking(False)
        self._receiver = Receiver(self.sock)
        self._stack = Connection(anonymous_file())
        steady = threading.current_thread() is threading.main_thread()
        with theirs:
            method = self._context.get_start_method()
            self.threads = failures.threads() - 1 if method == "fork" else 0
            own = replace(
                self._given,
                number=self.number,
                steady=steady,
                spawned=method == "spawn",
                sock=theirs,
                stack=self._stack,
            )
            sent = own if method == "fork" else _Sent(own)
            process = self._context.Process(target=run, args=(sent,), daemon=True)
            try:
                process.start()
            except BaseException:
                self.end()
                raise
            self.process = process  # only now, since other threads look for its pid
        for task in self.tasks if self._queue is None else ():
            self._send(task)

    def take(self, task: Task) -> None:
        """Hand a task over; never waits."""
        self.tasks.append(task)
        if self.process is not None:
            self._send(task)
        elif not self.rests:
            self.start()

    def replace(self) -> None:
        """Start another process if there is anything to do; else with the next task."""
        self.rests = False
        if self.tasks or (self._queue is not None and self._queue.has_open):
            self.start()

    def note_claims(self) -> None:
        """Learn what its process has taken from the queue."""
        if self._queue is not None:
            self.tasks.extend(self._queue.claimed(self.number))

    def look(self, passed: float) -> None:
        """Count the time without a sign of life: a change of its status, or bytes that came."""
        self.note_claims()
        seen = (self.status, self._receiver.arrived)
        idle = not self.tasks and not (self._queue and self._queue.has_open)
        alive = seen != self._seen or idle
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

    def results(self) -> Iterator[tuple[Task, Any]]:
        """Tasks whose results have arrived in full.

        Raises:
            ChannelError: nothing more can be read.
        """
        while True:
            try:
                message = self._receiver.take()
            except (EOFError, OSError):
                self.is_cut_off = True  # dead, as a rule; its exit code will tell
                return
            if message is not None and not self.tasks:
                self.note_claims()
            result = None if message is None else self._unpacked(message)
            if result is None:
                return
            yield self.tasks.popleft(), result

    def _unpacked(self, message: Message) -> Any:
        """The result of the first task; None if it is to be made again."""
        try:
            return unpack(message)
        except Exception as error:
            if isinstance(error, OSError) and not self.is_alive():
                return None  # a part of it was still to be had from the dead
            text = f"a batch cannot be received: {type(error).__name__}: {error}"
            return Failure(self.tasks[0].request, WorkerError(text))

    def _send(self, task: Task) -> None:
        self.unsent.append(framed(task.request))
        self.flush()

    def flush(self) -> None:
        """Send what did not fit before."""
        while self.unsent and self.sock is not None:
            try:
                sent = self.sock.send(self.unsent[0])
            except BlockingIOError:
                return
            except OSError:
                self.unsent.clear()  # dead; its exit code will tell
                return
            self.unsent[0] = self.unsent[0][sent:]
            if not self.unsent[0]:
                self.unsent.popleft()

    def stack(self, stopped: bool | None = None) -> str:
        """The stack that a dead process left; with `stopped`, one that hangs is asked for it."""
        if stopped is None:
            return failures.stack_of(self._stack.fileno())
        return failures.ask_for_stack(self.process.pid, DUMP, self._stack.fileno(), stopped)

    def wake(self) -> None:
        """Let it see that all is done."""
        if self.sock is not None:
            try:
                self.sock.shutdown(socket.SHUT_WR)
            except OSError:
                return  # it is dead

    def wait_for_end(self, seconds: float) -> None:
        """Wait until it has ended by itself, unless it is stopped or the run is in haste."""
        ends = time.monotonic() + seconds
        while self.is_alive() and not asked() and time.monotonic() < ends:
            if failures.state_of(self.process.pid) in ("T", "t"):
                return
            self.process.join(0.1)

    def end(self) -> None:
        """Kill it if it is there, and release all that was its own."""
        if self.process is not None:
            if self.process.exitcode is None:
                self.process.kill()
                self.process.join(_KILL_SECONDS)
            elif self.process.exitcode and not self.is_reported:
                self.deaths += 1  # while it was idle, or when the epoch was over
            code = self.process.exitcode
            self._last = self.process.pid, code
            if code:
                failures.remove_shared_files(self.process.pid)
            if code is not None:
                self.process.close()
            self.process = None
        if self.sock is not None:
            self._receiver.drop()
            self.sock.close()
            self._stack.close()
            self.sock = self._stack = None
        self.unsent.clear()
