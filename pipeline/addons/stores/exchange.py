"""Many GETs at a time by one thread: sockets that do not block, over connections that stay open.

With a thread for each request, most of the CPU time went to handing on Python's lock: 0.27 ms a GET
of 78 kB, and 0.06 here (0.37 and 0.15 signed). The only other threads
are those that make connections.

It gives the answers that are as they should be. Whatever else comes is an error, after which the
caller asks again as `direct.py` does, which tells what is wrong and knows what to do.
"""

from __future__ import annotations

import re
import selectors
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from penstock.addons.stores.direct import DirectClient, Request, UnusualError, host_of
from penstock.addons.stores.retry import Damaged

_HEAD = 1 << 14  # bytes of an answer's headers
_IDLE = 64  # connections of a host that are kept
_LOOK = 1.0  # seconds between two looks at what is overdue
_STATUS = re.compile(r"HTTP/1\.([01]) (\d{3})(?: .*)?")
_SENDABLE = re.compile(r"[!-~]+")
_PORTS = {"http": 80, "https": 443}


class Arrived(NamedTuple):
    """An answer.

    Attributes:
        body: bytes.
        size: of the whole file.
        headers: their names in small letters.
    """

    body: memoryview
    size: int
    headers: dict[str, str]


Done = Callable[[Arrived | Exception], None]


class _Pending:
    """A request that waits for its answer.

    Attributes:
        buffer: holds the answer's head and body.
        end: of the body; None until the head is there.
    """

    def __init__(self, client: DirectClient, request: Request, most: int, done: Done) -> None:
        self.client, self.request, self.most, self.done = client, request, most, done
        self.buffer = bytearray()
        self.have = self.start = 0
        self.end: int | None = None
        self.size = 0
        self.headers: dict[str, str] = {}
        self.stays = True  # whether the connection may be used again


class _Connection:
    def __init__(self, link: socket.socket) -> None:
        self.socket = link
        self.pending: _Pending | None = None
        self.is_fresh = True
        self.heard = time.monotonic()


