"""A store on loopback: plain HTTP and what clients use of S3's API, with latency, rate and faults.

    python tests/support/store_server.py FOLDER [--latency 0.03] [--rate 40e6] [--faults busy:40]

Files lie in memory, a name `bucket/key` each. The first line it prints is its port; `GET /_counts`
tells what was asked since the last such request: requests by kind, bytes of bodies, connections,
and the CPU seconds of this process. With uvloop, where it is installed, a GET of 78 kB costs
0.2 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import os
import resource
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

DATE = "Sun, 22 Nov 2026 12:00:00 GMT"
OTHER = "Sun, 22 Nov 2026 13:00:00 GMT"
PAGE = 1000  # keys of one answer to a listing
PIECE = 0.01  # seconds at the rate that are sent at once
FAULTS = ("busy", "many", "error", "reset", "short", "stall", "version", "expired")


@dataclass
class Shelf:
    """What a server serves, and what was asked of it.

    Attributes:
        files: "bucket/key" -> content.
        latency: seconds to the first byte.
        rate: bytes a second of one connection.
        faults: kind -> of how many GETs of files one has it.
        tags: whether plain HTTP names an ETag.
        ranges: whether parts of files are given.
        refuses: whether nothing may be written.
        modified: when files were, over plain HTTP.
        wait: seconds after which who was told that it is busy may come again.
    """

    files: dict[str, bytes]
    latency: float = 0.0
    rate: float = float("inf")
    faults: Mapping[str, int] = field(default_factory=dict)
    tags: bool = True
    ranges: bool = True
    refuses: bool = False
    modified: str = DATE
    wait: float = 1
    requests: Counter[str] = field(default_factory=Counter)
    asked: list[tuple[str, str]] = field(default_factory=list)  # method, path
    sent: int = 0
    connections: int = 0
    gets: int = 0
    etags: dict[str, str] = field(default_factory=dict)
    open: set[asyncio.Transport] = field(default_factory=set)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    signed: list[str] = field(default_factory=list)  # headers `Authorization`

    def etag(self, name: str) -> str:
        if name not in self.etags:
            digest = hashlib.md5(self.files[name], usedforsecurity=False).hexdigest()
            self.etags[name] = f'"{digest}"'
        return self.etags[name]

    def fault(self) -> str | None:
        self.gets += 1
        return next((kind for kind, of in self.faults.items() if self.gets % of == 0), None)

    def listing(self, bucket: str, query: Mapping[str, list[str]]) -> bytes:
        """A page of ListObjectsV2."""
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        most = int(query.get("max-keys", [str(PAGE)])[0])
        entries: dict[str, str] = {}
        for name in sorted(self.files):
            key = name[len(bucket) + 1 :]
            if not name.startswith(f"{bucket}/{prefix}"):
                continue
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            shown = key if end < 0 else key[: end + 1]
            if shown <= after or shown in entries:
                continue
            if end >= 0:
                text = f"<CommonPrefixes><Prefix>{escape(shown)}</Prefix></CommonPrefixes>"
            else:
                text = (
                    f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-22T12:00:00.000Z"
                    f"</LastModified><ETag>{escape(self.etag(name))}</ETag>"
                    f"<Size>{len(self.files[name])}</Size><StorageClass>STANDARD</StorageClass></Contents>"
                )
            entries[shown] = text
        shown_now = list(itertools.islice(entries, most))
        more = len(entries) > most
        token = (
            f"<NextContinuationToken>{escape(shown_now[-1])}</NextContinuationToken>"
            if more
            else ""
        )
        body = "".join(entries[name] for name in shown_now)
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult '
            f'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{bucket}</Name>'
            f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{len(shown_now)}</KeyCount>"
            f"<MaxKeys>{most}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>{token}{body}"
            "</ListBucketResult>"
        ).encode()

    def page(self, folder: str) -> bytes | None:
        """The links of a folder; None where there is none."""
        start = f"{folder.strip('/')}/" if folder.strip("/") else ""
        inside = {
            name[len(start) :].partition("/") for name in self.files if name.startswith(start)
        }
        names = sorted({head + slash for head, slash, _ in inside})
        links = (f"<a href='{quote(f'/{start}{name}')}'>{name}</a>" for name in names)
        return "\n".join(links).encode() if names else None


class Connection(asyncio.Protocol):
    """One connection: requests come one after the other."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf, self.received, self.told = shelf, b"", False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is of no such class
        self.shelf.connections += 1
        self.shelf.open.add(self.transport)
        self.loop = asyncio.get_running_loop()

    def connection_lost(self, error: Exception | None) -> None:
        self.shelf.open.discard(self.transport)

    def data_received(self, data: bytes) -> None:
        self.received += data
        end = self.received.find(b"\r\n\r\n")
        if end < 0:
            return
        first, *lines = self.received[:end].decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
        self.shelf.signed += [line for line in lines if line.lower().startswith("authorization")]
        size = int(headers.get("content-length", 0))
        if len(self.received) < end + 4 + size:
            if headers.get("expect") and not self.told:
                self.told = True
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        body = self.received[end + 4 : end + 4 + size]
        self.received, self.told = self.received[end + 4 + size :], False
        if method in ("PUT", "POST", "DELETE"):
            self.write(method, target, body)
        else:
            self.answer(method, target, headers)

    def write(self, method: str, target: str, body: bytes) -> None:
        """What S3 does to files: whole, in parts, away."""
        shelf, parts = self.shelf, urlsplit(target)
        path, query = unquote(parts.path).lstrip("/"), parse_qs(parts.query, keep_blank_values=True)
        shelf.requests[method] += 1
        shelf.asked.append((method, path))
        fault = shelf.fault()
        upload = query.get("uploadId", [""])[0]
        text, told = "", {"Content-Type": "application/xml"}
        if shelf.refuses:
            self.later("403 Forbidden", _error("AccessDenied"), told, method)
            return
        if fault == "busy":
            self.later(
                "503 Slow Down", _error("SlowDown"), told | {"Retry-After": str(shelf.wait)}, method
            )
            return
        if fault == "reset":
            self.transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            self.transport.abort()
            return
        if upload and upload not in shelf.uploads:
            self.later("404 Not Found", _error("NoSuchUpload"), told, method)
            return
        if method == "DELETE":
            shelf.files.pop(path, None)
            self.later("204 No Content", b"", {}, method)
            return
        if "uploads" in query:
            upload = f"upload-{len(shelf.asked)}"
            shelf.uploads[upload] = {}
            text = f"<UploadId>{upload}</UploadId>"
        elif method == "POST":
            held = shelf.uploads.pop(upload)
            shelf.files[path] = b"".join(held[number] for number in sorted(held))
            text = f"<ETag>{escape(shelf.etag(path))}</ETag>"
        elif upload:
            shelf.uploads[upload][int(query["partNumber"][0])] = body
            told["ETag"] = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
        else:
            shelf.files[path] = body
        shelf.etags.pop(path, None)
        if path in shelf.files:
            told["ETag"] = shelf.etag(path)
        self.later("200 OK", f"<Result>{text}</Result>".encode(), told, method)

    def answer(self, method: str, target: str, headers: dict[str, str]) -> None:
        shelf, parts = self.shelf, urlsplit(target)
        path, query = unquote(parts.path).lstrip("/"), parse_qs(parts.query, keep_blank_values=True)
        if path == "_counts":
            used = resource.getrusage(resource.RUSAGE_SELF)
            counts = {
                "requests": dict(shelf.requests),
                "bytes": shelf.sent,
                "connections": shelf.connections,
                "cpu": used.ru_utime + used.ru_stime,
            }
            shelf.requests.clear()
            shelf.sent = 0
            self.send("200 OK", json.dumps(counts).encode(), {})
            return
        if "list-type" in query:
            kind, body = "LIST", shelf.listing(path.split("/")[0], query)
        elif path in shelf.files:
            kind, body = method, shelf.files[path]
        else:
            kind, body = "LIST", shelf.page(path)
        shelf.requests[kind if body is not None else "404"] += 1
        shelf.asked.append((kind, path))
        if body is None:
            self.later("404 Not Found", b"", {}, method)
            return
        if kind == "LIST":
            form = "application/xml" if "list-type" in query else "text/html"
            self.later("200 OK", body, {"Content-Type": form}, method)
            return
        self.file(method, path, body, headers)

    def file(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
        shelf = self.shelf
        told = {
            "Last-Modified": shelf.modified,
            "Accept-Ranges": "bytes",
            "Content-Type": "image/jpeg",
        }
        if shelf.tags:
            told["ETag"] = shelf.etag(path)
        fault = shelf.fault() if method == "GET" else None
        if fault == "busy":
            self.later("503 Slow Down", b"", {"Retry-After": str(shelf.wait)}, method)
        elif fault == "many":
            self.later("429 Too Many Requests", b"", {}, method)
        elif fault == "error":
            self.later("500 Internal Server Error", b"", {}, method)
        elif fault == "expired":
            text = (
                b"<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>"
            )
            self.later("400 Bad Request", text, {"Content-Type": "application/xml"}, method)
        elif fault == "stall":
            pass
        elif shelf.tags and headers.get("if-match", told["ETag"]) != told["ETag"]:
            self.later("412 Precondition Failed", b"", {}, method)
        else:
            if fault == "version":
                told |= {"ETag": '"0123456789abcdef0123456789abcdef"', "Last-Modified": OTHER}
            status, view = "200 OK", memoryview(body)
            bounds = headers.get("range", "").removeprefix("bytes=").split("-")
            if shelf.ranges and len(bounds) == 2:
                start = int(bounds[0]) if bounds[0] else max(len(body) - int(bounds[1]), 0)
                stop = min(int(bounds[1]) + 1, len(body)) if bounds[0] and bounds[1] else len(body)
                status, view = "206 Partial Content", view[start:stop]
                told["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
            self.later(status, view, told, method, fault)

    def later(
        self,
        status: str,
        body: bytes | memoryview,
        headers: dict[str, str],
        method: str,
        fault: str | None = None,
    ) -> None:
        if method == "HEAD":
            whole, body = len(body), b""
            headers = {**headers, "Content-Length": str(whole)}
        self.loop.call_later(
            self.shelf.latency + min(PIECE, len(body) / self.shelf.rate),
            self.send,
            status,
            body,
            headers,
            fault,
        )

    def send(
        self,
        status: str,
        body: bytes | memoryview,
        headers: dict[str, str],
        fault: str | None = None,
    ) -> None:
        lines = {"Content-Length": str(len(body)), "Connection": "keep-alive", **headers}
        head = f"HTTP/1.1 {status}\r\n" + "".join(
            f"{name}: {text}\r\n" for name, text in lines.items()
        )
        if self.transport.is_closing():
            return
        self.transport.write(head.encode() + b"\r\n")
        if fault == "reset":
            self.transport.write(bytes(body[: len(body) // 2]))
            self.transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            self.transport.abort()
        elif fault == "short":
            self.transport.write(bytes(body[:-1]))
            # Workers that a test has forked hold the connection open: to close it tells nobody.
            self.transport.write_eof()
            self.transport.close()
        else:
            self.pieces(memoryview(body))

    def pieces(self, body: memoryview) -> None:
        size = max(int(min(self.shelf.rate * PIECE, 2**24)), 1)
        if self.transport.is_closing():
            return
        self.shelf.sent += min(size, len(body))  # before anybody can have it
        self.transport.write(body[:size])
        if len(body) > size:
            seconds = min(size, len(body) - size) / self.shelf.rate
            self.loop.call_later(seconds, self.pieces, body[size:])


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


ENVIRONMENT = {  # of clients of this S3, which looks at no signature
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


async def serve(shelf: Shelf) -> tuple[asyncio.Server, int]:
    """Begin to serve; the port."""
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(shelf), "127.0.0.1", 0, backlog=512
    )
    return server, server.sockets[0].getsockname()[1]


class InThread:
    """A server in a thread of this process, for tests: `with InThread(shelf) as port`."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> int:
        self._thread.start()
        future = asyncio.run_coroutine_threadsafe(serve(self.shelf), self._loop)
        self._server, port = future.result()
        return port

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        for transport in list(self.shelf.open):
            transport.abort()
        while self.shelf.open:
            await asyncio.sleep(0)


@contextmanager
def bucket(folder: Path, cache: Path, **options: Any) -> Iterator[tuple[Shelf, Any]]:
    """A folder at `s3://data`, and access to it with an empty cache."""
    from penstock.datasets.files import Files

    shelf = Shelf({f"data/{name}": content for name, content in read_folder(folder).items()})
    with InThread(shelf) as port:
        store = {"endpoint_url": f"http://127.0.0.1:{port}", "anon": True}
        yield shelf, Files(cache_dir=str(cache), first_wait=0.01, options=store, **options)


def read_folder(folder: Path) -> dict[str, bytes]:
    """The files below a folder by their names relative to it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def parsed_faults(text: str) -> dict[str, int]:
    """Of "busy:40,reset:50"."""
    faults = {}
    for part in filter(None, text.split(",")):
        kind, _, of = part.partition(":")
        if kind not in FAULTS:
            raise SystemExit(f"--faults: {kind!r}; allowed: {', '.join(FAULTS)}")
        faults[kind] = int(of)
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds to the first byte")
    parser.add_argument("--rate", type=float, default=40e6, help="bytes a second of a connection")
    parser.add_argument(
        "--faults", default="", help=f"KIND:N, one GET in N; kinds: {', '.join(FAULTS)}"
    )
    options = parser.parse_args()
    shelf = Shelf(
        read_folder(options.folder), options.latency, options.rate, parsed_faults(options.faults)
    )
    for name in shelf.files:
        shelf.etag(name)
    try:
        import uvloop as loops
    except ImportError:
        loops = asyncio

    async def run() -> None:
        server, port = await serve(shelf)
        print(port, flush=True)
        async with server:
            while os.getppid() != 1:
                await asyncio.sleep(1)

    loops.run(run())


if __name__ == "__main__":
    main()
