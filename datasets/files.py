"""Files at paths of this machine, and at addresses such as `s3://bucket/folder`.

The add-on `stores` fetches files from addresses. It is imported with the first address, and without
it addresses are refused. Cost: nothing for paths of this machine.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, NamedTuple, Protocol, TypeVar

from pydantic import AfterValidator, NonNegativeFloat

from penstock import seams
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.data import size_of
from penstock.files.limits import DEFAULT, Count, Index, Limits, PositiveFloat
from penstock.files.paths import is_remote, local_path
from penstock.terminal import progress

if TYPE_CHECKING:
    from penstock.datasets.reading.folder import Folder


T = TypeVar("T")

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}


def _public(name: str) -> str:
    if re.search("secret|password|token|key", name, re.IGNORECASE):
        raise ValueError("a run's folder keeps it: put it into the environment, or the tool's file")
    return name


class FileInfo(NamedTuple):
    """A file in a folder or a store."""

    name: str  # relative to the folder that was listed, with forward slashes
    size: int | None  # bytes; None when the store doesn't say
    version: str  # changes with the content; "md5:..." is a checksum of it. Empty if unknown


class WholeFilesError(DataError):
    """The server of a file sends all of it to a reader that asks for a part."""


class Sending(Protocol):
    """A folder that is copied to an address; when it was killed, the next run continues it."""

    def has(self, name: str) -> bool:
        """Whether a file is there now."""

    def claim(self, version: str) -> None:
        """Note that files of this version come.

        Raises:
            ConfigError: others are there.
            DataError: nothing can be written there.
        """

    def run(self, folder: Path, last: str) -> None:
        """Copy all files but hidden ones, `last` after the others.

        Raises:
            DataError: the store refuses them, or did not answer.
        """


class Remote(Protocol):
    """The result of `AddOn.stores` for a `Files`: access to addresses, of one version for a whole
    run.

    It is pickled to workers with what it knows of files, forked, and used by many threads.
    """

    ahead: int  # bytes that are fetched before they are needed

    def local(self, address: str) -> Path:
        """As `Files.local`."""

    def read(self, address: str, function: Callable[[str], T]) -> T:
        """As `Files.read`."""

    def part(self, address: str, start: int, end: int) -> str:
        """The address of some bytes of a file; `content` and `local` fetch these alone.

        They are kept apart from others, so the same bytes should be asked for again.
        Fetching raises WholeFilesError where a server gives no parts.
        """

    def content(self, part: str, start: int = 0, count: int | None = None) -> bytes:
        """Bytes of a part: `count` of them from its byte `start` on, or all.

        Raises:
            DataError: it cannot be fetched.
            WholeFilesError: its server gives no parts.
        """

    def list(self, address: str) -> list[FileInfo]:
        """As `Files.list`."""

    def look(self, address: str) -> FileInfo:
        """A file's size and version; its store is asked once a run.

        Raises:
            DataError: it is missing, or the store cannot be asked.
        """

    def folder(self, address: str) -> Folder:
        """A folder, which is listed when it is first used.

        Raises:
            ConfigError: there is no store for such addresses, or it needs something installed.
        """

    def sending(self, address: str, key: str) -> Sending:
        """Copies a folder of this machine to one at an address.

        Args:
            key: of the configuration that names the address, for messages.

        Raises:
            ConfigError: such addresses are only read.
        """

    def prefetcher(
        self,
        rows_of: Callable[[int, int], Sequence[Sequence[str]]],
        steps_of: Callable[[int], int],
    ) -> object:
        """The fetcher of files ahead of a reader, if `ahead` is more than 0.

        Args:
            rows_of: epoch, step -> the addresses of the files of each row.
            steps_of: epoch -> its steps.
        """


class Files:
    """Access to files at paths and addresses. Can be pickled, forked and used by many threads.

    Args:
        cache_dir: folder of the cache, made when it is needed; several runs may use the same.
        cache_size: of the cache, as "20GB", "500 MB", "4GiB" or a number of bytes.
        retries: further attempts when a store doesn't answer or is busy.
        first_wait: seconds before the first of them; each next wait is twice as long.
        timeout: seconds after which a silent connection counts as broken.
        options: for the store's fsspec file system: `endpoint_url`, `anon`, `profile` ... No
            credentials: these are found by the store's own means.
        limits: `files` of a listing.
        concurrency: the most requests open at once, over all processes of a machine that share the
            cache. Each reader begins with 32, and takes more while they bring more.
        ahead: bytes that are fetched before they are needed, as `cache_size`; 0 fetches nothing.

    Raises:
        ConfigError: a value is out of range, or an option looks like a credential.
    """

    def __init__(
        self,
        cache_dir: str = "data/cache/files",
        cache_size: str | int = "20GB",
        retries: Index = 5,
        first_wait: NonNegativeFloat = 1.0,
        timeout: PositiveFloat = 60.0,
        options: Mapping[Annotated[str, AfterValidator(_public)], object] | None = None,
        limits: Limits | None = None,
        concurrency: Count = 128,
        ahead: str | int = "256MB",
    ) -> None:
        self.cache_dir = cache_dir
        self.cache_size = parse_size(cache_size)
        self.retries, self.first_wait, self.timeout = retries, first_wait, timeout
        self.options = dict(options or {})
        self.limits = limits or Limits()
        self.concurrency = concurrency
        self.ahead = 0 if str(ahead).strip() == "0" else parse_size(ahead, "files.ahead")
        if self.options:
            _ = self.remote  # it refuses credentials

    @cached_property
    def remote(self) -> Remote:
        """Access to addresses.

        Raises:
            ConfigError: an option looks like a credential.
        """
        return seams.remote_files(self)

    def local(self, address: str) -> Path:
        """A path on this machine with the content of `address`; a local path is not checked.

        Open it soon: a cached file can be evicted, though rarely before all others. `read` and
        `open` fetch it again then; a file that is open stays readable.

        Raises:
            DataError: it is missing in its store, may not be read, or the store didn't answer.
        """
        return self.remote.local(address) if is_remote(address) else _path(address)

    def read(self, address: str, function: Callable[[str], T]) -> T:
        """`function(path)` for a path on this machine with the content of `address`.

        It is called again if the file was evicted before it was opened.
        """
        if is_remote(address):
            return self.remote.read(address, function)
        return function(str(_path(address)))

    def open(self, address: str) -> BinaryIO:
        """The content of `address`, open for reading."""
        try:
            return self.read(address, lambda path: Path(path).open("rb"))
        except OSError as error:
            raise DataError(
                f"{address!r} cannot be read: {error.strerror or error}. Check dataset.root."
            ) from error

    def list(self, address: str) -> list[FileInfo]:
        """Names (relative) and sizes of all files below a folder, sorted; hidden ones left out.

        Raises:
            DataError: the folder is missing, or its store cannot be asked.
        """
        if is_remote(address):
            return self.remote.list(address)
        folder = _path(address)
        if not folder.is_dir():
            raise DataError(f"{address!r} is not a folder. Check dataset.root.")
        return [FileInfo(name, size_of(folder / name), "") for name in walk(folder, self.limits)]


def _path(address: str) -> Path:
    return Path(local_path(address)).expanduser()


def is_hidden(name: str) -> bool:
    """Whether a file, or a folder that it lies in, begins with a dot."""
    return name.startswith(".") or "/." in name


def parse_size(size: str | int, key: str = "files.cache_size") -> int:
    """Bytes of "20GB", "1.5 TB", "512MiB" or a number.

    Raises:
        ConfigError: it is none of these, or not more than 0.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", str(size), re.IGNORECASE)
    unit = match[2].lower() if match else "?"
    amount = int(float(match[1]) * _UNITS[unit]) if match and unit in _UNITS else 0
    if amount < 1:
        raise ConfigError(
            Problem(key, f"{size!r}; allowed: a size such as 20GB, 512MiB or 1000000")
        )
    return amount


