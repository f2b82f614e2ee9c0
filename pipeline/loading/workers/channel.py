"""Messages between two processes that survive the death of either.

    send(sock, pack(thing))         a thing and the memory of its tensors, as file descriptors
    Receiver(sock).take()           a message once it is there in full; never waits
    unpack(message)                 the thing; its tensors lie in the sender's memory, uncopied

`multiprocessing.Queue` shares a pipe and locks among all senders: one that is killed in the middle
of a message stops the others, and its reader waits for the rest for ever. For a tensor it sends an
address at which to fetch the descriptor from the sender, who may be dead by then, or stopped. Here
each process has a socket of its own, there are no locks, reading never waits, and a message that
has arrived no longer needs its sender.

Memory for tensors is anonymous (memfd). torch creates a named file in /dev/shm, fills it (3 ms for
20 MB) and unlinks it; a process that is killed in between leaves it there. Small tensors, of labels
or lengths, travel in the message itself: making a file, mapping it twice and passing its descriptor
costs 0.2 ms on both sides together, copying 4 KiB through the socket 0.04 ms.
"""

from __future__ import annotations

import array
import errno
import io
import mmap
import os
import pickle
import socket
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.multiprocessing

from penstock import torch_internals
from penstock.errors import PenstockError

_HEADER = struct.Struct("<QQ")  # bytes of the message, number of descriptors
_AT_ONCE = 200  # descriptors in one call; the kernel takes 253
_ROOM = socket.CMSG_SPACE(_AT_ONCE * array.array("i").itemsize)
_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_HAS_MEMFD = hasattr(os, "memfd_create")
_SMALL = 1 << 16  # bytes up to which copying costs a third of sharing; with 256 KiB, two thirds


class ChannelError(PenstockError):
    """A message could not be received on this machine."""


class Message(NamedTuple):
    """A message to be sent, or one that has arrived.

    Attributes:
        data: the pickled thing.
        descriptors: of its tensors' memory, in the order in which `data` counts them. Of one that
            has arrived, `unpack` or `drop` closes them.
        storages: that own the descriptors of one to be sent, or files.
    """

    data: memoryview
    descriptors: list[int]
    storages: Sequence[Any] = ()

    def drop(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


class _Pickler(ForkingPickler):
    """Pickles tensors by the descriptors of their memory."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.descriptors: list[int] = []
        self.storages: list[torch.UntypedStorage | MappedFile] = []

    def reducer_override(self, thing: Any) -> Any:
        mapped = file_of(thing) if type(thing) is torch.UntypedStorage else None
        if mapped is not None:  # the file itself, once for all its tensors
            file, start = mapped
            if not any(storage is file for storage in self.storages):
                self.descriptors.append(file.descriptor)
                self.storages.append(file)
            number = self.descriptors.index(file.descriptor)
            return _received_part, (number, len(file), start, thing.nbytes())
        if (
            type(thing) is not torch.UntypedStorage
            or torch.multiprocessing.get_sharing_strategy() != "file_descriptor"
            or not (_HAS_MEMFD and thing.device.type == "cpu" and thing.nbytes() > 0)
        ):
            return NotImplemented
        shared: Any = thing
        is_shared = thing.is_shared()
        if thing.nbytes() <= _SMALL and not is_shared:
            array = torch.empty(0, dtype=torch.uint8).set_(shared).numpy()
            return _copied, (bytearray(array),)
        descriptor = torch_internals.descriptor_and_size(shared)[0] if is_shared else -1
        if descriptor < 0:  # private memory, or a mapped file
            shared = new_shared(thing.nbytes()).copy_(thing, non_blocking=False)
            descriptor = torch_internals.descriptor_and_size(shared)[0]
        self.descriptors.append(descriptor)
        self.storages.append(shared)
        return _received, (len(self.descriptors) - 1, thing.nbytes())


def new_shared(size: int) -> torch.UntypedStorage:
    """`size` bytes that another process can map; no file stays behind."""
    descriptor = os.memfd_create("penstock", os.MFD_CLOEXEC)
    try:
        os.truncate(descriptor, size)
        return torch_internals.map_descriptor(descriptor, size)
    finally:
        os.close(descriptor)


def share_anonymously() -> None:
    """Make torch's own shared memory in this process (default_collate's) with `new_shared`.

    Small tensors stay private memory, as `pack` copies them.
    """
    if _HAS_MEMFD:
        torch_internals.share_by(
            lambda size: torch.UntypedStorage(size) if size <= _SMALL else new_shared(size)
        )


_incoming = threading.local()  # descriptors of the message that this thread unpacks


def _copied(data: bytearray) -> torch.UntypedStorage:
    return torch.frombuffer(data, dtype=torch.uint8).untyped_storage()


def _received(number: int, size: int) -> torch.UntypedStorage:
    return torch_internals.map_descriptor(_incoming.descriptors[number], size)


def _received_part(number: int, size: int, start: int, length: int) -> torch.UntypedStorage:
    files: dict[int, MappedFile] = _incoming.files
    if number not in files:
        files[number] = MappedFile(_incoming.descriptors[number], size)
    return files[number].storage(start, length)


def pack(thing: object) -> Message:
    """A message of `thing`; raises pickling's errors."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(thing)
    return Message(file.getbuffer(), pickler.descriptors, pickler.storages)


