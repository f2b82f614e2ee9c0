"""Fetches files before their rows are read, and says when they will be needed.

It walks two ways through the epoch: just ahead of the reader, to fetch what is missing, and far
ahead through this epoch and the next, for the forecast by which the cache evicts. It fetches

- what the rows in the hands of workers need, first; for the first batch, nothing beside that;
- then what comes after, up to `ahead` bytes or 1/32 of the cache, at least two files;
- nothing that would evict what is needed earlier, and nothing of another epoch than this one.

Of parts of files (`parts.py`) it looks `ahead` bytes further, half of the cache at most, and brings
those that lie side by side by one request.

The reader of the row meets the error. Cost: 40 us a row of fetching, 20 us a row of forecast,
which is made only once half of the cache is taken.
"""

from __future__ import annotations

import resource
import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np

from penstock.addons.stores.arrivals import Arrivals, brought
from penstock.addons.stores.file_cache import FileCache
from penstock.addons.stores.forecast import MOST_USES, Forecast, ForecastFile, key_of
from penstock.addons.stores.parts import MOST, MOST_FIRST, MOST_URGENT, Came, Waiting, as_part

if TYPE_CHECKING:
    from penstock.addons.stores.remote_files import RemoteFiles

# Addresses of the files of each row of a step: (epoch, step) -> [[address, ...], ...]
RowsOf = Callable[[int, int], Sequence[Sequence[str]]]

_UNKNOWN = 8 * 2**20  # bytes of a file whose size no store has told
_AT_ONCE = 256  # rows of the forecast that are made before the reader is looked after again
_RECENT = 1024  # files that are not looked for again
_MOST_ROWS = 1 << 31  # after which rows are counted anew
_REASON = 8192  # descriptors
LOOK = 0.5  # seconds between two looks at what has changed elsewhere
AGAIN = 0.01  # seconds until a permit may be free
_SHARED = 0.05  # seconds between two looks at what all readers share
_OTHERS = 256  # descriptors of a process that are none of parts under way


