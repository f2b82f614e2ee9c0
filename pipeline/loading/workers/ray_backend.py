"""Works in Ray actors, on this machine or on the nodes of a cluster.

Imports ray. Beside `ProcessBackend` nothing changes but where batches are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ray import cloudpickle

from pipeline.errors import ConfigError, Problem
from pipeline.loading.fetch import Fetch
from pipeline.loading.workers.backends import Asked, LoaderOptions, Results, windowed
from pipeline.loading.workers.process_backend import parts_of
from pipeline.loading.workers.ray_pool import RayPool
from pipeline.order.randomness import hash64


class RayBackend:
    """Works in Ray actors; those of a pool live for one run, or are persistent."""

    pins = False

    def __init__(self, fetch: Fetch, options: LoaderOptions) -> None:
        require_picklable(fetch)
        self._fetch, self._options = fetch, options
        seed = hash64(fetch.seed, "workers") if options.generator is None else options.generator
        self._seed = seed % 2**62
        self._pool: RayPool | None = None
        self._deaths = 0  # in pools that were shut down

    @property
    def deaths(self) -> int:
        return self._deaths + (self._pool.deaths if self._pool else 0)

    def pids(self) -> list[int]:
        """Of the actors that have begun, each on its own node."""
        workers = self._pool.workers if self._pool else []
        return [worker.begun.pid for worker in workers if worker.begun]

    @contextmanager
    def run(self, requests: Iterator[Asked]) -> Iterator[Results]:
        if self._pool is None:
            self._pool = RayPool(self._fetch, self._seed, self._options)
        try:
            self._pool.begin()
            yield windowed(self._pool, requests, self._options)  # from now on the actors work
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


def require_picklable(fetch: Fetch) -> None:
    """Refuse what cannot be sent to an actor before anything has begun; pickles all of it.

    Raises:
        ConfigError: names the parts.
    """
    try:
        cloudpickle.dumps(fetch)
    except Exception as error:
        found = []
        for key, part in parts_of(fetch).items():
            try:
                cloudpickle.dumps(part)
            except Exception as own:
                found.append(Problem(key, f"cannot be sent to Ray actors: {own}. Use "
                                          "loader.backend=process"))  # fmt: skip
        if found:
            raise ConfigError(found) from error
        raise
