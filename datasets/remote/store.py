"""Stores of files that are reached by an address: which there are, and how they are spoken to.

    s3://bucket/folder/file      Amazon S3 and what speaks like it    pip install s3fs
    gs://bucket/folder/file      Google Cloud Storage                 pip install gcsfs
    https://host/folder/file     a web server (http too)              pip install aiohttp
    memory://folder/file         this process's memory, for tests

The speaking is done by fsspec and its kin, which are imported with the first address. Their file
systems run threads and hold connections, neither of which survives a fork, so each process makes
its own when it first reads. They try nothing again by themselves: `remote.retry` does.
"""

from __future__ import annotations

import base64
import importlib
import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

from pipeline.datasets.remote import web
from pipeline.datasets.remote.crawl import Crawl, Tokens
from pipeline.datasets.remote.listing import Found, Listing
from pipeline.errors import ConfigError, DataError, Problem

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://", re.ASCII)
_CREDENTIAL = re.compile(
    r"key|secret|token|passw|credential|auth|cookie|signature|^(sas|user|username)$", re.IGNORECASE
)
_HARMLESS = frozenset({"anon", "cloud", "google_default"})  # ways to find credentials, not such
_MD5 = re.compile(r"[0-9a-f]{32}")
_CONNECTIONS = 100


def scheme_of(address: str) -> str | None:
    """The scheme of an address in small letters; None for a path of this machine."""
    match = _SCHEME.match(address)
    return match[1].lower() if match else None


def is_remote(address: str) -> bool:
    """Whether files at `address` are to be fetched; "file://" and paths are not."""
    return scheme_of(address) not in (None, "file")


def local_path(address: str) -> str:
    """The path that a local address means: without "file://"."""
    return address[7:] if address[:7].lower() == "file://" else address


def parse_address(address: str) -> str:
    """The scheme of a remote address.

    Raises:
        ConfigError: it holds a password, which would be kept in the run's files.
    """
    scheme = scheme_of(address)
    if scheme is None:
        raise ConfigError(f"{address!r} is no address")
    if re.match(r"[^/]*//[^/@]*@", address):
        raise ConfigError("an address holds a user or a password; leave them out of it")
    return scheme


def join(folder: str, name: str) -> str:
    """The address of the file `name` in the folder at an address."""
    web = scheme_of(folder) in ("http", "https")
    return f"{folder.rstrip('/')}/{quote(name) if web else name}"


def name_in(folder: str, address: str) -> str | None:
    """The name of a file relative to the folder at an address; None if it is not below it."""
    start = folder.rstrip("/") + "/"
    if not address.startswith(start):
        return None
    name = address[len(start) :]
    return unquote(name) if scheme_of(folder) in ("http", "https") else name


@dataclass(frozen=True)
class _Kind:
    """How the stores of a scheme are spoken to.

    Attributes:
        system: the file system's class and the module that it is in.
        module: what has to be installed.
        defaults: seconds to wait for a silent connection -> options of the file system.
        lists: whether a listing tells sizes and versions.
    """

    system: tuple[str, str]
    module: str
    defaults: Callable[[float], dict[str, Any]]
    lists: bool = True


def _s3(timeout: float) -> dict[str, Any]:
    retries = {"total_max_attempts": 1, "mode": "standard"}
    config = {"retries": retries, "connect_timeout": timeout, "read_timeout": timeout,
              "max_pool_connections": _CONNECTIONS}  # fmt: skip
    # Without concurrency inside of one read, s3fs doesn't ask for the size before it.
    return {"config_kwargs": config, "max_concurrency": 1}


def _gs(timeout: float) -> dict[str, Any]:
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs a traceback before it raises
    return {"requests_timeout": timeout, "access": "read_only"}


def _http(timeout: float) -> dict[str, Any]:
    import aiohttp

    retry = aiohttp.ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout)
    # Compressed on the way, a file would not have the size that was announced.
    headers = {"Accept-Encoding": "identity"}
    return {"client_kwargs": {"timeout": retry, "headers": headers,
                              "trace_configs": [web.checked_redirects()],
                              "response_class": web.bounded_pages()}}  # fmt: skip