def framed(thing: object) -> memoryview:
    """The bytes of a message without tensors."""
    data = ForkingPickler.dumps(thing)
    return memoryview(_HEADER.pack(len(data), 0) + bytes(data))


def unpack(message: Message) -> object:
    """The thing that was sent; raises pickling's errors."""
    _incoming.descriptors, _incoming.files = message.descriptors, {}
    try:
        return pickle.loads(message.data)
    finally:
        _incoming.descriptors, _incoming.files = [], {}
        message.drop()


def send(sock: socket.socket, packed: Message) -> None:
    """Send a message; waits while the other side does not read."""
    sock.sendall(_HEADER.pack(len(packed.data), len(packed.descriptors)))
    for start in range(0, len(packed.descriptors), _AT_ONCE):
        _send_descriptors(sock, packed.descriptors[start : start + _AT_ONCE])
    sock.sendall(packed.data)


def _send_descriptors(sock: socket.socket, descriptors: list[int]) -> None:
    while True:
        try:
            socket.send_fds(sock, [b"\0"], descriptors)
            return
        except OSError as error:
            # Too many are in flight for this user; the other side will take some.
            if error.errno != errno.ETOOMANYREFS:
                raise
            time.sleep(0.01)


class Receiver:
    """Assembles messages from the bytes of a socket, of which `arrived` have come so far."""

    def __init__(self, sock: socket.socket) -> None:
        self.arrived = 0
        self._sock = sock
        self._expect_header()

    def _expect_header(self) -> None:
        self._data = bytearray(_HEADER.size)
        self._filled = self._fillers = 0
        self._in_body = False
        self._descriptors: list[int] = []

    def take(self) -> Message | None:
        """The next message if it is there in full.

        Raises:
            EOFError, OSError: the other side is gone.
            ChannelError: this process has too many files open.
        """
        while self._fill():
            if self._in_body:
                message = Message(memoryview(self._data)[self._fillers :], self._descriptors)
                self._expect_header()
                return message
            size, descriptors = _HEADER.unpack(self._data)
            self._fillers = -(-descriptors // _AT_ONCE)  # each call needs a byte to go with
            self._data = bytearray(self._fillers + size)
            self._filled, self._in_body = 0, True
        return None

    def drop(self) -> None:
        """Forget a message that has arrived in part."""
        Message(memoryview(b""), self._descriptors).drop()
        self._expect_header()

    def _fill(self) -> bool:
        while self._filled < len(self._data):
            rest = memoryview(self._data)[self._filled :]
            try:
                size, ancillary, flags, _ = self._sock.recvmsg_into([rest], _ROOM, _FLAGS)
            except BlockingIOError:
                return False
            if not size:
                raise EOFError
            for _, _, data in ancillary:
                numbers = array.array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                self._descriptors += numbers
            if flags & socket.MSG_CTRUNC:
                raise ChannelError(
                    "too many files are open to receive a batch from a worker process: each tensor "
                    "of a batch is one until it is freed. Raise the limit (ulimit -n), or collate "
                    "into fewer tensors"
                )
            self._filled += size
            self.arrived += size
        return True


class MappedFile(mmap.mmap):
    """A file in memory.

    Attributes:
        descriptor: of the file, if it may be sent; else -1. Closed with the mapping.
        address: of its first byte.
    """

    descriptor: int
    address: int

    def __new__(cls, descriptor: int, size: int, sent: bool = False) -> MappedFile:
        """Map `size` bytes, more than none; `sent` keeps the descriptor, else its owner does.

        Raises:
            OSError, ValueError: it is shorter, or cannot be mapped.
        """
        made = super().__new__(cls, descriptor, size, access=mmap.ACCESS_COPY)
        made.descriptor = os.dup(descriptor) if sent else -1
        made.address = np.frombuffer(made, np.uint8).ctypes.data
        if sent:
            weakref.finalize(made, os.close, made.descriptor).atexit = False
            _sent.add(made)
        return made

    def storage(self, start: int, size: int) -> torch.UntypedStorage:
        """A part of it, which keeps it mapped."""
        part = torch.frombuffer(self, dtype=torch.uint8, offset=start, count=size)
        return part.untyped_storage()


_sent: weakref.WeakSet[MappedFile] = weakref.WeakSet()


def file_of(storage: torch.UntypedStorage) -> tuple[MappedFile, int] | None:
    """The file that may be sent instead of `storage`, and the place of its first byte there."""
    start = storage.data_ptr()
    for file in list(_sent):
        if file.address <= start and start + storage.nbytes() <= file.address + len(file):
            return file, start - file.address
    return None
