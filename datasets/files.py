"""Files at paths of this machine, and at addresses, from which they are fetched once.

Remote files are kept in a cache that all workers, ranks and runs of a machine share. A file gets
there only whole: its size has to be right, and its MD5 where the store gives one. S3 does for files
uploaded in one part and without a key of one's own, Google Cloud for nearly all, web servers
seldom. Otherwise the store is asked after the download whether the file is still the one that was
listed. Large files come in pieces of 32 MiB, each of which is retried by itself.

The store is asked for a file's version once, when a folder is listed or the file is first needed;
it travels with the `Files` to all workers. So a run never sees two versions of a file.

Cost: nothing for paths of this machine; 25 us for a file in the cache; beside a download, 1.5 s a
GB for the checksum, or a request for a file without one.
"""

from __future__ import annotations

import hashlib
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from penstock.addons.stores.catalog import Catalog
from penstock.addons.stores.listing import FileInfo
from penstock.addons.stores.request_gate import RequestGate
from penstock.addons.stores.retry import Damaged, RetryPolicy
from penstock.addons.stores.store import Store, check_options, is_remote, local_path
from penstock.datasets.reading.walk import walk
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Limits
from penstock.files.regular_file import open_regular, size_of
from penstock.ranges import Count, Index
from penstock.terminal import ProgressDisplay

if TYPE_CHECKING:
    from penstock.addons.stores.file_cache import FileCache, PartialFile
    from penstock.addons.stores.prefetcher import Prefetcher, RowsOf

T = TypeVar("T")

