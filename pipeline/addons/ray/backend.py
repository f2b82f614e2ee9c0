"""Works in Ray actors, on this machine or on the nodes of a cluster.

Imports ray. Beside `ProcessBackend` nothing changes but where batches are made.
"""

from __future__ import annotations

from ray import cloudpickle

from penstock.addons.ray.pool import RayPool
from penstock.errors import ConfigError, Problem
from penstock.loading.fetch import Fetch
from penstock.loading.workers.backends import PoolBackend
from penstock.loading.workers.options import LoaderOptions
from penstock.loading.workers.process_backend import parts_of


class RayBackend(PoolBackend):
    """Works in Ray actors."""

    pins = False
    executor = "Ray actor"

    def __init__(self, fetch: Fetch, options: LoaderOptions) -> None:
        require_picklable(fetch)
        super().__init__(fetch, options)

    def _new_pool(self) -> RayPool:
        return RayPool(self._fetch, self._seed % 2**62, self._options)

    def pids(self) -> list[int]:
        """Of the actors that have begun, each on its own node."""
        workers = self._pool.workers if isinstance(self._pool, RayPool) else []
        return [worker.begun.pid for worker in workers if worker.begun]


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
                found.append(
                    Problem(key, f"cannot be sent to Ray actors: {own}. Use loader.backend=process")
                )
        if found:
            raise ConfigError(found) from error
        raise
