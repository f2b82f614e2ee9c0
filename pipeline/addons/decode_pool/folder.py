"""Where shared batches lie, and who may write there.

    /dev/shm/penstock-UID/NAME      for this user alone (mode 0700)
        runs/TOKEN.run              the runs that are attached (`Attached`)
        GROUP/EPOCH-STEP-HASH.batch a batch (pool.py)
        GROUP/...part               one that is being made; its maker holds its lock

It lies in memory, or in the folder for temporary files where /dev/shm has less than 1 GiB. The last
run to leave deletes the folder, and any that comes what was left by runs that were killed.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
import struct
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, PenstockError, Problem
from penstock.files.disk import Hold, is_locked
from penstock.files.own_files import NotOwnError, own_folder
from penstock.files.regular_file import regular_descriptor
from penstock.loading import memory

KEY = "loader.share"
_MEMORY = Path("/dev/shm")
_LEAST = 1 << 30  # bytes that it has to have
_WAIT = 10.0  # seconds for the lock, which is held for milliseconds


class PoolFolder:
    """The folder of one name. Making it touches no disk.

    Args:
        name: that the runs agree on.
        budget: bytes of batches; None: a quarter of the memory, at most half of what fits there.

    Attributes:
        path: of the folder.
    """

    def __init__(self, name: str, budget: int | None = None) -> None:
        user = os.geteuid() if hasattr(os, "geteuid") else "user"
        self.path = _room() / f"penstock-{user}" / name
        self._given = budget

    @property
    def runs(self) -> Path:
        """The folder of the attached runs."""
        return self.path / "runs"

    @cached_property
    def budget(self) -> int:
        """Bytes that all batches together may take."""
        if self._given is not None:
            return self._given
        return min(memory.limit()[0] // 4, _bytes_of(_room()) // 2)

    def attach(self, position: Position) -> Attached:
        """Let others know of this run.

        Raises:
            ConfigError: the folder cannot be made, or is somebody else's.
        """
        try:
            own_folder(self.path.parent)
            for other in self.path.parent.iterdir():
                if other.is_dir() and other != self.path:
                    PoolFolder(other.name)._clear()
            with self._locked():
                if not any(positions(own_folder(self.path) / "runs")):
                    shutil.rmtree(self.path)
                own_folder(self.path)
                return Attached(own_folder(self.runs), position)
        except NotOwnError as error:
            raise ConfigError(Problem(KEY, f"{error}".partition(". Set cache_dir")[0])) from error
        except OSError as error:
            raise ConfigError(Problem(KEY, f"{self.path} cannot be made: {error}")) from error

    def leave(self, attached: Attached) -> None:
        """Take a run away; the last one deletes all batches. A forked child does nothing."""
        if attached.owner == os.getpid():
            attached.end()
            self._clear()

    def _clear(self) -> None:
        """Delete all batches unless a run is attached."""
        if not any(positions(self.runs)):
            with suppress(OSError, PenstockError), self._locked():
                if not any(positions(self.runs)):
                    shutil.rmtree(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let nobody else come or go meanwhile."""
        path = own_folder(self.path.parent) / f"{self.path.name}.lock"
        ends = time.monotonic() + _WAIT
        while True:
            hold = Hold.take(path, os.O_RDWR | os.O_CREAT)
            if hold is not None and hold.is_on(path):
                break
            if hold is not None:
                hold.release()
            elif time.monotonic() > ends:
                raise PenstockError(f"{path} has been locked for {_WAIT:g} s by another run")
            time.sleep(0.005)
        try:
            yield
        finally:
            if not self.path.exists():
                path.unlink(missing_ok=True)
            hold.release()


class JobsToCome:
    """Stands among the attached runs for jobs that a sweep has not begun, so that batches stay."""

    def __init__(self, name: str) -> None:
        self._folder = PoolFolder(name)
        self._attached: Attached | None = self._folder.attach(Position(""))

    def end(self) -> None:
        attached, self._attached = self._attached, None
        if attached is not None:
            self._folder.leave(attached)


@contextmanager
def jobs_to_come(config: Mapping[str, Any]) -> Iterator[None]:
    """Keep batches from one job of a sweep to the next, where its jobs share them."""
    name = config["loader"].get("share")
    jobs = None if name is None else JobsToCome(str(name))
    try:
        yield
    finally:
        if jobs is not None:
            jobs.end()


def _room() -> Path:
    if os.access(_MEMORY, os.W_OK | os.X_OK) and _bytes_of(_MEMORY) >= _LEAST:
        return _MEMORY
    return Path(tempfile.gettempdir())


def _bytes_of(folder: Path) -> int:
    """The size of its file system."""
    system = os.statvfs(folder)
    return system.f_blocks * system.f_frsize


