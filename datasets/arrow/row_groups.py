"""Decoded row groups of one process: the last used ones, up to a number of bytes.

A row group that is larger than the limit is held alone, until the next one is read. Threads share
what is held; when two of them miss the same row group at once, both read it. Nothing that is held
travels to another process.
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

_LOADS = 200  # are looked at together:
_WORTH = 4  # if fewer rows are used of each
_AGAIN = 0.5  # and this share of them is of row groups that were here before, it is said


class RowGroups(Generic[T]):
    """Number of a row group -> what `load` makes of it.

    Args:
        load: number -> (value, bytes of memory that it takes).
        limit: bytes that are held at most.
        advice: said once, when row groups are loaded again and again for a few rows each.
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
            self._hold(group, value, size)
            self._count(group)
        return value

    def _count(self, group: int) -> None:
        self._loads += 1
        self._again += group in self._seen
        self._seen.add(group)
        if self._loads < _LOADS:
            return
        if self._used < _WORTH * _LOADS and self._again > _AGAIN * _LOADS and self._advice:
            worker = get_worker_info()
            if worker is None or worker.id == 0:  # the others see the same
                _log.warning("%s", self._advice)
            self._advice = ""
        self._used = self._loads = self._again = 0

    def _hold(self, group: int, value: T, size: int) -> None:
        self._size += size - self._held.get(group, (value, 0))[1]
        self._held[group] = (value, size)
        while self._size > self._limit and len(self._held) > 1:
            _, (_, freed) = self._held.popitem(last=False)
            self._size -= freed

    def __getstate__(self) -> dict[str, Any]:
        return {"_load": self._load, "_limit": self._limit, "_advice": self._advice}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()
