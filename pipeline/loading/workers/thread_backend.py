"""Works in threads of this process, a window of requests ahead.

A thread that hangs cannot be killed: the run ends with its stack and the requests that it had. The
threads are daemons, so that none keeps the program from ending.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from penstock.distributed.preemption import asked, waiting
from penstock.loading import worker_status
from penstock.loading.fetch import Fetch
from penstock.loading.workers.backends import Asked, Results, WorkerError, attempt
from penstock.loading.workers.failures import FailureReport
from penstock.loading.workers.options import LoaderOptions
from penstock.loading.workers.window import POLL, Task, windowed

_LAST = 0.05  # seconds for each thread of a run that was asked to stop


class ThreadBackend:
    """Works in threads of this process, a window of requests ahead."""

    pins = False
    executor = "thread"
    deaths = 0

    def __init__(self, fetch: Fetch, options: LoaderOptions) -> None:
        self._fetch, self._options = fetch, options

    @contextmanager
    def run(self, requests: Iterator[Asked]) -> Iterator[Results]:
        pool = _ThreadPool(self._fetch, self._options)
        try:
            yield self._results(pool, requests)
        finally:
            pool.close()

    def _results(self, pool: _ThreadPool, requests: Iterator[Asked]) -> Results:
        if not self._fetch.draws_nothing:
            # The first batch, made alone, shows whether data code draws from what threads share.
            yield from windowed(pool, islice(requests, 1), self._options)
        yield from windowed(pool, requests, self._options)

    def close(self) -> None:
        pass


class _ThreadPool:
    """Threads that work on requests in the order in which they come."""

    def __init__(self, fetch: Fetch, options: LoaderOptions) -> None:
        self._fetch = fetch
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._looked = time.monotonic()
        self._threads = [_Thread(n, self, options.limit) for n in range(options.num_workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, request: Asked) -> Task:
        task = Task(request)
        self._tasks.put(task)
        return task

    def work(self, thread: _Thread) -> None:
        """Work on one task after another, in that thread."""
        while (task := self._tasks.get()) is not None:
            thread.request = task.request
            make = self._fetch if self._fetch.draws_nothing else self._fetch.first_of_threads
            try:
                task.result = attempt(make, task.request)
            except BaseException as error:
                task.result = error
            thread.request = None
            self._done.put(None)
            del task  # a batch is its consumer's alone

    def wait(self, seconds: float) -> bool:
        try:
            with waiting():
                self._done.get(timeout=seconds)
            return True
        except queue.Empty:
            pass
        now = time.monotonic()
        # Only time spent waiting counts: this process may have been stopped meanwhile.
        passed, self._looked = min(now - self._looked, 2 * POLL), now
        hanging = next((thread for thread in self._threads if thread.hangs(passed)), None)
        if hanging is not None:
            raise WorkerError(
                f"{hanging.report().report(self._fetch.dataset)}\n    threads cannot be ended and "
                "replaced; loader.backend=process can"
            )
        return False

    def late(self, limit: float) -> str:
        busy = [thread for thread in self._threads if thread.request is not None]
        for thread in busy:
            thread.gave_up = True
        reports = (thread.report(f"has made no batch in {limit:g} s (timeout)") for thread in busy)
        return "\n" + "\n".join(report.report(self._fetch.dataset) for report in reports)

    def close(self) -> None:
        """Drop tasks not begun; wait for the others unless they hang or the run is to stop."""
        try:
            while True:
                self._tasks.get_nowait()
        except queue.Empty:
            pass
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(_LAST if asked() else POLL)
            while thread.is_alive() and not thread.gave_up and not asked():
                thread.hangs(POLL)
                thread.join(POLL)


class _Thread(threading.Thread):
    """One thread of a pool.

    Args:
        limit: seconds without a sign of life after which it hangs; 0: never.

    Attributes:
        request: that it works on.
        gave_up: whether it was found to hang.
    """

    def __init__(self, number: int, pool: _ThreadPool, limit: float) -> None:
        super().__init__(name=f"penstock-loader-{number}", daemon=True)
        self.request: Asked | None = None
        self.gave_up = False
        self._pool, self._limit = pool, limit
        self._cell = memoryview(array("q", bytes(8 * worker_status.FIELDS)))
        self._silent = 0.0
        self._seen: Any = None
        worker_status.clear(self._cell)

    def run(self) -> None:
        worker_status.use(self._cell)
        self._pool.work(self)

    def hangs(self, passed: float) -> bool:
        """Count the time without a sign of life; whether it is too long."""
        request, status = self.request, worker_status.read(self._cell)
        same = self._seen is not None and request is self._seen[0] and status == self._seen[1]
        self._silent = self._silent + passed if same and request is not None else 0.0
        self._seen = request, status
        self.gave_up = bool(self._limit) and self._silent >= self._limit
        return self.gave_up

    def report(self, how: str = "") -> FailureReport:
        frame = sys._current_frames().get(self.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame else ""
        held = [] if self.request is None else [self.request]
        how = how or f"gave no sign of life for {self._limit:g} s (loader.timeout)"
        return FailureReport(
            f"loader thread {self.name}", how, worker_status.read(self._cell), held, stack
        )