_RECORD = struct.Struct("<32sqqqqqqdddI")
_SUFFIX = ".run"
_LONGEST_EPOCH = 1 << 20  # steps, where nobody knows them
_OTHER = 0.8  # weight of the pace so far


@dataclass
class Position:
    """Where one loader of a run is.

    Attributes:
        group: the fingerprint of what makes its batches, 32 hex digits; "" for jobs to come.
        epoch, step: the address of the next batch that it will ask for.
        steps: in an epoch; -1: not known.
        last: the first epoch that it will not ask for; -1: not known.
        again: 1 if it goes through the same epoch again and again, as validation does.
        workers: how many make batches for it.
        pace: seconds between two batches; 0: not known.
        began: when this epoch began, in seconds of `time.monotonic`, which all processes share.
        period: seconds from one pass to the next; 0: not known.
    """

    group: str
    epoch: int = 0
    step: int = 0
    steps: int = -1
    last: int = -1
    again: int = 0
    workers: int = 1
    pace: float = 0.0
    began: float = 0.0
    period: float = 0.0

    def packed(self) -> bytes:
        group, *numbers = astuple(self)
        packed = _RECORD.pack(group.encode(), *numbers, 0)
        return packed[:-4] + struct.pack("<I", zlib.crc32(packed[:-4]))

    @classmethod
    def unpacked(cls, packed: bytes) -> Position | None:
        """A position that was written; None if it is damaged, or half written."""
        if len(packed) != _RECORD.size:
            return None
        *values, check = _RECORD.unpack(packed)
        if check != zlib.crc32(packed[:-4]) or not all(map(math.isfinite, values[1:])):
            return None
        group = values[0].rstrip(b"\0").decode(errors="replace")
        return cls(group, *values[1:])

    def seconds_until(self, epoch: int, step: int, now: float, more_jobs: bool) -> float:
        """Seconds until a batch of its group is asked for; infinite if it never is.

        Args:
            more_jobs: others will begin at the first batch when this one is done.
        """
        pace = self.pace or 1.0
        steps = self.steps if self.steps > 0 else _LONGEST_EPOCH
        ahead = (epoch - self.epoch) * steps + step - self.step
        if self.again:
            if epoch != self.epoch:
                return math.inf
            rest = max(self.period - (now - self.began), 0.0) or (steps - self.step) * pace
            return ahead * pace if ahead >= 0 else rest + step * pace
        if ahead >= 0 and (self.last < 0 or epoch < self.last):
            return ahead * pace
        if more_jobs and self.last >= 0:
            rest = max((self.last - self.epoch) * steps - self.step, 0)
            return (rest + epoch * steps + step) * pace
        return math.inf


class Attached:
    """This run among those that share; in the file of its own.

    Args:
        folder: of these files; exists.
        position: where it begins.

    Attributes:
        owner: pid of the process that it is attached in.
    """

    def __init__(self, folder: Path, position: Position) -> None:
        self._path = folder / f"{secrets.token_hex(8)}{_SUFFIX}"
        self._position, self.owner = position, os.getpid()
        hold = None
        while hold is None or not hold.is_on(self._path):  # removed before it was locked
            if hold is not None:
                hold.release()
            hold = Hold.take(self._path, os.O_RDWR | os.O_CREAT)
        self._hold = hold
        self._moved = time.monotonic()
        self._write()

    def begin(self, epoch: int, step: int, steps: int | None, workers: int) -> None:
        """An epoch begins, or continues at `step`."""
        now, at = time.monotonic(), self._position
        if at.again and at.began:
            at.period = now - at.began
        at.epoch, at.step, at.steps = epoch, step, -1 if steps is None else steps
        at.began = self._moved = now
        at.workers = max(workers, 1)
        self._write()

    def move(self, epoch: int, step: int) -> None:
        """The next batch that will be asked for is (epoch, step); 5 us."""
        now, at = time.monotonic(), self._position
        pace, self._moved = now - self._moved, now
        at.pace = _OTHER * at.pace + (1 - _OTHER) * pace if at.pace else pace
        at.epoch, at.step = epoch, step
        self._write()

    def end(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        self._hold.release()

    def _write(self) -> None:
        with suppress(OSError):  # no space: others take it to be where it was
            os.pwrite(self._hold.descriptor, self._position.packed(), 0)


def positions(folder: Path) -> Iterator[Position]:
    """Of all runs that are there; what dead ones left is removed.

    One that cannot be read, since it is being written, counts as jobs to come: nothing is known of
    what it will ask for.
    """
    for path in folder.glob(f"*{_SUFFIX}"):
        if not is_locked(path):
            with suppress(OSError):
                path.unlink(missing_ok=True)
            continue
        with suppress(OSError, PenstockError):
            descriptor, _ = regular_descriptor(path)
            try:
                packed = os.pread(descriptor, _RECORD.size, 0)  # however long it is
            finally:
                os.close(descriptor)
            yield Position.unpacked(packed) or Position("")
