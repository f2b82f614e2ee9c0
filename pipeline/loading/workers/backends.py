"""Backends: who works on requests, in which order, and how far ahead.

Every backend runs the same fetch. An error becomes a `Failure` in the batch's place, so that it is
raised when its turn comes and reads alike wherever it happened.

    main       in this process, when a batch is asked for
    process    in worker processes (pipeline/loading/workers/process_backend.py)
    thread     in threads (pipeline/loading/workers/thread_backend.py)
    ray        in Ray actors, here or elsewhere (pipeline/addons/ray/backend.py)
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Protocol

from penstock.addons.ray.cluster import RayOptions
from penstock.distributed.preemption import waiting
from penstock.errors import PenstockError
from penstock.loading import worker_status
from penstock.loading.autotune import Auto
from penstock.loading.batch import Batch
from penstock.loading.fetch import Fetch
from penstock.loading.workers.window import Window
from penstock.order.plan import Request
from penstock.order.randomness import hash64, scope
from penstock.order.streams import End, StreamRequest
from penstock.torch_internals import ExceptionWrapper

DEFAULT_TIMEOUT = 300.0
BackendName = Literal["main", "process", "thread", "ray"]
SLOW_MEMORY = 256 << 20
POLL = 0.5  # seconds between two looks at workers that report nothing


@dataclass(frozen=True)
class LoaderOptions:
    """Who works, and how far ahead.

    All but `backend` and `max_deaths` have torch's names and meanings, except that workers which
    die or hang are replaced.

    Attributes:
        backend: "main", "process", "thread" or "ray"; with no workers it is "main".
        num_workers: processes, threads or actors, per rank.
        prefetch_factor: batches each worker is ahead; None is torch's 2.
        timeout: seconds without a sign of life from a worker (a sample begun, a stage) after which
            it hangs; None is DEFAULT_TIMEOUT, 0 waits for ever, for debuggers.
        max_deaths: of worker processes at one address, after which the run stops.
        batch_timeout: seconds without a batch, while one is waited for, after which the run ends,
            like torch's `timeout`; 0 waits for ever.
        generator: seed of the generator that worker seeds are drawn from; None derives it from the
            run's. No batch depends on it unless `keyed` is False.
        keyed: seed the generators for each sample. If False, draws are torch's: in this process
            from the generators as they are, in worker processes from `generator` plus the worker's
            number on.
        auto: tune the number of workers during the run, starting from `num_workers`.
        slow_memory: bytes of batches that may wait, beyond the window, behind a slow one.
        ray: where actors run; None is Ray on this machine.
    """

    backend: BackendName = "main"
    num_workers: int = 0
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory: bool = False
    pin_memory_device: str = ""
    timeout: float | None = None
    batch_timeout: float = 0.0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: str | None = None
    in_order: bool = True
    generator: int | None = None
    keyed: bool = True
    max_deaths: int = 3
    auto: Auto | None = None
    slow_memory: int = SLOW_MEMORY
    ray: RayOptions | None = None

    @property
    def limit(self) -> float:
        """`timeout` with its default."""
        return DEFAULT_TIMEOUT if self.timeout is None else self.timeout

    @property
    def ahead(self) -> int:
        """Batches that each worker is ahead."""
        return self.prefetch_factor or 2


@dataclass
class Failure:
    """Stands where a batch should have been."""

    request: Request | StreamRequest
    error: Exception


class WorkerError(PenstockError):
    """Workers died again and again on one batch, or a thread hangs.

    Attributes:
        died: pid and exit code of the process that died last, if one did.
    """

    died: tuple[int, int] | None = None


Asked = Request | StreamRequest
Result = Batch | Failure | End
Results = Iterator[Result]


class Backend(Protocol):
    """Works on requests.

    Attributes:
        pins: whether its batches already lie in pinned memory when that was asked for.
        deaths: workers that died or hung, and were replaced.
    """

    pins: bool

    @property
    def deaths(self) -> int: ...

    def run(self, requests: Iterator[Asked]) -> AbstractContextManager[Results]:
        """Results of `requests`; leaving the context drops what was not taken."""

    def close(self) -> None:
        """Stop what was kept for the next run."""


def attempt(fetch: Callable[[Any], Batch | End], request: Asked) -> Result:
    """The batch of `request`, or the error in its place."""
    address = request.epoch, request.step
    worker_status.report(worker_status.WHOLE, worker_status.READ, address)
    try:
        return fetch(request)
    except PenstockError as error:
        # Without its cause and traceback it can cross to another process.
        return Failure(request, error.with_traceback(None))
    finally:
        worker_status.report(worker_status.WHOLE, worker_status.IDLE)


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
        self.last_death: Any = None

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


class Requests(Iterator[Asked]):
    """Requests in order.

    Attributes:
        expects: whether one will take long, as far as is known; None: nothing is known of any.
    """

    def __init__(
        self, requests: Iterator[Asked], expects: Callable[[Asked], bool] | None = None
    ) -> None:
        self._requests, self.expects = requests, expects

    def __next__(self) -> Asked:
        return next(self._requests)


class _Feed:
    """Hands requests to a pool in order, but those that will take long before their turn.

    Args:
        reach: how many requests before their turn.
    """

    def __init__(self, pool: Pool, requests: Iterator[Asked], window: Window, reach: int) -> None:
        self._pool, self._requests, self._window, self._reach = pool, requests, window, reach
        self._expects = getattr(requests, "expects", None) if reach else None
        self._coming: deque[Asked | Task] = deque()
        window.measures = self._expects is not None

    def next(self, count: int) -> list[Task]:
        """The next tasks, in order; fewer at the end."""
        tasks = []
        for _ in range(count):
            one = self._coming.popleft() if self._coming else next(self._requests, None)
            if one is None:
                break
            if isinstance(one, Task):
                self._window.early -= 1
                tasks.append(one)
            else:
                tasks.append(self._pool.submit(one))
        if self._expects is not None:
            self._look_ahead(2 * max(count, 1))
        return tasks

    def _look_ahead(self, count: int) -> None:
        """Look at some more requests, a few at a time, so that the first batch does not wait."""
        assert self._expects is not None
        for request in islice(self._requests, min(count, self._reach - len(self._coming))):
            is_early = self._window.has_room and self._expects(request)
            self._coming.append(self._pool.submit(request) if is_early else request)
            self._window.early += is_early


def windowed(pool: Pool, requests: Iterator[Asked], options: LoaderOptions) -> Results:
    """Results of `requests`, a window of which is handed to the pool at once."""
    window = Window(options.num_workers, options.ahead, options.slow_memory)
    feed = _Feed(pool, requests, window, window.most if options.in_order else 0)
    return _taken(pool, deque(feed.next(window.size)), feed, window, options)


def _taken(
    pool: Pool, pending: deque[Task], feed: _Feed, window: Window, options: LoaderOptions
) -> Results:
    limit = options.batch_timeout
    while pending:
        heard = time.monotonic()
        candidates = [pending[0]] if options.in_order else pending
        while (task := next((one for one in candidates if one.result is not None), None)) is None:
            if options.in_order and window.grow(pending):
                pending += feed.next(window.size - len(pending))
            if pool.wait(min(limit or POLL, POLL)):
                heard = time.monotonic()
            elif limit and time.monotonic() - heard >= limit:
                # torch's words, which programs look for
                raise RuntimeError(f"DataLoader timed out after {limit} seconds{pool.late(limit)}")
        pending.remove(task)
        window.deliver(task.result)
        pending += feed.next(window.size - len(pending))
        yield task.take()


class MainBackend:
    """Works in this process, when a batch is asked for."""

    pins = False
    deaths = 0

    def __init__(self, fetch: Fetch, keyed: bool = True) -> None:
        self._fetch = fetch
        # The training loop draws from the same generators.
        self._is_scoped = keyed and not getattr(fetch, "leaves_generators", False)

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
