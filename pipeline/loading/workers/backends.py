"""Who works on requests: what backends have in common, and the one that works in this process.

A backend takes requests and gives results, as far ahead and in the order that its options say.
Every backend runs the same fetch; an error becomes a `Failure` that takes the batch's place in the
order, so that it is raised when its turn comes and reads alike wherever it happened.

    main       in this process, when a batch is asked for
    process    in worker processes (pipeline/loading/workers/process_backend.py)
    thread     in threads (pipeline/loading/workers/thread_backend.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pipeline.distributed.preemption import waiting
from pipeline.errors import PenstockError
from pipeline.loading import worker_status
from pipeline.loading.autotune import Auto
from pipeline.loading.batch import Batch
from pipeline.loading.fetch import Fetch
from pipeline.order.plan import Request
from pipeline.order.randomness import scope
from pipeline.order.streams import End, StreamRequest

DEFAULT_TIMEOUT = 300.0
BackendName = Literal["main", "process", "thread"]


@dataclass(frozen=True)
class LoaderOptions:
    """Who works, and how far ahead. All but `backend` and `max_deaths` have torch's names.

    They have torch's meaning, too, except that workers which die or hang are replaced.

    Attributes:
        backend: "main", "process" or "thread"; with no workers it is "main".
        num_workers: processes or threads, per rank.
        prefetch_factor: batches each worker is ahead; None is torch's 2.
        timeout: seconds without a sign of life from a worker (a sample begun, a stage) after which
            it hangs; None is DEFAULT_TIMEOUT, 0 waits for ever, for debuggers.
        max_deaths: of worker processes at one address, after which the run stops.
        batch_timeout: seconds without a batch, while one is waited for, after which the run ends,
            as torch's own `timeout` has it; 0 waits for ever.
        generator: seed of torch's own generator for worker seeds; None derives it from the run's.
            No batch depends on it, unless they are not `keyed`.
        keyed: whether the generators are seeded for each sample. If not, draws are torch's: in this
            process from the generators as they are, in worker processes from `generator` plus the
            worker's number on.
        auto: tune the number of workers while they work; `num_workers` is where it begins.
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

    @property
    def limit(self) -> float:
        """`timeout` with its default."""
        return DEFAULT_TIMEOUT if self.timeout is None else self.timeout


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
    worker_status.begin(request.epoch, request.step)
    try:
        return fetch(request)
    except PenstockError as error:
        # Without its cause and traceback it can cross to another process.
        return Failure(request, error.with_traceback(None))
    finally:
        worker_status.idle()


class MainBackend:
    """Works in this process, when a batch is asked for."""

    pins = False
    deaths = 0

    def __init__(self, fetch: Fetch, keyed: bool = True) -> None:
        self._fetch = fetch
        # The training loop draws from the same generators.
        apart = keyed and not getattr(fetch, "leaves_generators", False)
        self._work = self._scoped if apart else self._attempt

    @contextmanager
    def run(self, requests: Iterator[Asked]) -> Iterator[Results]:
        yield map(self._work, requests)

    def _attempt(self, request: Asked) -> Result:
        with waiting():
            return attempt(self._fetch, request)

    def _scoped(self, request: Asked) -> Result:
        with scope(), waiting():
            return attempt(self._fetch, request)

    def close(self) -> None:
        pass
