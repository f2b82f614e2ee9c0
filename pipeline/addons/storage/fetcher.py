"""The process that alone talks to stores: one for each rank, shared by its workers.

    python -m penstock.addons.storage.fetcher SOCKET OPTIONS    ends with its standard input

Clients connect to its socket, which only its user may, and send one request after the other: the
name of a method of `Fetcher` with its arguments. The answer is its result, or an error to raise.

A thread for each client reads its requests, and all else is done by one thread, so a semaphore is a
number, "who fetches this block" is a dict, and nothing needs a lock. What a reader waits for goes
first, then what is wanted, in its order; neighbours are one request of up to 2 MiB. When the cache
or its disk is full, only what is needed of a block is fetched; it stays in memory until newer
pieces need the room.

obstore does the requests, and tries again what may pass. It must not be used in a process that
forks, as those with workers do: its threads are gone in the child, which hangs. Neither torch nor
numpy is imported: it starts with 0.1 s of CPU. Cost: 0.3 ms of CPU a request.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from select import select
from typing import Any, TypeVar
from urllib.parse import unquote

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from penstock.addons.storage.blocks import BLOCK, BlockCache, Object
from penstock.errors import ConfigError, DataError, Problem, UnreachableError

MOST = 2 << 20  # bytes of one request
_URGENT = 1 << 20  # of one that a reader waits for: what it brings along must not hold it up
# Bytes of memory for what the cache does not admit, beside `ahead`: of streams, too, whose records
# are shuffled after their headers were read.
_LEAST = 256 << 20
# Expired keys are an error 400 in S3, so denials are looked for first.
_DENIALS = "ExpiredToken|status code: 40[13]"
_CREDENTIALS = (
    "The store looks for credentials by its own means: for s3 the environment or ~/.aws, for gs "
    "`gcloud auth application-default login`, for az the environment. Public data: "
    "+files.options.anon=true."
)
# What an error says that no further attempt mends, and what to do then.
_FOR_GOOD = {
    _DENIALS: f"The credentials found here do not allow it. {_CREDENTIALS}",
    "status code: 404": "It is missing in its store; if it was removed, start again.",
    "not supported|non-partial": (
        "Parts of it are needed, and its server sends only whole files. Copy the data to a folder "
        "of this machine, or to a server that answers Range requests."
    ),
    "status code: 4(?!08|25|29)": "Check the address and files.options.",
}
_log = logging.getLogger(__name__)

T = TypeVar("T")
Piece = tuple[str, int, int]  # entry of an object, and where a block or a part of one lies in it


def parse(address: str) -> tuple[str, str, str]:
    """The scheme, the bucket (or host) and the path of an address."""
    scheme, _, rest = address.partition("://")
    bucket, _, path = rest.partition("/")
    # Names in buckets may have any characters.
    return scheme, bucket, (unquote(path) if scheme.startswith("http") else path).strip("/")


def version_of(address: str, meta: Mapping[str, Any]) -> str:
    """The version of a file by what its store says of it; empty where it says nothing."""
    tag = (meta["e_tag"] or "").removeprefix("W/").strip('"')
    if address.startswith("http"):
        # Of several servers that give the same file, each may have a tag of its own for it.
        modified = int(meta["last_modified"].timestamp())
        return str(modified) if modified > 0 else tag
    return f"md5:{tag}" if re.fullmatch("[0-9a-f]{32}", tag) else tag


class Fetcher:
    """What clients are served by.

    Args:
        options: `folder` and `limit` of the cache, and of `Files` its `options`, `retries`,
            `first_wait`, `timeout`, `concurrency` and `ahead`.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self.cache = BlockCache(Path(options["folder"]), options["limit"])
        self._stores: dict[tuple[str, str], Any] = {}
        self._slots = asyncio.Semaphore(options["concurrency"])
        self._due: dict[Piece, asyncio.Future[memoryview]] = {}  # all that are to come
        # Those of them that no request brings yet; whether somebody only wants them ahead.
        self._queued: dict[Piece, bool] = {}
        self._starting: dict[tuple[str, int], Piece] = {}  # the last of them that begins there
        # In the order of requests: whether it is only wanted, since when, and its first piece.
        self._queue: asyncio.PriorityQueue[tuple[bool, float, Object, Piece]] = (
            asyncio.PriorityQueue()
        )
        self._memory: dict[Piece, bytes] = {}  # what the cache does not admit, the oldest first
        self._room = options["ahead"] + _LEAST  # bytes that are left for it
        self._served: dict[str, str] = {}  # what a web server says of a file in a folder's index
        self._loop = asyncio.get_running_loop()
        self.tasks = [self._loop.create_task(self._work()) for _ in range(options["concurrency"])]

    # --- Stores

    def _opened(self, scheme: str, bucket: str) -> Any:
        """A store; credentials, region and endpoint are looked for when it is first needed."""
        more, silence = {**self._options["options"]}, timedelta(seconds=self._options["timeout"])
        endpoint, profile = more.pop("endpoint_url", None), more.pop("profile", None)
        if more.pop("anon", False):
            more["skip_signature"] = True
        more |= {
            "client_options": {
                "timeout": timedelta(hours=1),  # as long as something comes
                "read_timeout": silence,
                "connect_timeout": silence,
                "allow_http": scheme != "https" and not str(endpoint).startswith("https"),
            },
            "retry_config": {
                "max_retries": self._options["retries"],
                "retry_timeout": timedelta(hours=1),
                "backoff": {"init_backoff": timedelta(seconds=self._options["first_wait"])},
            },
        }
        if scheme == "s3":
            # Endpoint, region, profile and credentials as AWS tools read them: by botocore. Its
            # client would know the endpoint, too, for 0.2 s of CPU before the first batch.
            from botocore.configprovider import ConfiguredEndpointProvider
            from botocore.session import Session
            from obstore.auth.boto3 import Boto3CredentialProvider

            session = Session(profile=profile)
            sections = session.full_config, session.get_scoped_config()
            more.setdefault("region", session.get_config_variable("region") or "us-east-1")
            if found := endpoint or ConfiguredEndpointProvider(*sections, "s3").provide():
                more |= {"endpoint": found, "virtual_hosted_style_request": False}
            if "skip_signature" not in more:
                # botocore renews credentials 10 minutes before they end.
                provider = Boto3CredentialProvider(session, ttl=timedelta(minutes=5))
                more["credential_provider"] = provider
        return from_url(f"{scheme}://{bucket}", **more)

    async def _result(
        self, address: str, action: Callable[[Any, str], Awaitable[T]], done: str = "read"
    ) -> T:
        """The result of `action(store, path)`, which is tried again where obstore does not.

        Raises:
            PenstockError: it failed for good, or each time.
        """
        scheme, bucket, path = parse(address)
        key, is_renewed, failed = (scheme, bucket), False, f"{address!r} cannot be {done}"
        for _ in range(self._options["retries"] + 1):
            try:
                if key not in self._stores:
                    self._stores[key] = self._opened(*key)
            except Exception as error:  # of boto3 too: a profile, or credentials, that are missing
                reason = str(error).partition("\n")[0]
                raise ConfigError(f"{failed}: {reason}. {_CREDENTIALS}") from error
            store = self._stores[key]
            try:
                async with self._slots:
                    return await action(store, path)
            except DataError as error:  # another version; the next answer may be of this one
                failure = error
            except (BaseError, OSError, ValueError) as error:
                last = str(error).partition("\n")[0].rstrip(": ")
                failure = UnreachableError(
                    f"{failed}: {last}. Check the address, and that its store can be reached from "
                    "here. files.retries and files.first_wait say how long to wait for it."
                )
                if advice := [text for form, text in _FOR_GOOD.items() if re.search(form, last)]:
                    failure = DataError(f"{failed}: {last}. {advice[0]}")
                # Credentials that somebody has renewed meanwhile are read anew, once. A body that
                # breaks off is fetched again by obstore only if its store gives ETags.
                is_denied = re.search(_DENIALS, last) is not None
                if is_renewed or not (is_denied or "body error" in last):
                    raise failure from error
                is_renewed = is_denied
                if is_denied and self._stores.get(key) is store:
                    del self._stores[key]
        raise failure

    async def _get(self, item: Object, start: int, stop: int) -> memoryview:
        """Bytes start .. stop-1 of a version of a file; DataError if it has changed."""
        # The index of a folder has MD5s, and its web server knows none: all of a file is compared
        # with its MD5, and parts with what the server says of the file when it is first needed.
        is_indexed = item.version.startswith("md5:") and item.address.startswith("http")
        is_all = (start, stop) == (0, item.size)

        async def once(store: Any, path: str) -> memoryview:
            # Without a range for all of it: some web servers send only whole files.
            answer = await obstore.get_async(
                store, path, options={} if is_all else {"range": (start, stop)}
            )
            content, size = memoryview(await answer.bytes_async()), answer.meta["size"]
            version, wanted = version_of(item.address, answer.meta), item.version
            if is_indexed and is_all:
                version = f"md5:{hashlib.md5(content, usedforsecurity=False).hexdigest()}"
            elif is_indexed:
                wanted = self._served.setdefault(item.entry, version)
            if (size, version, len(content)) != (item.size, wanted, stop - start):
                raise DataError(
                    f"{item.address!r} has changed since this run began: it had {item.size} bytes "
                    f"(version {wanted or 'unknown'}) and has {size} ({version or 'unknown'}). "
                    "Start again while nothing else writes there, and write the index of a web "
                    "server's folder anew (python -m penstock.addons.storage.index FOLDER)."
                )
            return content

        return await self._result(item.address, once)

    # --- Pieces

    def _pieces(self, spans: Sequence[tuple[Object, int, int]]) -> list[list[Piece]]:
        """What bytes start .. stop-1 of each object are read from: blocks; of those that a full
        cache would not keep, only what is needed."""
        # Where several rows of a block are needed at once, as by `Blocks`, others follow.
        needed = Counter(
            (item.entry, block) for item, start, stop in spans for block in item.blocks(start, stop)
        )
        return [
            [
                piece
                if not self.cache.is_full
                or needed[item.entry, block] > 3
                or piece in self._due
                or piece in self._memory
                or self.cache.has(item, block)
                else (item.entry, max(piece[1], start), min(piece[2], stop))
                for block in item.blocks(start, stop)
                for piece in [(item.entry, *item.bounds(block))]
            ]
            for item, start, stop in spans
        ]

    async def _span(self, item: Object, start: int, stop: int, pieces: Sequence[Piece]) -> bytes:
        """Bytes start .. stop-1 of an object, whose pieces are fetched before what is wanted."""
        contents = await asyncio.gather(*(self._content(item, piece) for piece in pieces))
        return b"".join(contents)[start - pieces[0][1] : stop - pieces[0][1]]

    async def _content(self, item: Object, piece: Piece) -> bytes | memoryview:
        content = None
        if piece not in self._due:
            content = self._memory.get(piece) or self.cache.read(item, *piece[1:])
        return content or await self._enqueue(item, piece, is_wanted=False)

    def _enqueue(self, item: Object, piece: Piece, is_wanted: bool) -> asyncio.Future[memoryview]:
        """Let a request bring a piece."""
        if piece not in self._due:
            self._due[piece], self._queued[piece] = self._loop.create_future(), True
            self._starting[piece[:2]] = piece
        if piece in self._queued:  # perhaps once more, as it is waited for now
            self._queued[piece] &= is_wanted
            self._queue.put_nowait((is_wanted, time.monotonic(), item, piece))
        return self._due[piece]

    async def _work(self) -> None:
        """Bring pieces, by one request at a time."""
        while True:
            is_wanted, _, item, piece = await self._queue.get()
            pieces, end = list[Piece](), piece[1] + (MOST if is_wanted else _URGENT)
            # Neighbours that no request brings yet come with it.
            while piece in self._queued and piece[2] <= end:
                del self._queued[piece]
                self._starting.pop(piece[:2], None)
                pieces.append(piece)
                piece = self._starting.get((item.entry, piece[2]), piece)
            if pieces:  # else another request has brought it
                await self._fetch(item, pieces)

    async def _fetch(self, item: Object, pieces: Sequence[Piece]) -> None:
        """Bring neighbouring pieces, and give them to those who wait for them."""
        # Readers wait for futures and not for this request: they may want other pieces, too.
        futures = [self._due[piece] for piece in pieces]
        try:
            start = pieces[0][1]
            content = await self._get(item, start, pieces[-1][2])
            for piece, future in zip(pieces, futures, strict=True):
                part = content[piece[1] - start : piece[2] - start]
                self._keep(item, piece, part)
                future.set_result(part)
        except Exception as error:
            for future in futures:
                future.set_exception(error)
                future.exception()  # perhaps nobody waits for it
            # The reader of a row that is wanted meets the error, and there is no storm before.
            for key in [key for key, is_wanted in self._queued.items() if is_wanted]:
                del self._queued[key], self._due[key]
        for piece in pieces:
            del self._due[piece]

    def _keep(self, item: Object, piece: Piece, content: memoryview) -> None:
        """Put a block into the cache, or into memory if that has no room, as a part of one."""
        if piece[1:] == item.bounds(piece[1] // BLOCK) and self.cache.admits(len(content)):
            try:
                self.cache.write(item, piece[1] // BLOCK, content)
                return
            except OSError as error:
                self.cache.limit = self.cache.used  # a full disk is a full cache
                _log.warning("%s Until then, nothing more is kept.", self.cache.refusal(error))
        self._room += len(self._memory.pop(piece, b"")) - len(content)
        self._memory[piece] = bytes(content)  # not all that came with it
        while self._room < 0:
            self._room += len(self._memory.pop(next(iter(self._memory))))

    # --- Requests of clients

    async def look(self, addresses: Sequence[str]) -> list[tuple[int, str] | None]:
        """Bytes and version of each file as it is now; None for one that is missing."""
        # Of a few, the small ones are read next: a folder's index, the record of a pack.
        is_few, endpoint = len(addresses) <= 8, self._options["options"].get("endpoint_url", "")

        async def state_of(address: str) -> tuple[int, str] | None:
            async def once(store: Any, path: str) -> tuple[int, str] | None:
                with suppress(FileNotFoundError):
                    answer = await obstore.get_async(store, path, options={"head": not is_few})
                    state = answer.meta["size"], version_of(address, answer.meta)
                    if is_few and 0 < state[0] <= BLOCK:  # of another, the connection closes
                        content = memoryview(await answer.bytes_async())
                        self._keep(
                            item := Object.of(address, *state, endpoint),
                            (item.entry, 0, item.size),
                            content,
                        )
                    return state
                return None

            return await self._result(address, once)

        return await asyncio.gather(*map(state_of, addresses))

    async def files(self, address: str) -> list[tuple[str, int, str]]:
        """Names of all files below a folder, sizes and versions."""

        async def once(store: Any, path: str) -> list[tuple[str, int, str]]:
            start = len(path) + 1 if path else 0
            return [
                (meta["path"][start:], meta["size"], version_of(address, meta))
                async for page in obstore.list(store, path or None, chunk_size=10_000)
                for meta in page
            ]

        return await self._result(address, once)

    async def read(self, spans: Sequence[tuple[Object, int, int]]) -> list[bytes]:
        """Bytes start .. stop-1 of each object, whose blocks the cache keeps if it has room."""
        return await asyncio.gather(
            *(self._span(*span, own) for span, own in zip(spans, self._pieces(spans), strict=True))
        )

    async def want(self, spans: Sequence[tuple[Object, int, int]]) -> None:
        """Fetch bytes start .. stop-1 of each object when nothing is waited for."""
        # No more of one than there is room for: who reads on wants the rest later.
        most = max(self._options["ahead"], self.cache.limit - self.cache.used)
        spans = [(item, start, min(stop, start + most)) for item, start, stop in spans]
        for (item, *_), pieces in zip(spans, self._pieces(spans), strict=True):
            for piece in pieces:
                if piece in self._memory:  # perhaps of an earlier epoch: from now on the newest
                    self._memory[piece] = self._memory.pop(piece)
                elif not (piece in self._due or self.cache.has(item, piece[1] // BLOCK)):
                    self._enqueue(item, piece, is_wanted=True)

    async def send(
        self, folder: Path, names: Sequence[str], last: str, address: str, key: str
    ) -> None:
        """Copy files of a folder to the address at a key, `last` after all others.

        Raises:
            ConfigError: other files are there.
        """
        if other := sorted({name for name, *_ in await self.files(address)} - {*names}):
            raise ConfigError(
                Problem(key, f"{address!r} holds other files ({other[0]!r}); give an empty folder")
            )
        for name in [*names, last]:
            # In parts, several at a time, where the file is large; it appears when all are there.
            async def put(store: Any, path: str, name: str = name) -> None:
                await obstore.put_async(store, path, folder / name)

            await self._result(f"{address}/{name}", put, "written")

    # --- Threads

    def accept(self, listening: socket.socket) -> None:
        """Let a thread serve each client."""
        while True:
            client = Connection(listening.accept()[0].detach())
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: Connection) -> None:
        """Answer a client until it goes."""
        with suppress(EOFError, ConnectionError):
            while True:
                name, *arguments = client.recv()
                future = asyncio.run_coroutine_threadsafe(
                    getattr(self, name)(*arguments), self._loop
                )
                if name != "want":
                    client.send(future.exception() or future.result())
                else:  # without an answer: an error ends this thread, which prints it
                    future.result()


async def _run() -> None:
    listening = socket.socket(fileno=int(sys.argv[1]))  # its owner may have connected already
    fetcher = Fetcher(json.loads(sys.argv[2]))
    threading.Thread(target=fetcher.accept, args=(listening,), daemon=True).start()
    # The owner's end of this pipe closes when it ends, however it does, and its workers with it.
    is_open = True
    while is_open:
        await asyncio.to_thread(fetcher.cache.count)  # other runs fill it, too
        is_open = not (await asyncio.to_thread(select, [sys.stdin], [], [], 60))[0]
    shutil.rmtree(Path(listening.getsockname()).parent, ignore_errors=True)
    os._exit(0)  # requests under way are left


if __name__ == "__main__":
    # Ctrl-C and the end of a job are for the owner, whose last batches are still to come.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(format="%(message)s")
    asyncio.run(_run())
