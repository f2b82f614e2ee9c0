"""Backends: where requests are worked on. Every backend runs the same fetch.

    main       in this process, when a batch is asked for
    process    in worker processes (pipeline/loading/workers/pool.py)
    thread     in threads (pipeline/loading/workers/thread_backend.py)

`loading/loader.py: open_backend` chooses one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.distributed.preemption import waiting
from penstock.errors import PenstockError
from penstock.loading import worker_status
from penstock.loading.batch import Batch
from penstock.loading.fetch import Fetch
from penstock.order.plan import End, Request, StreamRequest
from penstock.order.seeding import scope


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
        self._is_scoped = keyed and not fetch.draws_nothing

    @contextmanager
    def run(self, requests: Iterator[Asked]) -> Iterator[Results]:
        yield map(self._work, requests)

    def _work(self, request: Asked) -> Result:
        with scope() if self._is_scoped else nullcontext(), waiting():
            return attempt(self._fetch, request)

    def close(self) -> None:
        pass


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
