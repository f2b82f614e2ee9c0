"""Which batches go when the budget is used up.

The future of every attached run is known: the batches from its address on, at its pace. First go
the batches that no run will ask for, then those that the next to ask will ask for latest (Belady).

Each process that publishes looks once it has published a fraction of the budget, so that all
together stay below it. Nothing is locked: two that look at the same time delete the same files.
Cost: 5 us for each batch that is kept, 16 times for each worker while the budget fills once.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock.addons.decode_pool.attached import Position, positions
from penstock.addons.decode_pool.folder import PoolFolder
from penstock.files.disk import is_locked

_NAME = re.compile(r"(\d{1,18})-(\d{1,18})-[0-9a-f]{32}\.batch")
_FULL = 0.75  # of the budget that is left full
_ABANDONED = 30.0  # seconds after which a part that nobody has locked is deleted


class _Kept(NamedTuple):
    """A file, with how soon it goes: the smallest first."""

    order: tuple[float, ...]
    path: str
    size: int


class Eviction:
    """Keeps a folder within its budget, as far as this process publishes to it."""

    def __init__(self, folder: PoolFolder) -> None:
        self._folder = folder
        self._published = 0
        self._interval = 0.0  # bytes between two looks

    def published(self, size: int) -> None:
        """This process has published a batch of `size` bytes."""
        self._published += size
        if self._published > self._interval:
            budget = self._folder.budget
            runs = list(positions(self._folder.runs))
            workers = sum(run.workers for run in runs)
            self._published, self._interval = 0, (1 - _FULL) * budget / max(workers, 4)
            _evict(self._folder.path, runs, _FULL * budget)

    def make_room(self) -> None:
        """Leave half of the budget: the file system is full, of whatever else."""
        runs = list(positions(self._folder.runs))
        _evict(self._folder.path, runs, self._folder.budget / 2)


def _evict(folder: Path, runs: list[Position], most: float) -> None:
    """Delete batches until they take at most `most` bytes, those that are needed latest first."""
    kept = list(_files(folder, runs))
    total = sum(one.size for one in kept)
    if total <= most:
        return
    for one in sorted(kept):
        with suppress(OSError):
            Path(one.path).unlink(missing_ok=True)
        total -= one.size
        if total <= most:
            return


def _files(folder: Path, runs: list[Position]) -> Iterator[_Kept]:
    more_jobs, now = any(not run.group for run in runs), time.monotonic()
    for group in _entries(folder):
        ours = [run for run in runs if run.group == group.name]
        for file in _entries(group.path):
            try:
                found = file.stat(follow_symlinks=False)
            except OSError:  # gone meanwhile
                continue
            address = _NAME.fullmatch(file.name)
            if address is None:
                if time.time() - found.st_mtime > _ABANDONED and not is_locked(Path(file.path)):
                    yield _Kept((-1.0,), file.path, found.st_size)
                continue
            epoch, step = map(int, address.groups())
            until = min(
                (run.seconds_until(epoch, step, now, more_jobs) for run in ours), default=None
            )
            if until is None:  # no run of this kind is attached: the oldest first
                order: tuple[float, ...] = (0.0, found.st_mtime)
            else:
                order = (1.0, -until, -epoch, -step)
            yield _Kept(order, file.path, found.st_size)


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [one for one in entries if not one.name.endswith(".run")]
    except OSError:  # a file, or gone meanwhile
        return []
