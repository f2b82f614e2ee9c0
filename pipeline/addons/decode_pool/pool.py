"""One decode for many runs: a batch that another run of this machine has made is taken from it.

A batch is known by its group (the fingerprint of everything that makes batches) and its request.
The first run that needs one makes it and publishes it as a file; the others map that file.

1. It is there: map it.
2. Somebody makes it, and so holds the lock of its part: look again until it is there; take over
   when the lock is free, the other process is stopped, or it takes much longer than batches do.
3. Nobody makes it: lock the part, make the batch, write it, give it its name.

Locks end with their process, and a file has its name only when it is whole, so a process may die at
any moment. Errors are never published: each run finds them itself. Nor are batches with warnings
or with samples that were left out just now, which may be a disk's fault and not the sample's.

Cost: 0.3 ms to take a batch; to publish one that of writing it to memory, 12 ms for 38 MB. A worker
process sends the file that it has written, and saves the copy that it would have sent.

A batch in a file: plain arrays that are mapped where they lie, and a header.

    prefix     a word, the file's size, the number of arrays, the header's length, a checksum
    sizes      of the arrays, uint64 each
    header     what `plain_batch` says of the batch
    arrays     bytes, each from a multiple of 64 on

The checksum covers everything before the arrays, on which all places and types depend. Their own
bytes have none: crc32 of 38 MB takes 7 ms, five times as long as mapping and reading them, and has
nothing to find. A file gets its name when it is whole, and no run reads what it left before a crash
of the machine.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import time
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch.utils.data import get_worker_info

from penstock.addons.decode_pool.folder import Attached, PoolFolder, Position, positions
from penstock.addons.plain_batches.plain_batch import Bytes, Encoded, NotPlainError, decode, encode
from penstock.distributed.presence import state_of
from penstock.errors import DataError
from penstock.files.disk import Hold, is_locked, write
from penstock.files.own_files import NotOwnError
from penstock.files.regular_file import regular_descriptor
from penstock.loading import output_buffers, worker_status
from penstock.loading.batch import TAKEN, Batch
from penstock.loading.workers.channel import MappedFile
from penstock.order.plan import Request
from penstock.order.streams import End

if TYPE_CHECKING:
    from penstock.order.streams import End, StreamRequest

_PARTS = 3  # tries to make a batch at the same time, before one is made without publishing it
# A process that is stopped is not waited for. One that has no core may take several times as long.
_FIRST, _MOST = 20.0, 60.0  # seconds of patience where no batch was seen yet; and at most
_PATIENCE = 4.0  # times the slowest of the last batches
_LOOK = 0.02  # seconds between two looks whether a batch is there, at most
_SIGN = 0.1  # seconds between two signs of life, and two looks whether its maker is there


class DecodePool:
    """Batches that one loader shares with other runs: a `penstock.protocols.Exchange`.

    Args:
        folder: where they lie.
        group: the fingerprint of everything that makes them, 32 hex digits.
        last: the first epoch that the run will not come to; None: not known.
        again: whether it goes through the same epoch again and again.
    """

    def __init__(
        self, folder: PoolFolder, group: str, last: int | None = None, again: bool = False
    ) -> None:
        self.folder, self.group = folder, group
        self._begins_at = Position(group, last=-1 if last is None else last, again=int(again))
        self._eviction = Eviction(folder)
        self._seconds: deque[float] = deque(maxlen=8)  # that batches took to be made
        self._unshared = False  # these batches cannot be
        self._attached: Attached | None = None

    # In the process that consumes.

    def begin(self, epoch: int, step: int, steps: int | None, workers: int) -> None:
        if self._attached is None:
            self._attached = self.folder.attach(self._begins_at)
            # Also where nobody ends this, such as at the end of a notebook.
            weakref.finalize(self, self.folder.leave, self._attached)
        self._attached.begin(epoch, step, steps, workers)

    def move(self, epoch: int, step: int) -> None:
        if self._attached is not None:
            self._attached.move(epoch, step)

    def end(self) -> None:
        attached, self._attached = self._attached, None
        if attached is not None:
            self.folder.leave(attached)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_attached": None}

    # In the executors.

    def batch(
        self, make: Callable[[], Batch | End], request: Request | StreamRequest
    ) -> Batch | End:
        if self._unshared:
            return make()
        began = time.perf_counter()
        path = self.folder.path / self.group / f"{_name(request)}.batch"
        warnings: dict[str, str] = {}
        taken, part = None, None
        try:
            for number in range(_PARTS):
                tried = path.with_suffix(f".{number}.part")
                taken, part = self._waited_for(path, tried, request.address, warnings)
                if taken is not None or part is not None:
                    break
        except (OSError, NotOwnError) as error:
            warnings[TAKEN] = f"batches are not shared (loader.share): {error}"
        if taken is None:
            worker_status.report(worker_status.WHOLE, worker_status.READ)
            result = self._made(make, path, part, warnings)
        elif isinstance(taken, Batch):
            self._seconds.append(sum(taken.timing.values()))
            result = taken.replace(timing={TAKEN: time.perf_counter() - began})
        else:
            result = taken
        if warnings and isinstance(result, Batch):
            result = result.replace(warnings={**warnings, **result.warnings})
        return result

    def _waited_for(
        self, path: Path, tried: Path, address: tuple[int, int], warnings: dict[str, str]
    ) -> tuple[Batch | End | None, _Part | None]:
        """The batch, or its part to be made, or neither if its owner takes too long."""
        began = time.monotonic()
        usual = max(self._seconds, default=_FIRST / _PATIENCE)
        patience, look, signs = min(_PATIENCE * usual, _MOST), min(usual / 8, _LOOK), 0
        while True:
            taken = self._read(path, address, warnings)
            if taken is not None:
                return taken, None
            hold = _lock(tried)
            if hold is not None and hold.is_on(tried) and not path.exists():
                os.pwrite(hold.descriptor, str(os.getpid()).encode(), 0)
                return None, _Part(tried, hold)
            if hold is not None:  # the batch was published since this process looked
                _Part(tried, hold).release()
                continue
            if time.monotonic() - began > patience or (signs and _is_stopped(tried)):
                return None, None
            # So that nobody takes this process to hang.
            signs += 1
            worker_status.report(worker_status.WHOLE - signs % 2, worker_status.SHARED)
            ends = time.monotonic() + _SIGN
            while time.monotonic() < ends and not path.exists():  # which costs less than a lock
                time.sleep(look)

    def _read(
        self, path: Path, address: tuple[int, int], warnings: dict[str, str]
    ) -> Batch | End | None:
        """The batch in a file; None if there is none, or a damaged one, which is removed."""
        try:
            most = self.folder.budget
            return read_batch(path, address, sent=get_worker_info() is not None, most=most)
        except FileNotFoundError:
            return None
        except DamagedError as error:
            warnings["damaged"] = f"a shared batch is made again: {error}"
            path.unlink(missing_ok=True)
            return None

    def _made(
        self,
        make: Callable[[], Batch | End],
        path: Path,
        part: _Part | None,
        warnings: dict[str, str],
    ) -> Batch | End:
        """The batch, made here, and published if there is a `part`."""
        if part is None:
            return make()
        try:
            began = time.perf_counter()
            with output_buffers.own_memory():
                result = make()
            self._seconds.append(time.perf_counter() - began)
            if not _is_clean(result):
                return result
            self._publish(result, path, part)
            if get_worker_info() is not None:  # the file is sent instead of a copy
                return self._read(path, result.request.address, warnings) or result
        except NotPlainError as error:
            self._unshared = True
            warnings[TAKEN] = f"batches cannot be shared (loader.share): {error}"
        except _NoRoomError as error:
            warnings[TAKEN] = f"a batch could not be shared: {error}"
        finally:
            part.release()
        return result

    def _publish(self, result: Batch | End, path: Path, part: _Part) -> None:
        encoded = encode(result)
        size, budget = sum(array.nbytes for array in encoded.arrays), self.folder.budget
        if size > budget // 4:
            self._unshared = True
            raise _NoRoomError(
                f"it has {size >> 20} MiB, and all together may take "
                f"{budget >> 20} MiB; raise loader.share_size"
            )
        try:
            size = write_batch(part.hold.descriptor, encoded)
            part.path.replace(path)
        except OSError as error:
            self._eviction.make_room()
            raise _NoRoomError(
                f"{path.parent} cannot be written: {error.strerror}. Give it more "
                "room, or lower loader.share_size"
            ) from error
        self._eviction.published(size)


class _NoRoomError(Exception):
    """A batch cannot be published; the message says why."""


@dataclass
class _Part:
    """A batch that is being made by this process, which holds the file's lock."""

    path: Path
    hold: Hold

    def release(self) -> None:
        """Let others make it, unless it has its name by now."""
        with suppress(OSError):
            if self.hold.is_on(self.path):
                self.path.unlink()
        self.hold.release()


