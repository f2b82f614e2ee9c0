"""How many requests may be open at once: over all processes of a machine that share a cache.

    <folder>/requests/<n>     one for each request that may be open, locked while it is
    <folder>/requests/pace    how many of them may be used now, and not before when

A store that answers 429 or 503 is asked for less: half as many requests
as are open now may be, and none begins before the time that it names (`Retry-After`). Each good
answer adds a part of a request, so that as many answers as are open add one (AIMD, as TCP does it).
Killed processes leave no lock.

Cost: 60 us a request, some 5 ms later than a lock is free, or a few times that where many are
taken. One thread of a process looks for a free one at a time.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from errno import EMFILE, ENFILE, ENOLCK, ENOSPC, ENOTSUP
from pathlib import Path
from typing import NamedTuple, TypeVar

from penstock.errors import UnreachableError

try:
    import fcntl
except ImportError:  # Windows, where there is no cache either, as that says
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

_POLL = 0.005  # seconds between two looks for a free lock
_LOOKS = 32  # locks that are tried at each
_TURN = 0.1  # seconds between two looks at the pace while another thread looks for a lock
_LONGEST = 120.0  # seconds that a store may have us wait; a worker must not seem to hang
_RECORD = 64  # bytes of the pace

_draws = random.SystemRandom()
_turn = threading.Lock()  # held by the one thread that looks for a lock


def _forget_turn() -> None:
    global _turn
    _turn = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_turn)  # its thread is not in the child

Busy = Callable[[BaseException], float | None]
"""The seconds that a store asks to wait, if an error says that it is asked too much."""


class Pace(NamedTuple):
    """The number of requests that a store bears now.

    Attributes:
        limit: requests that may be open, 1 or more.
        slowed: when the limit was lowered last, seconds since 1970.
        waits: no request may begin before, seconds since 1970.
    """

    limit: float
    slowed: float = 0.0
    waits: float = 0.0

    def after_success(self, most: int) -> Pace:
        """The pace after a good answer."""
        return self._replace(limit=min(self.limit + 1 / self.limit, most))

    def after_refusal(self, began: float, now: float, wait: float, opened: int) -> Pace:
        """The pace after an answer that the store is asked too much.

        Args:
            opened: requests that are open, this one included.
            began: when the request began. If it was before the limit was lowered last, it is one of
                the many that were under way then, and lowers it no further.
        """
        waits = min(max(self.waits, now + wait), now + _LONGEST)
        if began < self.slowed:
            return self._replace(waits=waits)
        return Pace(max(min(self.limit, opened) / 2, 1.0), now, waits)


class Permit(NamedTuple):
    """A request that is open.

    Attributes:
        held: the lock's descriptor.
        limit: requests that might be open when it began.
        began: seconds since 1970.
    """

    held: int | None
    limit: float
    began: float


class RequestGate:
    """Lets requests begin.

    Args:
        folder: of the cache; made with the first request.
        most: requests that may be open at once, 1 or more.
        patience: seconds after which a request begins without a lock; a process that is stopped
            would hold its locks for ever.

    Attributes:
        yields: leave a quarter of the requests, up to 4, to those whose samples are waited for.
    """

    def __init__(self, folder: Path, most: int, patience: float) -> None:
        self._folder, self._most, self._patience = folder, most, patience
        self._checked: str | None = None  # the folder of locks
        self.yields = False

    @contextmanager
    def request(self, busy: Busy) -> Iterator[None]:
        """A request is open inside.

        Args:
            busy: tells whether an error that is raised inside says that too much is asked.

        Raises:
            UnreachableError: the folder cannot be written.
        """
        if fcntl is None:
            yield
            return
        permit = self._in_folder(self._enter)
        try:
            yield
        except BaseException as error:
            self.end(permit, busy(error) if isinstance(error, Exception) else None, failed=True)
            raise
        self.end(permit)

    def begin(self) -> Permit | None:
        """The permit of a request, if it may begin now; 20 us, with its end.

        Raises:
            UnreachableError: the folder cannot be written.
        """
        return self._in_folder(self._enter_now)

    def end(self, permit: Permit, wait: float | None = None, failed: bool = False) -> None:
        """A request has ended.

        Args:
            wait: in so many seconds its store may be asked again, which is asked too much.
            failed: whether it brought nothing.
        """
        folder = f"{self._folder}/requests"
        try:
            if wait is not None:
                now, opened = time.time(), self._opened(folder)
                self._change(
                    folder, lambda pace: pace.after_refusal(permit.began, now, wait, opened)
                )
            elif not failed and permit.limit < self._most:
                self._change(folder, lambda pace: pace.after_success(self._most))
        finally:
            if permit.held is not None:
                # A process that was forked meanwhile has a copy, which would go on holding it.
                fcntl.flock(permit.held, fcntl.LOCK_UN)
                os.close(permit.held)

    def _in_folder(self, enter: Callable[[str], T]) -> T:
        try:
            try:
                return enter(self._checked or self._made())
            except FileNotFoundError:  # somebody has emptied the cache
                return enter(self._made())
        except OSError as error:
            raise unusable(self._folder, error) from error

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_checked": None}  # another machine has another folder

    def _made(self) -> str:
        """The folder of locks, this user's own."""
        self._checked = f"{self._folder}/requests"
        os.makedirs(self._checked, exist_ok=True)  # noqa: PTH103
        return self._checked

    def limit(self) -> int:
        """Requests that the stores of this cache bear now; 10 us."""
        return int(_read(f"{self._folder}/requests/pace", self._most).limit)

    def _opened(self, folder: str) -> int:
        """Requests that are open now, over all processes."""
        count = 0
        for number in range(self._most):
            with suppress(OSError), open(f"{folder}/{number}", "rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    count += 1
        return count

    def _enter_now(self, folder: str) -> Permit | None:
        pace = _read(f"{folder}/pace", self._most)
        if time.time() < pace.waits:
            return None
        held = self._look(folder, max(int(pace.limit), 1))
        return None if held is None else Permit(held, pace.limit, time.time())

    def _enter(self, folder: str) -> Permit:
        """A permit, without a lock where none was to be had for too long after a store's own wait.

        Only one thread of a process looks for a lock at a time.
        """
        turn, ends = _turn, time.monotonic() + self._patience
        while True:
            pace, now = _read(f"{folder}/pace", self._most), time.time()
            if now < pace.waits:
                time.sleep(min(pace.waits - now, 0.2))
                ends = time.monotonic() + self._patience
            elif turn.acquire(timeout=_TURN):
                try:
                    held = self._look(folder, max(int(pace.limit), 1))
                    if held is not None:
                        return Permit(held, pace.limit, time.time())
                    time.sleep(_POLL)
                finally:
                    turn.release()
            if time.monotonic() > ends:
                return Permit(None, pace.limit, time.time())

    def _look(self, folder: str, limit: int) -> int | None:
        """A lock, if one of some is free."""
        first = min(limit // 4, 4) if self.yields else 0
        start = _draws.randrange(limit - first)
        for attempt in range(min(limit - first, _LOOKS)):
            number = first + (start + attempt) % (limit - first)
            descriptor = os.open(f"{folder}/{number}", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BaseException as error:
                os.close(descriptor)
                if not isinstance(error, BlockingIOError):
                    raise
        return None

    def _change(self, folder: str, change: Callable[[Pace], Pace]) -> None:
        # With a full disk, the pace stays as it is.
        with suppress(OSError), locked(f"{folder}/pace") as descriptor:
            pace = change(_parsed(os.pread(descriptor, _RECORD, 0), self._most))
            text = " ".join(f"{number:.4f}" for number in pace)
            os.pwrite(descriptor, text.ljust(_RECORD - 1).encode() + b"\n", 0)


@contextmanager
def locked(path: Path | str) -> Iterator[int]:
    """A descriptor of `path`, which is made if need be, with the lock on it."""
    with _locked(path, fcntl.LOCK_EX) as descriptor:
        assert descriptor is not None
        yield descriptor


def locked_if_free(path: Path | str) -> AbstractContextManager[int | None]:
    """As `locked`; None if another process has the lock."""
    return _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def _locked(path: Path | str, how: int) -> Iterator[int | None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            yield None
            return
        yield descriptor
    finally:
        # By closing alone, a copy in a process that was forked meanwhile would go on holding it.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def unusable(folder: Path, error: OSError) -> UnreachableError:
    """The error of a cache whose files cannot be written or locked; no sample is to blame."""
    advice = "Set files.cache_dir to another folder."
    if error.errno == ENOSPC:
        advice = "Make room on that disk, or lower files.cache_size."
    elif error.errno in (EMFILE, ENFILE):
        advice = "Raise the limit of open files (ulimit -n), or use fewer workers."
    elif error.errno in (ENOLCK, ENOTSUP):
        advice = "It needs a file system with locks: set files.cache_dir to another."
    return UnreachableError(
        f"cannot keep files in the cache {str(folder)!r}: {error.strerror or error}. {advice}"
    )


def _read(path: str, most: int) -> Pace:
    try:
        with open(path, "rb") as file:
            return _parsed(file.read(_RECORD), most)
    except OSError:
        return Pace(most)


def _parsed(record: bytes, most: int) -> Pace:
    """The pace; as if nothing was known where the record is damaged or from the future."""
    try:
        limit, slowed, waits = map(float, record.split())
    except ValueError:
        return Pace(most)
    now = time.time()
    sound = limit >= 1 and 0 <= slowed <= now + 1 and 0 <= waits <= now + _LONGEST + 1
    return Pace(min(limit, most), slowed, waits) if sound else Pace(most)
