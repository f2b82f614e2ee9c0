"""Works in worker processes: torch's DataLoader, given requests in place of indices.

torch is told not to batch, so that all of its options keep their meaning. Its processes and queues
are those of a pool (pipeline/loading/workers/pool.py), which replaces workers that die or hang.
"""

from __future__ import annotations

import multiprocessing
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from multiprocessing import context, forkserver
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from pipeline.distributed.preemption import asked, waiting
from pipeline.errors import ConfigError, Problem
from pipeline.loading.fetch import Fetch
from pipeline.loading.workers import worker_side
from pipeline.loading.workers.backends import Asked, LoaderOptions, Result, Results, attempt
from pipeline.loading.workers.pool import PoolContext, WorkerLimits
from pipeline.loading.workers.worker import Handle
from pipeline.order.randomness import hash64
from pipeline.torch_internals import numpy_seed

_NOT_SENT = (pickle.PicklingError, AttributeError, TypeError)


class ProcessBackend:
    """Works in torch DataLoader worker processes."""

    pins = True

    def __init__(self, fetch: Fetch, options: LoaderOptions, pin: bool) -> None:
        method = start_method(options)
        if method == "forkserver":
            _preload()
        self._fetch, self._method = fetch, method
        self._feed = _Feed()
        self._pins_here = pin  # then a thread of torch's waits for workers, and this one for that
        limits = WorkerLimits(options.num_workers, options.limit, options.max_deaths)
        self._context = PoolContext(method, limits, fetch.dataset)
        seed = hash64(fetch.seed, "workers") if options.generator is None else options.generator
        self._loader = _Loader(
            _Requests(fetch),
            batch_size=None,
            sampler=self._feed,
            collate_fn=_unchanged,
            num_workers=options.num_workers,
            prefetch_factor=options.prefetch_factor,
            persistent_workers=options.persistent_workers,
            pin_memory=pin,
            pin_memory_device=options.pin_memory_device if pin else "",
            timeout=options.batch_timeout,
            worker_init_fn=_WorkerStart(options.worker_init_fn, None if options.keyed else seed),
            multiprocessing_context=self._context,
            in_order=options.in_order,
            generator=torch.Generator().manual_seed(seed),
        )

    @property
    def deaths(self) -> int:
        return self._context.deaths

    def pids(self) -> list[int]:
        """Of the worker processes that are there."""
        return self._context.pids()

    def workers(self) -> list[Handle]:
        """The worker processes, as multiprocessing shows processes."""
        return self._context.handles()

    @contextmanager
    def run(self, requests: Iterator[Asked]) -> Iterator[Results]:
        self._feed.requests = requests
        iterator = None
        try:
            with waiting() if self._pins_here else nullcontext():
                iterator = self._begun()  # from now on the workers work
            yield _interruptible(iterator) if self._pins_here else iterator
        finally:
            if self._loader._iterator is None:  # torch keeps that of persistent workers there
                self._end(iterator)

    def _begun(self) -> Any:
        try:
            return iter(self._loader)
        except _NOT_SENT as error:
            problems = _unpicklable(self._fetch, self._method)
            if problems:
                raise ConfigError(problems) from error
            raise

    def _end(self, iterator: Any) -> None:
        """Let torch end its workers in good order, then end what is left; in haste, kill them."""
        if asked():
            self._context.end_workers()
        try:
            if iterator is not None:
                iterator._shutdown_workers()
        finally:
            self._context.shut_down()

    def close(self) -> None:
        iterator, self._loader._iterator = self._loader._iterator, None
        self._end(iterator)


class _Loader(DataLoader[Any]):
    """torch's, without its warning of more workers than cores, which it gives twice a loader.

    A configured run says it once for all loaders (pipeline.config.notices).
    """

    def check_worker_number_rationality(self) -> None:
        """Nothing is said here."""


class _Feed:
    """The sampler of the DataLoader: the requests of the epoch at hand."""

    def __init__(self) -> None:
        self.requests: Iterator[Asked] = iter(())

    def __iter__(self) -> Iterator[Asked]:
        return self.requests


class _Requests(Dataset[Any]):
    """The dataset of the DataLoader: a request's batch, worked on in a worker process."""

    def __init__(self, fetch: Fetch) -> None:
        self.fetch = fetch

    def __getitem__(self, request: Asked) -> Result:
        return attempt(self.fetch, request)


class _WorkerStart:
    """What a worker process does before its first request, and the person's `worker_init_fn`.

    Args:
        seed: of the first worker's generators, the next number for the next worker's, as torch
            seeds them; None: samples have keys of their own.
    """

    def __init__(self, own: Callable[[int], None] | None, seed: int | None) -> None:
        self.own = own
        self.seed = seed

    def __call__(self, worker_id: int) -> None:
        worker_side.settle()
        info: Any = get_worker_info()
        # People's code expects its own dataset there, not our wrapper (the class is frozen).
        object.__setattr__(info, "dataset", info.dataset.fetch.dataset_of_worker())
        if self.seed is not None:
            object.__setattr__(info, "seed", self.seed + worker_id)
            random.seed(info.seed)
            np.random.seed(numpy_seed(self.seed, worker_id))
            torch.manual_seed(info.seed)
        if self.own is not None:
            self.own(worker_id)


def _interruptible(iterator: Iterator[Result]) -> Results:
    """`iterator`, of which the wait for each result can be broken off."""
    while True:
        with waiting():
            found = list(islice(iterator, 1))
        if not found:
            return
        yield found.pop()


def _unchanged(value: Any) -> Any:
    return value


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


def _unpicklable(fetch: Fetch, method: str) -> list[Problem]:
    """The parts that cannot be sent to a worker, by name."""
    steps = getattr(fetch.transform, "steps", {"": fetch.transform})
    parts = {"dataset": fetch.dataset, "collate": fetch.collate}
    parts |= {f"transform.{name}".rstrip("."): step for name, step in steps.items()}
    of_batches = getattr(fetch.batch_transform, "steps", {})
    parts |= {f"transform.*_batch.{name}": step for name, step in of_batches.items()}
    problems = []
    for key, part in parts.items():
        try:
            with _as_if_spawning():
                ForkingPickler.dumps(part)
        except _NOT_SENT as error:
            problems.append(
                Problem(key, f"cannot be sent to worker processes started by {method!r}: {error}. "
                        "Define it at the top level of a module (no lambda, no local class), or "
                        "use loader.multiprocessing_context=fork")
            )  # fmt: skip
    return problems


class _Nobody:
    """Stands for the process to be started; what it is lent stays here."""

    def duplicate_for_child(self, descriptor: int) -> int:
        return descriptor

    def DupFd(self, descriptor: int) -> int:
        return descriptor


@contextmanager
def _as_if_spawning() -> Iterator[None]:
    """Let multiprocessing's own Values and Locks be pickled, which are for new processes alone."""
    outside = context.get_spawning_popen()
    context.set_spawning_popen(_Nobody())  # type: ignore[arg-type]
    try:
        yield
    finally:
        context.set_spawning_popen(outside)
