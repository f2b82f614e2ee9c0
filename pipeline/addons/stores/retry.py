"""Retries of transient errors, and one clear message for the others.

Timeouts, refused and broken connections, an overloaded or restarting server (HTTP 408, 425, 429 and
5xx) and damaged content are retried. Anything else (missing, forbidden) is final. Waits double, and
are drawn from the upper half of their length, so that many workers don't come back all at once; the
operating system draws them, as the global generators belong to the samples. How long a busy store
asks to wait is up to the gate, which holds up the requests of all processes: `request_gate`.
"""

from __future__ import annotations

import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import TypeVar

from penstock.errors import DataError, PenstockError, UnreachableError

T = TypeVar("T")

_LONGEST = 60.0  # seconds of one wait
_AGAIN = frozenset({408, 425, 429})  # and every 5xx but 501
_BUSY = frozenset({429, 503})

# Errors of failed connections in the libraries of the stores, none of which is imported here.
_BROKEN = frozenset(
    {
        "ClientConnectionError",
        "ClientPayloadError",
        "ServerDisconnectedError",  # aiohttp
        "ConnectionError",
        "HTTPClientError",
        "ResponseParserError",  # botocore
        "Timeout",
        "ChunkedEncodingError",
        "TransportError",  # requests, google.auth
        "IncompleteRead",
        "IncompleteReadError",
        "HTTPException",  # http.client
    }
)
_CODED = frozenset({"HttpError"})  # gcsfs; aiohttp's `code` of a body that was cut is 400
_NO_CREDENTIALS = frozenset(
    {
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "TokenRetrievalError",
        "SSOTokenLoadError",
        "ProfileNotFound",
        "DefaultCredentialsError",
        "RefreshError",
    }
)

_draws = random.SystemRandom()


class Damaged(Exception):
    """The content is not what the store has; it may come whole next time."""


class RetryPolicy:
    """How often and for how long.

    Args:
        retries: further attempts after the first, 0 or more.
        first_wait: seconds before the second attempt; each further wait is twice as long, up to a
            minute.
        done: what is done with addresses, for messages: "read" or "written".
    """

    def __init__(self, retries: int, first_wait: float, done: str = "read") -> None:
        self.retries = retries
        self.first_wait = first_wait
        self.done = done

    def __call__(self, address: str, action: Callable[[], T]) -> T:
        """The result of `action`, which reads `address`.

        Raises:
            UnreachableError: every attempt failed.
            DataError: the error is final.
        """
        began = time.monotonic()
        for attempt in range(self.retries + 1):
            try:
                return action()
            except PenstockError:
                raise
            except Exception as error:
                ours = [cause for cause in _chain(error) if isinstance(cause, PenstockError)]
                if ours:  # fsspec takes any error for a missing file
                    raise ours[0] from None
                if not is_transient(error):
                    raise DataError(_final(address, error, self.done)) from error
                if attempt == self.retries:
                    attempts = f"{attempt + 1} attempt{'s' if attempt else ''}"
                    raise UnreachableError(
                        f"{address!r} cannot be {self.done}: {attempts} in "
                        f"{time.monotonic() - began:.1f} s, the last failed with: "
                        f"{_phrase(error)}. Check the address, and that its store can be reached "
                        "from here. files.retries and "
                        "files.first_wait say how long to wait for it."
                    ) from error
            time.sleep(min(self.first_wait * 2**attempt, _LONGEST) * _draws.uniform(0.5, 1.0))
        raise AssertionError("unreachable")


def is_transient(error: BaseException) -> bool:
    """Whether the same may work a moment later."""
    errors = list(_chain(error))
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in errors):
        return False
    kinds = (Damaged, TimeoutError, socket.gaierror)
    if any(isinstance(cause, kinds) or _named(cause, _BROKEN) for cause in errors):
        return True
    status = _status(errors) or 0
    return status in _AGAIN or (status >= 500 and status != HTTPStatus.NOT_IMPLEMENTED)


def asks_to_wait(error: BaseException) -> float | None:
    """The seconds that a store asks to wait which is asked too much; None where it is not.

    0 where it names none, or a date, which no store in use does.
    """
    errors = list(_chain(error))
    if _status(errors) not in _BUSY:
        return None
    for cause in errors:
        answer = getattr(cause, "response", None)
        known = answer.get("ResponseMetadata", {}) if isinstance(answer, dict) else {}
        headers = known.get("HTTPHeaders") or getattr(cause, "headers", None) or {}
        with suppress(ValueError, TypeError, AttributeError):
            lowered = {str(name).lower(): value for name, value in headers.items()}
            seconds = float(lowered.get("retry-after", 0))
            if 0 < seconds < float("inf"):
                return seconds
    return 0.0


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes: libraries wrap a refused connection in other errors."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _status(errors: list[BaseException]) -> int | None:
    """The HTTP status of the answer by aiohttp, gcsfs or botocore, if there is one."""
    for error in errors:
        answer = getattr(error, "response", None)
        metadata = answer.get("ResponseMetadata", {}) if isinstance(answer, dict) else {}
        status = metadata.get("HTTPStatusCode")
        if status is None:
            status = getattr(error, "code" if _named(error, _CODED) else "status", None)
        if isinstance(status, int) and 100 <= status < 600:
            return status
    return None


def _named(error: BaseException, names: frozenset[str]) -> bool:
    return any(base.__name__ in names for base in type(error).__mro__)


def _final(address: str, error: Exception, done: str) -> str:
    errors = list(_chain(error))
    status = _status(errors)
    advice = _CREDENTIALS + (_PUBLIC if done == "read" else "")
    if any(_named(cause, _NO_CREDENTIALS) for cause in errors) or status == HTTPStatus.UNAUTHORIZED:
        reason = f"needs credentials, and none were found ({_phrase(error)}). {advice}"
    elif (
        status == HTTPStatus.FORBIDDEN
        or isinstance(error, PermissionError)
        or str(error).startswith("Forbidden")  # gcsfs
    ):
        reason = f"may not be {done} with the credentials found here. {advice}"
    elif status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE) or isinstance(error, FileNotFoundError):
        reason = "is missing in its store. Check the address; if it was removed, start again."
        if done == "written":
            reason = "cannot be written: there is no such bucket or folder. Check the address."
    else:
        reason = f"cannot be {done}: {_phrase(error)}. Check the address and files.options."
    return f"{address!r} {reason}"


_CREDENTIALS = (
    "The store looks for them by its own means: for s3 the environment or ~/.aws, for gs "
    "`gcloud auth application-default login`."
)
_PUBLIC = " Public data: +files.options.anon=true."


def _phrase(error: BaseException) -> str:
    errors = list(_chain(error))
    status = _status(errors)
    for kind, words in _WORDS:
        if any(isinstance(cause, kind) for cause in errors):
            return words
    if status is not None and status in set(HTTPStatus):
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    first = str(error).strip().split("\n")[0][:160]
    return first if isinstance(error, Damaged) else f"{type(error).__name__}: {first}"


_WORDS: tuple[tuple[type[BaseException], str], ...] = (
    (ssl.SSLCertVerificationError, "its certificate is not trusted"),
    (ConnectionRefusedError, "connection refused"),
    (ConnectionResetError, "connection reset"),
    (BrokenPipeError, "connection broken"),
    (socket.gaierror, "its host name cannot be resolved"),
    (TimeoutError, "timed out"),
)
