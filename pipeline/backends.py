"""Who works on requests: this process, worker processes, or threads.

A backend takes requests and gives results, as far ahead and in the order that its options say.
Every backend runs the same fetch; an error becomes a `Failure` that takes the batch's place in the
order, so that it is raised when its turn comes and reads alike wherever it happened.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from pipeline.errors import ConfigError, PenstockError, Problem
from pipeline.fetch import Batch, Fetch
from pipeline.isolation import SharedGeneratorError, ThreadRandomness, Watch, probe
from pipeline.plan import Request
from pipeline.randomness import hash64, scope
from pipeline.streams import End, StreamRequest


@dataclass(frozen=True)
class LoaderOptions:
    """Who works, and how far ahead. All but `backend` have torch's names and meaning.

    Attributes:
        backend: "main", "process" or "thread"; with no workers it is "main".
        num_workers: processes or threads, per rank.
        prefetch_factor: batches each worker is ahead; None is torch's 2.
        generator: seed of torch's own generator for worker seeds; None derives it from the run's.
            No batch depends on it.
    """

    backend: Literal["main", "process", "thread"] = "main"
    num_workers: int = 0
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory: bool = False
    pin_memory_device: str = ""
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: str | None = None
    in_order: bool = True
    generator: int | None = None


@dataclass
class Failure:
    """Stands where a batch should have been."""

    request: Request | StreamRequest
    error: Exception


class WorkerError(PenstockError):
    """A worker process died, or gave no batch within `loader.timeout`."""


Asked = Request | StreamRequest
Result = Batch | Failure | End
Results = Iterator[Result]


class Backend(Protocol):
    """Works on requests.

    Attributes:
        pins: whether its batches already lie in pinned memory when that was asked for.
    """

    pins: bool

    def run(self, requests: Iterator[Asked]) -> AbstractContextManager[Results]:
        """Results of `requests`; leaving the context drops what was not taken."""

    def close(self) -> None:
        """Stop what was kept for the next run."""


def open_backend(fetch: Fetch, options: LoaderOptions, pin: bool) -> Backend:
    """The backend that `options` name."""
    if options.backend == "main" or options.num_workers == 0:
        return MainBackend(fetch)
    if options.backend == "thread":
        return ThreadBackend(fetch, options)
    return ProcessBackend(fetch, options, pin)


def attempt(fetch: Callable[[Any], Batch | End], request: Asked) -> Result:
    """The batch of `request`, or the error in its place."""
    try:
        return fetch(request)
    except PenstockError as error:
        # Without its cause and traceback it can cross to another process.
        return Failure(request, error.with_traceback(None))


class MainBackend:
    """Works in this process, when a batch is asked for."""

    pins = False

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    @contextmanager
    def run(self, requests: Iterator[Asked]) -> Iterator[Results]:
        yield map(self._one, requests)

    def _one(self, request: Asked) -> Result:
        with scope():  # the training loop draws from the same generators
            return attempt(self._fetch, request)

    def close(self) -> None:
        pass


class ThreadBackend:
    """Works in threads of this process, a window of requests ahead."""

    pins = False

    def __init__(self, fetch: Fetch, options: LoaderOptions) -> None:
        self._fetch = fetch
        self._options = options
        self._window = options.num_workers * (options.prefetch_factor or 2)
        self._probed = False

    @contextmanager
    def run(self, requests: Iterator[Asked]) -> Iterator[Results]:
        requests = self._probing(requests)
        watch = Watch()
        pool = ThreadPoolExecutor(self._options.num_workers, "penstock-loader")
        try:
            yield self._results(pool, requests, watch)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _results(
        self, pool: ThreadPoolExecutor, requests: Iterator[Asked], watch: Watch
    ) -> Results:
        futures = (pool.submit(self._one, request, watch) for request in requests)
        pending: deque[Future[Result]] = deque(islice(futures, self._window))
        while pending:
            future = self._next_done(pending)
            result = future.result()
            pending.extend(islice(futures, 1))
            yield result

    def _next_done(self, pending: deque[Future[Any]]) -> Future[Any]:
        timeout = self._options.timeout or None
        waited_for = [pending[0]] if self._options.in_order else list(pending)
        done = wait(waited_for, timeout, return_when=FIRST_COMPLETED).done
        if not done:
            raise WorkerError(f"loader.timeout: no batch came within {timeout} s from threads")
        future = next(future for future in waited_for if future in done)
        pending.remove(future)
        return future

    def _one(self, request: Asked, watch: Watch) -> Result:
        with ThreadRandomness() as mode:
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

        with scope():
            probe(run)

    def close(self) -> None:
        pass


class ProcessBackend:
    """Works in torch DataLoader worker processes."""

    pins = True

    def __init__(self, fetch: Fetch, options: LoaderOptions, pin: bool) -> None:
        context = options.multiprocessing_context or _default_start_method()
        if context != "fork":
            _require_picklable(fetch, context)
        self._feed = _Feed()
        seed = hash64(fetch.seed, "workers") if options.generator is None else options.generator
        self._loader: DataLoader[Any] = DataLoader(
            _Requests(fetch),
            batch_size=None,
            sampler=self._feed,
            collate_fn=_unchanged,
            num_workers=options.num_workers,
            prefetch_factor=options.prefetch_factor,
            persistent_workers=options.persistent_workers,
            pin_memory=pin,
            pin_memory_device=options.pin_memory_device if pin else "",
            timeout=options.timeout,
            worker_init_fn=_WorkerStart(options.worker_init_fn),
            multiprocessing_context=context,
            in_order=options.in_order,
            generator=torch.Generator().manual_seed(seed),
        )

    @contextmanager
    def run(self, requests: Iterator[Asked]) -> Iterator[Results]:
        self._feed.requests = requests
        results = self._results()
        try:
            yield results
        finally:
            results.close()

    def _results(self) -> Generator[Result]:
        try:
            yield from self._loader
        except RuntimeError as error:
            # torch reports a dead or silent worker as a RuntimeError of this wording.
            if "DataLoader" not in str(error):
                raise
            raise WorkerError(f"loader: {error}") from error

    def close(self) -> None:
        # torch keeps persistent workers in the loader's iterator, which ends them when it goes.
        self._loader._iterator = None


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
    """What a worker process does first, before the person's own `worker_init_fn`."""

    def __init__(self, own: Callable[[int], None] | None) -> None:
        self.own = own

    def __call__(self, worker_id: int) -> None:
        # Ctrl-C reaches the whole group; the main process ends its workers itself.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        info = get_worker_info()
        # People's code expects its own dataset there, not our wrapper (the class is frozen).
        object.__setattr__(info, "dataset", info.dataset.fetch.dataset_of_worker())  # type: ignore[union-attr]
        if self.own is not None:
            self.own(worker_id)


def _unchanged(value: Any) -> Any:
    return value


def _default_start_method() -> str:
    # The platform's default comes first; asking for it by name would fix it for good.
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def _require_picklable(fetch: Fetch, context: str) -> None:
    """Name the part that cannot be sent to a worker, before torch fails somewhere inside."""
    steps = getattr(fetch.transform, "steps", {"": fetch.transform})
    parts = {"dataset": fetch.dataset, "collate": fetch.collate}
    parts |= {f"transform.{name}".rstrip("."): step for name, step in steps.items()}
    problems = []
    for key, part in parts.items():
        try:
            ForkingPickler.dumps(part)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            problems.append(
                Problem(key, f"cannot be sent to worker processes started by {context!r}: {error}. "
                        "Define it at the top level of a module (no lambda, no local class), or "
                        "use loader.multiprocessing_context=fork")
            )  # fmt: skip
    if problems:
        raise ConfigError(problems)
