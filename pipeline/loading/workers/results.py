"""The result of a request: a batch, the end of a stream, or an error instead of a batch.

The error is raised when the batch's turn comes, and reads alike wherever it happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.errors import PenstockError
from penstock.loading import worker_status
from penstock.loading.batch import Batch
from penstock.order.plan import Request
from penstock.order.streams import End, StreamRequest


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