def _name(request: Request | StreamRequest) -> str:
    """The name of a request's file: address, and a hash of everything in the request."""
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(request, Request):
        total = -1 if request.total is None else request.total
        digest.update(struct.pack("<qqq", len(request), request.valid, total))
        digest.update(request.positions.tobytes() + request.indices.tobytes())
        digest.update(b"" if request.parts is None else request.parts.tobytes())
    else:
        digest.update(struct.pack("<qq", request.rank, request.world))
    return f"{request.epoch}-{request.step}-{digest.hexdigest()}"


def _lock(part: Path) -> Hold | None:
    """The lock of a part, or None if another process has it."""
    try:
        return Hold.take(part, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:
        part.parent.mkdir(mode=0o700, exist_ok=True)
        return Hold.take(part, os.O_RDWR | os.O_CREAT)


def _is_stopped(part: Path) -> bool:
    """Whether the process that makes a part was stopped by a signal."""
    try:
        descriptor, _ = regular_descriptor(part)  # of a pipe, nothing might ever come
    except OSError:
        return False
    try:
        maker = os.pread(descriptor, 16, 0)
    finally:
        os.close(descriptor)
    return maker.isdigit() and state_of(int(maker)) in ("T", "t")


def _is_clean(result: Batch | End) -> bool:
    """Whether any run would have made the same."""
    return not isinstance(result, Batch) or (
        not result.warnings
        and result.trace is None
        and all(sample.known for sample in result.left_out)
    )


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
    total = sum(file.size for file in kept)
    if total <= most:
        return
    for file in sorted(kept):
        with suppress(OSError):
            Path(file.path).unlink(missing_ok=True)
        total -= file.size
        if total <= most:
            return


def _files(folder: Path, runs: list[Position]) -> Iterator[_Kept]:
    more_jobs, now = any(not run.group for run in runs), time.monotonic()
    for group in _entries(folder):
        ours = [run for run in runs if run.group == group.name]
        for file in _entries(group.path):
            try:
                status = file.stat(follow_symlinks=False)
            except OSError:  # gone meanwhile
                continue
            address = _NAME.fullmatch(file.name)
            if address is None:
                if time.time() - status.st_mtime > _ABANDONED and not is_locked(Path(file.path)):
                    yield _Kept((-1.0,), file.path, status.st_size)
                continue
            epoch, step = map(int, address.groups())
            until = min(
                (run.seconds_until(epoch, step, now, more_jobs) for run in ours), default=None
            )
            if until is None:  # no run of this kind is attached: the oldest first
                order: tuple[float, ...] = (0.0, status.st_mtime)
            else:
                order = (1.0, -until, -epoch, -step)
            yield _Kept(order, file.path, status.st_size)


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.endswith(".run")]
    except OSError:  # a file, or gone meanwhile
        return []


