"""Files that stay open for a while: the last used ones of each thread in each process."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class OpenFiles(Generic[T]):
    """Number of a file -> the result of `open_one(number)`.

    An open file is used by one thread only and never moves to another process: a fork or a copy
    begins with none. It closes when nobody holds it any longer.

    Args:
        open_one: number -> an open file.
        limit: files that a thread keeps.
    """

    def __init__(self, open_one: Callable[[int], T], limit: int = 32) -> None:
        self._open_one = open_one
        self._limit = limit
        # Without a reference to `open_one`: a thread that lives on would keep the dataset alive.
        self._local = threading.local()

    def __getitem__(self, number: int) -> T:
        if getattr(self._local, "process", None) != os.getpid():
            self._local.files, self._local.process = OrderedDict(), os.getpid()
        files: OrderedDict[int, T] = self._local.files
        if number in files:
            files.move_to_end(number)
            return files[number]
        opened = files[number] = self._open_one(number)
        while len(files) > self._limit:
            files.popitem(last=False)
        return opened

    def __reduce__(self) -> tuple[type[OpenFiles[T]], tuple[Callable[[int], T], int]]:
        return type(self), (self._open_one, self._limit)
