"""Files and parts that are fetched ahead, from the request to the cache.

    begin       room in the cache, a permit of the gate, a request: in one thread
    an answer   checked, written and flushed to the disk: in a few, nearly all of it without
                Python's lock
    the end     the file gets its name: in the first thread again

An answer that is not as it should be goes to `otherwise`, which has all means and all time.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

from penstock.addons.stores.direct import UnusualError
from penstock.addons.stores.exchange import Arrived, Exchange
from penstock.addons.stores.file_cache import FullError
from penstock.addons.stores.parts import GAP, Came, Part, as_part
from penstock.addons.stores.retry import asks_to_wait
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.addons.stores.file_cache import FileCache
    from penstock.addons.stores.remote_files import RemoteFiles
    from penstock.addons.stores.request_gate import Permit

_WRITERS = 4  # threads: a disk flushes several files in the time of one
_MOST = 32 * 2**20  # bytes of one request

Rows = Mapping[str, int]
Otherwise = Callable[[Rows, int], Came]


class _Coming:
    """Parts of a file that lie side by side, or a whole file.

    Attributes:
        rows: addresses, and the row that needs each.
        delivered: the row that is read.
        file: address of the file.
        start, end: of the bytes; None for a whole file.
        size: their number.
        claims: what writes the bytes of each file or part that is to be filled.
        flush: brings to the disk what was written.
        commit: makes it known.
        left: addresses for which there is no room.
        claimed: ends with the claims.
    """

    def __init__(self, rows: Rows, delivered: int) -> None:
        self.rows, self.delivered = rows, delivered
        self.future: Future[Came] = Future()
        self.file = ""
        self.start: int | None = None
        self.end: int | None = None
        self.size = 0
        self.claims: list[tuple[Callable[[memoryview], None], slice]] = []
        self.flush: Callable[[], object] = _nothing
        self.commit: Callable[[], object] = _nothing
        self.left: list[str] = []
        self.claimed = ExitStack()


class Arrivals:
    """The requests that one reader has under way.

    Args:
        files: access to them.
        cache: theirs.
        pool: makes connections, and runs `otherwise`.
        otherwise: brings addresses, with the row that needs each, while a row is read.
        stream: shards of a stream come, so what others are fetching is waited for, and parts are
            kept apart: whether a part in a mirror was opened, nothing tells.

    Attributes:
        exchange: can be read from when `work` has something to do.
    """

    def __init__(
        self,
        files: RemoteFiles,
        cache: FileCache,
        pool: Executor,
        otherwise: Otherwise,
        stream: bool = False,
    ) -> None:
        self._files, self._cache, self._stream = files, cache, stream
        self._pool, self._otherwise = pool, otherwise
        self._gate = files.catalog.gate
        self.exchange = Exchange(files.files.timeout, pool)
        self._writers = ThreadPoolExecutor(_WRITERS, "penstock-written")
        self._written: deque[tuple[_Coming, Future[bool]]] = deque()

    def begin(self, rows: Rows, delivered: int) -> Future[Came] | None:
        """Ask for a file, or for parts of one that lie side by side.

        Args:
            rows: addresses in the order of the file, and the row that needs each.
            delivered: the row that is read.

        Returns:
            Its fate; None where no request may begin now.
        """
        coming = _Coming(rows, delivered)
        try:
            self._claim(coming)
            if not coming.claims:
                coming.claimed.close()
                coming.future.set_result(Came(coming.left, 0))
                return coming.future
            permit = self._gate.begin()
            if permit is None:
                coming.claimed.close()
                return None
            try:
                store = self._files.catalog.store(coming.file)
                client, request = store.request(coming.file, coming.start, coming.end)
                done = partial(self._answered, coming, permit)
                self.exchange.ask(client, request, coming.size, done)
            except BaseException:
                self._gate.end(permit, failed=True)
                raise
        except Exception:
            self._ask_otherwise(coming)
        return coming.future

    def work(self) -> None:
        """Read what has come, and name what is written."""
        self.exchange.work()
        while self._written:
            coming, written = self._written.popleft()
            try:
                if not written.result():
                    raise UnusualError("another content")
                coming.commit()
            except Exception:
                self._ask_otherwise(coming)
                continue
            coming.claimed.close()
            coming.future.set_result(Came(coming.left, coming.size))

    def _claim(self, coming: _Coming) -> None:
        """Claim what is not there yet.

        Raises:
            UnusualError: it is to be fetched otherwise.
        """
        parts = [part for address in coming.rows if (part := as_part(address)) is not None]
        coming.file = parts[0].address if parts else next(iter(coming.rows))
        self._files.catalog.store(coming.file).direct()
        if not (parts and self._claim_mirrored(coming, parts)):
            self._claim_entries(coming)
        end = None
        for _, place in coming.claims:
            if end is not None and place.start - end > GAP:
                raise UnusualError("two requests")
            end = place.stop
        if coming.claims:
            first = coming.claims[0][1].start
            coming.size = coming.claims[-1][1].stop - first
            if parts:
                coming.start, coming.end = first, first + coming.size

    def _claim_mirrored(self, coming: _Coming, parts: Sequence[Part]) -> bool:
        """Claim parts of a file's mirror; False where they are to be kept otherwise."""
        mirror = None if self._stream else self._files.filled_mirror(coming.file)
        if mirror is None or parts[-1].end - parts[0].start > _MOST:
            return False
        claim = coming.claimed.enter_context(mirror.claimed(parts))
        if claim is not None:
            coming.flush, coming.commit = claim.flush, claim.commit
            coming.claims = [
                (partial(claim.write, part), slice(part.start, part.end)) for part in claim.parts
            ]
        return claim is not None

    def _claim_entries(self, coming: _Coming) -> None:
        wanted, places = [], {}
        for address, row in coming.rows.items():
            part, known = as_part(address), self._files.entry(address)
            if known is None or not 0 < (known[1] or 0) <= _MOST:
                raise UnusualError("an unknown size, or a large one")
            entry, size = known[0], known[1] or 0
            start = part.start if part else 0
            places[entry] = address, slice(start, start + size)
            wanted.append((entry, size, max(0, row - coming.delivered)))
        claims = coming.claimed.enter_context(self._cache.claimed(wanted))
        others = (entry for entry in places if entry not in claims)
        if self._stream and not all(map(self._cache.is_promised, others)):
            raise UnusualError("others are fetching it")
        filled = {entry: file for entry, file in claims.items() if file is not None}
        coming.left = [places[entry][0] for entry in claims if entry not in filled]
        coming.claims = [(file.write, places[entry][1]) for entry, file in filled.items()]
        coming.flush = partial(self._cache.flush, filled)
        coming.commit = partial(self._cache.commit, filled)

    def _answered(self, coming: _Coming, permit: Permit, answer: Arrived | Exception) -> None:
        if isinstance(answer, Exception):
            self._gate.end(permit, asks_to_wait(answer), failed=True)
            self._ask_otherwise(coming)
            return
        self._gate.end(permit)
        try:
            store = self._files.catalog.store(coming.file)
            told = store.described(coming.file, answer.size, answer.headers)
            digest = self._files.digest_of(coming.file, told, whole=coming.start is None)
            if len(answer.body) != coming.size:
                raise UnusualError("fewer bytes")
        except Exception:
            self._ask_otherwise(coming)
            return
        written = self._writers.submit(_write, coming, answer.body, digest)
        written.add_done_callback(partial(self._note, coming))

    def _note(self, coming: _Coming, written: Future[bool]) -> None:
        self._written.append((coming, written))
        self.exchange.ring()

    def _ask_otherwise(self, coming: _Coming) -> None:
        with suppress(OSError, PenstockError):  # of a full disk, which the other way meets, too
            coming.claimed.close()
        future = self._pool.submit(self._otherwise, coming.rows, coming.delivered)
        future.add_done_callback(lambda other: coming.future.set_result(other.result()))


def brought(files: RemoteFiles, rows: Rows, delivered: int) -> Came:
    """Bring addresses into the cache by all means; arguments as those of `Otherwise`."""
    wanted = [(address, max(0, row - delivered)) for address, row in rows.items()]
    try:
        if as_part(wanted[0][0]) is not None:
            return files.fetch_parts_ahead(wanted)
        return Came((), files.fetch_ahead(*wanted[0]))
    except FullError:
        return Came([*rows], 0)
    except Exception:  # whoever reads the row finds it again and reports it in its turn
        return Came((), 0)


def _write(coming: _Coming, body: memoryview, digest: str | None) -> bool:
    """Write what has come to the disk; False if its MD5 is not `digest`."""
    if digest is not None and hashlib.md5(body, usedforsecurity=False).hexdigest() != digest:
        return False
    start = coming.start or 0
    for write, place in coming.claims:
        write(body[place.start - start : place.stop - start])
    coming.flush()
    return True


def _nothing() -> None:
    pass
