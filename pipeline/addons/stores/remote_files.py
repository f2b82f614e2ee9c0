"""Access to files at addresses.

Remote files are kept in a cache that all workers, ranks and runs of a machine share. A file gets
there only whole: its size has to be right, and its MD5 where the store gives one. S3 does for files
uploaded in one part and without a key of one's own, Google Cloud for nearly all, web servers
seldom. Otherwise the store is asked after the download whether the file is still the one that was
listed. Large files come in pieces of 32 MiB, each of which is retried by itself.

The store is asked for a file's version once, when a folder is listed or the file is first needed;
it travels with the `RemoteFiles` to all workers. So a run never sees two versions of a file.

Cost: 25 us for a file in the cache; beside a download, 1.5 s a GB for the checksum, or a request
for a file without one.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import random
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from penstock.addons.record_files.shard_files import data_file
from penstock.addons.stores.catalog import Catalog
from penstock.addons.stores.listing import FileInfo
from penstock.addons.stores.parts import GAP, Came, Part, as_part, part_address
from penstock.addons.stores.request_gate import RequestGate, unusable
from penstock.addons.stores.retry import Damaged, RetryPolicy
from penstock.addons.stores.store import Store, check_options
from penstock.datasets.files import DataFile, Files, Root
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.paths import join
from penstock.terminal import progress

if TYPE_CHECKING:
    from penstock.addons.stores.file_cache import FileCache, PartialFile
    from penstock.addons.stores.mirror import Mirror
    from penstock.addons.stores.prefetcher import Prefetcher, RowsOf
    from penstock.addons.stores.sending import Sending
    from penstock.order.keys import IntArray

T = TypeVar("T")

PIECE = 32 * 2**20  # bytes of one request
_EVICTIONS = 20
_MIRRORED = 1024  # files
_LOOKS = 32  # files and folders that are asked for at once when a dataset is opened


class RemoteFiles:
    """Access to files at addresses. Can be pickled, forked and used by many threads.

    Args:
        files: its options.

    Raises:
        ConfigError: an option looks like a credential.
    """

    def __init__(self, files: Files) -> None:
        options = dict(files.options or {})
        check_options(options)
        self.files = files
        self.ahead, self.concurrency = files.ahead, files.concurrency
        self._endpoint = str(options.get("endpoint_url", ""))
        self._retry = RetryPolicy(files.retries, files.first_wait)
        gate = RequestGate(self._folder, files.concurrency, files.timeout)
        self.catalog = Catalog(
            options,
            files.timeout,
            self._retry,
            files.limits,
            gate,
            min(files.concurrency, _LOOKS),
        )
        self._unsummed = False  # whether checksums have proved to be wrong
        self._mirrored: dict[str, tuple[str, int]] = {}  # names and bytes of files with mirrors
        self._served: dict[str, FileInfo] = {}  # what a server says of files in a folder's index

    def local(self, address: str) -> Path:
        """As `Files.local`."""
        known = self.entry(address)
        if known is not None:
            cached = self.cache.find(*known)
            if cached is not None:
                return cached
        with _own_draws():
            return self._fetched(address)

    def read(self, address: str, function: Callable[[str], T]) -> T:
        """As `Files.read`."""
        for _ in range(_EVICTIONS):
            path = self.local(address)
            try:
                return function(str(path))
            except Exception:  # any at all, of any reader: only a file that is gone is read again
                if path.exists():
                    raise
        raise DataError(
            f"{address!r} was evicted {_EVICTIONS} times before it could be opened. The cache "
            f"{self.files.cache_dir!r} is too small for its readers: "
            "raise files.cache_size."
        )

    def part(self, address: str, start: int, end: int) -> str:
        """The address of some bytes of a file; `content` and `local` fetch these alone.

        They are kept apart from others, so the same bytes should be asked for again.
        Fetching raises WholeFilesError where a server gives no parts.
        """
        return part_address(address, start, end)

    def content(self, part: str, start: int = 0, count: int | None = None) -> bytes:
        """Bytes of a part: `count` of them from its byte `start` on, or all.

        Raises:
            DataError: it cannot be fetched.
            WholeFilesError: its server gives no parts.
        """
        wanted = as_part(part)
        assert wanted is not None, f"{part!r} is a whole file"
        most = wanted.end - wanted.start - start if count is None else count
        mirror = self._mirror(wanted.address)
        content = None if mirror is None else mirror.read(wanted, start, most)
        if content is not None:
            return content

        def read(path: str) -> bytes:
            with Path(path).open("rb") as file:
                return os.pread(file.fileno(), most, start)

        content = self.read(part, read)
        if len(content) < most:
            raise DataError(
                f"{wanted.address!r}: {len(content)} of {most} bytes from {wanted.start + start} "
                "on are in the cache"
            )
        return content

    def _mirror(self, address: str) -> Mirror | None:
        """The mirror of a file of which parts are read; None where there can be none."""
        named = self._mirrored.get(address)
        if named is None:
            known = self.catalog.known(address)
            if known is None or not known.size or not self.cache.has_mirrors:
                return None
            if len(self._mirrored) >= _MIRRORED:
                self._mirrored = {}
            named = self._mirrored[address] = self._entry(address, known), known.size
        return self.cache.mirror(*named)

    def filled_mirror(self, address: str) -> Mirror | None:
        """The mirror that parts of a file are to be kept in, if they are to be."""
        fits = 2 * self.catalog.size() <= self.cache.limit
        return self._mirror(address) if fits else None

    def kept_as(self, address: str) -> str | None:
        """The name in the cache of what a file or part will be kept in, if it is known yet."""
        part = as_part(address)
        mirror = None if part is None else self.filled_mirror(part.address)
        if mirror is not None:
            return mirror.entry
        known = self.entry(address)
        return None if known is None else known[0]

    def look(self, address: str) -> FileInfo:
        """A file's size and version; its store is asked once a run.

        Raises:
            DataError: it is missing, or the store cannot be asked.
        """
        return self.catalog.look(address)

    def folder(self, address: str) -> RemoteFolder:
        """A folder, which is listed when it is first used.

        Raises:
            ConfigError: there is no store for such addresses, or it needs something installed.
        """
        self.catalog.store(address)
        return RemoteFolder(self, address)

    def sending(self, address: str, key: str) -> Sending:
        """Copies a folder of this machine to one at an address.

        Args:
            key: of the configuration that names the address, for messages.

        Raises:
            ConfigError: such addresses are only read.
        """
        from penstock.addons.stores.sending import Sending

        return Sending(self.files, self.catalog, address, key)

    def prefetcher(self, rows_of: RowsOf, steps_of: Callable[[int], int]) -> Prefetcher:
        """The fetcher of files ahead of a reader, if `ahead` is more than 0.

        Args:
            rows_of: epoch, step -> the addresses of the files of each row.
            steps_of: epoch -> its steps.
        """
        cache = self.cache  # says so where there can be none
        from penstock.addons.stores.prefetcher import Prefetcher

        return Prefetcher(self, cache, rows_of, steps_of)

    def fetch_ahead(self, address: str, beyond: int) -> int:
        """Bring a file into the cache, which is needed in `beyond` rows; the bytes that came.

        Raises:
            FullError: there is no room but that of files that are needed earlier.
            DataError: as `local`.
        """
        known = self.entry(address)
        cached = None if known is None else self.cache.find(*known)
        if cached is None:
            return self._fetched(address, beyond).stat().st_size
        self.cache.promise(cached)
        return 0

    def fetch_parts_ahead(self, wanted: Sequence[tuple[str, int]]) -> Came:
        """Bring parts of one file into the cache, by one request if none is there yet.

        Args:
            wanted: a part's address, and in how many rows it is needed; in the order of the file.

        Raises:
            DataError: as `local`.
        """
        parts = {}
        for address, beyond in wanted:
            part = as_part(address)
            assert part is not None
            mirror = self._mirror(part.address)
            if mirror is not None and mirror.has(part):
                continue
            info = self.catalog.look(part.address)
            parts[self._entry(address, info)] = address, part, beyond
        try:
            return self._fetch_parts(parts, info) if parts else Came((), 0)
        except OSError as error:
            raise unusable(self._folder, error) from error

    def _fetch_parts(self, parts: dict[str, tuple[str, Part, int]], info: FileInfo) -> Came:
        """Bring `parts`: by their entries, addresses, themselves and rows."""
        size = 0
        sized = [(name, part.end - part.start, rows) for name, (_, part, rows) in parts.items()]
        with self.cache.claimed(sized) as claims:
            runs: list[list[tuple[str, Part, PartialFile]]] = []
            for name, file in claims.items():
                if file is None:
                    continue
                part = parts[name][1]
                if not runs or part.start - runs[-1][-1][1].end > GAP:
                    runs.append([])
                runs[-1].append((name, part, file))
            for run in runs:
                start, end = run[0][1].start, run[-1][1].end
                content = self._part(Part(run[0][1].address, start, end), info)
                size += len(content)
                for _, part, file in run:
                    file.write(content[part.start - start : part.end - start])
                    file.finish()
                self.cache.commit({name: file for name, _, file in run})
        return Came([parts[name][0] for name, file in claims.items() if file is None], size)

    def _part(self, part: Part, info: FileInfo) -> memoryview:
        """The bytes of a part of a file of the version `info`."""
        address, start, end = part

        def attempt() -> memoryview:
            store = self.catalog.store(address)
            content, told = _piece(store, address, start, end, end - start)
            if told is None or not self._is_of(address, info, told):
                self._check_version(address, info)
                if told is not None:
                    raise Damaged("it came in another version than its store has")
            return memoryview(content)

        return self._retry(address, attempt)

    def entry(self, address: str) -> tuple[str, int | None] | None:
        """The name of a file or part in the cache, and its bytes; None if it is not known yet."""
        part = as_part(address)
        known = self.catalog.known(part.address if part else address)
        if known is None:
            return None
        return self._entry(address, known), part.end - part.start if part else known.size

    def _entry(self, address: str, info: FileInfo) -> str:
        """The name in the cache of one version of a file: a hash, and its own name."""
        text = "\0".join([self._endpoint, address, info.version, str(info.size)])
        key = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        name = re.sub(r"[^A-Za-z0-9._-]", "_", address.partition("?")[0].rpartition("/")[2])
        return f"{key}-{name[-64:]}"

    def _fetched(self, address: str, beyond: int | None = None) -> Path:
        part = as_part(address)
        if part is not None:
            info, size = self.catalog.look(part.address), part.end - part.start
            name = self._entry(address, info)
            return self.cache.get(
                name, size, lambda file: file.write(self._part(part, info)), beyond
            )
        info = self.catalog.look(address)
        sums: set[str] = set()

        def download(part: PartialFile) -> None:
            self._retry(address, lambda: self._download(address, info, part, sums))

        return self.cache.get(self._entry(address, info), info.size, download, beyond)

    def _download(self, address: str, info: FileInfo, part: PartialFile, sums: set[str]) -> None:
        """Write a file into `part`; `sums` collects the MD5 of each attempt.

        Raises:
            Damaged: the content is not what the store has.
            DataError: it is not of the version `info` any more.
        """
        digest = hashlib.md5(usedforsecurity=False)
        part.written = 0
        name = address.partition("?")[0].rpartition("/")[2]
        told: set[tuple[int | None, str] | None] = set()
        with progress(f"downloading {name}", info.size, "bytes") as show:
            for piece, described in self._pieces(address, info.size):
                told.add(described and described[1:])
                part.write(piece)
                digest.update(piece)
                show(part.written)
        content = digest.hexdigest()
        again = content in sums
        sums.add(content)
        whole = info.size in (None, part.written)
        summed = info.version.startswith("md5:") and not self._unsummed
        if whole and summed and info.version == f"md5:{content}":
            return
        # Where the answers themselves say that they are of this version, nobody is asked again.
        if told != {info[1:]}:
            self._check_version(address, info)
        if not whole:
            raise Damaged(f"received {part.written} of {info.size} bytes")
        if summed and not again:
            raise Damaged("its checksum does not match")
        if address in self._served:
            raise DataError(
                f"{address!r} has changed since the index of its folder was written: its MD5 is "
                f"{content}, not {info.version.removeprefix('md5:')}. Write the index again: "
                "python -m penstock.addons.stores.file_index FOLDER"
            )
        if info.version and not told <= {None, info[1:]}:
            raise Damaged("it came in another version than its store has")
        # The same content came twice, so it is the checksum that is wrong: S3 gives what only looks
        # like one for files that it keeps encrypted by a key of its user.
        self._unsummed = self._unsummed or summed

    def _check_version(self, address: str, info: FileInfo) -> None:
        """Raise DataError if a file is of the version `info` no more."""
        now = self.catalog.look_again(address)
        if not self._is_of(address, info, now):
            raise DataError(
                f"{address!r} has changed since this run began: it had {info.size} bytes "
                f"(version {info.version or 'unknown'}) and has {now.size} "
                f"({now.version or 'unknown'}). Start again while nothing else writes there."
            )

    def _is_of(self, address: str, info: FileInfo, told: FileInfo) -> bool:
        """Whether what the store says of a file is of the version `info`.

        A folder's index has MD5s, of which most web servers know nothing: what such a server says
        of a file first, it has to say from then on.
        """
        indexed = info.version.startswith("md5:") and not told.version.startswith("md5:")
        if indexed and told.size == info.size and not self.catalog.store(address).lists:
            info = self._served.setdefault(address, told)
        return told[1:] == info[1:]

    def digest_of(self, address: str, told: FileInfo, whole: bool) -> str | None:
        """The MD5 that the bytes of an answer have to have; None where its headers are enough.

        Args:
            told: what these say of the file.
            whole: whether the bytes are all of it.

        Raises:
            Damaged: they are of another version than this run's.
        """
        info = self.catalog.look(address)
        if whole and info.version.startswith("md5:") and not self._unsummed:
            return info.version.removeprefix("md5:")
        if told[1:] != info[1:] if whole else not self._is_of(address, info, told):
            raise Damaged("it came in another version than its store has")
        return None

    def _pieces(
        self, address: str, size: int | None
    ) -> Iterator[tuple[bytes | bytearray, FileInfo | None]]:
        """The bytes of a file, and what each answer says of the whole."""
        store = self.catalog.store(address)
        if size is None:
            yield from ((piece, None) for piece in store.stream(address))
        elif 0 < size <= PIECE:
            yield store.fetch(address, most=PIECE)
        else:
            for start in range(0, size, PIECE):
                end = min(start + PIECE, size)
                piece = self._retry(address, partial(_piece, store, address, start, end, size))
                yield piece
                if len(piece[0]) == size:  # a web server that knows no ranges sends it all
                    return

    @property
    def _folder(self) -> Path:
        return Path(self.files.cache_dir).expanduser().absolute()

    @cached_property
    def cache(self) -> FileCache:
        """The folder of files that were fetched."""
        try:
            from penstock.addons.stores.file_cache import FileCache
        except ImportError as error:  # no fcntl
            raise ConfigError("the cache of remote files needs Linux or macOS") from error
        return FileCache(self._folder, self.files.cache_size)


class RemoteFolder(Root):
    """The folder `inner` below the address `root`, which is listed on first use."""

    remote_files: RemoteFiles

    def __init__(self, files: RemoteFiles, root: str, inner: str = "") -> None:
        self.remote_files = files
        self._catalog = files.catalog
        self._root = root.rstrip("/")
        self._inner = inner
        self._before = f"{inner}/" if inner else ""

    def __str__(self) -> str:
        return join(self._root, self._inner) if self._inner else self._root

    def path(self, name: str) -> str:
        return join(self._root, self._before + name)

    def read(self, name: str, function: Callable[[str, str], T]) -> T:
        address = self.path(name)
        return self.remote_files.read(address, lambda path: function(path, address))

    def below(self, name: str) -> RemoteFolder:
        inner = posixpath.normpath(posixpath.join(self._inner, name))
        if inner.startswith(("..", "/")):
            raise ConfigError(Problem("dataset.root", f"{name!r} leads out of it ({self._root!r})"))
        return RemoteFolder(self.remote_files, self._root, "" if inner == "." else inner)

    def exists(self) -> bool:
        rows = self._rows()
        return rows.stop > rows.start

    def folders(self) -> list[str]:
        listing = self._catalog.listing(self._root)
        names = listing.folders(self._rows(), len(os.fsencode(self._before)))
        return [name for name in names if name[0] != "."]

    def files(self) -> list[str]:
        names = self._catalog.listing(self._root).names[self._rows()].tolist()
        start = len(os.fsencode(self._before))
        below = (os.fsdecode(name[start:]) for name in names)
        return [name for name in below if name[0] != "." and "/." not in name]

    def sizes(self, names: Sequence[str]) -> IntArray:
        sizes = self._sizes(names)
        if len(sizes) and sizes.min() < 0:
            missing = self.path(names[int(sizes.argmin())])
            raise DataError(f"{missing!r} is missing in its store")
        return sizes

    def _sizes(self, names: Sequence[str]) -> IntArray:
        return self._catalog.sizes(self._root, [self._before + name for name in names])

    def first_missing(self, names: Sequence[str]) -> int | None:
        missing = np.flatnonzero(self._sizes(names) < 0)
        return int(missing[0]) if len(missing) else None

    def data_file(self, name: str) -> DataFile:
        return data_file(name, self.path(name), self.remote_files.files)

    def _rows(self) -> slice:
        return self._catalog.listing(self._root).below(self._inner)


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


def _piece(
    store: Store, address: str, start: int, end: int, size: int
) -> tuple[bytes | bytearray, FileInfo | None]:
    content, told = store.fetch(address, start, end, most=size)
    if len(content) < end - start:
        raise Damaged(f"received {len(content)} of {end - start} bytes")
    return content, told
