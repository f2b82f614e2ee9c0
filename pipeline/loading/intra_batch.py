"""More threads for one batch: the first, for which the consumer waits.

Other executors work on the batches behind it, so there are more threads than cores: the system
divides its time evenly, and most of it goes to the batch with most threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise


class _Threads(threading.local):
    count: int = 1


_threads = _Threads()


@contextmanager
def extra_threads(count: int) -> Iterator[None]:
    """Let `split_rows` in this thread use `count` threads, itself among them."""
    _threads.count = count
    try:
        yield
    finally:
        _threads.count = 1


def threads(rows: int) -> int:
    """How many threads `split_rows` divides `rows` among."""
    return max(1, min(_threads.count, rows // 2))


def split_rows(work: Callable[[int, int], None], rows: int) -> None:
    """Call `work(start, stop)` for ranges that make up `rows`, the first of them in this thread."""
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
