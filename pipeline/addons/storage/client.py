"""Access to files at addresses: what `Files.remote` is, in any process of a run.

The first use in a run starts the process that fetches (`fetcher.py`), and all processes of the run
connect to it. What is in the cache is read without it. The store is asked for a file's size and
version once, when a folder is listed or the file is first needed; they travel with the client to
all workers, and every answer is compared with them. So a run never sees two versions of a file.

Cost: 30 us for a file in the cache, 0.1 ms more for one that is not, beside its download.
"""

from __future__ import annotations

import json
import logging
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing.connection import Client as connect
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import numpy as np

from penstock.addons.storage.blocks import BLOCK, BlockCache, Object
from penstock.datasets.files import DataFile, Files, Root, walk
from penstock.errors import ConfigError, DataError, Problem, UnreachableError
from penstock.files.paths import is_remote, join
from penstock.terminal import progress

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from penstock.order.keys import IntArray

T = TypeVar("T")
INDEX = "penstock-files.index"  # of a folder of a web server; `index.py` writes it
SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "http", "https")
_WINDOW = 256  # blocks of a large file that are brought at once
_log = logging.getLogger(__name__)


class Process:
    """The process that fetches, and its socket; it ends with this object and its owner."""

    def __init__(self, options: dict[str, Any]) -> None:
        # The path of a socket has 107 bytes at most.
        where = tempfile.gettempdir()
        folder = tempfile.mkdtemp(prefix="penstock-", dir=where if len(where) < 70 else "/tmp")
        self.path = f"{folder}/fetcher"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.addons.storage.fetcher"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.pid = self._process.pid
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(options | {"socket": self.path}).encode() + b"\n")
        self._process.stdin.flush()
        with self._process.stdout as ready:
            started = ready.readline() == b"ready\n"
        self.end = weakref.finalize(self, _end, self._process, folder, os.getpid())
        self.end.atexit = False  # threads may still read then; the pipe closes a moment later
        if not started:
            code = self._process.wait()
            raise DataError(f"the process that fetches files ended with code {code} at its start")

    def code(self) -> int | None:
        """The exit code, if it has ended."""
        return self._process.poll()


def _end(process: subprocess.Popen[bytes], folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not a fork, which has a copy of this
        process.kill()  # a worker that lives on holds its pipe open, too
        process.communicate()
        shutil.rmtree(folder, ignore_errors=True)


# The processes of this one by their options; several datasets share one.
_processes: weakref.WeakValueDictionary[str, Process] = weakref.WeakValueDictionary()
_starting = threading.Lock()


def _forget() -> None:
    """A fork has no process of its own: it uses its parent's."""
    global _processes, _starting
    _processes, _starting = weakref.WeakValueDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_forget)


class Listing:
    """Files below a folder: names (bytes, sorted), sizes and versions; 100 bytes a file."""

    def __init__(self, files: Sequence[tuple[str, int, str]]) -> None:
        ordered = sorted((os.fsencode(name), size, version) for name, size, version in files)
        self.names = np.array([name for name, _, _ in ordered], np.bytes_)
        self.sizes = np.array([size for _, size, _ in ordered], np.int64)
        self.versions = np.array([version.encode() for _, _, version in ordered], np.bytes_)

    def find(self, name: str) -> tuple[int, str] | None:
        """Size and version of a file; None if it is not there."""
        encoded = os.fsencode(name)
        row = int(np.searchsorted(self.names, encoded)) if len(self.names) else 0
        if row >= len(self.names) or self.names[row] != encoded:
            return None
        return int(self.sizes[row]), self.versions[row].decode()