_S3 = _Kind(("s3fs.core", "S3FileSystem"), "s3fs", _s3)
# Not `gcsfs.GCSFileSystem`: that asks by gRPC what kind of bucket it is, and gRPC dies in a fork.
_GS = _Kind(("gcsfs.core", "GCSFileSystem"), "gcsfs", _gs)
_HTTP = _Kind(("fsspec.implementations.http", "HTTPFileSystem"), "aiohttp", _http, lists=False)
_MEMORY = _Kind(("fsspec.implementations.memory", "MemoryFileSystem"), "fsspec", lambda _: {})
_KINDS = {
    "s3": _S3, "s3a": _S3, "gs": _GS, "gcs": _GS, "http": _HTTP, "https": _HTTP,
    "memory": _MEMORY,
}  # fmt: skip


class Store:
    """The store of a scheme, as fsspec speaks to it. Raises whatever fsspec raises.

    Args:
        scheme: of the addresses.
        options: for the file system, `endpoint_url` for example.
        timeout: seconds to wait for a silent connection.

    Raises:
        ConfigError: there is no such store, or what it needs is not installed.
    """

    def __init__(self, scheme: str, options: Mapping[str, Any], timeout: float) -> None:
        if scheme not in _KINDS:
            known = ", ".join(f"{name}://" for name in ("file", *_KINDS))
            raise ConfigError(Problem("", f"there is no store {scheme}://; allowed: {known}"))
        self._scheme, self._kind = scheme, _KINDS[scheme]
        self._options = dict(options)
        self._timeout = timeout
        self.lists = self._kind.lists
        require(scheme)

    def files(self, address: str, crawl: Crawl) -> tuple[list[Found], list[str]]:
        """Files of a folder and addresses of the folders in it."""
        base = self._name(address)
        files: list[Found] = []
        folders: dict[str, None] = {}
        crawl.start(address)
        for page in self._pages(base, crawl, deep=False):
            before = len(files)
            for info in page:
                name = self._relative(str(info["name"]), base)
                if info["type"] == "directory":
                    folders |= {join(address, name): None} if name else {}
                elif name:
                    files.append(self._found(name, info))
            crawl.page(address, len(files) - before)
        return files, list(folders)

    def files_below(self, address: str, crawl: Crawl) -> Listing:
        """Files of a folder and of all folders in it.

        A store's answers are Python objects, 1 kB a file, so each page is flattened at once.
        """
        base = self._name(address)
        parts = []
        crawl.start(address)
        for page in self._pages(base, crawl, deep=True):
            pairs = ((self._relative(str(info["name"]), base), info) for info in page)
            parts.append(Listing.of([self._found(name, info) for name, info in pairs if name]))
            crawl.page(address, len(parts[-1]))
        return parts[0] if len(parts) == 1 else Listing.joined(("", part) for part in parts)

    def _pages(self, base: str, crawl: Crawl, deep: bool) -> Iterator[Iterable[dict[str, Any]]]:
        """What fsspec says of the files below `base` (or only in it), a page at a time."""
        if self._kind is _S3 and not self._options.get("version_aware"):
            yield from self._pages_of_s3(base, crawl, deep)
        elif deep:
            found = self._system.find(base, detail=True)
            yield ({**info, "name": name} for name, info in found.items())
        else:
            yield self._system.ls(base, detail=True)

    def _pages_of_s3(self, base: str, crawl: Crawl, deep: bool) -> Iterator[list[dict[str, Any]]]:
        """The same by S3's own listing: s3fs would keep all pages before it gives the first."""
        system, tokens = self._system, Tokens(crawl)
        bucket, key, _ = system.split_path(base)
        asked = {"Bucket": bucket, "Prefix": f"{key.rstrip('/')}/" if key else "",
                 "Delimiter": "" if deep else "/", **system.req_kw}  # fmt: skip
        while True:
            answer = system.call_s3("list_objects_v2", **asked)
            # A key that ends in a slash marks a folder, and is no file.
            page = [
                {"name": f"{bucket}/{one['Key']}", "size": one["Size"], "ETag": one.get("ETag"),
                 "type": "file"}
                for one in answer.get("Contents", []) if not one["Key"].endswith("/")
            ]  # fmt: skip
            page += [
                {"name": f"{bucket}/{one['Prefix']}", "type": "directory"}
                for one in answer.get("CommonPrefixes", [])
            ]
            yield page
            if not answer.get("IsTruncated"):
                return
            tokens.next(answer.get("NextContinuationToken"))
            asked["ContinuationToken"] = answer["NextContinuationToken"]

    def look(self, address: str) -> Found:
        """What the store says of one file."""
        info = self._system.info(self._name(address))
        if info.get("type", "file") != "file":
            raise FileNotFoundError(f"{address} is a folder")
        return self._found(address.rpartition("/")[2], info)

    def read(self, address: str, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes of a file, or some of them."""
        content: bytes = self._system.cat_file(self._name(address), start=start, end=end)
        return content

    def stream(self, address: str) -> Iterator[bytes]:
        """The bytes of a file whose size is not known, piece by piece."""
        with closing(self._system.open(self._name(address), "rb", block_size=0)) as file:
            while piece := file.read(2**20):
                yield piece

    @property
    def _system(self) -> Any:
        given = [*self._kind.system, self._timeout, self._options]
        key = json.dumps(given, sort_keys=True, default=str)
        process = _here()
        with process.lock:
            if key not in process.systems:
                process.systems[key] = self._made()
            return process.systems[key]

    def _made(self) -> Any:
        module, name = self._kind.system
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
        return _without_retries(system)

    def _name(self, address: str) -> str:
        """What fsspec calls an address."""
        if self._kind is not _HTTP:
            rest = address[_SCHEME.match(address).end() :]  # type: ignore[union-attr]
            return f"/{rest}" if self._kind is _MEMORY else rest.rstrip("/")
        return quote(address, safe="%/:@!$&'()*+,;=~[]?")

    def _relative(self, name: str, base: str) -> str:
        """A name in a listing, relative to the folder `base`; empty for what is not in it."""
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

    def _found(self, name: str, info: Mapping[str, Any]) -> Found:
        size = info.get("size")
        return Found(name, None if size is None else int(size), self._version(info))

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


class _Process:
    """What one process has open."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.systems: dict[str, Any] = {}


_current = _Process()
_of_parents: list[_Process] = []  # never dropped: closing their connections is up to the parent


def _here() -> _Process:
    """What this process has open; nothing yet in one that was forked."""
    global _current
    if _current.pid != os.getpid():
        importlib.import_module("fsspec.asyn").reset_lock()
        _of_parents.append(_current)
        _current = _Process()
    return _current


def _is_inside(name: str) -> bool:
    """Whether a relative name stays in its folder, wherever its parts are put together again."""
    return "\0" not in name and not {"", ".", ".."} & set(name.split("/"))


def require(scheme: str) -> None:
    """Raise ConfigError unless what a store needs is installed."""
    kind = _KINDS[scheme]
    try:
        importlib.import_module(kind.module)
    except ImportError as error:
        raise ConfigError(
            Problem("", f"{scheme}:// needs {kind.module}: pip install {kind.module}")
        ) from error


def check_options(options: Mapping[str, Any], key: str = "options") -> None:
    """Raise ConfigError for options that are, or hold, credentials."""
    for name, value in options.items():
        where = f"{key}.{name}"
        if isinstance(value, Mapping):
            check_options(value, where)
        elif _CREDENTIAL.search(str(name)) and value not in _HARMLESS:
            raise ConfigError(
                Problem(where, "looks like a credential, which would be kept in the run's files. "
                        "Leave it out: stores find credentials by themselves, for s3 in the "
                        "environment or ~/.aws (also: options.profile), for gs by gcloud")
            )  # fmt: skip
        elif isinstance(value, str) and re.search(r"//[^/@]*:[^/@]*@", value):
            raise ConfigError(
                Problem(where, "holds a user and a password; leave them out of the address")
            )


def _without_retries(system: Any) -> Any:
    """A file system that tries once: s3fs and gcsfs have retries of their own, with fixed waits."""
    system.retries = 1  # s3fs
    once = getattr(getattr(type(system), "_request", None), "__wrapped__", None)
    if once is not None:  # gcsfs, where a decorator retries
        system._request = partial(once, system)
    return system


def _merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Options laid over defaults, key by key."""
    merged = dict(ours)
    for name, value in theirs.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merged(merged[name], value) if both else value
    return merged
