"""All cores for one batch: the first, for which the consumer waits.

Its rows are divided among more threads than there are cores, since the system divides its time
evenly among threads and other programs have some, too. The batches behind it are read meanwhile,
and decoded when it is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

_LONGEST = 5.0  # seconds that a batch waits for the first one, whatever holds that up


class _Threads(threading.local):
    count: int = 1
    after: threading.Event | None = None


_threads = _Threads()


@contextmanager
def extra_threads(count: int, after: threading.Event | None = None) -> Iterator[None]:
    """Let `split_rows` in this thread use `count` threads, itself among them.

    Args:
        after: what the first call waits for beforehand, for five seconds at most.
    """
    _threads.count, _threads.after = count, after
    try:
        yield
    finally:
        _threads.count, _threads.after = 1, None


def threads(rows: int) -> int:
    """How many threads `split_rows` divides `rows` among."""
    return max(1, min(_threads.count, rows // 2))


def split_rows(work: Callable[[int, int], None], rows: int) -> None:
    """Call `work(start, stop)` for ranges that make up `rows`, the first of them in this thread."""
    if _threads.after is not None:
        _threads.after.wait(_LONGEST)
        _threads.after = None  # once for all rows, which may come one by one
    count = threads(rows)
    if count < 2:
        work(0, rows)
        return
    bounds = [rows * part // count for part in range(count + 1)]
    with ThreadPoolExecutor(count - 1, "penstock-hand") as pool:
        others = [pool.submit(work, *ends) for ends in pairwise(bounds[1:])]
        work(bounds[0], bounds[1])
        for other in others:
            other.result()
