"""One file from its store, whole and as the store has it, or not at all.

Its size has to be right, and its MD5 where the store tells that: S3 does for what was uploaded in
one part and without a key of one's own, Google Cloud for nearly all, web servers seldom. Where it
doesn't, the store is asked after the download whether the file is still the one that was listed.

Large files come in pieces of 32 MiB, each of which is tried again by itself. Cost beside the
network: 1.5 s a GB for the checksum; a request more for a file without one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from typing import Protocol

from pipeline.datasets.remote.catalog import Catalog
from pipeline.datasets.remote.listing import Found
from pipeline.datasets.remote.retry import Damaged, RetryPolicy
from pipeline.datasets.remote.store import Store
from pipeline.errors import DataError

PIECE = 32 * 2**20  # bytes of one request


class Sink(Protocol):
    """Where a download goes.

    Attributes:
        written: bytes so far.
    """

    written: int

    def restart(self) -> None:
        """Forget what was written."""

    def write(self, data: bytes) -> None:
        """Append `data`."""


class Download:
    """Downloads files.

    Args:
        catalog: what the stores say of them.
        retry: with the stores.
    """

    def __init__(self, catalog: Catalog, retry: RetryPolicy) -> None:
        self._catalog = catalog
        self._retry = retry
        self._unsummed = False  # whether what look like checksums have proved to be none

    def __call__(self, address: str, found: Found, sink: Sink) -> None:
        """Write the file at `address`, of the version `found`, into `sink`.

        Raises:
            DataError: it doesn't come whole, or is another version by now.
        """
        sums: list[str] = []
        self._retry(address, lambda: self._attempt(address, found, sink, sums))

    def _attempt(self, address: str, found: Found, sink: Sink, sums: list[str]) -> None:
        digest = hashlib.md5(usedforsecurity=False)
        sink.restart()
        for piece in self._pieces(address, found.size):
            sink.write(piece)
            digest.update(piece)
        sums.append(digest.hexdigest())
        whole = found.size in (None, sink.written)
        checksum = None if self._unsummed else _checksum(found)
        if whole and checksum == sums[-1]:
            return
        self._check_version(address, found)
        if not whole:
            raise Damaged(f"{sink.written} of {found.size} bytes came")
        if checksum is not None:
            self._doubt(sums)

    def _doubt(self, sums: list[str]) -> None:
        """Damaged, if it is the first time that this came.

        If the same comes twice, then it is the checksum that is wrong: S3 gives what only looks
        like one for files that it keeps encrypted by a key of its user.
        """
        if sums[-1] not in sums[:-1]:
            raise Damaged("its checksum does not fit")
        self._unsummed = True

    def _pieces(self, address: str, size: int | None) -> Iterator[bytes]:
        store = self._catalog.store(address)
        if size is None:
            yield from store.stream(address)
        elif 0 < size <= PIECE:
            yield store.read(address)
        else:
            for start in range(0, size, PIECE):
                end = min(start + PIECE, size)
                piece = self._retry(address, partial(_piece, store, address, start, end))
                yield piece
                if len(piece) == size:  # a web server that knows no ranges sends it all
                    return

    def _check_version(self, address: str, found: Found) -> None:
        """Refuse a file that is no longer the one that this run began with."""
        now = self._catalog.look_again(address)
        if (now.size, now.version) != (found.size, found.version):
            raise DataError(
                f"{address!r} has changed since this run began: it had {found.size} bytes (version "
                f"{found.version or 'unknown'}) and has {now.size} ({now.version or 'unknown'}). "
                "Start again, and let nobody write there meanwhile."
            )


def _piece(store: Store, address: str, start: int, end: int) -> bytes:
    content = store.read(address, start, end)
    if len(content) < end - start:
        raise Damaged(f"{len(content)} of {end - start} bytes came")
    return content


def _checksum(found: Found) -> str | None:
    return found.version[4:] if found.version.startswith("md5:") else None