_log = logging.getLogger(__name__)


def walk(folder: Path, limits: Limits = DEFAULT) -> list[str]:
    """Names of all files below a folder, relative, sorted; hidden ones left out.

    Links are followed, also out of the folder, as people link data that they keep elsewhere; real
    folders come first, then links in the order of their names. Folders that were seen before or
    contain this one are skipped, so loops end; those that may not be read, and empty ones named
    like files, too. One warning counts them. Entries that are not files (a FIFO, a broken link) are
    listed: reading them says what they are. Cost: about 2 us a file.

    Raises:
        DataError: there are more than `limits.files`.
    """
    names: list[str] = []
    skipped: list[str] = []
    seen = {_identity(parent) for parent in folder.resolve().parents}
    waiting = [""]  # folders, each with a slash at its end
    links: list[str] = []  # to folders; a heap
    with progress(f"listing {folder}") as show:
        while waiting or links:
            show(len(names))
            below = waiting.pop() if waiting else heappop(links)
            try:
                identity = _identity(Path(folder, below))
                if identity in seen:
                    skipped.append(f"{below[:-1]} (seen before, through another link)")
                    continue
                seen.add(identity)
                empty = True
                with os.scandir(f"{folder}/{below}") as entries:
                    for entry in entries:
                        if entry.name[0] == ".":
                            continue
                        empty = False
                        if not is_folder(entry):
                            names.append(below + entry.name)
                        elif entry.is_symlink():
                            heappush(links, f"{below}{entry.name}/")
                        else:
                            waiting.append(f"{below}{entry.name}/")
            except OSError as error:
                skipped.append(f"{below[:-1]} ({error.strerror})")
                continue
            if empty and "." in below:
                skipped.append(f"{below[:-1]} (a folder without files)")
            if len(names) + len(waiting) + len(links) > limits.files:
                refusal = limits.refusal("files", f"{len(names)} files and more")
                raise DataError(f"{str(folder)!r} holds {refusal}")
    if skipped:
        _warn(str(folder), len(skipped), skipped[0])
    return sorted(names)


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or to what may not be looked at
        return False


@cache
def _warn(folder: str, count: int, first: str) -> None:
    """Warn once in a process: both splits walk through the same folder."""
    _log.warning("%s: skipped %d folder(s), the first %s.", folder, count, first)