class Client:
    """Access to files at addresses. Can be pickled, forked and used by any number of threads.

    Args:
        files: its options.

    Raises:
        ConfigError: obstore is not installed, or the endpoint holds a password.
    """

    def __init__(self, files: Files) -> None:
        if find_spec("obstore") is None:
            raise ConfigError(
                "files at addresses need obstore: pip install 'penstock-loader[stores]'"
            )
        self.files = files
        options = dict(files.options or {})
        self._endpoint = check_address(str(options.get("endpoint_url", "")))
        folder = Path(files.cache_dir).expanduser().absolute() / "blocks"
        self.cache = BlockCache(folder)
        self._options = {
            "folder": str(folder),
            "limit": int(files.cache_size),
            "ahead": int(files.ahead),
            "concurrency": files.concurrency,
            "options": options,
            "retries": files.retries,
            "first_wait": files.first_wait,
            "timeout": files.timeout,
        }
        self._key = json.dumps(self._options, sort_keys=True, default=str)
        self._path = ""  # of the socket
        self.process: Process | None = None
        self._listings: dict[str, Listing] = {}
        self._known: dict[str, Object | None] = {}
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"process": None, "_local": None, "cache": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._local, self.cache = threading.local(), BlockCache(Path(str(self._options["folder"])))

    # --- The process

    def _connect(self) -> Connection:
        """A connection of this thread."""
        with _starting:
            with suppress(OSError):
                return connect(self._path, "AF_UNIX")
            process = _processes.get(self._key)
            if process is not None and process.path == self._path:
                process.end()
                _log.warning(
                    "the process that fetches files ended (code %s); another one is started, and "
                    "no batch depends on it",
                    process.code(),
                )
                process = None
            if process is None:
                process = _processes[self._key] = Process(self._options)
            self.process, self._path = process, process.path
            return connect(self._path, "AF_UNIX")

    def _send(self, **request: Any) -> Connection:
        """Send a request, again if the process has ended meanwhile; the connection."""
        content = json.dumps(request).encode()
        local = self._local
        if getattr(local, "pid", None) == os.getpid():
            with suppress(OSError):
                local.opened.send_bytes(content)
                return local.opened
        local.pid, local.opened = os.getpid(), self._connect()
        local.opened.send_bytes(content)
        return local.opened

    def _asked(self, count: int = 0, /, **request: Any) -> tuple[Any, list[bytes]]:
        """The result of a request, and contents of `count` blocks."""
        for _ in range(3):
            try:
                opened = self._send(**request)
                head = json.loads(opened.recv_bytes())
                if "error" not in head:
                    return head.get("result"), [opened.recv_bytes() for _ in range(count)]
                kinds = {"config": ConfigError, "unreachable": UnreachableError}
                raise kinds.get(head["kind"], DataError)(head["error"])
            except (OSError, EOFError):  # it was killed, as by a lack of memory
                self._local.pid = None
        raise DataError(
            "the process that fetches files ended again and again; see its messages above, or "
            "whether this machine has memory left"
        )

    # --- What is known of files

    def find(self, addresses: Sequence[str]) -> list[Object | None]:
        """Files with the sizes and versions that this run reads; None for those that are missing.

        Raises:
            DataError: their store cannot be asked.
        """
        unknown = []
        for address in addresses:
            if address not in self._known:
                for folder, listing in self._listings.items():
                    if address.startswith(f"{folder}/"):
                        name = address[len(folder) + 1 :]
                        told = listing.find(unquote(name) if folder.startswith("http") else name)
                        self._known[address] = told and Object.of(
                            address, told[0], told[1], self._endpoint
                        )
                        break
                else:
                    unknown.append(check_address(address))
        if unknown:
            result, _ = self._asked(do="look", addresses=unknown)
            for address, told in zip(unknown, result, strict=True):
                self._known[address] = told and Object.of(address, told[0], told[1], self._endpoint)
        return [self._known[address] for address in addresses]

    def look(self, address: str) -> Object:
        """A file; DataError if it is missing."""
        (found,) = self.find([address])
        if found is None:
            raise DataError(
                f"{address!r} is missing in its store. Check the address; if it was removed, start "
                "again."
            )
        return found

    def listing(self, address: str) -> Listing:
        """All files below a folder.

        Raises:
            DataError: there are none, or a web server has no index of them.
        """
        address = check_address(address.rstrip("/"))
        if address not in self._listings:
            with progress(f"listing {address}"):
                files, _ = (
                    (self._indexed(address), None)
                    if address.startswith("http")
                    else self._asked(do="files", address=address)
                )
            if len(files) > self.files.limits.files:
                refusal = self.files.limits.refusal("files", f"{len(files)} files")
                raise DataError(f"{address!r} lists {refusal}")
            if not files:
                raise DataError(
                    f"{address!r} is missing in its store, or holds no files. Check the address."
                )
            self._listings[address] = Listing(files)
        return self._listings[address]

    def _indexed(self, address: str) -> list[tuple[str, int, str]]:
        """The files that the index of a web server's folder names."""
        from penstock.addons.storage import index

        (found,) = self.find([join(address, INDEX)])
        if found is None:
            raise DataError(
                f"{address!r} has no {INDEX}, and web servers do not say which files they have. "
                "Write one before you upload the folder (python -m penstock.addons.storage.index "
                "FOLDER), or name the files: NAME-{000..127}.tar"
            )
        return index.parsed(bytes(self.read([(found, 0, found.size)])[0]), found.address)

    # --- Contents

    def read(self, spans: Sequence[tuple[Object, int, int]]) -> list[bytes | memoryview]:
        """Bytes start .. stop-1 of each object; what is not in the cache by one request.

        Raises:
            DataError: one cannot be fetched; names it.
        """
        made: list[bytes | memoryview | None] = []
        missing: dict[tuple[str, int], Object] = {}
        for item, start, stop in spans:
            cached = self.cache.opened(item) if stop > start else None
            made.append(cached.read(start, stop) if cached else None if stop > start else b"")
            if made[-1] is None:
                missing |= {(item.entry, block): item for block in item.blocks(start, stop)}
        if missing:
            blocks = [(item, block) for (_, block), item in missing.items()]
            _, contents = self._asked(len(blocks), do="read", blocks=blocks, forced=False)
            came = dict(zip(missing, contents, strict=True))
            for row, (item, start, stop) in enumerate(spans):
                if made[row] is None:
                    pieces = [came[item.entry, block] for block in item.blocks(start, stop)]
                    whole = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
                    first = start // BLOCK * BLOCK
                    made[row] = whole[start - first : stop - first]
        return made  # type: ignore[return-value]

    def _missing(self, item: Object) -> list[int]:
        """The blocks of a file that the cache lacks."""
        cached = self.cache.opened(item)
        blocks = item.blocks(0, item.size)
        return [n for n in blocks if cached is None or cached.read(*item.bounds(n)) is None]

    def local(self, address: str) -> Path:
        """The path of a file in the cache, which all of it is brought into; as `Files.local`."""
        item = self.look(address)
        path, missing = self.cache.folder / item.entry, self._missing(item)
        if not item.size:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        with progress(f"downloading {address.rpartition('/')[2]}", item.size, "bytes") as show:
            for first in range(0, len(missing), _WINDOW):
                window = [(item, block) for block in missing[first : first + _WINDOW]]
                self._asked(len(window), do="read", blocks=window, forced=True)
                show((first + len(window)) * BLOCK)
        return path

    def file(self, item: Object, function: Callable[[str], T]) -> T:
        """`function(path)` for a path with the content of a file, gone afterwards if not cached."""
        if item.size > _WINDOW * BLOCK:  # too large to hold in memory
            return function(str(self.local(item.address)))
        content = self.read([(item, 0, item.size)])[0]
        if item.size and not self._missing(item):
            return function(str(self.cache.folder / item.entry))
        with tempfile.NamedTemporaryFile(suffix=Path(item.address).suffix) as file:
            file.write(content)
            file.flush()
            return function(file.name)

    def want(self, spans: Sequence[tuple[Object, int, int]]) -> float:
        """The spans are read soon: fetch them when nothing is waited for.

        Returns:
            the part of `files.ahead` that they take; 0: nothing is fetched ahead.
        """
        if not self.files.ahead:
            return 0.0
        with suppress(OSError):  # its end is found by who reads
            blocks = [(item, (r := item.blocks(*span)).start, r.stop) for item, *span in spans]
            self._send(do="want", blocks=[(item, (first, last)) for item, first, last in blocks])
        return sum(stop - start for _, start, stop in spans) / self.files.ahead

    def folder(self, address: str) -> RemoteRoot:
        """A folder, which is listed when it is first used."""
        return RemoteRoot(self, check_address(address))

    def send(self, folder: Path, address: str, last: str, key: str) -> None:
        """Copy a folder of this machine to an address: complete, or without the file `last`.

        Args:
            key: of the configuration that names the address, for messages.

        Raises:
            ConfigError: other files are there, or nothing can be written to such addresses.
            DataError: the store refuses them, or did not answer.
        """
        if address.startswith("http"):
            reason = f"{address!r} is only read; give s3://, gs://, az:// or a folder of here"
            raise ConfigError(Problem(key, reason))
        names = [name for name in walk(folder) if name != last]
        size = sum((folder / name).stat().st_size for name in names)
        with progress(f"sending {size >> 20} MiB to {address}"):
            try:
                self._asked(do="send", folder=str(folder), names=names, last=last, address=address)
            except ConfigError as error:
                raise ConfigError(Problem(key, str(error))) from error
            finally:
                self._known, self._listings = {}, {}


