"""Where shared batches lie, and who may write there.

    /dev/shm/penstock-UID/NAME      for this user alone (mode 0700)
        runs/TOKEN.run              the runs that are attached (attached.py)
        GROUP/EPOCH-STEP-HASH.batch a batch (batch_file.py)
        GROUP/...part               one that is being made; whoever makes it holds its lock

It lies in memory, or in the folder for temporary files where /dev/shm has less than 1 GiB. The last
run to leave deletes the folder, and any that comes what was left by runs that were killed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

from penstock.addons.decode_pool.attached import Attached, Position, positions
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.files.disk import Hold
from penstock.files.own_files import NotOwnError, own_folder
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
        place = own_folder(self.path.parent) / f"{self.path.name}.lock"
        ends = time.monotonic() + _WAIT
        while True:
            hold = Hold.take(place, os.O_RDWR | os.O_CREAT)
            if hold is not None and hold.is_on(place):
                break
            if hold is not None:
                hold.release()
            elif time.monotonic() > ends:
                raise PenstockError(f"{place} has been locked for {_WAIT:g} s by another run")
            time.sleep(0.005)
        try:
            yield
        finally:
            if not self.path.exists():
                place.unlink(missing_ok=True)
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


def _room() -> Path:
    if os.access(_MEMORY, os.W_OK | os.X_OK) and _bytes_of(_MEMORY) >= _LEAST:
        return _MEMORY
    return Path(tempfile.gettempdir())


def _bytes_of(folder: Path) -> int:
    """The size of its file system."""
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize
