"""How much memory the batch at hand may take: `limits.batch_bytes`, reserved before it is taken.

`limits` bound a sample. Many samples that each fit may still be far too many together: 64 rows of
an index of 2 KB, each of which spans a sparse file of 32 MiB, take 8 GiB as int64. So code that
allocates in proportion to data says how much, first:

    with bounded(most):                  fetch: for the samples of a batch, then for what they make
        reserve(4 * frames, "audio")     a reader: of what its sample will hold
        with temporary(frames):          of what it needs only meanwhile
            ...
        with discarded():                of nothing: what is made inside goes again
            ...

Reserving more than the rest of the batch has room for is a BatchTooLargeError. Everything is per
thread, and outside of a batch nothing is counted. Cost: 0.2 us a call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.errors import DataError

KEY = "limits.batch_bytes"
_ADVICE = "reduce batch.size"
_LONGEST = 32  # errors that were raised over each other


class BatchTooLargeError(DataError):
    """A batch would take more memory than it may.

    None of its samples is bad: whether one fits depends on those beside it and on the machine. So
    none is left out for it, whatever `bad_samples.on_error` says; batches would differ otherwise.

    Attributes:
        place: of the sample in the batch that takes most, where one does.
    """

    place: int | None = None


def is_too_large(error: BaseException | None) -> bool:
    """Whether an error is a BatchTooLargeError, or says the same in other words."""
    for _ in range(_LONGEST):
        if error is None or isinstance(error, BatchTooLargeError):
            break
        error = error.__cause__ or error.__context__
    return isinstance(error, BatchTooLargeError)


class BatchBytes:
    """The account of one batch.

    Args:
        most: bytes that may be reserved.
        key: what sets `most`, for messages.
        advice: what else can be done about it.

    Attributes:
        taken: bytes reserved so far.
        count: counts the samples that are there by now, for which nothing else is reserved; None
            where that is not asked for.
    """

    __slots__ = ("advice", "count", "key", "most", "taken")

    def __init__(self, most: int, key: str = KEY, advice: str = _ADVICE) -> None:
        self.most, self.key, self.advice = most, key, advice
        self.taken = 0
        self.count: Callable[[], None] | None = None

    def reserve(self, size: int, what: str = "it", slot: int | None = None) -> None:
        """Count `size` bytes that are about to be allocated.

        Args:
            what: takes them, for messages.
            place: see `BatchTooLargeError`.

        Raises:
            BatchTooLargeError: there is no room for them.
        """
        if self.count is not None:
            self.count()
        taken = self.taken + size
        if taken > self.most:
            raise self.refusal(size, what, slot)
        self.taken = taken

    def refusal(self, size: int, what: str, slot: int | None = None) -> BatchTooLargeError:
        """The error of `size` bytes for which there is no room; arguments as for `reserve`."""
        beside = f" beside the {self.taken} bytes of the batch so far" if self.taken else ""
        error = BatchTooLargeError(
            f"{what} would take {size} bytes{beside}, more than {self.key}={self.most} allows for "
            f"one batch; {self.advice}, or, if the data is sound, raise {self.key}"
        )
        error.place = slot
        return error


class _AtHand(threading.local):
    account: BatchBytes | None = None


_at_hand = _AtHand()


class bounded:
    """Let this thread reserve at most `most` bytes inside, counted from 0; see `BatchBytes`."""

    __slots__ = ("_account", "_outer")

    def __init__(self, most: int, key: str = KEY, advice: str = _ADVICE) -> None:
        self._account = BatchBytes(most, key, advice)

    def __enter__(self) -> BatchBytes:
        self._outer, _at_hand.account = _at_hand.account, self._account
        return self._account

    def __exit__(self, *_: object) -> None:
        _at_hand.account = self._outer


class temporary:
    """Reserve `size` bytes until the end of the block."""

    __slots__ = ("_account", "_size", "_what")

    def __init__(self, size: int, what: str = "it") -> None:
        self._size, self._what = size, what

    def __enter__(self) -> None:
        self._account = account = _at_hand.account
        if account is not None:
            account.reserve(self._size, self._what)

    def __exit__(self, *_: object) -> None:
        if self._account is not None:
            self._account.taken -= self._size


class discarded:
    """Let what is reserved inside be free again at the end: nothing that is made there stays."""

    __slots__ = ("_account", "_before")

    def __enter__(self) -> None:
        self._account = account = _at_hand.account
        if account is not None:
            account.reserve(0)
            self._before = account.taken

    def __exit__(self, *_: object) -> None:
        if self._account is not None:
            self._account.taken = self._before


def at_hand() -> BatchBytes | None:
    """The account of this thread's batch."""
    return _at_hand.account


def reserve(size: int, what: str = "it", slot: int | None = None) -> None:
    """Count bytes that are about to be allocated for the batch at hand; see `BatchBytes.reserve`.

    Raises:
        BatchTooLargeError: there is no room for them.
    """
    account = _at_hand.account
    if account is not None:
        account.reserve(size, what, slot)


def has_room(size: int) -> bool:
    """Whether `size` bytes could be reserved."""
    account = _at_hand.account
    return account is None or account.taken + size <= account.most
