"""Works in threads of this process, a window of requests ahead.

A thread that hangs cannot be killed. The run ends with its stack and what it held; the threads are
daemons, so that it does not keep the program from ending.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice, repeat
from typing import Any

from pipeline.distributed.preemption import asked, waiting
from pipeline.loading import intra_batch, worker_status
from pipeline.loading.fetch import Fetch
from pipeline.loading.workers.backends import (
    Asked,
    Failure,
    LoaderOptions,
    Result,
    Results,
    WorkerError,
    attempt,
)
from pipeline.loading.workers.failures import FailureReport
from pipeline.order.plan import Request
from pipeline.order.randomness import scope
from pipeline.order.seeding import SharedGeneratorError, ThreadRandomness, Watch, probe

_HANDS = 8  # a worker, for the first batch of an epoch
_POLL = 0.5  # seconds between two looks at threads of which nothing is heard
_LAST = 0.05  # seconds for each thread of a run that was asked to stop


class ThreadBackend:
    """Works in threads of this process, a window of requests ahead."""

    pins = False
    deaths = 0

    def __init__(self, fetch: Fetch, options: LoaderOptions) -> None:
        self._fetch = fetch
        self._options = options
        self._window = options.num_workers * (options.prefetch_factor or 2)
        self._probed = False

    @contextmanager
    def run(self, requests: Iterator[Asked]) -> Iterator[Results]:
        requests = self._probing(requests)
        watch = Watch()
        pool = _Pool(self._options.num_workers, self._options.limit)
        try:
            yield self._results(pool, requests, watch)
        finally:
            pool.close()

    def _results(self, pool: _Pool, requests: Iterator[Asked], watch: Watch) -> Results:
        first = partial(self._one, watch=watch, helpers=_HANDS * self._options.num_workers)
        works = chain([first], repeat(partial(self._one, watch=watch)))
        futures = (pool.submit(*job) for job in zip(requests, works, strict=False))
        pending: deque[Future[Result]] = deque(islice(futures, self._window))
        while pending:
            future = self._next_done(pool, pending)
            result = future.result()
            pending.extend(islice(futures, 1))
            yield result

    def _next_done(self, pool: _Pool, pending: deque[Future[Any]]) -> Future[Any]:
        waited_for = [pending[0]] if self._options.in_order else list(pending)
        began, limit = time.monotonic(), self._options.batch_timeout
        while not (done := self._done(waited_for, limit)):
            if limit and time.monotonic() - began >= limit:
                # torch's words, which programs look for
                report = "\n".join(one.report(self._fetch.dataset) for one in pool.given_up(limit))
                raise RuntimeError(f"DataLoader timed out after {limit} seconds\n{report}")
            hanging = pool.hanging()
            if hanging is not None:
                raise WorkerError(
                    f"{hanging.death().report(self._fetch.dataset)}\n    threads cannot be ended "
                    "and replaced; loader.backend=process can"
                )
        future = next(future for future in waited_for if future in done)
        pending.remove(future)
        return future

    def _done(self, futures: list[Future[Any]], limit: float) -> set[Future[Any]]:
        with waiting():
            return wait(futures, min(limit or _POLL, _POLL), return_when=FIRST_COMPLETED).done

    def _one(self, request: Asked, watch: Watch, helpers: int = 1) -> Result:
        with ThreadRandomness() as mode, intra_batch.extra_threads(helpers):
            result = attempt(partial(self._fetch, draws=mode), request)
        try:
            watch.check()
        except SharedGeneratorError as error:
            return Failure(request, error)
        return result

    def _probing(self, requests: Iterator[Asked]) -> Iterator[Asked]:
        """Requests, the first of which was tried out on two samples before any thread starts."""
        for request in requests:
            if not self._probed:
                self._probe(request)
                self._probed = True
            yield request

    def _probe(self, request: Asked) -> None:
        if isinstance(request, Request):  # two samples are enough; a stream's batch is whole
            request = Request(*request.address, request.positions[:2], request.indices[:2], 2)

        def run(mode: ThreadRandomness) -> None:
            with mode:
                attempt(partial(self._fetch, draws=mode), request)

        tried, self._fetch.tried = self._fetch.tried, True  # of a batch that somebody gets
        with scope(), waiting():
            probe(run)
        self._fetch.tried = tried

    def close(self) -> None:
        pass


class _Pool:
    """Threads that work on requests in the order in which they come.

    Args:
        limit: seconds without a sign of life after which a thread hangs; 0: never.
    """

    def __init__(self, count: int, limit: float) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._looked = time.monotonic()
        self._threads = [_Thread(number, self._jobs, limit) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, request: Asked, work: Callable[[Asked], Result]) -> Future[Result]:
        future: Future[Result] = Future()
        self._jobs.put((request, work, future))
        return future

    def hanging(self) -> _Thread | None:
        """A thread that gave no sign of life for too long, if there is one."""
        now = time.monotonic()
        # Only time that was spent waiting counts: this process may have been stopped meanwhile.
        passed, self._looked = min(now - self._looked, 2 * _POLL), now
        return next((thread for thread in self._threads if thread.hangs(passed)), None)

    def given_up(self, limit: float) -> list[FailureReport]:
        """What is to be said of the threads that work, which nobody waits for any more."""
        busy = [thread for thread in self._threads if thread.works]
        for thread in busy:
            thread.gave_up = True
        return [thread.death(f"has made no batch in {limit:g} s (timeout)") for thread in busy]

    def close(self) -> None:
        """Drop what was not begun, and wait for what was, unless it hangs or the run shall stop."""
        try:
            while True:
                self._jobs.get_nowait()
        except queue.Empty:
            pass
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(_LAST if asked() else _POLL)
            while thread.is_alive() and not thread.gave_up and not asked():
                thread.hangs(_POLL)
                thread.join(_POLL)


_Job = tuple[Asked, Callable[[Asked], Result], "Future[Result]"]


class _Thread(threading.Thread):
    """One of a pool's threads.

    Attributes:
        gave_up: whether it was found to hang.
    """

    def __init__(self, number: int, jobs: queue.SimpleQueue[_Job | None], limit: float) -> None:
        super().__init__(name=f"penstock-loader-{number}", daemon=True)
        self.gave_up = False
        self._jobs = jobs
        self._limit = limit
        self._cell = memoryview(array("q", bytes(8 * worker_status.FIELDS)))
        self._request: Asked | None = None
        self._silent = 0.0
        self._seen: Any = None
        worker_status.clear(self._cell)

    def run(self) -> None:
        worker_status.use(self._cell)
        while (job := self._jobs.get()) is not None:
            self._request, work, future = job
            try:
                future.set_result(work(self._request))
            except BaseException as error:
                future.set_exception(error)
            self._request = None
            del job, work, future  # a batch is its consumer's alone

    def hangs(self, passed: float) -> bool:
        """Count the time without a sign of life, and say whether it is too long."""
        seen = self._request, worker_status.read(self._cell)
        same = self._seen is not None and seen[0] is self._seen[0] and seen[1] == self._seen[1]
        self._silent = self._silent + passed if same and seen[0] is not None else 0.0
        self._seen = seen
        self.gave_up = bool(self._limit) and self._silent >= self._limit
        return self.gave_up

    @property
    def works(self) -> bool:
        return self._request is not None

    def death(self, how: str = "") -> FailureReport:
        """What is to be said of it when it hangs, or when `how` is all that is known."""
        frame = sys._current_frames().get(self.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame else ""
        held = [] if self._request is None else [self._request]
        how = how or f"gave no sign of life for {self._limit:g} s (loader.timeout)"
        return FailureReport(
            f"loader thread {self.name}", how, worker_status.read(self._cell), held, stack
        )
