"""Files that stay open for a while, the last used ones of each thread in each process."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class OpenFiles(Generic[T]):
    """Number of a file -> what `open_one` makes of it.

    What was opened is used by one thread only, and travels to no other process: a fork or a copy
    begins with none. It closes when nobody holds it any longer.

    Args:
        open_one: number -> an open file.
        limit: files that a thread keeps.
    """

    def __init__(self, open_one: Callable[[int], T], limit: int = 32) -> None:
        self._open_one = open_one
        self._limit = limit
        self._kept: _Kept[T] = _Kept()

    def __getitem__(self, number: int) -> T:
        kept = self._kept.files
        if number in kept:
            kept.move_to_end(number)
            return kept[number]
        opened = kept[number] = self._open_one(number)
        while len(kept) > self._limit:
            kept.popitem(last=False)
        return opened


class _Kept(threading.local, Generic[T]):
    def __init__(self) -> None:
        self._files: OrderedDict[int, T] = OrderedDict()
        self._process = os.getpid()

    @property
    def files(self) -> OrderedDict[int, T]:
        if self._process != os.getpid():
            self._files, self._process = OrderedDict(), os.getpid()
        return self._files

    def __reduce__(self) -> tuple[type[_Kept[T]], tuple[()]]:
        return type(self), ()
