"""Backends: where requests are worked on. Every backend runs the same fetch.

    main       in this process, when a batch is asked for
    process    in worker processes (pipeline/loading/workers/pool.py)
    thread     in threads (pipeline/loading/workers/thread_backend.py)

Add-ons bring others (`AddOn.backends`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from penstock.distributed.preemption import waiting
from penstock.loading.fetch import Fetch
from penstock.loading.workers.options import LoaderOptions
from penstock.loading.workers.results import Asked, Result, Results, attempt
from penstock.loading.workers.window import StartedPool, windowed
from penstock.order.randomness import hash64, scope


class Backend(Protocol):
    """Works on requests.

    Attributes:
        pins: whether its batches already lie in pinned memory when that was asked for.
        executor: what works on a request, for messages: "worker process".
        deaths: workers that died or hung, and were replaced.
    """

    pins: bool
    executor: str

    @property
    def deaths(self) -> int: ...

    def run(self, requests: Iterator[Asked]) -> AbstractContextManager[Results]:
        """Results of `requests`; leaving the context drops what was not taken."""

    def close(self) -> None:
        """Stop what was kept for the next run."""


class MainBackend:
    """Works in this process, when a batch is asked for."""

    pins = False
    executor = "process"
    deaths = 0

    def __init__(self, fetch: Fetch, keyed: bool = True) -> None:
        self._fetch = fetch
        # The training loop draws from the same generators.
        self._is_scoped = keyed and not fetch.leaves_generators

    @contextmanager
    def run(self, requests: Iterator[Asked]) -> Iterator[Results]:
        yield map(self._work, requests)

    def _work(self, request: Asked) -> Result:
        with scope() if self._is_scoped else nullcontext(), waiting():
            return attempt(self._fetch, request)

    def close(self) -> None:
        pass


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