class Exchange:
    """The requests of one thread.

    Args:
        timeout: seconds of silence.
        pool: makes connections.
    """

    def __init__(self, timeout: float, pool: Executor) -> None:
        self._timeout, self._pool = timeout, pool
        self._selector = selectors.DefaultSelector()
        self._idle: dict[tuple[str, str], list[_Connection]] = {}
        self._busy: set[_Connection] = set()
        self._made: deque[tuple[_Pending, Future[socket.socket]]] = deque()
        self._bell, self._rings = socket.socketpair()
        self._bell.setblocking(False)
        self._rings.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._looks = 0.0

    def fileno(self) -> int:
        """Readable when `work` has something to do."""
        return self._selector.fileno()

    def ring(self) -> None:
        """Make it readable, from another thread."""
        with suppress(OSError):  # it rings already
            self._rings.send(b"\0")

    def close(self) -> None:
        """Close all connections; what is under way gets no answer."""
        links = [key.fileobj for key in self._selector.get_map().values()]
        self._selector.close()
        for link in [*links, self._rings]:
            link.close()  # type: ignore[union-attr]

    def ask(self, client: DirectClient, request: Request, most: int, done: Done) -> None:
        """Send a request for `most` bytes; `work` calls `done` with its answer or an error.

        Args:
            client: knows which answers are usual.
        """
        self._ask(_Pending(client, request, most, done))

    def work(self) -> None:
        """Read what has come."""
        while self._made:
            pending, made = self._made.popleft()
            try:
                connection = _Connection(made.result())
            except Exception as error:
                pending.done(error)
                continue
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
            self._send(connection, pending)
        for key, _ in self._selector.select(0):
            if key.data is None:
                with suppress(BlockingIOError):
                    self._bell.recv(1 << 12)
            else:
                self._receive(key.data)
        now = time.monotonic()
        if now >= self._looks:
            self._looks = now + _LOOK
            for connection in [each for each in self._busy if now - each.heard > self._timeout]:
                self._fail(connection, TimeoutError())

    def _ask(self, pending: _Pending) -> None:
        request = pending.request
        idle = self._idle.get((request.scheme, request.netloc))
        if idle:
            self._send(idle.pop(), pending)
            return
        future = self._pool.submit(_connected, pending.client, request, self._timeout)
        future.add_done_callback(partial(self._note, pending))

    def _note(self, pending: _Pending, made: Future[socket.socket]) -> None:
        self._made.append((pending, made))
        self.ring()

    def _send(self, connection: _Connection, pending: _Pending) -> None:
        connection.pending, connection.heard = pending, time.monotonic()
        self._busy.add(connection)
        try:
            head = _head(pending.request)
            if connection.socket.send(head) != len(head):
                raise BrokenPipeError
        except Exception as error:
            self._fail(connection, error)

    def _receive(self, connection: _Connection) -> None:
        pending = connection.pending
        if pending is None:  # its server closes it, or says what nobody asked
            self._close(connection)
            return
        try:
            if not pending.buffer:
                pending.buffer = bytearray(_HEAD + pending.most)
            view = memoryview(pending.buffer)
            while True:  # once; TLS keeps back what it has read until nothing is left
                count = connection.socket.recv_into(view[pending.have :])
                if not count:
                    raise Damaged(f"received {pending.have} bytes")
                pending.have += count
                if pending.end is None:
                    _read_head(pending)
                if pending.end is not None and pending.have >= pending.end:
                    break
                if not isinstance(connection.socket, ssl.SSLSocket):
                    break
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except Exception as error:
            self._fail(connection, error)
            return
        connection.heard = time.monotonic()
        if pending.end is None or pending.have < pending.end:
            return
        self._release(connection, pending)
        body = view[pending.start : pending.end]
        pending.done(Arrived(body, pending.size, pending.headers))

    def _release(self, connection: _Connection, pending: _Pending) -> None:
        """Keep a connection whose answer is there."""
        host = pending.request.scheme, pending.request.netloc
        idle = self._idle.setdefault(host, [])
        if pending.stays and pending.have == pending.end and len(idle) < _IDLE:
            connection.pending, connection.is_fresh = None, False
            self._busy.discard(connection)
            idle.append(connection)
        else:
            self._close(connection)

    def _fail(self, connection: _Connection, error: Exception) -> None:
        pending = connection.pending
        assert pending is not None
        self._close(connection)
        if not connection.is_fresh and not pending.have and not isinstance(error, TimeoutError):
            pending.buffer = bytearray()  # the server has closed what was idle
            self._ask(pending)
        else:
            pending.done(error)

    def _close(self, connection: _Connection) -> None:
        self._busy.discard(connection)
        for idle in self._idle.values():
            if connection in idle:
                idle.remove(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()


def _connected(client: DirectClient, request: Request, timeout: float) -> socket.socket:
    """A connection that does not block, made by waiting."""
    host, port = _host(request)
    link = socket.create_connection((host, port), timeout=timeout)
    try:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if request.scheme == "https":
            link = client.context.wrap_socket(link, server_hostname=host)
        link.setblocking(False)
    except BaseException:
        link.close()
        raise
    return link


def _host(request: Request) -> tuple[str, int]:
    """Host and port.

    Raises:
        UnusualError: the address has a user, or a name that has to be encoded.
    """
    match = re.fullmatch(
        r"\[([0-9A-Fa-f:.]+)\](?::(\d+))?|([A-Za-z0-9._-]+)(?::(\d+))?", request.netloc
    )
    if match is None:
        raise UnusualError("an unusual host")
    return match[1] or match[3], int(match[2] or match[4] or _PORTS[request.scheme])


def _head(request: Request) -> bytes:
    """The bytes that are sent.

    Raises:
        UnusualError: it cannot be sent as it is.
    """
    host = host_of(request.scheme, request.netloc)
    if not _SENDABLE.fullmatch(request.target):
        raise UnusualError("an unusual address")
    lines = [f"{request.method} {request.target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {text}" for name, text in request.headers.items() if name.lower() != "host"]
    if any("\r" in line or "\n" in line for line in lines):
        raise UnusualError("an unusual header")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _read_head(pending: _Pending) -> None:
    """Note what an answer's head says, once it is there.

    Raises:
        UnusualError, StatusError, FileNotFoundError: as `DirectClient.get`.
        Damaged: it is no such head.
    """
    end = pending.buffer.find(b"\r\n\r\n", 0, pending.have)
    if end < 0:
        if pending.have >= _HEAD:
            raise UnusualError("headers of more than 16 KiB")
        return
    first, *lines = pending.buffer[:end].decode("latin-1").split("\r\n")
    status = _STATUS.fullmatch(first)
    if status is None:
        raise Damaged("an answer that is not HTTP")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, text = line.partition(":")
        name = name.lower()
        if not colon or name != name.strip() or (name in headers and name.startswith("content-")):
            raise UnusualError("an unusual header")
        headers[name] = text.strip()
    if "transfer-encoding" in headers:
        raise UnusualError("a body of unknown length")
    size, pending.size = pending.client.sizes(
        pending.request, int(status[2]), headers, pending.most
    )
    pending.headers = headers
    pending.start, pending.end = end + 4, end + 4 + size
    if pending.end > len(pending.buffer):
        raise UnusualError("headers of more than 16 KiB")
    pending.stays = status[1] == "1" and headers.get("connection", "").lower() != "close"
