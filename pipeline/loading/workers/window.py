"""How many requests are under way, or wait as results for their turn.

Normally workers times `prefetch_factor`, as in torch. While the consumer waits for a batch with a
slow sample, those behind it get ready, and the workers would soon have nothing to do. Then the
window grows, so that they continue, and shrinks again slowly: batches begin so much earlier that
the next slow one is ready in time. Its growth is bounded, in batches and in bytes.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Protocol

from penstock.loading.fetch import Fetch
from penstock.loading.memory import nbytes
from penstock.loading.workers.backends import Asked, Result, Results
from penstock.loading.workers.options import LoaderOptions
from penstock.order.keys import hash64
from penstock.torch_internals import ExceptionWrapper

POLL = 0.5  # seconds between two looks at workers that report nothing
_MOST = 8  # batches beyond the normal window, for each worker
_SHRINK = 64  # batches after which the window is one smaller


class Task:
    """A request that a worker has.

    Attributes:
        result: None until it is there. An unexpected error is an exception to raise, or torch's
            wrapper of one from another process.
        deaths: of the workers that had it.
        last_death: how and where the last of them died.
    """

    def __init__(self, request: Asked) -> None:
        self.request = request
        self.result: Any = None
        self.deaths = 0
        self.last_death: object = None

    def take(self) -> Result:
        """The result, which belongs to its consumer alone; raises an unexpected error."""
        result, self.result = self.result, None
        if isinstance(result, ExceptionWrapper):
            result.reraise()
        if isinstance(result, BaseException):
            raise result
        return result


class Pool(Protocol):
    """Workers, as `windowed` uses them."""

    def submit(self, request: Asked) -> Task: ...

    def wait(self, seconds: float) -> bool:
        """Wait at most so long for a result of any task; whether there is one."""

    def late(self, limit: float) -> str:
        """A report on workers that have made no batch in `limit` seconds; may be empty."""


class StartedPool(Pool, Protocol):
    """Workers that were started, and have to be ended."""

    @property
    def deaths(self) -> int: ...

    def begin(self) -> None:
        """Another run begins, which knows nothing of what the last one asked for."""

    def shut_down(self) -> None: ...


def windowed(pool: Pool, requests: Iterator[Asked], options: LoaderOptions) -> Results:
    """Results of `requests`, a window of which is handed to the pool at once."""
    window = Window(options.num_workers, options.ahead, options.slow_memory)
    pending = deque(map(pool.submit, islice(requests, window.size)))
    return _taken(pool, pending, requests, window, options)


def _taken(
    pool: Pool,
    pending: deque[Task],
    requests: Iterator[Asked],
    window: Window,
    options: LoaderOptions,
) -> Results:
    def fill() -> None:
        pending.extend(map(pool.submit, islice(requests, max(window.size - len(pending), 0))))

    limit = options.batch_timeout
    while pending:
        heard = time.monotonic()
        candidates = [pending[0]] if options.in_order else pending
        while (
            task := next(
                (candidate for candidate in candidates if candidate.result is not None), None
            )
        ) is None:
            if options.in_order and window.grow(pending):
                fill()
            if pool.wait(min(limit or POLL, POLL)):
                heard = time.monotonic()
            elif limit and time.monotonic() - heard >= limit:
                # torch's words, which programs look for
                raise RuntimeError(f"DataLoader timed out after {limit} seconds{pool.late(limit)}")
        pending.remove(task)
        window.deliver(task.result)
        fill()
        yield task.take()


class Window:
    """The window of one run through a loader.

    Args:
        workers: of the pool.
        ahead: batches that each is ahead in normal times.
        budget: bytes that the batches beyond these may take.

    Attributes:
        extra: batches that it has grown by.
        largest: bytes of the largest batch that was measured.
    """

    def __init__(self, workers: int, ahead: int, budget: int) -> None:
        self.extra = self.largest = 0
        self._most = _MOST * workers
        self._normal, self._budget = workers * ahead, budget
        self._spare = min(workers + 1, self._normal)
        self._delivered = 0

    @property
    def size(self) -> int:
        """Requests that may be under way or waiting."""
        return self._normal + min(self.extra, self._budget // max(self.largest, 1))

    def grow(self, pending: Collection[Task]) -> bool:
        """Grow by one if workers get idle while the first of `pending` is waited for."""
        if len(pending) < self.size or self.extra >= self._most or not self._budget:
            return False
        there = [task.result for task in pending if task.result is not None]
        if len(pending) - len(there) >= self._spare:
            return False
        self.largest = max([self.largest, *map(_nbytes, there[-1:])])
        self.extra = self.size - self._normal + 1
        return len(pending) < self.size

    def deliver(self, result: object) -> None:
        """Take note of a batch that is its consumer's from now on."""
        if self.extra:
            self.largest = max(self.largest, _nbytes(result))
            self._delivered += 1
            if self._delivered % _SHRINK == 0:
                self.extra -= 1


def _nbytes(result: object) -> int:
    return nbytes(getattr(result, "value", result))  # of a DataLoader's results


class PoolBackend(ABC):
    """Works in a pool, which lives for one run, or is persistent."""

    def __init__(self, fetch: Fetch, options: LoaderOptions) -> None:
        self._fetch, self._options = fetch, options
        seed = options.generator
        self._seed = hash64(fetch.seed, "workers") if seed is None else seed
        self._pool: StartedPool | None = None
        self._deaths = 0  # in pools that were shut down

    @abstractmethod
    def _new_pool(self) -> StartedPool:
        """Start the workers."""

    @property
    def deaths(self) -> int:
        return self._deaths + (self._pool.deaths if self._pool else 0)

    @contextmanager
    def run(self, requests: Iterator[Asked]) -> Iterator[Results]:
        if self._pool is None:
            self._pool = self._new_pool()
        try:
            self._pool.begin()
            yield windowed(self._pool, requests, self._options)  # from now on the workers work
        finally:
            if not self._options.persistent_workers:
                self.close()

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shut_down()
            self._deaths += pool.deaths

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            self.close()