def check_address(address: str) -> str:
    """The address, if there can be such a file.

    Raises:
        ConfigError: it holds a password, which a run's files would keep, or its store is unknown.
    """
    if re.match(r"[^/]*//[^/@]*@", address):
        raise ConfigError("an address holds a user or a password; leave them out of it")
    scheme = address.partition("://")[0].lower()
    if is_remote(address) and scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in ("file", *SCHEMES))
        raise ConfigError(Problem("", f"there is no store {scheme}://; allowed: {known}"))
    return address


class RemoteRoot(Root):
    """The folder `inner` below the address `root`, which is listed on first use."""

    def __init__(self, client: Client, root: str, inner: str = "") -> None:
        self.remote_files = client
        self._root, self._inner = root.rstrip("/"), inner
        self._before = f"{inner}/" if inner else ""

    def __str__(self) -> str:
        return join(self._root, self._inner) if self._inner else self._root

    def path(self, name: str) -> str:
        return join(self._root, self._before + name)

    def read(self, name: str, function: Callable[[str, str], T]) -> T:
        item = self.remote_files.look(self.path(name))
        return self.remote_files.file(item, lambda path: function(path, item.address))

    def want(self, names: Sequence[str]) -> float:
        found = self.remote_files.find([*map(self.path, names)])
        return self.remote_files.want([(item, 0, item.size) for item in found if item is not None])

    def below(self, name: str) -> RemoteRoot:
        inner = posixpath.normpath(posixpath.join(self._inner, name))
        if inner.startswith(("..", "/")):
            raise ConfigError(Problem("dataset.root", f"{name!r} leads out of it ({self._root!r})"))
        return RemoteRoot(self.remote_files, self._root, "" if inner == "." else inner)

    def exists(self) -> bool:
        return bool(self._names())

    def folders(self) -> list[str]:
        first = {name.partition("/")[0] for name in self._names() if "/" in name}
        return sorted(name for name in first if name[0] != ".")

    def files(self) -> list[str]:
        return [name for name in self._names() if name[0] != "." and "/." not in name]

    def sizes(self, names: Sequence[str]) -> IntArray:
        found = self._found(names)
        for name, item in zip(names, found, strict=True):
            if item is None:
                raise DataError(f"{self.path(name)!r} is missing in its store")
        return np.array([item.size for item in found if item], np.int64)

    def first_missing(self, names: Sequence[str]) -> int | None:
        return next((n for n, item in enumerate(self._found(names)) if item is None), None)

    def data_file(self, name: str) -> DataFile:
        item = self.remote_files.look(self.path(name))
        if not item.version:
            raise DataError(
                f"{item.address!r}: its store gives neither a checksum nor a version, so a changed "
                "content would not be noticed. Set data.fingerprint=sizes, or copy the data here "
                "first."
            )
        return DataFile(name, item.address, f"{item.version} {item.size}")

    def _found(self, names: Sequence[str]) -> list[Object | None]:
        if not self._root.startswith("http"):
            self.remote_files.listing(self._root)  # one request for all of them
        return self.remote_files.find([*map(self.path, names)])

    def _names(self) -> list[str]:
        names = self.remote_files.listing(self._root).names.tolist()
        before = os.fsencode(self._before)
        return [os.fsdecode(name[len(before) :]) for name in names if name.startswith(before)]
