"""Works in worker processes, with the arguments of torch's DataLoader and their meanings."""

from __future__ import annotations

import multiprocessing
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import context, forkserver
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import Any

import torch

from penstock.errors import ConfigError, Problem
from penstock.loading.fetch import Fetch
from penstock.loading.workers.backends import PoolBackend
from penstock.loading.workers.options import LoaderOptions
from penstock.loading.workers.pool import WorkerPool
from penstock.loading.workers.worker import Worker

_NOT_SENT = (pickle.PicklingError, AttributeError, TypeError)


class ProcessBackend(PoolBackend):
    """Works in worker processes."""

    pins = True
    executor = "worker process"

    def __init__(self, fetch: Fetch, options: LoaderOptions, pin: bool) -> None:
        self._method = start_method(options)
        if self._method == "forkserver":
            _preload()
        if pin and options.pin_memory_device:
            warnings.warn(
                f"pin_memory_device={options.pin_memory_device!r} is ignored, as in torch: the "
                "current accelerator is used",
                stacklevel=2,
            )
        super().__init__(fetch, options)
        self._pin, self._generator = pin, torch.Generator().manual_seed(self._seed)

    def pids(self) -> list[int]:
        """Of the worker processes that are there."""
        return [worker.pid for worker in self.workers() if worker.is_alive()]

    def workers(self) -> list[Worker]:
        """The workers, those that have ended included."""
        return self._pool.workers if isinstance(self._pool, WorkerPool) else []

    def _new_pool(self) -> WorkerPool:
        options, seed = self._options, self._seed
        if options.keyed:  # else draws are as torch's from that very seed
            drawn = torch.empty((), dtype=torch.int64).random_(generator=self._generator)
            seed = int(drawn.item())
        try:
            return WorkerPool(self._fetch, seed, self._method, options, self._pin)
        except _NOT_SENT as error:
            problems = _unpicklable(self._fetch, self._method)
            if problems:
                raise ConfigError(problems) from error
            raise


def start_method(options: LoaderOptions) -> str:
    """How worker processes are started."""
    # The platform's default comes first; asking for it by name would fix it for good.
    known = multiprocessing.get_all_start_methods()
    chosen = options.multiprocessing_context or multiprocessing.get_start_method(allow_none=True)
    # In a process of joblib's the default is "loky", which is joblib's own and pickles everything.
    return chosen if chosen in known else known[0]


def _preload() -> None:
    """Let the fork server import what workers need, once and not in each; 3 s of a start."""
    server: Any = forkserver._forkserver
    if server._preload_modules == ["__main__"]:  # nobody has asked for anything else
        forkserver.set_forkserver_preload(["__main__", __name__])


def require_picklable(fetch: Fetch, options: LoaderOptions) -> None:
    """Refuse what cannot be sent to a worker before anything has begun; pickles all of it.

    Raises:
        ConfigError: names the parts.
    """
    if options.backend == "process" and options.num_workers and start_method(options) != "fork":
        problems = _unpicklable(fetch, start_method(options))
        if problems:
            raise ConfigError(problems)


def parts_of(fetch: Fetch) -> dict[str, Any]:
    """What a fetch is made of, by key; each goes to workers."""
    steps = getattr(fetch.transform, "steps", {"": fetch.transform})
    parts = {"dataset": fetch.dataset, "collate": fetch.collate}
    parts |= {f"transform.{name}".rstrip("."): step for name, step in steps.items()}
    of_batches = getattr(fetch.batch_transform, "steps", {})
    return parts | {f"transform.*_batch.{name}": step for name, step in of_batches.items()}


def _unpicklable(fetch: Fetch, method: str) -> list[Problem]:
    """The parts that cannot be sent to a worker, by name."""
    problems = []
    for key, part in parts_of(fetch).items():
        try:
            with _as_if_spawning():
                ForkingPickler.dumps(part)
        except _NOT_SENT as error:
            problems.append(
                Problem(
                    key,
                    f"cannot be sent to worker processes started by {method!r}: {error}. "
                    "Define it at the top level of a module (no lambda, no local class), or "
                    "use loader.multiprocessing_context=fork",
                )
            )
    return problems


@contextmanager
def _as_if_spawning() -> Iterator[None]:
    """Let multiprocessing's Values and Locks be pickled, which only works for a new process."""
    outside = context.get_spawning_popen()
    nobody: Any = SimpleNamespace(duplicate_for_child=int, DupFd=int)  # nothing is passed on
    context.set_spawning_popen(nobody)
    try:
        yield
    finally:
        context.set_spawning_popen(outside)