PIECE = 32 * 2**20  # bytes of one request
_EVICTIONS = 20
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
        concurrency: requests open at once, over all processes of a machine that share the cache.
        ahead: bytes that are fetched before they are needed, as `cache_size`; 0 fetches nothing.

    Raises:
        ConfigError: a value is out of range, or an option looks like a credential.
    """

    def __init__(
        self,
        cache_dir: str = "data/cache/files",
        cache_size: str | int = "20GB",
        retries: Index = 5,
        first_wait: float = 1.0,
        timeout: float = 60.0,
        options: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        concurrency: Count = 32,
        ahead: str | int = "256MB",
    ) -> None:
        if timeout <= 0:
            raise ConfigError(Problem("timeout", f"{timeout}; allowed: more than 0 seconds"))
        options = dict(options or {})
        check_options(options)
        self.cache_dir = cache_dir
        self.cache_size = parse_size(cache_size)
        self._place = str(options.get("endpoint_url", ""))
        self._retry = RetryPolicy(retries, first_wait)
        self._limits = limits or Limits()
        self.concurrency = concurrency
        self.ahead = 0 if str(ahead).strip() == "0" else parse_size(ahead, "ahead")
        gate = RequestGate(self._folder, concurrency, timeout)
        self.catalog = Catalog(options, timeout, self._retry, self._limits, gate)
        self._unsummed = False  # whether checksums have proved to be wrong

    def local(self, address: str) -> Path:
        """A path on this machine with the content of `address`; a local path is not checked.

        Open it soon: a cached file can be evicted, though rarely before all others. `read` and
        `open` fetch it again then; a file that is open stays readable.

        Raises:
            DataError: it is missing in its store, may not be read, or the store didn't answer.
        """
        if not is_remote(address):
            return Path(local_path(address)).expanduser()
        known = self.entry(address)
        if known is not None:
            cached = self.cache.find(*known)
            if cached is not None:
                return cached
        with _own_draws():
            return self._fetched(address)

    def fetch_ahead(self, address: str, beyond: int) -> None:
        """Bring a remote file into the cache, which is needed in `beyond` rows.

        Raises:
            FullError: there is no room but that of files that are needed earlier.
            DataError: as `local`.
        """
        known = self.entry(address)
        cached = None if known is None else self.cache.find(*known)
        if cached is None:
            self._fetched(address, beyond)
        else:
            self.cache.promise(cached)

    def entry(self, address: str) -> tuple[str, int | None] | None:
        """The name of a remote file in the cache, and its bytes; None if it is not known yet."""
        known = self.catalog.known(address)
        return None if known is None else (_entry(self._place, address, known), known.size)

    def prefetcher(self, rows_of: RowsOf, steps_of: Callable[[int], int]) -> Prefetcher | None:
        """What fetches files ahead of a reader; None if nothing is to be."""
        if not self.ahead:
            return None
        cache = self.cache  # says so where there can be none
        from penstock.addons.stores.prefetcher import Prefetcher

        return Prefetcher(self, cache, rows_of, steps_of)

    def _fetched(self, address: str, beyond: int | None = None) -> Path:
        wanted = self.catalog.look(address)
        entry = _entry(self._place, address, wanted)
        sums: set[str] = set()

        def download(part: PartialFile) -> None:
            self._retry(address, lambda: self._download(address, wanted, part, sums))

        return self.cache.get(entry, wanted.size, download, beyond)

    def read(self, address: str, function: Callable[[str], T]) -> T:
        """`function(path)` for a path on this machine with the content of `address`.

        It is called again if the file was evicted before it was opened.
        """
        if not is_remote(address):
            return function(str(Path(local_path(address)).expanduser()))
        for _ in range(_EVICTIONS):
            path = self.local(address)
            try:
                return function(str(path))
            except Exception:
                if path.exists():
                    raise
        raise DataError(
            f"{address!r} was evicted {_EVICTIONS} times before it could be opened. The cache "
            f"{self.cache_dir!r} is too small for its readers: raise dataset.files.cache_size."
        )

    def open(self, address: str) -> BinaryIO:
        """The content of `address`, open for reading."""
        try:
            return self.read(address, open_regular)
        except OSError as error:
            raise DataError(
                f"{address!r} cannot be read: {error.strerror or error}. Check dataset.root."
            ) from error

    def list(self, address: str) -> list[FileInfo]:
        """Names (relative) and sizes of all files below a folder, sorted; hidden ones left out.

        For folders of very many files: `catalog.listing`, which is flat.

        Raises:
            DataError: the folder is missing, or its store cannot be asked.
        """
        if not is_remote(address):
            folder = Path(local_path(address)).expanduser()
            if not folder.is_dir():
                raise DataError(f"{address!r} is not a folder. Check dataset.root.")
            names = walk(folder, self._limits)
            return [FileInfo(name, size_of(folder / name), "") for name in names]
        listing = self.catalog.listing(address)
        found = (listing.at(row) for row in range(len(listing)))
        return [one for one in found if not is_hidden(one.name)]

    def _download(self, address: str, wanted: FileInfo, part: PartialFile, sums: set[str]) -> None:
        """Write a file into `part`; `sums` collects the MD5 of each attempt.

        Raises:
            Damaged: the content is not what the store has.
            DataError: it is not of the version `wanted` any more.
        """
        digest = hashlib.md5(usedforsecurity=False)
        part.written = 0
        name = address.partition("?")[0].rpartition("/")[2]
        with ProgressDisplay(f"downloading {name}", wanted.size, "bytes") as shown:
            for piece in self._pieces(address, wanted.size):
                part.write(piece)
                digest.update(piece)
                shown.to(part.written)
        found = digest.hexdigest()
        again = found in sums
        sums.add(found)
        whole = wanted.size in (None, part.written)
        summed = wanted.version.startswith("md5:") and not self._unsummed
        if whole and summed and wanted.version == f"md5:{found}":
            return
        now = self.catalog.look_again(address)
        if (now.size, now.version) != (wanted.size, wanted.version):
            raise DataError(
                f"{address!r} has changed since this run began: it had {wanted.size} bytes "
                f"(version {wanted.version or 'unknown'}) and has {now.size} "
                f"({now.version or 'unknown'}). Start again while nothing else writes there."
            )
        if not whole:
            raise Damaged(f"received {part.written} of {wanted.size} bytes")
        if summed and not again:
            raise Damaged("its checksum does not match")
        # The same content came twice, so it is the checksum that is wrong: S3 gives what only looks
        # like one for files that it keeps encrypted by a key of its user.
        self._unsummed = self._unsummed or summed

    def _pieces(self, address: str, size: int | None) -> Iterator[bytes]:
        store = self.catalog.store(address)
        if size is None:
            yield from store.stream(address)
        elif 0 < size <= PIECE:
            yield store.read(address)
        else:
            for start in range(0, size, PIECE):
                end = min(start + PIECE, size)
                piece = self._retry(address, partial(_piece, store, address, start, end))
                yield piece
                if len(piece) == size:  # a web server that knows no ranges sends it all
                    return

    @property
    def _folder(self) -> Path:
        return Path(self.cache_dir).expanduser().absolute()

    @cached_property
    def cache(self) -> FileCache:
        """The cache of remote files."""
        try:
            from penstock.addons.stores.file_cache import FileCache
        except ImportError as error:  # no fcntl
            raise ConfigError("the cache of remote files needs Linux or macOS") from error
        return FileCache(self._folder, self.cache_size)


def is_hidden(name: str) -> bool:
    """Whether a file, or a folder that it lies in, begins with a dot."""
    return name.startswith(".") or "/." in name


def parse_size(size: str | int, key: str = "cache_size") -> int:
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


def _entry(place: str, address: str, found: FileInfo) -> str:
    """The name in the cache of one version of a file: a hash, and its own name."""
    text = "\0".join([place, address, found.version, str(found.size)])
    key = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    name = re.sub(r"[^A-Za-z0-9._-]", "_", address.partition("?")[0].rpartition("/")[2])
    return f"{key}-{name[-64:]}"


@contextmanager
def _own_draws() -> Iterator[None]:
    """Restore `random` if a store's library has drawn from it, as they do for their waits.

    A sample's transforms must not depend on whether its file was fetched. Other threads than the
    main one share the generator, so they can't restore it.
    """
    before = random.getstate()
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and random.getstate() != before:
            random.setstate(before)


def _piece(store: Store, address: str, start: int, end: int) -> bytes:
    content = store.read(address, start, end)
    if len(content) < end - start:
        raise Damaged(f"received {len(content)} of {end - start} bytes")
    return content
