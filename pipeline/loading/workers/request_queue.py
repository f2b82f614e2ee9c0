"""Requests that whichever process is free takes next, without locks.

A number in a pipe is a request: the kernel gives it to one reader, whole. An anonymous file beside
it holds the request. The reader notes in shared memory what it has taken, so that the owner knows
what a dead process held.

So a process that is kept busy by one slow sample keeps no other request from being made, and nobody
has to wait for the owner, which trains, to deal out the next one.

    owner     RequestQueue    puts requests, sees who took what, takes back what nobody took
    process   QueueReader     takes one request after another
"""

from __future__ import annotations

import os
import pickle
import struct
import tempfile
from collections import deque
from collections.abc import Iterable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from penstock.loading.workers.window import Task

_TOKEN = struct.Struct("<QQQQ")  # number, offset, bytes, nothing; its size divides that of a page
_CLAIMS = 4096  # that one process can have before the owner has looked
_BLOCK = 1 << 12  # bytes, at least, for a request; a power of two


class QueueReader:
    """A process's side.

    Args:
        pipe, file: descriptors, in Connections, which can be passed to a new process.
        claims: the numbers of what processes have taken, and how many, for each process.
    """

    def __init__(self, pipe: Connection, file: Connection, claims: object) -> None:
        self._pipe, self._file, self._claims = pipe, file, claims

    def fileno(self) -> int:
        """Readable while there is a request."""
        return self._pipe.fileno()

    def take(self, worker: int) -> Any:
        """The next request, for the process with this number; None if there is none now."""
        try:
            token = os.read(self._pipe.fileno(), _TOKEN.size)
        except BlockingIOError:
            return None
        number, offset, size, _ = _TOKEN.unpack(token)
        request = pickle.loads(os.pread(self._file.fileno(), size, offset))
        claims = _claims_of(self._claims, worker)
        claims[1 + claims[0] % _CLAIMS] = number
        claims[0] += 1  # from now on its place in the file may be used again
        return request


class RequestQueue:
    """The owner's side.

    Args:
        context: multiprocessing's, of the start method.
        workers: processes that take requests.

    Attributes:
        reader: for the processes.
    """

    def __init__(self, context: Any, workers: int) -> None:
        pipe, self._pipe = os.pipe()
        for end in (pipe, self._pipe):
            os.set_blocking(end, False)
        self._claims = context.RawArray("q", workers * (1 + _CLAIMS))
        self._file = anonymous_file()
        self.reader = QueueReader(Connection(pipe), Connection(self._file), self._claims)
        self._seen = [0] * workers  # claims
        self._numbers = 0
        self._open: dict[int, tuple[Task, int, int]] = {}  # nobody is known to have them
        self._lost: dict[int, Task] = {}  # a dead process had them, or a live one is about to
        self._backlog: deque[Task] = deque()  # did not fit into the pipe
        self._free: dict[int, list[int]] = {}  # offsets of blocks, by size
        self._end = 0

    @property
    def has_open(self) -> bool:
        """Whether there are requests that nobody is known to have taken."""
        return bool(self._open or self._backlog)

    def put(self, task: Task) -> None:
        """Hand a request to any free worker; never waits."""
        self._backlog.append(task)
        self.flush()

    def flush(self) -> None:
        """Hand over what did not fit before."""
        while self._backlog and len(self._open) < _CLAIMS:
            data = ForkingPickler.dumps(self._backlog[0].request)
            size = max(_BLOCK, 1 << (len(data) - 1).bit_length())
            free = self._free.setdefault(size, [])
            offset = free.pop() if free else self._end
            self._end = max(self._end, offset + size)
            os.pwrite(self._file, data, offset)
            token = _TOKEN.pack(self._numbers, offset, len(data), 0)
            try:
                os.write(self._pipe, token)
            except BlockingIOError:
                free.append(offset)
                return
            self._open[self._numbers] = self._backlog.popleft(), offset, size
            self._numbers += 1

    def claimed(self, worker: int) -> list[Task]:
        """The requests that a process has taken since the last look, in order."""
        claims = _claims_of(self._claims, worker)
        numbers = [claims[1 + n % _CLAIMS] for n in range(self._seen[worker], claims[0])]
        self._seen[worker] += len(numbers)
        return [self._closed(number) for number in numbers]

    def _closed(self, number: int) -> Task:
        if number in self._lost:
            return self._lost.pop(number)
        task, offset, size = self._open.pop(number)
        self._free[size].append(offset)
        return task

    def put_first(self, tasks: Iterable[Task]) -> None:
        """Hand over requests before all others, and those that were lost with a dead process.

        To be called once the claims of all processes have been looked at.
        """
        others = self.take_back()
        for task in [*tasks, *self.lost(), *others]:
            self.put(task)

    def take_back(self, most: int | None = None) -> list[Task]:
        """Requests that nobody has taken, in order, which are in the queue no longer."""
        tasks: list[Task] = []
        while most is None or len(tasks) < most:
            try:
                token = os.read(self.reader.fileno(), _TOKEN.size)
            except BlockingIOError:
                tasks += self._backlog
                self._backlog.clear()
                break
            tasks.append(self._closed(_TOKEN.unpack(token)[0]))
        return tasks

    def lost(self) -> list[Task]:
        """Requests that are neither here nor known to be with a process.

        To be called once the claims of all have been looked at and all else was taken back. A dead
        process had them, or a live one has them and has not noted it yet: then they are made twice.
        """
        tasks = [task for task, _, _ in self._open.values()]
        # Their places are not used again: somebody may still be about to read there.
        self._lost.update((number, task) for number, (task, _, _) in self._open.items())
        self._open.clear()
        return tasks

    def forget(self, worker: int) -> None:
        """Begin with another process in a dead one's place, whose claims were looked at."""
        _claims_of(self._claims, worker)[0] = self._seen[worker] = 0

    def close(self) -> None:
        for end in (self.reader._pipe, self.reader._file):
            end.close()
        os.close(self._pipe)


def _claims_of(claims: Any, worker: int) -> memoryview:
    start = worker * (1 + _CLAIMS)
    return memoryview(claims).cast("B").cast("q")[start : start + 1 + _CLAIMS]


def anonymous_file() -> int:
    """A file that has no name, so that nothing stays behind however this process ends."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("penstock", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