class Prefetcher:
    """Looks after the files of one reader.

    Args:
        files: access to them.
        cache: theirs.
        rows_of: the files of each step's rows, for this reader.
        steps_of: steps in an epoch.
    """

    def __init__(
        self, files: RemoteFiles, cache: FileCache, rows_of: RowsOf, steps_of: Callable[[int], int]
    ) -> None:
        self._files, self._cache = files, cache
        self._rows_of, self._steps_of = rows_of, steps_of
        files.catalog.gate.yields = True
        self._window = min(files.ahead, cache.limit // 32)
        # What is only looked at takes no room in the cache; what is brought along comes early.
        self._sight = min(files.ahead, cache.limit // 2)
        self._most = min(MOST, cache.limit // 16)
        self._pool = ThreadPoolExecutor(files.concurrency, "penstock-ahead")
        self._limit = files.concurrency  # requests that may be open now
        self._descriptors = _descriptors() - _OTHERS  # of parts under way
        self._has_parts = False
        self._forecast = ForecastFile(cache.folder)
        self._arrivals = Arrivals(files, cache, self._pool, partial(brought, files))
        self.bell = self._arrivals.exchange  # can be read from when something has come
        self._open: dict[Future[Came], dict[str, int]] = {}  # address -> row
        self._came: deque[Future[Came]] = deque()  # of these, what is there
        self._looks, self._fills = 0.0, False
        self._begin(-1, 0)

    def _begin(self, epoch: int, step: int) -> None:
        """Count rows anew, from the first of `step` on."""
        self._epoch = epoch
        self._first = {epoch: step}  # step of each epoch that is known first
        self._starts = {epoch: array("q")}  # row of each step from there on, and the one after
        self._walk = (epoch, step)
        self._row = self._published = self._pruned = 0
        self._first_end = 0  # the row behind the first batch
        self._uses = array("Q")
        self._begin_epoch(epoch, step, 0)

    def _begin_epoch(self, epoch: int, step: int, row: int) -> None:
        self._epoch, self._step = epoch, step  # the next to fetch
        self._delivered = self._handed = row
        self._reads = False
        self._waiting = Waiting()
        self._recent: OrderedDict[str, None] = OrderedDict()
        self._far: list[tuple[int, int]] = []  # row and bytes of what is in no hands yet; a heap
        self._held = 0  # their bytes
        self._of_epoch: WeakSet[Future[Came]] = WeakSet()
        self._full = False

    def go_to(self, epoch: int, delivered: int, handed: int, reads: bool) -> None:
        """The reader is at step `delivered`, and workers have all before `handed` in hand."""
        if epoch != self._epoch or delivered < self._first[epoch]:
            follows = epoch == self._epoch + 1 and delivered == 0 and self._first.get(epoch) == 0
            if follows and self._row < _MOST_ROWS:
                self._begin_epoch(epoch, 0, self._row_of(epoch, 0))
                for known in [other for other in self._first if other < epoch]:
                    del self._first[known], self._starts[known]
            else:
                self._begin(epoch, delivered)
                self._first_end = self._row_of(epoch, delivered + 1)
        row = self._row_of(epoch, delivered)
        self._full = self._full and row == self._delivered
        self._delivered, self._reads = row, reads
        self._handed = max(row, self._row_of(epoch, handed))
        while self._far and self._far[0][0] < self._handed:
            self._held -= heappop(self._far)[1]
        self._forecast.move(self._delivered, self._handed, reads)

    def work(self) -> float:
        """Fetch and forecast; the seconds after which there is more to do, if nothing comes."""
        self._arrivals.work()
        while self._came:
            future = self._came.popleft()
            rows, (left, _) = self._open.pop(future), future.result()
            for address in left if future in self._of_epoch else ():
                self._full = True
                self._recent.pop(address, None)
                self._push(rows[address], address)
        if self._epoch < 0:
            return LOOK
        now = time.monotonic()
        if now >= self._looks:  # at two files, which takes 17 us
            self._looks = now + _SHARED
            self._limit = max(1, min(self._files.concurrency, self._files.catalog.gate.limit()))
            self._fills = self._cache.is_filling()
        wait = self._fetch() if self._reads and not self._full else LOOK
        return 0.0 if self._fills and self._extend() else wait

    def _fetch(self) -> float:
        """Ask for what is next; the seconds after which there is more to ask for."""
        while len(self._open) < self._limit:
            first = self._waiting.first()
            if first is None:
                if not self._take_rows():
                    return LOOK
                continue
            row, address, size = first
            if row < self._delivered or address in self._recent:
                self._waiting.take(address)
                continue
            if row >= self._handed:
                if len(self._far) >= 2 and self._held + size > self._window:
                    break
                if self._has_parts and self._waiting.size < self._sight and self._take_rows():
                    return 0.0
            most = self._most_of(row)
            # So many that as many requests as may be open have as many each.
            room = self._descriptors - sum(map(len, self._open.values()))
            together = max(1, room // (self._limit - len(self._open)))
            beside = self._waiting.beside(address, most, together)
            rows = {each: self._waiting.take(each) for each in beside}
            future = self._arrivals.begin(rows, self._delivered)
            if future is None:
                for each, needed in rows.items():
                    self._push(needed, each)
                return AGAIN
            for each, needed in rows.items():
                self._recent[each] = None
                if needed >= self._handed:
                    size = self._size(each)
                    heappush(self._far, (needed, size))
                    self._held += size
            while len(self._recent) > _RECENT:
                self._recent.popitem(last=False)
            self._open[future] = rows
            self._of_epoch.add(future)
            future.add_done_callback(self._ring)
        if self._has_parts and self._waiting.size < self._sight:
            return 0.0 if self._take_rows() else LOOK
        return LOOK

    def _most_of(self, row: int) -> int:
        """The most bytes of a request for the parts of `row` and their neighbours in the file."""
        if row >= self._handed:
            return self._most
        # While the first batch is waited for, nothing is there yet: what is brought along would
        # hold up its other rows.
        return min(self._most, MOST_FIRST if row < self._first_end else MOST_URGENT)

    def _take_rows(self) -> bool:
        """Look at the files of one more step; False at the end of the epoch."""
        if self._step >= self._steps_of(self._epoch):
            return False
        row = self._row_of(self._epoch, self._step)
        for files in self._rows_of(self._epoch, self._step):
            for file in files:
                self._push(row, file)
            row += 1
        self._step += 1
        return True

    def _push(self, row: int, address: str) -> None:
        self._has_parts = self._has_parts or as_part(address) is not None
        self._waiting.push(row, address, self._size(address))

    def _size(self, address: str) -> int:
        part = as_part(address)
        if part is not None:
            return part.end - part.start
        known = self._files.catalog.known(address)
        return known.size if known is not None and known.size is not None else _UNKNOWN

    def _ring(self, future: Future[Came]) -> None:
        self._came.append(future)
        self.bell.ring()

    def _row_of(self, epoch: int, step: int) -> int:
        """The number of a step's first row."""
        starts, first = self._starts[epoch], self._first[epoch]
        while self._walk[0] == epoch and self._walk[1] <= step:
            if not self._take_step():
                break
        position = step - first
        if position < len(starts):
            return starts[position]
        return self._starts[epoch + 1][0] if self._starts.get(epoch + 1) else self._row

    def _take_step(self) -> bool:
        """Note the uses of one more step, or begin the next epoch; False where that is far."""
        epoch, step = self._walk
        if step >= self._steps_of(epoch):
            if epoch > self._epoch:
                return False
            self._walk = (epoch + 1, 0)
            self._first[epoch + 1], self._starts[epoch + 1] = 0, array("q")
            return False
        self._starts[epoch].append(self._row)
        for row in self._rows_of(epoch, step):
            for address in row:
                name = self._files.kept_as(address)
                if name is not None:
                    self._uses.append(key_of(name) << 32 | self._row)
            self._row += 1
        self._walk = (epoch, step + 1)
        return True

    def _extend(self) -> bool:
        """Look further ahead, and publish what was found; whether there is more to find."""
        ends = self._row + _AT_ONCE
        more = True
        while more and self._row < ends and len(self._uses) < MOST_USES:
            before = self._walk
            self._take_step()
            more = self._walk != before
        more = more and len(self._uses) < MOST_USES
        grown = self._row - self._published
        if len(self._uses) >= MOST_USES and self._delivered - self._pruned < MOST_USES // 4:
            return False  # until there is room for more
        if grown and (not more or grown > max(_AT_ONCE, self._published - self._delivered)):
            uses = np.frombuffer(self._uses, np.uint64)
            uses = uses[(uses & np.uint64(0xFFFFFFFF)) >= self._delivered].copy()
            self._uses = array("Q", uses.tobytes())
            self._forecast.publish(Forecast(self._delivered, self._handed, self._reads, uses))
            self._published, self._pruned = self._row, self._delivered
        return more


def _descriptors() -> int:
    """How many files this process may have open; as many as it is allowed to ask for, in reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(soft, _REASON if hard == resource.RLIM_INFINITY else min(hard, _REASON))
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return soft
