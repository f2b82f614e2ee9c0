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
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from multiprocessing.connection import Client as connect
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from penstock.addons.storage import index
from penstock.addons.storage.blocks import BLOCK, BlockCache, Object
from penstock.datasets.files import DataFile, Files, Root, walk
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.paths import join
from penstock.terminal import progress

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from penstock.order.keys import IntArray

T = TypeVar("T")
_WINDOW = 256  # blocks of a large file that are brought at once
_log = logging.getLogger(__name__)


class Process(subprocess.Popen[bytes]):
    """The process that fetches, and its socket; it ends with this object, or its owner.

    It is used at once: connections wait in its socket until it has started.
    """

    def __init__(self, options: str) -> None:
        # Not where TMPDIR says: the path of a socket has 107 bytes at most.
        folder = tempfile.mkdtemp(prefix="penstock-", dir="/tmp")
        self.path = f"{folder}/fetcher"
        # The process removes it if this one is killed, and this one if the process is.
        Finalize(self, shutil.rmtree, (folder, True), exitpriority=0)
        # The socket is this process's own until the other one has it: nobody waits for its start.
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(self.path)
            listening.listen(1024)
            super().__init__(
                [
                    sys.executable,
                    "-m",
                    "penstock.addons.storage.fetcher",
                    str(listening.fileno()),
                    options,
                ],
                stdin=subprocess.PIPE,  # its end is that of the process
                pass_fds=[listening.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def __del__(self) -> None:
        # Popen's own would warn of a process that runs: this one ends a moment later.
        if self.stdin is not None:
            self.stdin.close()


# The processes of this one by their options; several datasets share one.
_processes: weakref.WeakValueDictionary[str, Process] = weakref.WeakValueDictionary()


class Client:
    """Access to files at addresses. Can be pickled, forked and used by any number of threads.

    Args:
        files: its options.

    Raises:
        ConfigError: obstore is not installed, or an option is an address with a password.
    """

    process: Process | None = None  # that fetches, if this one has started it

    def __init__(self, files: Files) -> None:
        if find_spec("obstore") is None:
            raise ConfigError(
                "files at addresses need obstore: pip install 'penstock-loader[stores]'"
            )
        self.files = files
        options = dict(files.options or {})
        self._endpoint = str(options.get("endpoint_url", ""))
        for value in options.values():  # `endpoint`, a proxy: whichever is an address
            check_address(str(value))
        self._folder = Path(files.cache_dir).expanduser().absolute() / "blocks"
        self._options = json.dumps(
            {
                name: getattr(files, name)
                for name in ("ahead", "concurrency", "retries", "first_wait", "timeout")
            }
            | {"folder": str(self._folder), "limit": files.cache_size, "options": options},
            default=str,
        )
        self._path = ""  # of the socket
        self._listed: dict[str, list[str]] = {}  # folder -> names
        self._known: dict[str, Any] = {}  # address -> size and version, or None

    def __getstate__(self) -> dict[str, Any]:
        own = {"process", "cache", "_local"}  # of this process
        return {name: value for name, value in vars(self).items() if name not in own}

    @cached_property
    def cache(self) -> BlockCache:
        """The blocks that are kept on the disk."""
        return BlockCache(self._folder)

    @cached_property
    def _local(self) -> threading.local:
        return threading.local()

    # --- The process

    def _connect(self) -> Connection:
        """A connection of this thread."""
        # Mostly it runs; in a worker, its parent has started it.
        with suppress(OSError):
            return connect(self._path, "AF_UNIX")
        # Of two threads that start one each, the last one's stays: the other finds it here later.
        process = _processes.get(self._options)
        if process is None or process.path == self._path:
            if self._path:
                _log.warning(
                    "the process that fetches files ended; another one is started, and no batch "
                    "depends on it"
                )
            process = _processes[self._options] = Process(self._options)
        self.process, self._path = process, process.path
        return connect(self._path, "AF_UNIX")

    def _request(self, name: str, *arguments: Any) -> Any:
        """What a method of `Fetcher` gives, which is called again if the process has ended."""
        local = self._local
        for _ in range(3):
            try:
                if getattr(local, "pid", None) != os.getpid():  # its parent's, or none
                    local.opened, local.pid = self._connect(), os.getpid()
                local.opened.send((name, *arguments))
                result = local.opened.recv() if name != "want" else None
            except (OSError, EOFError):  # it was killed, as by a lack of memory
                local.pid = None
            else:  # also an OSError of its own, with which it has not ended
                if isinstance(result, Exception):
                    raise result
                return result
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
        # What a listing lacks is missing: the store is not asked for each name.
        listed = tuple(self._listed)
        unknown = [
            check_address(address)
            for address in addresses
            if address not in self._known and not address.startswith(listed)
        ]
        if unknown:
            self._known |= zip(unknown, self._request("look", unknown), strict=True)
        return [
            (state := self._known.get(address))
            and Object.of(address, state[0], state[1], self._endpoint)
            for address in addresses
        ]

    def look(self, addresses: Sequence[str]) -> list[Object]:
        """Files; DataError if one is missing."""
        items = self.find(addresses)
        if None in items:
            raise DataError(
                f"{addresses[items.index(None)]!r} is missing in its store. Check the address; if "
                "it was removed, start again."
            )
        return items  # type: ignore[return-value]

    def data_file(self, name: str, address: str) -> DataFile:
        """A file, for hashing its content; DataError if its store gives nothing to hash."""
        (item,) = self.look([address])
        if not item.version:
            raise DataError(
                f"{address!r}: its store gives neither a checksum nor a version, so a changed "
                "content would not be noticed. Set data.fingerprint=sizes, or copy the data here "
                "first."
            )
        return DataFile(name, address, f"{item.version} {item.size}")

    def listing(self, address: str) -> list[str]:
        """Names of all files below a folder, sorted; 300 bytes a file are kept of it.

        Raises:
            DataError: there are none, or a web server has no index of them.
        """
        folder = check_address(address.rstrip("/")) + "/"
        if folder not in self._listed:
            with progress(f"listing {address}"):
                files = (
                    self._indexed(folder)
                    if folder.startswith("http")
                    else self._request("files", address)
                )
            if not files:
                raise DataError(
                    f"{address!r} is missing in its store, or holds no files. Check the address."
                )
            self._known |= {join(folder, name): state for name, *state in sorted(files)}
            self._listed[folder] = sorted(name for name, *_ in files)
        return self._listed[folder]

    def _indexed(self, folder: str) -> list[tuple[str, int, str]]:
        """The files that the index of a web server's folder names."""
        (item,) = self.find([folder + index.INDEX])
        if item is None:
            raise DataError(
                f"{folder!r} has no {index.INDEX}, and web servers do not say which files they "
                "have. Write one before you upload the folder (python -m "
                "penstock.addons.storage.index FOLDER), or name the files: NAME-{000..127}.tar"
            )
        return index.parsed(bytes(self.read([(item, 0, item.size)])[0]), item.address)

    # --- Contents

    def read(self, spans: Sequence[tuple[Object, int, int]]) -> list[bytes]:
        """Bytes start .. stop-1 of each object; what is not in the cache by one request.

        Raises:
            DataError: one cannot be fetched; names it.
        """
        # From the disk without the other process, which only those that are missing need.
        contents = [self.cache.read(*span) if span[2] > span[1] else b"" for span in spans]
        missing = [number for number, content in enumerate(contents) if content is None]
        if missing:
            fetched = self._request("read", [spans[number] for number in missing])
            for number, content in zip(missing, fetched, strict=True):
                contents[number] = content
        return contents  # type: ignore[return-value]

    def local(self, address: str) -> Path:
        """The path of a file in the cache, which all of it is brought into; as `Files.local`."""
        (item,) = self.look([address])
        path, missing = self.cache.path(item), self.cache.missing(item)
        with progress(f"downloading {address.rpartition('/')[2]}", item.size, "bytes") as show:
            for first in range(0, len(missing), _WINDOW):
                window = missing[first : first + _WINDOW]
                contents = self.read([(item, *item.bounds(block)) for block in window])
                try:
                    for block, content in zip(window, contents, strict=True):
                        self.cache.write(item, block, content)  # again, or without room for it
                except OSError as error:
                    raise DataError(self.cache.refusal(error)) from error
                show((first + len(window)) * BLOCK)
        return path

    def file(self, address: str, function: Callable[[str, str], T]) -> T:
        """`function(path, address)` for a path of this machine with the content of a file."""
        (item,) = self.look([address])
        if item.size > _WINDOW * BLOCK:  # too large to hold in memory
            return function(str(self.local(address)), address)
        (content,) = self.read([(item, 0, item.size)])
        if not self.cache.missing(item):
            return function(str(self.cache.path(item)), address)
        with tempfile.NamedTemporaryFile(suffix=Path(address).suffix) as file:
            file.write(content)
            file.flush()
            return function(file.name, address)

    def want(self, spans: Sequence[tuple[Object, int, int]]) -> float:
        """The spans are read soon: fetch them when nothing is waited for.

        Returns:
            the part of `files.ahead` that their blocks take; 0: nothing is fetched ahead.
        """
        if not self.files.ahead:
            return 0.0
        self._request("want", spans)
        # Whole blocks count: most of a block is not needed yet if small rows come in random order.
        return (
            sum(min(len(item.blocks(*span)) * BLOCK, item.size) for item, *span in spans)
            / self.files.ahead
        )

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
            raise ConfigError(
                Problem(key, f"{address!r} is only read; give s3://, gs://, az:// or a folder here")
            )
        with progress(f"sending {folder} to {address}"):
            names = [name for name in walk(folder) if name != last]
            self._request("send", folder, names, last, address, key)
        self._known, self._listed = {}, {}


def check_address(address: str) -> str:
    """The address, which a run may keep.

    Raises:
        ConfigError: it holds a password, which a run's files would keep.
    """
    if re.match(r"[^/]*//[^/@]*@", address):
        raise ConfigError("an address holds a user or a password; leave them out of it")
    return address


class RemoteRoot(Root):
    """The folder `inner` below the address `root`, all of which is listed on first use."""

    def __init__(self, client: Client, root: str, inner: str = "") -> None:
        self._root, self._before = root.rstrip("/"), f"{inner}/" if inner else ""
        super().__init__(join(self._root, inner) if inner else self._root)
        self.remote_files: Client = client

    def path(self, name: str) -> str:
        return join(self._path, name)

    def read(self, name: str, function: Callable[[str, str], T]) -> T:
        return self.remote_files.file(self.path(name), function)

    def want(self, names: Sequence[str]) -> float:
        items = self.remote_files.find([*map(self.path, names)])
        return self.remote_files.want([(item, 0, item.size) for item in items if item is not None])

    def below(self, name: str) -> RemoteRoot:
        inner = posixpath.normpath(self._before + name)
        return RemoteRoot(self.remote_files, self._root, "" if inner == "." else inner)

    def exists(self) -> bool:
        return bool(self._names())

    def folders(self) -> list[str]:
        return sorted(
            {name.partition("/")[0] for name in self._names() if "/" in name and name[0] != "."}
        )

    def files(self) -> list[str]:
        return [name for name in self._names() if name[0] != "." and "/." not in name]

    def sizes(self, names: Sequence[str]) -> IntArray:
        return np.array([item.size if item else -1 for item in self._items(names)], np.int64)

    def first_missing(self, names: Sequence[str]) -> int | None:
        return next((n for n, item in enumerate(self._items(names)) if item is None), None)

    def data_file(self, name: str) -> DataFile:
        return self.remote_files.data_file(name, self.path(name))

    def _items(self, names: Sequence[str]) -> list[Object | None]:
        if not self._root.startswith("http"):
            self.remote_files.listing(self._root)  # one request for all of them
        return self.remote_files.find([*map(self.path, names)])

    def _names(self) -> list[str]:
        names = self.remote_files.listing(self._root)
        return [name[len(self._before) :] for name in names if name.startswith(self._before)]
