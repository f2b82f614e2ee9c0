"""Downloads one file from its store, whole and in the store's version, or not at all.

Its size has to be right, and its MD5 where the store gives one: S3 does for files uploaded in one
part and without a key of one's own, Google Cloud for nearly all, web servers seldom. Otherwise the
store is asked after the download whether the file is still the one that was listed.

Large files come in pieces of 32 MiB, each of which is retried by itself. Cost beside the network:
1.5 s a GB for the checksum; a request more for a file without one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from pipeline.datasets.remote.catalog import Catalog
from pipeline.datasets.remote.listing import FileInfo
from pipeline.datasets.remote.retry import Damaged, RetryPolicy
from pipeline.datasets.remote.store import Store
from pipeline.errors import DataError

if TYPE_CHECKING:
    from pipeline.datasets.remote.file_cache import PartialFile

PIECE = 32 * 2**20  # bytes of one request


class Download:
    """Downloads files.

    Args:
        catalog: their sizes and versions.
        retry: with the stores.
    """

    def __init__(self, catalog: Catalog, retry: RetryPolicy) -> None:
        self._catalog = catalog
        self._retry = retry
        self._unsummed = False  # whether checksums have proved to be wrong

    def __call__(self, address: str, wanted: FileInfo, part: PartialFile) -> None:
        """Write the file at `address`, of the version `wanted`, into `part`.

        Raises:
            DataError: it is incomplete, or is another version by now.
        """
        sums: list[str] = []
        self._retry(address, lambda: self._attempt(address, wanted, part, sums))

    def _attempt(self, address: str, wanted: FileInfo, part: PartialFile, sums: list[str]) -> None:
        digest = hashlib.md5(usedforsecurity=False)
        part.written = 0
        for piece in self._pieces(address, wanted.size):
            part.write(piece)
            digest.update(piece)
        sums.append(digest.hexdigest())
        whole = wanted.size in (None, part.written)
        summed = wanted.version.startswith("md5:") and not self._unsummed
        if whole and summed and wanted.version == f"md5:{sums[-1]}":
            return
        now = self._catalog.look_again(address)
        if (now.size, now.version) != (wanted.size, wanted.version):
            raise DataError(
                f"{address!r} has changed since this run began: it had {wanted.size} bytes "
                f"(version {wanted.version or 'unknown'}) and has {now.size} "
                f"({now.version or 'unknown'}). Start again, and let nobody write there meanwhile."
            )
        if not whole:
            raise Damaged(f"{part.written} of {wanted.size} bytes came")
        if summed and sums[-1] not in sums[:-1]:
            raise Damaged("its checksum does not match")
        # The same content came twice, so it is the checksum that is wrong: S3 gives what only looks
        # like one for files that it keeps encrypted by a key of its user.
        self._unsummed = self._unsummed or summed

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


def _piece(store: Store, address: str, start: int, end: int) -> bytes:
    content = store.read(address, start, end)
    if len(content) < end - start:
        raise Damaged(f"{len(content)} of {end - start} bytes came")
    return content
