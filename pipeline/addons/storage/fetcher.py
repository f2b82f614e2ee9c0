"""The process that alone talks to stores: one for each rank, shared by its workers.

    python -m penstock.addons.storage.fetcher < options    ends when its standard input does

Clients connect to its socket and send one request after the other, as JSON:

    {"do": "look", "addresses": [...]}     sizes and versions
    {"do": "files", "address": ...}        the same of all files below
    {"do": "read", "blocks": [...]}        contents of blocks, kept in the cache if it has room
    {"do": "want", "blocks": [...]}        somebody will read them soon; there is no answer
    {"do": "send", ...}                    a folder of this machine goes to an address

It is one thread, so a semaphore is a number, "who fetches this block" is a dict, and nothing needs
a lock. What a reader waits for goes first, then what is wanted, in its order; neighbours are one
request of up to 8 MiB. Blocks that the cache does not admit, because it or its disk is full, stay
in memory until they are read; while they are `ahead` bytes, nothing more is fetched ahead.

obstore does the requests. It must not be used in a process that forks, as those with workers do:
its threads are gone in the child, which hangs. Neither torch nor numpy is imported: it starts in
0.1 s. Cost: 0.3 ms of CPU a request.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import random
import re
import shutil
import signal
import struct
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from penstock.addons.storage.blocks import BLOCK, BlockCache, Object

LENGTH = struct.Struct("!i")  # before each message, as multiprocessing's Connection has it
MOST = 8 << 20  # bytes of one request
_URGENT = 1 << 20  # of one that a reader waits for: what it brings along must not hold it up
_LEAST = 32 << 20  # bytes of memory for unread blocks that the cache does not admit
_RECENT = 128  # blocks that were read, of these
_LONGEST = 60.0  # seconds of one wait
_LOOKS = 32  # files that are looked at side by side
_COUNTS = 60.0  # seconds
_AGAIN = frozenset({408, 425, 429})
_DENIED = (PermissionDeniedError, UnauthenticatedError)
_CREDENTIALS = (
    "The store looks for credentials by its own means: for s3 the environment or ~/.aws, for gs "
    "`gcloud auth application-default login`, for az the environment. Public data: "
    "+files.options.anon=true."
)
_PAGE = 10_000  # files
_log = logging.getLogger(__name__)

Key = tuple[str, int]  # entry of an object, number of a block


class Failed(Exception):
    """A request that failed for good: a message, and the kind of error that a client raises."""

    def __init__(self, message: str, kind: str = "data") -> None:
        super().__init__(message)
        self.kind = kind


class Damaged(Exception):
    """An answer that is not of the version that was asked for; the next may be."""


def parse(address: str) -> tuple[str, str, str]:
    """The scheme, the bucket (or host) and the path of an address."""
    parts = urlsplit(address, allow_fragments=False)
    if parts.scheme in ("http", "https"):
        return parts.scheme, parts.netloc, unquote(parts.path).strip("/")
    scheme, _, rest = address.partition("://")  # names in buckets may have any characters
    bucket, _, path = rest.partition("/")
    return {"s3a": "s3", "gcs": "gs", "abfs": "az"}.get(scheme, scheme), bucket, path.strip("/")


class Stores:
    """The stores of obstore, by address, and what is asked of them.

    Args:
        options: `Files.options`: `endpoint_url`, `profile`, `anon`; others go to obstore.
        retries, first_wait, timeout: as `Files` has them.
    """

    def __init__(
        self, options: Mapping[str, Any], retries: int, first_wait: float, timeout: float
    ) -> None:
        self._options, self._retries = options, retries
        self._first_wait, self._timeout = first_wait, timeout
        self._stores: dict[tuple[str, str, str], Any] = {}
        self._served: dict[str, str] = {}  # what a web server says of a file in a folder's index

    def _opened(self, scheme: str, bucket: str, retries: int) -> Any:
        """A store; credentials, region and endpoint are found when it is first needed."""
        more = dict(self._options)
        anonymous = bool(more.pop("anon", False))
        endpoint, profile = more.pop("endpoint_url", None), more.pop("profile", None)
        shared: dict[str, Any] = {
            "client_options": {
                # A request may take long, as long as something comes.
                "timeout": timedelta(hours=1),
                "read_timeout": timedelta(seconds=self._timeout),
                "connect_timeout": timedelta(seconds=self._timeout),
                "allow_http": scheme != "https" and not str(endpoint).startswith("https"),
            },
            "retry_config": {
                "max_retries": retries,
                "backoff": {"init_backoff": timedelta(seconds=self._first_wait)},
            },
        }
        if scheme in ("http", "https"):
            return HTTPStore.from_url(f"{scheme}://{bucket}", **shared, **more)
        if anonymous:
            more["skip_signature"] = True
        if scheme == "gs":
            return GCSStore(bucket, **shared, **more)
        if scheme == "az":
            return AzureStore(bucket, **shared, **more)
        if scheme != "s3":
            raise ValueError("there is no such store; allowed: s3://, gs://, az://, https://")
        # Endpoint, region, profile and credentials as every AWS tool reads them: by boto3.
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider

        session = boto3.Session(profile_name=profile)
        resolved = session.client("s3", endpoint_url=endpoint).meta
        if not resolved.endpoint_url.endswith(("amazonaws.com", "amazonaws.com.cn")):
            more |= {"endpoint": resolved.endpoint_url, "virtual_hosted_style_request": False}
        if not anonymous:
            # botocore renews credentials 10 minutes before they end.
            provider = Boto3CredentialProvider(session, ttl=timedelta(minutes=5))
            shared["credential_provider"] = provider
        return S3Store(bucket, **shared, **{"region": resolved.region_name or "us-east-1", **more})

    async def attempts(self, address: str, action: Any, done: str = "read") -> Any:
        """The result of `action(store, path)`, which is tried again after errors that may pass.

        Raises:
            Failed: it failed for good, or each time.
        """
        scheme, bucket, path = parse(address)
        began, last, renewed = time.monotonic(), "", False
        # Errors of all kinds are tried again here, and by obstore those of parts that are written.
        key, retries = (scheme, bucket, done), self._retries if done == "written" else 0
        for attempt in range(self._retries + 1):
            try:
                if key not in self._stores:
                    self._stores[key] = self._opened(scheme, bucket, retries)
                store = self._stores[key]
            except Exception as error:  # of boto3 too: a profile, or credentials, that are missing
                reason = f"{type(error).__name__}: {_first_line(error)}. {_CREDENTIALS}"
                raise Failed(f"{address!r} cannot be {done}: {reason}", "config") from error
            try:
                return await action(store, path)
            except ValueError as error:  # a name that no store has
                raise Failed(f"{address!r} cannot be {done}: {_first_line(error)}") from error
            except FileNotFoundError as error:
                reason = "is missing in its store. Check the address; if it was removed, start"
                raise Failed(f"{address!r} {reason} again.", "missing") from error
            except (BaseError, Damaged, OSError) as error:
                last = _first_line(error)
                code = re.search(r"status code: (\d+)", last)
                status = int(code[1]) if code else 0
                if isinstance(error, _DENIED) or "ExpiredToken" in last or status in (401, 403):
                    if renewed or attempt == self._retries:
                        reason = f"may not be {done} with the credentials found here"
                        raise Failed(f"{address!r} {reason}. {_CREDENTIALS}") from error
                    # Credentials that somebody has renewed meanwhile are read anew, once.
                    self._stores.pop(key, None)
                    renewed = True
                    continue
                if "not supported" in last or "non-partial" in last:
                    raise Failed(
                        f"parts of {address!r} are needed, and its server sends only whole files. "
                        "Copy the data to a folder of this machine, or to a server that answers "
                        "Range requests."
                    ) from error
                if status and status < 500 and status not in _AGAIN:
                    advice = "Check the address and files.options."
                    raise Failed(f"{address!r} cannot be {done}: {last}. {advice}") from error
            # Waits are drawn from the upper half, so that many ranks don't come back all at once.
            wait = min(self._first_wait * 2**attempt, _LONGEST) * random.uniform(0.5, 1.0)
            await asyncio.sleep(wait if attempt < self._retries else 0)
        raise Failed(
            f"{address!r} cannot be {done}: {self._retries + 1} attempt(s) in "
            f"{time.monotonic() - began:.1f} s, the last failed with: {last}. Check the address, "
            "and that its store can be reached from here. files.retries and files.first_wait say "
            "how long to wait for it.",
            "unreachable",
        )

    async def look(self, address: str) -> tuple[int, str]:
        """Bytes and version of a file as it is now."""

        async def head(store: Any, path: str) -> Any:
            return await obstore.head_async(store, path)

        told = await self.attempts(address, head)
        return told["size"], version_of(address, told)

    async def get(self, item: Object, start: int, stop: int) -> memoryview:
        """Bytes start .. stop-1 of a version of a file.

        Raises:
            Failed: as `attempts`; or the file has changed.
        """
        # The index of a folder has MD5s, and its web server knows none: all of a file is compared
        # with its MD5, and parts with what the server says of the file when it is first needed.
        indexed = item.version.startswith("md5:") and item.address.startswith("http")
        is_all = (start, stop) == (0, item.size)

        async def once(store: Any, path: str) -> memoryview:
            part: Any = {} if is_all else {"range": (start, stop)}
            answer = await obstore.get_async(store, path, options=part)
            content, told = memoryview(await answer.bytes_async()), answer.meta
            fits = told["size"] == item.size and len(content) == stop - start
            if fits and indexed and is_all:
                md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
                if f"md5:{md5}" != item.version:
                    raise Damaged(
                        "it is not the file of its folder's index. If it has changed, write that "
                        "again: python -m penstock.addons.storage.index FOLDER"
                    )
                return content
            version = version_of(item.address, told)
            wanted = self._served.setdefault(item.entry, version) if indexed else item.version
            if fits and version == wanted:
                return content
            size, version = await self.look(item.address)
            if (size, version) != (item.size, wanted):
                raise Failed(
                    f"{item.address!r} has changed since this run began: it had {item.size} bytes "
                    f"(version {wanted or 'unknown'}) and has {size} ({version or 'unknown'}). "
                    "Start again while nothing else writes there."
                )
            raise Damaged("it came in another version than its store has")

        content: memoryview = await self.attempts(item.address, once)
        return content

    async def files(self, address: str) -> list[tuple[str, int, str]]:
        """Names of all files below a folder, sizes and versions."""

        async def listed(store: Any, path: str) -> list[tuple[str, int, str]]:
            start = len(path) + 1 if path else 0
            return [
                (told["path"][start:], told["size"], version_of(address, told))
                async for page in obstore.list(store, path or None, chunk_size=_PAGE)
                for told in page
            ]

        found: list[tuple[str, int, str]] = await self.attempts(address, listed)
        return found


def version_of(address: str, told: Mapping[str, Any]) -> str:
    """The version of a file by what its store says of it; empty where it says nothing."""
    tag = (told["e_tag"] or "").removeprefix("W/").strip('"')
    if address.startswith("http"):
        # Of several servers that give the same file, each may have a tag of its own for it.
        modified = int(told["last_modified"].timestamp())
        return str(modified) if modified > 0 else tag
    return f"md5:{tag}" if re.fullmatch("[0-9a-f]{32}", tag) else tag


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0].strip()


class Fetcher:
    """What clients are served by.

    Args:
        options: `folder`, `limit`, `ahead`, `concurrency` and what `Stores` takes.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        names = ("options", "retries", "first_wait", "timeout")
        self.stores = Stores(*(options[name] for name in names))
        self.cache = BlockCache(Path(options["folder"]), options["limit"], writes=True)
        self._concurrency = options["concurrency"]
        self._room = max(options["ahead"], _LEAST)
        self._urgent: dict[Key, Object] = {}  # what readers wait for
        self._wanted: dict[Key, Object] = {}  # what they will need, in this order
        self._coming: dict[Key, asyncio.Future[memoryview]] = {}
        # What the cache does not admit: what nobody has read yet, and what was read last, since
        # other rows may lie in the same blocks.
        self._unread: dict[Key, memoryview] = {}
        self._recent: dict[Key, memoryview] = {}
        self._size = self._active = 0  # bytes that are unread, requests
        self.tasks: set[asyncio.Task[None]] = set()
        self._can_write = True

    # --- Blocks

    def _there(self, item: Object, block: int) -> memoryview | None:
        """The content of a block that was fetched."""
        key = item.entry, block
        if key in self._unread:
            self._size -= len(self._unread[key])
            self._recent[key] = self._unread.pop(key)
            if len(self._recent) > _RECENT:
                del self._recent[next(iter(self._recent))]
        if key in self._recent:
            return self._recent[key]
        cached = self.cache.opened(item)
        found = cached and cached.read(*item.bounds(block))
        return memoryview(found) if found else None

    async def _block(self, item: Object, block: int) -> memoryview:
        """The content of a block, which is fetched before what is wanted if it is not there."""
        key = item.entry, block
        if key not in self._coming:
            content = self._there(item, block)
            if content is not None:
                return content
            self._coming[key] = asyncio.get_running_loop().create_future()
            self._urgent[key] = item
            self._wanted.pop(key, None)
            self._pump()
        content = await asyncio.shield(self._coming[key])
        self._there(item, block)
        return content

    def _pump(self) -> None:
        """Begin requests, as many as may be open."""
        while self._active < self._concurrency and (
            self._urgent or (self._wanted and self._size < self._room)
        ):
            pool = self._urgent or self._wanted
            (_, first), item = next(iter(pool.items()))
            most = (_URGENT if pool is self._urgent else MOST) // BLOCK
            last = first
            while last - first < most and self._takes(item, last):
                last += 1
            while pool is self._wanted and last - first < most and self._takes(item, first - 1):
                first -= 1
            if last > first:
                self._active += 1
                task = asyncio.create_task(self._fetch(item, first, last))
                self.tasks.add(task)  # asyncio itself does not hold it
                task.add_done_callback(self.tasks.discard)

    def _takes(self, item: Object, block: int) -> bool:
        """Whether a block belongs to the next request; it is nobody else's then."""
        key = item.entry, block
        if self._urgent.pop(key, None):
            return True
        if not self._wanted.pop(key, None) or key in self._coming or key in self._unread:
            return False
        cached = self.cache.opened(item)
        if cached and cached.has(block):
            return False
        self._coming[key] = asyncio.get_running_loop().create_future()
        return True

    async def _fetch(self, item: Object, first: int, last: int) -> None:
        """Bring some blocks side by side, and give them to those who wait for them."""
        futures = [self._coming[item.entry, block] for block in range(first, last)]
        try:
            start = first * BLOCK
            content = await self.stores.get(item, start, min(last * BLOCK, item.size))
            for block, future in zip(range(first, last), futures, strict=True):
                piece = content[block * BLOCK - start :][:BLOCK]
                self._keep(item, block, piece)
                future.set_result(piece)
        except Exception as error:
            if not isinstance(error, Failed):
                _log.exception("%s could not be fetched", item.address)
            self._wanted.clear()  # the reader of the row meets the error, and no storm
            for future in futures:
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # perhaps nobody waits for it
        finally:
            for block in range(first, last):
                del self._coming[item.entry, block]
            self._active -= 1
            self._pump()

    def _keep(self, item: Object, block: int, content: memoryview) -> None:
        """Put a block into the cache, or into memory if that has no room."""
        key = item.entry, block
        if self._can_write and self.cache.admits(len(content)):
            try:
                cached = self.cache.opened(item, create=True)
                assert cached is not None
                cached.write(block, content)
                return
            except OSError as error:
                self._can_write = False  # until the next count
                _log.warning("%s Until then, nothing more is kept there.", self._full(error))
        self._unread[key] = memoryview(bytes(content))  # not all that came with it
        self._size += len(content)

    def _full(self, error: OSError) -> str:
        return (
            f"the cache of remote files, {str(self.cache.folder)!r}, cannot be written: "
            f"{error.strerror or error}. Make room there, or set files.cache_dir to another disk."
        )

    # --- Requests of clients

    async def look(self, addresses: list[str]) -> list[Any]:
        """Bytes and version of each file; None for one that is missing."""
        slots = asyncio.Semaphore(_LOOKS)

        async def one(address: str) -> tuple[int, str] | None:
            async with slots:
                try:
                    return await self.stores.look(address)
                except Failed as error:
                    if error.kind == "missing":
                        return None
                    raise

        return await asyncio.gather(*map(one, addresses))

    async def read(self, blocks: Iterable[Any], forced: bool) -> list[memoryview]:
        """Contents of blocks, each an object and its number; `forced` into the cache."""
        wanted = [(Object(*item), number) for item, number in blocks]
        contents = await asyncio.gather(*(self._block(*each) for each in wanted))
        for (item, number), content in zip(wanted, contents, strict=True) if forced else ():
            try:
                cached = self.cache.opened(item, create=True)
                assert cached is not None
                if cached.read(*item.bounds(number)) is None:
                    cached.write(number, content)
            except OSError as error:
                raise Failed(self._full(error)) from error
        return contents

    async def files(self, address: str) -> Any:
        """Names, sizes and versions of all files below a folder."""
        return await self.stores.files(address)

    def want(self, blocks: Iterable[Any]) -> None:
        """Fetch blocks when nothing is waited for."""
        for item, numbers in blocks:
            known = Object(*item)
            for number in range(*numbers):
                self._wanted.setdefault((known.entry, number), known)
        self._pump()

    async def send(self, folder: str, names: list[str], last: str, address: str) -> None:
        """Copy files of a folder to an address, `last` after all others.

        Raises:
            Failed: other files are there.
        """
        there = {name for name, *_ in await self.stores.files(address)}
        if other := sorted(there - {*names}):
            reason = f"{address!r} holds other files ({other[0]!r}); give an empty folder"
            raise Failed(reason, "config")
        for name in [*names, last]:
            # In parts, several at a time, where the file is large; it appears when all are there.
            async def put(store: Any, path: str, name: str = name) -> None:
                await obstore.put_async(store, path, Path(folder, name))

            await self.stores.attempts(f"{address}/{name}", put, "written")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a client until it goes."""
        try:
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                request = json.loads(await reader.readexactly(length))
                kind, contents = request.pop("do"), list[memoryview]()
                head: dict[str, Any] = {}
                try:
                    if kind == "want":
                        self.want(**request)
                        continue
                    if kind == "read":
                        contents = await self.read(**request)
                    else:
                        head = {"result": await getattr(self, kind)(**request)}
                except Failed as error:
                    head = {"error": str(error), "kind": error.kind}
                except Exception as error:  # a bug of ours is told, and ends one request
                    _log.exception("the process that fetches files")
                    head = {"error": f"{type(error).__name__}: {error}", "kind": "data"}
                for content in (json.dumps(head).encode(), *contents):
                    writer.write(LENGTH.pack(len(content)))
                    writer.write(content)  # type: ignore[arg-type]  # a memoryview of bytes
                await writer.drain()
        except (EOFError, ConnectionError):
            writer.close()

    async def count(self) -> None:
        """Look at the cache now and then: other runs fill it, too."""
        while True:
            await asyncio.to_thread(self.cache.count)
            self._can_write = True
            await asyncio.sleep(_COUNTS)


async def _run(options: Mapping[str, Any]) -> None:
    fetcher = Fetcher(options)
    server = await asyncio.start_unix_server(fetcher.serve, options["socket"])
    fetcher.tasks |= {
        asyncio.create_task(fetcher.count()),
        asyncio.create_task(server.serve_forever()),
    }
    os.write(1, b"ready\n")  # to the owner, who waits for it
    # The owner's end of this pipe closes when it ends, however it does, and its workers with it.
    await asyncio.to_thread(sys.stdin.read)
    shutil.rmtree(Path(options["socket"]).parent, ignore_errors=True)
    os._exit(0)  # requests under way are left


if __name__ == "__main__":
    # Ctrl-C and the end of a job are for the owner, whose last batches are still to come.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(format="%(message)s")
    asyncio.run(_run(json.loads(sys.stdin.readline())))
