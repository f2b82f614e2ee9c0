"""Downloaded files in a folder of bounded size, shared by all processes of a machine.

    <folder>/files/<ab>/<entry>    whole files; an entry's name stands for one version of a file
    <folder>/parts/<entry>         a download under way, locked by its writer
    <folder>/mirrors/<entry>       parts of a large file (mirror.py)
    <folder>/taken                 the bytes that all take, behind a lock

1. A reader that misses an entry opens its part and locks it (flock). Others wait for that lock and
   find the entry there, or a part that its dead owner left unlocked, and take that over.
2. Bytes are reserved before they are written: if they don't fit, entries are evicted, in the order
   of `forecast.py`: what is needed latest, where readers tell what they will need, down to 63/64
   of the limit; otherwise the least recently used, down to 9/10, so that counting is rare.
3. The part is written to the disk (fsync) and renamed: an entry is whole or not there.

An entry can be evicted while it is being read: an open file stays readable until it is closed. Use
is noted by an entry's modification time, to 1 s.

Locks need Linux or macOS, and a file system that knows flock. Cost: 5 us for an entry that is
there; for a new one, 4 ms to write it to the disk; 4 us for every entry in the cache each time that
some are evicted.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path

from penstock.addons.stores import mirror
from penstock.addons.stores.forecast import kept, promise_times, read_forecasts, victims
from penstock.addons.stores.mirror import Mirror, MirrorClaim, is_at
from penstock.addons.stores.request_gate import locked, locked_if_free, unusable
from penstock.errors import DataError

_TIMEOUT = 300.0  # seconds to wait for other downloads to end
_FRESH = 1.0  # seconds in which a use is not noted again
_RECOUNT = 86400.0  # seconds after which the bytes taken are counted anew
_STEP = 8 * 2**20  # bytes that a download of unknown size asks for at a time
_MIRRORS = 128  # that one process has open

Download = Callable[["PartialFile"], None]

# Held by a thread while it makes many short system calls, each of which lets go of Python's lock:
# with thirty threads in there, switching between them took a third of the CPU time of a download.
_turn = threading.RLock()


def _forget_turn() -> None:
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_forget_turn)  # its thread is not in the child


class FullError(Exception):
    """There is no room now for a file that is fetched ahead."""


class FileCache:
    """The folder.

    Args:
        folder: made when the first file comes.
        limit: bytes of all files, those under way included.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._ledger = f"{folder}/taken"
        self._files = str(folder / "files")
        self._checked: dict[tuple[str, ...], tuple[str, tuple[int, ...]]] = {}
        self._mirrors: dict[str, Mirror] = {}

    def __getstate__(self) -> dict[str, object]:
        state = {**vars(self), "_mirrors": {}}
        state.pop("has_mirrors", None)  # another machine has another disk
        return state

    @cached_property
    def has_mirrors(self) -> bool:
        """Whether it may have mirrors."""
        return mirror.are_possible(self.folder)

    def mirror(self, entry: str, size: int) -> Mirror:
        """The mirror of a file of so many bytes."""
        found = self._mirrors.get(entry)
        if found is None:
            if len(self._mirrors) >= _MIRRORS:
                self._mirrors = {}
            found = self._mirrors[entry] = Mirror(self, entry, size)
        return found

    def ledger(self) -> AbstractContextManager[int]:
        """The lock behind which files are evicted."""
        return locked(self._ledger)

    def reserved(self, claim: MirrorClaim, more: int) -> bool:
        """Reserve bytes for parts of a mirror, if there is free room for them."""
        return self._taken([(claim, more)], evicts=False)

    def find(self, entry: str, size: int | None) -> Path | None:
        """The file of an entry, noted as used; None if it is not there with `size` bytes."""
        path = self._path(entry)
        return Path(path) if self._is_there(path, size) else None

    def _is_there(self, path: str, size: int | None) -> bool:
        try:
            state = os.lstat(path)
            if size is not None and state.st_size != size:  # torn by a power failure
                return False
            if time.time() - state.st_mtime > _FRESH:
                os.utime(path, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except PermissionError:  # on a read-only disk, it is not noted as used
            pass
        return True

    def _path(self, entry: str) -> str:
        return f"{self._files}/{entry[:2]}/{entry}"

    def promise(self, path: Path | str) -> None:
        """Note that a file will be used soon."""
        with suppress(FileNotFoundError, PermissionError):
            os.utime(path, promise_times(), follow_symlinks=False)

    def is_promised(self, entry: str) -> bool:
        """Whether a file is there that was fetched ahead and not opened since; 5 us."""
        try:
            state = os.lstat(self._path(entry))
        except OSError:
            return False
        return not bool(kept([entry], [state.st_mtime]).is_read[0])

    def get(
        self, entry: str, size: int | None, download: Download, beyond: int | None = None
    ) -> Path:
        """The file of an entry; when it is not there, `download(part)` writes it, once.

        Args:
            entry: a file name of letters, digits, "-", "_" and ".", 2 or more.
            size: in bytes, when it is known.
            beyond: it is fetched ahead, to be used in so many rows: what is needed earlier stays.

        Raises:
            DataError: the folder cannot be written, or is too small.
            FullError: with `beyond`, there is no room for it now.
        """
        try:
            while True:
                for waits in (False, True):
                    with ExitStack() as claim:
                        with nullcontext() if waits else _turn:
                            path = self.find(entry, size)
                            if path is not None:
                                return path
                            part = claim.enter_context(self._claim(entry, size, waits))
                        if part is not None:
                            part.beyond = beyond
                            self.take(part, size or 0)
                            download(part)
                            part.finish()
                            (path,) = self.commit({entry: part})
                            with _turn:
                                claim.close()
                            return path
        except OSError as error:
            raise unusable(self.folder, error) from error

    @contextmanager
    def claimed(
        self, wanted: Sequence[tuple[str, int, int]]
    ) -> Iterator[dict[str, PartialFile | None]]:
        """Several entries that are fetched ahead together: a file to fill and commit for each.

        None for one that has no room now. Those that are there, or that others are fetching, are
        left out.

        Args:
            wanted: an entry, its bytes and in how many rows it will be used, see `get`.
        """
        claims: dict[str, PartialFile | None] = {}
        stack = ExitStack()
        try:
            with _turn:
                for entry, size, beyond in wanted:
                    path = self._path(entry)
                    if self._is_there(path, size):
                        self.promise(path)
                        continue
                    part = stack.enter_context(self._claim(entry, size, waits=False))
                    if part is None:
                        continue
                    part.beyond = beyond
                    claims[entry] = part
                self._take_together(claims, {entry: size for entry, size, _ in wanted})
            yield claims
        finally:
            with _turn:
                stack.close()

    def _take_together(
        self, claims: dict[str, PartialFile | None], sizes: Mapping[str, int]
    ) -> None:
        """Reserve the bytes of several parts; None stands for those that have no room now."""
        parts = [(part, sizes[entry]) for entry, part in claims.items() if part is not None]
        if not parts or self._taken(parts, evicts=False):
            return
        for entry, part in claims.items():
            if part is not None and not self._taken([(part, sizes[entry])]):
                claims[entry] = None

    def flush(self, filled: Mapping[str, PartialFile]) -> None:
        """Write parts to the disk that are filled."""
        for part in filled.values():
            part.finish()

    def commit(self, filled: Mapping[str, PartialFile]) -> list[Path]:
        """Make finished parts the files of their entries."""
        with _turn:  # once for all of a request: handing it on takes longer than the work
            return [
                part.commit(f"{self.own('files', entry[:2])}/{entry}")
                for entry, part in filled.items()
            ]

    def take(self, part: PartialFile, more: int) -> None:
        """Reserve `more` bytes for a part: entries are evicted, other downloads are waited for."""
        if part.reserved + more > self.limit:
            raise DataError(
                f"a file of {_shown(part.reserved + more)} does not fit into the cache "
                f"{str(self.folder)!r} of {_shown(self.limit)}. Raise files.cache_size."
            )
        deadline = time.monotonic() + _TIMEOUT
        while not self._taken([(part, more)]):
            if part.beyond is not None:
                raise FullError
            if time.monotonic() > deadline:
                raise DataError(
                    f"the cache {str(self.folder)!r} ({_shown(self.limit)}) is full of downloads "
                    "under way. Raise files.cache_size, or use fewer workers."
                )
            time.sleep(0.02)

    def give_back(self, amount: int) -> None:
        """Release `amount` reserved bytes."""
        with _turn, locked(self._ledger) as ledger:
            taken, counted = _read_ledger(ledger)
            _write_ledger(ledger, max(0, taken - amount), counted)

    def is_filling(self) -> bool:
        """Whether more than half of it is taken; 20 us."""
        with suppress(OSError), open(self._ledger, "rb") as ledger:
            return 2 * _read_ledger(ledger.fileno())[0] > self.limit
        return False

    def _taken(
        self, parts: Sequence[tuple[PartialFile | MirrorClaim, int]], evicts: bool = True
    ) -> bool:
        """Reserve more bytes for each of some parts, if there is room for all.

        Args:
            evicts: else there is no room where entries would have to be evicted.
        """
        more = sum(size for _, size in parts)
        if more > self.limit:
            return False
        with _turn, locked(self._ledger) as ledger:
            taken, counted = _read_ledger(ledger)
            now = time.time() // 1  # never before a time that was rounded up
            if not 0 <= now - counted < _RECOUNT:
                taken, counted = self._counted()[0], now
            if taken + more > self.limit and evicts:
                taken, counted = self._make_room(more, parts[0][0].beyond), now
            fits = taken + more <= self.limit
            if fits:
                for part, size in parts:
                    part.grow(size)  # under the lock: whoever counts next sees it
                taken += more
            _write_ledger(ledger, taken, counted)
            return fits

    def _counted(self) -> tuple[int, list[tuple[os.DirEntry[str], float, int]]]:
        """The bytes of all, and the entries with their last uses and bytes."""
        total = self._sweep_parts()
        entries: list[tuple[os.DirEntry[str], float, int]] = []
        for folder in _scan(self.folder / "files"):
            for entry in _scan(folder.path):
                with suppress(FileNotFoundError):
                    state = entry.stat(follow_symlinks=False)
                    entries.append((entry, state.st_mtime, state.st_size))
        for entry in _scan(self.folder / "mirrors"):
            with suppress(FileNotFoundError):
                used = entry.stat(follow_symlinks=False).st_mtime
                entries.append((entry, used, mirror.size_of(entry.path)))
        return total + sum(size for _, _, size in entries), entries

    def _make_room(self, more: int, beyond: int | None) -> int:
        """Evict entries until `more` bytes fit; the bytes that remain."""
        total, entries = self._counted()
        if total + more <= self.limit:
            return total
        readers = read_forecasts(self.folder)
        margin = self.limit // (64 if readers else 10)
        goal = max(0, self.limit - margin - more)
        files = kept([entry.name for entry, _, _ in entries], [used for _, used, _ in entries])
        for number in victims(files, readers, time.time(), beyond).tolist():
            if total <= goal:
                break
            entry, _, size = entries[number]
            with suppress(FileNotFoundError):
                Path(entry.path).unlink()
            total -= size
        return total

    def _sweep_parts(self) -> int:
        """Remove the parts whose owners are dead; the bytes reserved for the others."""
        total = 0
        for entry in _scan(self.folder / "parts"):
            with suppress(FileNotFoundError):
                descriptor = os.open(entry.path, os.O_RDWR)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if is_at(descriptor, entry.path):
                        Path(entry.path).unlink()
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                except BlockingIOError:
                    total += os.fstat(descriptor).st_size
                finally:
                    os.close(descriptor)
        return total

    @contextmanager
    def _claim(self, entry: str, size: int | None, waits: bool) -> Iterator[PartialFile | None]:
        """The part of an entry, locked; None if the entry is to be looked for again.

        That is when another process has finished it, or has removed the file whose lock we awaited;
        or has that lock, unless `waits`.
        """
        path = f"{self.own('parts')}/{entry}"
        with locked(path) if waits else locked_if_free(path) as descriptor:
            if descriptor is None or not is_at(descriptor, path):
                yield None
                return
            part = PartialFile(self, path, descriptor)
            try:
                yield None if self._is_there(self._path(entry), size) else part
            finally:
                part.discard()

    def own(self, *names: str) -> str:
        """A folder of the cache, made for this user alone; refused where it is not their own.

        The whole way to it is looked at once, and again if another folder is there; 3 us and 23.
        """
        known, state = self._checked.get(names, ("", ()))
        with suppress(OSError):
            if state and _identity(os.lstat(known)) == state:
                return known
        path = self.folder.joinpath(*names)
        path.mkdir(parents=True, exist_ok=True)
        self._checked[names] = str(path), _identity(path.lstat())
        return str(path)


class PartialFile:
    """A download under way.

    Attributes:
        reserved: bytes that are reserved for it.
        written: bytes so far; set to 0 to write it anew.
        beyond: None unless it is fetched ahead, see `FileCache.get`.
    """

    def __init__(self, cache: FileCache, path: str, descriptor: int) -> None:
        self._cache = cache
        self._path = path
        self._descriptor = descriptor
        self.reserved = 0
        self.written = 0
        self.beyond: int | None = None
        os.ftruncate(descriptor, 0)  # what a dead owner has left

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append `data`.

        Raises:
            UnreachableError: it cannot be written. Not an OSError, which would be the store's.
        """
        end = self.written + len(data)
        try:
            if end > self.reserved:
                room = self._cache.limit - self.reserved
                self._cache.take(self, max(end - self.reserved, min(_STEP, room)))
            view = memoryview(data)
            while view:
                view = view[os.pwrite(self._descriptor, view, end - len(view)) :]
        except OSError as error:
            raise unusable(self._cache.folder, error) from error
        self.written = end

    def grow(self, more: int) -> None:
        """Note reserved bytes; the file's size, without blocks on the disk, shows it to others."""
        os.ftruncate(self._descriptor, self.reserved + more)
        self.reserved += more

    def finish(self) -> None:
        """Write all of it to the disk."""
        if self.reserved > self.written:
            os.ftruncate(self._descriptor, self.written)
            self._cache.give_back(self.reserved - self.written)
        os.fsync(self._descriptor)

    def commit(self, target: str) -> Path:
        """Make the part the whole file `target`."""
        os.utime(self._descriptor, None if self.beyond is None else promise_times())
        Path(self._path).rename(target)
        self.reserved = 0
        return Path(target)

    def discard(self) -> None:
        """Remove what was not committed."""
        if is_at(self._descriptor, self._path):
            Path(self._path).unlink()
        if self.reserved:
            self._cache.give_back(self.reserved)


def _read_ledger(descriptor: int) -> tuple[int, float]:
    """Bytes of files and reservations, and when they were last counted.

    Killed processes leave the bytes too high, so they have to be counted anew now and then.
    """
    try:
        taken, counted = os.pread(descriptor, 64, 0).split()
        return max(int(taken), 0), float(counted)
    except ValueError:
        return 0, 0.0


def _write_ledger(descriptor: int, taken: int, counted: float) -> None:
    os.pwrite(descriptor, f"{taken:020d} {counted:020.1f}\n".encode(), 0)


def _identity(state: os.stat_result) -> tuple[int, ...]:
    return state.st_dev, state.st_ino, state.st_mode, state.st_uid


def _scan(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _shown(size: int) -> str:
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} bytes"
