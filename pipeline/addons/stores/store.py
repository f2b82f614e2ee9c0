"""Stores of files at addresses.

    s3://bucket/folder/file      Amazon S3 and compatible ones        pip install s3fs
    gs://bucket/folder/file      Google Cloud Storage                 pip install gcsfs
    https://host/folder/file     a web server (http too)              pip install aiohttp
    memory://folder/file         this process's memory, for tests

`direct.py` sends nearly all requests to S3 and to web servers. fsspec and its kin send the others,
and are imported with the first of them. Their file systems run threads and hold connections,
neither of which survives a fork, so each process makes its own when it first reads. None of them
retries: `retry.py` does.
"""

from __future__ import annotations

import base64
import functools
import importlib
import importlib.util
import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from penstock.addons.stores.direct import (
    S3,
    DirectClient,
    NoRangesError,
    Request,
    StatusError,
    UnusualError,
    page_of_s3,
)
from penstock.addons.stores.listing import Crawl, FileInfo, Listing
from penstock.addons.stores.request_gate import RequestGate
from penstock.addons.stores.retry import asks_to_wait
from penstock.datasets.files import WholeFilesError
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.paths import join

if TYPE_CHECKING:
    import aiohttp


_CREDENTIAL = re.compile(
    r"key|secret|token|passw|credential|auth|cookie|signature|^(sas|user|username)$", re.IGNORECASE
)
_HARMLESS = frozenset({"anon", "cloud", "google_default"})  # name a way to find credentials
_MD5 = re.compile(r"[0-9a-f]{32}")
_CONNECTIONS = 100
_PLAIN_OPTIONS = frozenset({"anon", "endpoint_url", "profile"})


def parse_address(address: str) -> str:
    """The scheme of a remote address.

    Raises:
        ConfigError: it holds a password, which would be kept in the run's files.
    """
    scheme = urlsplit(address).scheme
    if not scheme:
        raise ConfigError(f"{address!r} is not an address")
    if re.match(r"[^/]*//[^/@]*@", address):
        raise ConfigError("an address holds a user or a password; leave them out of it")
    return scheme


def name_in(folder: str, address: str) -> str | None:
    """The name of a file relative to the folder at an address; None if it is not below it."""
    start = folder.rstrip("/") + "/"
    if not address.startswith(start):
        return None
    name = address[len(start) :]
    return unquote(name) if urlsplit(folder).scheme in ("http", "https") else name


@dataclass(frozen=True)
class _Kind:
    """How the stores of a scheme are accessed."""

    system: tuple[str, str]  # module and class of the file system
    module: str  # that has to be installed
    defaults: Callable[[float], dict[str, object]]  # timeout -> options of the file system
    lists: bool = True  # whether a listing has sizes and versions
    writes: bool = True


def _s3(timeout: float) -> dict[str, object]:
    retries = {"total_max_attempts": 1, "mode": "standard"}
    config = {
        "retries": retries,
        "connect_timeout": timeout,
        "read_timeout": timeout,
        "max_pool_connections": _CONNECTIONS,
    }
    # Without concurrency inside of one read, s3fs doesn't ask for the size before it.
    return {"config_kwargs": config, "max_concurrency": 1}


def _gs(timeout: float) -> dict[str, object]:
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs a traceback before it raises
    return {"requests_timeout": timeout, "access": "read_only"}


def _http(timeout: float) -> dict[str, object]:
    import aiohttp

    retry = aiohttp.ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout)
    # Compressed on the way, a file would not have the size that was announced.
    headers = {"Accept-Encoding": "identity"}
    return {
        "client_kwargs": {
            "timeout": retry,
            "headers": headers,
            "trace_configs": [checked_redirects()],
            "response_class": bounded_pages(),
        }
    }


_S3 = _Kind(("s3fs.core", "S3FileSystem"), "s3fs", _s3)
# Not `gcsfs.GCSFileSystem`: that asks by gRPC what kind of bucket it is, and gRPC dies in a fork.
_GS = _Kind(("gcsfs.core", "GCSFileSystem"), "gcsfs", _gs)
_HTTP = _Kind(("fsspec.implementations.http", "HTTPFileSystem"), "aiohttp", _http, False, False)
_MEMORY = _Kind(("fsspec.implementations.memory", "MemoryFileSystem"), "fsspec", lambda _: {})
_KINDS = {
    "s3": _S3,
    "s3a": _S3,
    "gs": _GS,
    "gcs": _GS,
    "http": _HTTP,
    "https": _HTTP,
    "memory": _MEMORY,
}


