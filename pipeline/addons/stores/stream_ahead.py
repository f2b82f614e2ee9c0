"""Fetches the shards of a stream before it comes to them.

Nobody knows which step a shard begins with before it is read. But the order of an epoch's shards is
known, and a file in the cache tells whether it was opened since it was fetched ahead. So as many
bytes of shards are on the way or lie unopened as a reader has ahead, two shards at least.

Cost: 10 us for each of these whenever a batch is delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from penstock.addons.stores.arrivals import Arrivals, brought
from penstock.addons.stores.parts import MOST, Came, as_part
from penstock.addons.stores.prefetcher import AGAIN, LOOK

if TYPE_CHECKING:
    from penstock.addons.stores.file_cache import FileCache
    from penstock.addons.stores.remote_files import RemoteFiles

_AT_ONCE = 32  # shards; they are large, so more would hardly bring more
_UNKNOWN = 8 * 2**20  # bytes of a file whose size no store has told


class StreamPrefetcher:
    """Looks after the shards of one reader; used as `prefetcher.Prefetcher`.

    Args:
        files: access to them.
        cache: theirs.
        shards_of: epoch, step -> the addresses of the shards from that step on, in their order.
    """

    def __init__(
        self,
        files: RemoteFiles,
        cache: FileCache,
        shards_of: Callable[[int, int], Sequence[str]],
    ) -> None:
        self._files, self._cache, self._shards_of = files, cache, shards_of
        files.catalog.gate.yields = True
        self._window = min(files.ahead, cache.limit // 32)
        pool = ThreadPoolExecutor(_AT_ONCE, "penstock-ahead")
        self._arrivals = Arrivals(files, cache, pool, partial(brought, files), stream=True)
        self.bell = self._arrivals.exchange  # can be read from when something has come
        self._at = (-1, 0)  # epoch, step delivered
        self._reads = False
        self._coming: deque[str] = deque()  # not asked for yet
        self._unopened: deque[tuple[list[str], Future[Came]]] = deque()

    def go_to(self, epoch: int, delivered: int, handed: int, reads: bool) -> None:
        """The reader is at step `delivered`."""
        before, self._reads = self._at, reads
        self._at = epoch, delivered
        if before[0] != epoch or delivered < before[1]:
            self._coming = deque(self._shards_of(epoch, delivered))
            self._unopened.clear()

    def work(self) -> float:
        """Fetch what is next; the seconds after which there is more to do, if nothing comes."""
        self._arrivals.work()
        self._drop_opened()
        at_once = min(_AT_ONCE, self._files.catalog.gate.limit())
        while self._reads and self._coming:
            held = sum(self._size(each) for addresses, _ in self._unopened for each in addresses)
            if len(self._unopened) >= 2 and held + self._size(self._coming[0]) > self._window:
                break
            if sum(not future.done() for _, future in self._unopened) >= at_once:
                break
            addresses = self._next()
            future = self._arrivals.begin(dict.fromkeys(addresses, len(self._unopened)), 0)
            if future is None:
                self._coming.extendleft(reversed(addresses))
                return AGAIN
            self._unopened.append((addresses, future))
            future.add_done_callback(lambda _: self.bell.ring())
        return LOOK

    def _next(self) -> list[str]:
        """The next file, or the next parts of one that lie side by side."""
        addresses = [self._coming.popleft()]
        first = last = as_part(addresses[0])
        while first is not None and last is not None and self._coming:
            following = as_part(self._coming[0])
            if (
                following is None
                or following[:2] != (first.address, last.end)
                or following.end - first.start > MOST
            ):
                break
            addresses.append(self._coming.popleft())
            last = following
        return addresses

    def _drop_opened(self) -> None:
        """Forget the shards before the last one that was opened, and this one."""
        opened = 0
        for number, (addresses, future) in enumerate(self._unopened, 1):
            if future.done() and not self._waits(addresses):
                opened = number
        for _ in range(opened):
            self._unopened.popleft()

    def _waits(self, addresses: Sequence[str]) -> bool:
        """Whether none of them was opened since it came."""
        known = map(self._files.entry, addresses)
        return all(each is not None and self._cache.is_promised(each[0]) for each in known)

    def _size(self, address: str) -> int:
        known = self._files.entry(address)
        return _UNKNOWN if known is None or known[1] is None else known[1]
