"""Messages between processes of this machine, each there whole or not at all.

    packet    a number, the size of the pickle and where it begins; then the pickle itself if it is
              small, else the descriptor of a file
    file      anonymous memory: large tensors, each on pages of its own, and the pickle

`multiprocessing.Queue` shares a pipe and locks among its senders: one that is killed in the middle
of a message stops the others, and its reader waits for the rest for ever. A packet of a socket has
no middle, and a file no sender who has to live. Several processes may read from one end: each
packet goes to one of them.

Small tensors travel as copies: mapping one costs 0.1 ms, copying 4 KiB 1 us, and who keeps the
labels of all batches does not keep their pictures.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import pickle
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # tells ForkingPickler of tensors

_HEADER, _FILE = struct.Struct("<QQQ"), struct.Struct("i")
_ROOM = socket.CMSG_SPACE(_FILE.size)
# Bytes up to which a tensor is copied, which costs less than mapping it, and a pickle goes into the
# packet. The kernel keeps some 200 KiB of packets; a sender of more waits for the reader.
_SMALL = 1 << 16
_KIND = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM
_here = threading.local()  # the file of the message that this thread reads


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a socket that keeps packets apart."""
    return socket.socketpair(socket.AF_UNIX, _KIND)


def anonymous_file() -> int:
    """The descriptor of a file without a name, of which nothing stays behind."""
    # Linux; the kernel takes the memory back with the last descriptor, also after a SIGKILL.
    if hasattr(os, "memfd_create"):
        return os.memfd_create("penstock", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Arena:
    """The file of the next message. Tensors whose memory is allocated here need not be copied.

    Attributes:
        file: its descriptor; -1: it has none yet.
    """

    def __init__(self) -> None:
        self.file, self._end = -1, 0
        # By address, with its offset; they are kept, so that no other memory has that address.
        self._parts: dict[int, tuple[int, torch.UntypedStorage]] = {}

    def allocate(self, size: int) -> torch.UntypedStorage:
        """CPU memory of `size` bytes; it is private where it would be copied anyway."""
        if size <= _SMALL:
            return torch.UntypedStorage(size)
        if self.file < 0:
            self.file = anonymous_file()
        start = self._end
        # A mapping begins at a page.
        self._end += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        os.truncate(self.file, self._end)
        part = _mapped(self.file, start, size)
        self._parts[part.data_ptr()] = start, part
        return part

    def place(self, storage: torch.UntypedStorage) -> int:
        """The offset of its bytes in the file, into which they are copied if need be."""
        if storage.data_ptr() not in self._parts:
            storage = self.allocate(storage.nbytes()).copy_(storage, False)
        return self._parts[storage.data_ptr()][0]

    def clear(self) -> None:
        """Begin another message."""
        if self.file >= 0:
            os.close(self.file)
        self.file, self._end, self._parts = -1, 0, {}


class _Pickler(ForkingPickler):
    def __init__(self, file: io.BytesIO, arena: Arena) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._arena = arena

    def reducer_override(self, thing: Any) -> Any:
        # Tensors are pickled as views of their storage, so two of one storage share it afterwards,
        # too.
        is_memory = type(thing) is torch.UntypedStorage and thing.device.type == "cpu"
        if not is_memory or not thing.nbytes():
            return NotImplemented
        if thing.nbytes() > _SMALL:
            return _part, (self._arena.place(thing), thing.nbytes())
        return _copied, (bytearray(torch.empty(0, dtype=torch.uint8).set_(thing).numpy()),)


def _copied(data: bytearray | memoryview) -> torch.UntypedStorage:
    return torch.frombuffer(data, dtype=torch.uint8).untyped_storage()


def _part(start: int, size: int) -> torch.UntypedStorage:
    return _mapped(_here.file, start, size)


def _mapped(file: int, start: int, size: int) -> torch.UntypedStorage:
    memory = mmap.mmap(file, size, offset=start)
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()


def send(sock: socket.socket, number: int, thing: object, arena: Arena | None = None) -> None:
    """Send a thing with a number; raises pickling's errors, and BlockingIOError if it must wait."""
    arena = arena or Arena()
    try:
        pickled = io.BytesIO()
        _Pickler(pickled, arena).dump(thing)
        data, start = pickled.getbuffer(), 0
        size = len(data)
        if size > _SMALL:
            # A packet holds some 200 KiB, and the rest of a large one would block the sender.
            start, data = arena.place(_copied(data)), data[:0]
        files = [] if arena.file < 0 else [arena.file]
        socket.send_fds(sock, [_HEADER.pack(number, size, start), data], files)
    finally:
        arena.clear()


def receive(sock: socket.socket, flags: int = 0) -> tuple[int, Callable[[], Any]]:
    """The number of the next message, and a function that gives its thing, to be called once.

    Raises:
        EOFError: the other end has closed.
        BlockingIOError: there is none now, and `flags` has MSG_DONTWAIT.
    """
    packet, ancillary, cut, _ = sock.recvmsg(_HEADER.size + _SMALL, _ROOM, flags)
    if not packet:
        raise EOFError
    number, size, start = _HEADER.unpack_from(packet)
    files = [_FILE.unpack_from(data)[0] for _, _, data in ancillary]
    # No free descriptor in this process: the kernel drops the file and delivers the rest.
    is_cut = bool(cut & socket.MSG_CTRUNC)
    return number, partial(_load, packet[_HEADER.size :], size, start, files, is_cut)


def _load(data: bytes, size: int, start: int, files: list[int], is_cut: bool) -> Any:
    try:
        if is_cut:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        _here.file = files[0] if files else -1
        if data:
            return pickle.loads(data)
        with mmap.mmap(_here.file, size, offset=start) as pickled:
            return pickle.loads(pickled)
    finally:
        for file in files:
            os.close(file)