_PREFIX = struct.Struct("<8sQII")
_CHECKSUM = struct.Struct("<I")
_HEAD = _PREFIX.size + _CHECKSUM.size
_WORD = b"PENSTSB1"
_LINE = 64  # bytes
_LONGEST = 64 << 20  # bytes before the arrays


class DamagedError(DataError):
    """A file holds no batch; the message says why."""


def write_batch(descriptor: int, encoded: Encoded) -> int:
    """Write a batch over the content of an open file; its size in bytes.

    Raises:
        OSError: there is no space left, for example.
    """
    header, arrays = encoded
    sizes = struct.pack(f"<{len(arrays)}Q", *(array.nbytes for array in arrays))
    at = _HEAD + len(sizes) + len(header)
    *starts, size = _places(at, [array.nbytes for array in arrays])
    prefix = _PREFIX.pack(_WORD, size, len(arrays), len(header))
    check = zlib.crc32(header, zlib.crc32(sizes, zlib.crc32(prefix)))
    parts: list[bytes | memoryview] = [prefix + _CHECKSUM.pack(check) + sizes + header]
    for start, array in zip(starts, arrays, strict=True):
        parts += [bytes(start - at), array.data]
        at = start + array.nbytes
    parts.append(bytes(size - at))
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    write(descriptor, parts)
    return size


