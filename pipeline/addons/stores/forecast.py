"""When the readers of a cache will need its files, so that what is needed latest goes first.

    <folder>/forecasts/<name>     the uses that one reader knows of, locked while the reader lives

A reader counts the rows that it reads; a use is a file and the number of the row that needs it. The
header says how far the reader is. To evict, a reader reads the forecasts of all that live.

Order of eviction: files that no reader will use, the least recently used first; then those that
only an idle reader will use (the other split's, say); then by their next use, the latest first
(Belady's rule, which no other has fewer misses than where files are of one size). Files that were
used in the last two seconds and that no reader knows come last: they belong to somebody who cannot
tell the future.

A file counts 8 bytes a use: 32 bits of its entry's name and 32 of the row. Two files of the same 32
bits only go a little too late. Cost of an eviction: 4 us a file in the cache and 1 us a use.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import PenstockError

Uses = npt.NDArray[np.uint64]

MOST_USES = 1 << 22  # of one reader
_HEADER = struct.Struct("<8sqqqq")  # magic, delivered, handed out, whether it reads, uses
_MAGIC = b"penfore1"
_ROW = np.uint64(0xFFFFFFFF)
_BITS = np.uint64(32)
_IDLE = 1 << 40  # rows that an idle reader counts as later
_NEVER = np.iinfo(np.int64).max
_FRESH = 2.0  # seconds
# A file that was fetched ahead and not used yet has a modification time so much too early. An older
# Penstock takes it for the least recently used.
_EARLY = 1.5e9
_LEAST = 1e9  # 2001: earlier times are such


class Kept(NamedTuple):
    """Files in a cache.

    Attributes:
        keys: uint64[n], of their entries.
        used: float64[n], when they were used last, or came, seconds since 1970.
        is_read: bool[n], whether they were used since they were fetched ahead.
    """

    keys: Uses
    used: npt.NDArray[np.float64]
    is_read: npt.NDArray[np.bool_]


def key_of(entry: str) -> int:
    """The 32 bits of an entry that stand for it; 0 for a file that the cache has not named."""
    try:
        return int(entry[:8], 16)
    except ValueError:
        return 0


def kept(entries: Sequence[str], times: Sequence[float]) -> Kept:
    """Files in a cache from their entries and modification times."""
    since = np.array(times, np.float64)
    is_read = since >= _LEAST
    keys = np.array([key_of(entry) for entry in entries], np.uint64)
    return Kept(keys, np.where(is_read, since, since + _EARLY), is_read)


def promise_times() -> tuple[float, float]:
    """Times of a file that will be used soon and has not been yet, for `os.utime`."""
    then = time.time() - _EARLY
    return then, then


class Forecast(NamedTuple):
    """The knowledge of one reader.

    Attributes:
        delivered: rows before this one are done with.
        handed_out: rows before this one are being read.
        reads: whether it reads now; otherwise it only may again.
        uses: uint64[n], sorted: a file's 32 bits, then the 32 bits of a row that needs it.
    """

    delivered: int
    handed_out: int
    reads: bool
    uses: Uses

    def after(self, keys: Uses, row: int) -> npt.NDArray[np.int64]:
        """The first row from `row` on that needs each file, int64[n]; a huge number for none."""
        if not len(self.uses):
            return np.full(len(keys), _NEVER)
        least = (keys << _BITS) | np.uint64(min(max(row, 0), int(_ROW)))
        places = np.minimum(np.searchsorted(self.uses, least), len(self.uses) - 1)
        nexts = self.uses[places]
        there = (nexts >= least) & (nexts >> _BITS == keys)
        return np.where(there, (nexts & _ROW).astype(np.int64), _NEVER)


def rows_until_use(files: Kept, readers: Sequence[Forecast]) -> npt.NDArray[np.int64]:
    """In how many rows the next reader needs each file, int64[n]; a huge number where none does.

    A file that was read is not needed again for the rows that one reader has in hand. It may be
    where several have such rows: somebody else may have read it.
    """
    least = np.full(len(files.keys), _NEVER)
    in_hand = np.zeros(len(files.keys), np.int64)
    nexts = [reader.after(files.keys, reader.delivered) for reader in readers]
    for reader, rows in zip(readers, nexts, strict=True):
        in_hand += rows < reader.handed_out
    for reader, rows in zip(readers, nexts, strict=True):
        done = (rows < reader.handed_out) & files.is_read & (in_hand == 1)
        rows = np.where(done, reader.after(files.keys, reader.handed_out), rows)
        later = rows - reader.delivered + (0 if reader.reads else _IDLE)
        least = np.minimum(least, np.where(rows == _NEVER, _NEVER, later))
    return least


def victims(
    files: Kept, readers: Sequence[Forecast], now: float, beyond: int | None = None
) -> npt.NDArray[np.intp]:
    """The numbers of the files that may be evicted, in the order in which they should be.

    Args:
        now: seconds since 1970.
        beyond: leave those that are needed in so many rows or fewer, and those used just now.
    """
    if not readers:
        return np.argsort(files.used, kind="stable")
    until = rows_until_use(files, readers)
    unknown = until == _NEVER
    fresh = unknown & (now - files.used < _FRESH) & (now >= files.used)
    order = np.lexsort((files.used, np.where(unknown, 0, -until), np.where(unknown, 0, 1), fresh))
    return order if beyond is None else order[((until > beyond) & ~fresh)[order]]


class ForecastFile:
    """The forecast that a reader publishes.

    Args:
        folder: of the cache.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "forecasts"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path = self._folder / secrets.token_hex(8)
        self._descriptor: int | None = None

    def publish(self, forecast: Forecast) -> None:
        """Replace all that was said before; `uses` in any order."""
        uses = np.sort(forecast.uses)[:MOST_USES]
        new = self._path.with_name(f".{self._path.name}")
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _header(forecast, len(uses)), 0)
            os.pwrite(descriptor, uses.astype("<u8").tobytes(), _HEADER.size)
            new.rename(self._path)
        except BaseException:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor, self._count = descriptor, len(uses)

    def move(self, delivered: int, handed_out: int, reads: bool) -> None:
        """Say how far the reader is; 2 us."""
        if self._descriptor is not None:
            forecast = Forecast(delivered, handed_out, reads, np.empty(0, np.uint64))
            os.pwrite(self._descriptor, _header(forecast, self._count), 0)

    def close(self) -> None:
        """Leave the file to the next reader that evicts: it removes the file."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None


def read_forecasts(folder: Path) -> list[Forecast]:
    """The forecasts of all readers of a cache that live; those of the dead are removed."""
    forecasts = []
    try:
        entries = sorted(os.scandir(folder / "forecasts"), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    for entry in entries:
        with suppress(OSError, ValueError, PenstockError):
            descriptor = os.open(entry.path, os.O_RDWR)
            try:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if not entry.name.startswith("."):
                        forecasts.append(_read(descriptor))
                else:
                    # It may have been replaced since it was opened, or not be locked yet.
                    same = os.path.samestat(os.fstat(descriptor), os.lstat(entry.path))
                    old = time.time() - os.fstat(descriptor).st_mtime > _FRESH
                    if same and old:
                        Path(entry.path).unlink()
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
            finally:
                os.close(descriptor)
    return forecasts


def _header(forecast: Forecast, count: int) -> bytes:
    delivered, handed_out, reads, _ = forecast
    return _HEADER.pack(_MAGIC, delivered, handed_out, reads, count)


def _read(descriptor: int) -> Forecast:
    """Raises ValueError if it is no forecast."""
    magic, delivered, handed_out, reads, count = _HEADER.unpack(
        os.pread(descriptor, _HEADER.size, 0).ljust(_HEADER.size, b"\0")
    )
    if magic != _MAGIC or not 0 <= count <= MOST_USES or not 0 <= delivered <= handed_out:
        raise ValueError
    content = os.pread(descriptor, 8 * count, _HEADER.size)
    if len(content) != 8 * count:
        raise ValueError
    return Forecast(delivered, handed_out, bool(reads), np.frombuffer(content, "<u8"))
