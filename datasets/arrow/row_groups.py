"""Cache of decoded row groups in one process: the last used ones, up to a number of bytes.

A row group that is larger than the limit is kept alone, until the next one is read. Threads share
the cache; when two of them miss the same row group at once, both read it. No entry travels to
another process.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch.utils.data import get_worker_info

T = TypeVar("T")

_log = logging.getLogger(__name__)

# The advice is given if of the last _LOADS loads, more than this share were of row groups that had
# been loaded before, and fewer rows than this were used of each.
_LOADS, _AGAIN, _ROWS = 200, 0.5, 4


class RowGroups(Generic[T]):
    """The result of `load` by the number of a row group.

    Args:
        load: number -> (value, bytes of memory that it takes).
        limit: bytes that are kept at most.
        advice: logged once, when row groups are loaded again and again for a few rows each.
    """

    def __init__(self, load: Callable[[int], tuple[T, int]], limit: int, advice: str = "") -> None:
        self._load = load
        self._limit = limit
        self._advice = advice
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._held: OrderedDict[int, tuple[T, int]] = OrderedDict()
        self._size = 0
        self._seen: set[int] = set()
        self._used = self._loads = self._again = 0

    def get(self, group: int, rows: int = 1) -> T:
        """A row group, of which `rows` rows are going to be used."""
        if self._process != os.getpid():  # a fork copies also a lock that another thread held
            self._begin()
        with self._lock:
            self._used += rows
            if group in self._held:
                self._held.move_to_end(group)
                return self._held[group][0]
        value, size = self._load(group)
        with self._lock:
            self._size += size - self._held.get(group, (value, 0))[1]
            self._held[group] = (value, size)
            while self._size > self._limit and len(self._held) > 1:
                _, (_, freed) = self._held.popitem(last=False)
                self._size -= freed
            self._count(group)
        return value

    def _count(self, group: int) -> None:
        self._loads += 1
        self._again += group in self._seen
        self._seen.add(group)
        if self._loads < _LOADS:
            return
        if self._used < _ROWS * _LOADS and self._again > _AGAIN * _LOADS and self._advice:
            worker = get_worker_info()
            if worker is None or worker.id == 0:  # the others see the same
                _log.warning("%s", self._advice)
            self._advice = ""
        self._used = self._loads = self._again = 0

    def __reduce__(self) -> tuple[type[RowGroups[T]], tuple[Any, ...]]:
        return type(self), (self._load, self._limit, self._advice)