def read_batch(path: Path, address: tuple[int, int], sent: bool, most: int) -> Batch | End:
    """The batch in a file, or the end of a stream in its place; its tensors lie in the file.

    Args:
        address: of the batch that it has to be.
        sent: the batch goes to another process.
        most: bytes that the file may have: what is mapped is memory once it is looked at.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        DamagedError: it holds something else.
    """
    descriptor, size = regular_descriptor(path)
    try:
        if size > most:
            raise ValueError(f"it has {size} bytes, and all batches together may have {most}")
        result = decode(*_mapped(descriptor, size, sent))
    except (DataError, ValueError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from error
    finally:
        os.close(descriptor)
    if not isinstance(result, (Batch, End)) or result.request.address != address:
        raise DamagedError(f"{path} is damaged: it is not batch {address}")
    return result


def _mapped(descriptor: int, size: int, sent: bool) -> tuple[bytes, list[Bytes]]:
    """The header, and the arrays in memory."""
    start = os.pread(descriptor, _HEAD, 0)
    if len(start) < _HEAD or not start.startswith(_WORD):
        raise ValueError("it does not begin as a batch does")
    _, total, count, long = _PREFIX.unpack(start[: _PREFIX.size])
    end = _HEAD + 8 * count + long
    if total != size or end > min(size, _LONGEST):
        raise ValueError(f"it has {size} bytes, and should have {max(total, end)}")
    rest = os.pread(descriptor, end - _HEAD, _HEAD)
    check = zlib.crc32(rest, zlib.crc32(start[: _PREFIX.size]))
    if len(rest) < end - _HEAD or _CHECKSUM.unpack(start[_PREFIX.size :]) != (check,):
        raise ValueError("its checksum differs")
    sizes = struct.unpack(f"<{count}Q", rest[: 8 * count])
    *starts, stop = _places(end, sizes)
    if stop != size:
        raise ValueError("its arrays do not fill it")
    file = MappedFile(descriptor, size, sent)
    arrays = [
        np.frombuffer(file, np.uint8, length, start)
        for start, length in zip(starts, sizes, strict=True)
    ]
    return rest[8 * count :], arrays


def _places(head: int, sizes: Sequence[int]) -> list[int]:
    """Where each array begins, and the size of the file."""
    places = [-(-head // _LINE) * _LINE]
    for size in sizes:
        places.append(-(-(places[-1] + size) // _LINE) * _LINE)
    return places