class Store:
    """The store of a scheme, by fsspec, whose errors are passed on.

    Args:
        scheme: of the addresses.
        options: for the file system, such as `endpoint_url`.
        timeout: seconds to wait for a silent connection.
        gate: lets requests begin.

    Raises:
        ConfigError: there is no such store, or what it needs is not installed.
    """

    def __init__(
        self, scheme: str, options: Mapping[str, object], timeout: float, gate: RequestGate
    ) -> None:
        if scheme not in _KINDS:
            known = ", ".join(f"{name}://" for name in ("file", *_KINDS))
            raise ConfigError(Problem("", f"there is no store {scheme}://; allowed: {known}"))
        self._scheme, self._kind = scheme, _KINDS[scheme]
        self._options = dict(options)
        self._timeout = timeout
        self._gate = gate
        identity = [*self._kind.system, timeout, self._options]
        self._key = json.dumps(identity, sort_keys=True, default=str)
        self.lists, self.writes = self._kind.lists, self._kind.writes
        self.has_parts = self._kind is _S3
        if not _is_installed(self._kind.module):
            reason = f"{scheme}:// needs {self._kind.module}: pip install {self._kind.module}"
            raise ConfigError(Problem("", reason))

    def files(self, address: str, crawl: Crawl, deep: bool = False) -> tuple[Listing, list[str]]:
        """Files of a folder and addresses of the folders in it; or all files below it, if `deep`.

        A store's answers are Python objects, 1 kB a file, so each page is flattened at once.
        """
        base = self._name(address)
        parts = []
        folders: dict[str, None] = {}
        crawl.start(address)
        for page, _ in self._pages(base, crawl, deep):
            files = []
            for info in page:
                name = self._relative(str(info["name"]), base)
                if name and info["type"] == "directory":
                    folders[join(address, name)] = None
                elif name:
                    files.append(self._info(name, info))
            parts.append(Listing.of(files))
            crawl.page(address, len(files))
        joined = parts[0] if len(parts) == 1 else Listing.joined(("", part) for part in parts)
        return joined, list(folders)

    def few(self, address: str) -> Listing | None:
        """All files below a folder of S3, if one answer has them all, and no folder beside them."""
        if self._kind is not _S3 or self._options.get("version_aware"):
            return None
        base = self._name(address)
        page, more = next(self._pages_of_s3(base, None, deep=True))
        if more or any(info["type"] == "directory" for info in page):
            return None
        named = ((self._relative(str(info["name"]), base), info) for info in page)
        return Listing.of(self._info(name, info) for name, info in named if name)

    def _pages(
        self, base: str, crawl: Crawl, deep: bool
    ) -> Iterator[tuple[Iterable[dict[str, Any]], bool]]:
        """Pages of entries below `base`, or only in it, as fsspec has them; whether more follow."""
        if self._kind is _S3 and not self._options.get("version_aware"):
            yield from self._pages_of_s3(base, crawl, deep)
        elif deep:
            with self._request():
                infos = self._system.find(base, detail=True)
            yield ({**info, "name": name} for name, info in infos.items()), False
        else:
            with self._request():
                page = self._system.ls(base, detail=True)
            yield page, False

    def _pages_of_s3(
        self, base: str, crawl: Crawl | None, deep: bool
    ) -> Iterator[tuple[list[dict[str, Any]], bool]]:
        """The same by S3's own listing: s3fs would keep all pages before it gives the first."""
        seen: set[str] = {""}  # marks of pages
        bucket, _, key = base.partition("/")
        asked = {"Prefix": f"{key.rstrip('/')}/" if key else "", "Delimiter": "" if deep else "/"}
        while True:
            with self._request():
                answer = self._page_of_s3(base, bucket, asked)
            # A key that ends in a slash marks a folder, and is no file.
            page = [
                {
                    "name": f"{bucket}/{entry['Key']}",
                    "size": entry["Size"],
                    "ETag": entry.get("ETag"),
                    "type": "file",
                }
                for entry in answer.get("Contents", [])
                if not entry["Key"].endswith("/")
            ]
            page += [
                {"name": f"{bucket}/{entry['Prefix']}", "type": "directory"}
                for entry in answer.get("CommonPrefixes", [])
            ]
            more = bool(answer.get("IsTruncated"))
            yield page, more
            if not more:
                return
            token = answer.get("NextContinuationToken") or ""
            assert crawl is not None
            if token in seen:
                raise crawl.endless("its store gives the same page again and again")
            seen.add(token)
            asked["ContinuationToken"] = token

    def _page_of_s3(self, base: str, bucket: str, asked: dict[str, str]) -> dict[str, Any]:
        try:
            client, s3 = self.direct()
            assert s3 is not None
            words = {"Prefix": "prefix", "Delimiter": "delimiter"}
            words["ContinuationToken"] = "continuation-token"
            return page_of_s3(client, s3, bucket, {words[name]: asked[name] for name in asked})
        except UnusualError:
            system = self._system
            bucket, _, _ = system.split_path(base)
            answer: dict[str, Any] = system.call_s3(
                "list_objects_v2", Bucket=bucket, **asked, **system.req_kw
            )
            return answer

    def look(self, address: str) -> FileInfo:
        """One file's size and version."""
        with self._request():
            try:
                client, s3 = self.direct()
                answer = client.head(self._url(address, s3))
                return self.described(address, answer.size, answer.headers)
            except UnusualError:
                pass
            info = self._system.info(self._name(address))
        if info.get("type", "file") != "file":
            raise FileNotFoundError(f"{address} is a folder")
        return self._info(address.rpartition("/")[2], info)

    def read(self, address: str, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes of a file, or some of them."""
        with self._request():
            content: bytes = self._system.cat_file(self._name(address), start=start, end=end)
        return content

    def fetch(
        self,
        address: str,
        start: int | None = None,
        end: int | None = None,
        most: int | None = None,
    ) -> tuple[bytes | bytearray, FileInfo | None]:
        """As `read`; and what the answer says of the whole file, if it says so.

        Args:
            most: bytes that are expected; an answer of more is read by other means.

        Raises:
            WholeFilesError: its server sends more than `most` bytes in answer to a request for a
            part.
        """
        try:
            with self._request():
                client, s3 = self.direct()
                answer = client.get(self._url(address, s3), start, end, most)
            return answer.body, self.described(address, answer.size, answer.headers)
        except NoRangesError as error:
            raise WholeFilesError(
                f"parts of {address!r} are needed, and its server sends only whole files. Copy the "
                "data to a folder of this machine, or to a server that answers Range requests."
            ) from error
        except UnusualError:
            return self.read(address, start, end), None

    def bounded(self, address: str, most: int) -> bytes | None:
        """All of a file of a web server; None where it does not give it, or has more bytes."""
        try:
            with self._request():
                client, s3 = self.direct()
                return bytes(client.get(self._url(address, s3), most=most).body)
        except StatusError as error:
            if error.status not in (HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED, HTTPStatus.GONE):
                raise
            return None
        except UnusualError:
            content = bytearray()
            for piece in self.stream(address):
                content += piece
                if len(content) > most:
                    return None
            return bytes(content)

    def request(
        self, address: str, start: int | None = None, end: int | None = None
    ) -> tuple[DirectClient, Request]:
        """A request for a file, or for the bytes from `start` to `end` of it, and who knows more.

        Raises:
            UnusualError: fsspec has to ask.
        """
        client, s3 = self.direct()
        return client, client.request(self._url(address, s3), start, end)

    def described(self, address: str, size: int, headers: Mapping[str, str]) -> FileInfo:
        """A file of `size` bytes, of the version that the headers of an answer name."""
        info: dict[str, Any] = {"ETag": headers.get("etag"), "size": size}
        if self._kind is _HTTP:
            info |= {"Content-MD5": headers.get("content-md5")}
            info |= {"Last-Modified": headers.get("last-modified")}
        return self._info(address.rpartition("/")[2], info)

    def direct(self) -> tuple[DirectClient, S3 | None]:
        """The client that sends requests past fsspec, one in each process.

        Raises:
            UnusualError: fsspec has to.
        """
        if self._kind not in (_HTTP, _S3):
            raise UnusualError("another kind of store")
        if self._options.keys() - (_PLAIN_OPTIONS if self._kind is _S3 else set()):
            raise UnusualError("options")
        process = _this_process()
        key = self._key
        with process.lock:
            if key not in process.direct:
                try:
                    s3 = S3(self._options) if self._kind is _S3 else None
                    more = (s3.sign, s3.authorities) if s3 else ()
                    process.direct[key] = DirectClient(self._timeout, *more), s3
                except UnusualError:
                    process.direct[key] = None
                except Exception:  # of botocore: a profile that is not there; s3fs says so
                    process.direct[key] = None
            if process.direct[key] is None:
                raise UnusualError("settings")
            return process.direct[key]

    def _url(self, address: str, s3: S3 | None) -> str:
        if s3 is None:
            return self._name(address)
        bucket, _, key = self._name(address).partition("/")
        return s3.url(bucket, key)

    def stream(self, address: str) -> Iterator[bytes]:
        """The bytes of a file whose size is not known, piece by piece."""
        opened = partial(self._system.open, self._name(address), "rb", block_size=0)
        with self._request(), closing(opened()) as file:
            while piece := file.read(2**20):
                yield piece

    def _request(self) -> AbstractContextManager[None]:
        return self._gate.request(asks_to_wait)

    @property
    def _system(self) -> Any:
        """The file system, opened once in each process."""
        module, name = self._kind.system
        key = self._key
        process = _this_process()
        with process.lock:
            if key in process.systems:
                return process.systems[key]
            options = _merged(self._kind.defaults(self._timeout), self._options)
            if self._kind is _GS and options.pop("anon", False):
                options["token"] = "anon"
            try:
                system = getattr(importlib.import_module(module), name)(
                    skip_instance_cache=True, use_listings_cache=False, **options
                )
            except (TypeError, ValueError) as error:
                reason = f"{self._scheme}:// refuses them: {error}"
                raise ConfigError(Problem("options", reason)) from error
            # s3fs and gcsfs have retries of their own, with fixed waits.
            system.retries = 1  # s3fs
            once = getattr(getattr(type(system), "_request", None), "__wrapped__", None)
            if once is not None:  # gcsfs, where a decorator retries
                system._request = partial(once, system)
            process.systems[key] = system
            return system

    def _name(self, address: str) -> str:
        """The name of an address in fsspec."""
        if self._kind is not _HTTP:
            rest = address.partition("://")[2]
            return f"/{rest}" if self._kind is _MEMORY else rest.rstrip("/")
        return quote(address, safe="%/:@!$&'()*+,;=~[]?")

    def _relative(self, name: str, base: str) -> str:
        """A listed name, relative to the folder `base`; empty for one outside of it."""
        base = base.rstrip("/") + "/"
        if not name.startswith(base):
            return ""
        name = name[len(base) :].rstrip("/")
        if self._kind is _HTTP:
            name = "" if "?" in name else unquote(name)  # links that sort the page
            return name if _is_inside(name) else ""  # a page may link to anything
        if name and not _is_inside(name):
            raise DataError(
                f"{base + name!r} is listed, but its name leads out of the folder. Rename it "
                "in its store, or give another folder."
            )
        return name

    def _info(self, name: str, info: Mapping[str, Any]) -> FileInfo:
        size = info.get("size")
        return FileInfo(name, None if size is None else int(size), self._version(info))

    def _version(self, info: Mapping[str, Any]) -> str:
        md5 = info.get("md5Hash") or info.get("Content-MD5")
        if md5:
            return "md5:" + base64.b64decode(md5).hex()
        etag = str(info.get("ETag") or info.get("etag") or "").strip('"')
        if self._kind is _S3 and _MD5.fullmatch(etag):
            return "md5:" + etag
        # Of several web servers that give the same file, each may have a tag of its own for it.
        created = info.get("created")  # of memory://: a number in a listing, else a datetime
        if isinstance(created, datetime):
            created = created.timestamp()
        return str(info.get("generation") or info.get("Last-Modified") or etag or created or "")


@functools.cache  # Python's lock of imports lets one thread in at a time
def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # None among the modules
        return False


class _Process:
    """The file systems that one process has open."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.systems: dict[str, Any] = {}
        self.direct: dict[str, Any] = {}


_current = _Process()
_parents: list[_Process] = []  # never dropped: closing their connections is up to the parent


def _this_process() -> _Process:
    """That of this process, which begins with none if it was forked."""
    global _current
    if _current.pid != os.getpid():
        if _current.systems:
            importlib.import_module("fsspec.asyn").reset_lock()
        _parents.append(_current)
        _current = _Process()
    return _current


def _is_inside(name: str) -> bool:
    """Whether a relative name stays in its folder, on whatever system."""
    return "\0" not in name and not {"", ".", ".."} & set(name.split("/"))


def check_options(options: Mapping[str, object], key: str = "files.options") -> None:
    """Raise ConfigError for options that are, or hold, credentials."""
    for name, value in options.items():
        where = f"{key}.{name}"
        if isinstance(value, Mapping):
            check_options(value, where)
        elif _CREDENTIAL.search(str(name)) and value not in _HARMLESS:
            raise ConfigError(
                Problem(
                    where,
                    "looks like a credential, which would be kept in the run's files. "
                    "Leave it out: stores find credentials by themselves, for s3 in the "
                    "environment or ~/.aws (also: options.profile), for gs by gcloud",
                )
            )
        elif isinstance(value, str) and re.search(r"//[^/@:]*:[^/@]*@", value):
            raise ConfigError(
                Problem(where, "holds a user and a password; leave them out of the address")
            )


def _merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Options laid over defaults, key by key."""
    merged = dict(ours)
    for name, value in theirs.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merged(merged[name], value) if both else value
    return merged


MOST_OF_A_PAGE = 64 * 2**20  # bytes of an index
_OURS = frozenset({"accept", "accept-encoding", "host", "range", "user-agent"})


def checked_redirects() -> aiohttp.TraceConfig:
    """Refuses the redirects that `check_redirect` refuses."""
    import aiohttp

    async def look(_: object, __: object, redirect: aiohttp.TraceRequestRedirectParams) -> None:
        headers = redirect.response.headers
        location = headers.get("Location") or headers.get("URI") or ""
        check_redirect(str(redirect.url), location, list(redirect.response.request_info.headers))

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(look)
    return trace


def check_redirect(address: str, location: str, headers: list[str]) -> None:
    """Raise DataError for a redirect that discloses headers, or the content by another scheme.

    Args:
        address: of the request.
        location: of the redirect; may be relative.
        headers: names of the request's.
    """
    origin, target = urlsplit(address), urlsplit(location)
    scheme = target.scheme.lower() or origin.scheme
    if scheme != origin.scheme and scheme != "https":
        raise DataError(
            f"{address!r} is redirected to {scheme}://{target.netloc}, past the protection of "
            f"{origin.scheme}. Give its real address."
        )
    own = [name for name in headers if name.lower() not in _OURS]
    if own and target.netloc and target.netloc.lower() != origin.netloc.lower():
        raise DataError(
            f"{address!r} is redirected to {target.netloc}, which would get the headers "
            f"{', '.join(own)} of files.options. Give its real address."
        )


def bounded_pages() -> type[aiohttp.ClientResponse]:
    """The class of responses whose text, an index, is bounded."""
    import aiohttp

    class Bounded(aiohttp.ClientResponse):
        async def text(self, encoding: str | None = None, errors: str = "strict") -> str:
            if self._body is None:
                pieces, size = [], 0
                async for piece in self.content.iter_chunked(2**16):
                    size += len(piece)
                    if size > MOST_OF_A_PAGE:
                        raise DataError(
                            f"{str(self.url)!r} is an index of more than {MOST_OF_A_PAGE} bytes, "
                            "and perhaps does not end. Check the address."
                        )
                    pieces.append(piece)
                self._body = b"".join(pieces)
            return await super().text(encoding, errors)

    return Bounded
