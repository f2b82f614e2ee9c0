"""The files in stores: asked for once, kept in flat arrays, sent to every worker.

Cost: a request for every 1000 files of a folder on S3 and Google Cloud, for which a folder's
subfolders are listed side by side; on a web server one for an index of the folder (`file_index.py`)
or, as its pages only name files, one for each file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from penstock.addons.stores import file_index
from penstock.addons.stores.listing import Crawl, FileInfo, Listing, bytes_of
from penstock.addons.stores.request_gate import RequestGate
from penstock.addons.stores.retry import RetryPolicy, is_transient
from penstock.addons.stores.store import Store, name_in, parse_address
from penstock.errors import DataError
from penstock.files.limits import Limits
from penstock.files.paths import join
from penstock.terminal import progress, watched

if TYPE_CHECKING:
    from penstock.order.keys import IntArray

T = TypeVar("T")

_AT_ONCE = 16  # folders
_DEEPEST = 64  # levels of folders
_LAST = 1024  # files
_SAME = 8  # nested folders with the very same names
_FOLDERS = 2000  # of more than these, asking for each would take longer than asking for all files


class Catalog:
    """The files at addresses, of the version that they had when they were first asked for.

    Args:
        options, timeout: for the stores.
        retry: with them.
        limits: of a listing.
        gate: lets requests begin.
        at_once: requests under way; the gate may let fewer begin.
    """

    def __init__(
        self,
        options: Mapping[str, object],
        timeout: float,
        retry: RetryPolicy,
        limits: Limits,
        gate: RequestGate,
        at_once: int,
    ) -> None:
        self.gate = gate
        self._at_once = at_once
        self._limits = limits
        self._options = options
        self._timeout = timeout
        self._retry = retry
        self._stores: dict[str, Store] = {}  # by scheme
        self._listings: dict[str, Listing] = {}
        self._found: dict[str, FileInfo] = {}
        self._sized = (0, 0), 0  # listings and files, and their bytes
        self._last: dict[str, FileInfo] = {}  # files of which many parts are read

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_stores": {}}

    def store(self, address: str) -> Store:
        """The store of an address."""
        scheme = parse_address(address)
        if scheme not in self._stores:
            self._stores[scheme] = Store(scheme, self._options, self._timeout, self.gate)
        return self._stores[scheme]

    def known(self, address: str) -> FileInfo | None:
        """A file that was listed or asked for before; 15 us, unless it was among the last ones."""
        info = self._last.get(address)
        if info is None and (info := self._known(address)) is not None:
            if len(self._last) >= _LAST:
                self._last = {}
            self._last[address] = info
        return info

    def size(self) -> int:
        """The bytes of all files that are known."""
        known = len(self._listings), len(self._found)
        if self._sized[0] != known:
            listed = sum(int(each.sizes.clip(0).sum()) for each in self._listings.values())
            found = sum(info.size or 0 for info in [*self._found.values()])
            self._sized = known, listed + found
        return self._sized[1]

    def _known(self, address: str) -> FileInfo | None:
        for folder, listing in self._listings.items():
            name = name_in(folder, address)
            info = listing.find(name) if name else None
            if info is not None:
                return info
        return self._found.get(address)

    def look(self, address: str) -> FileInfo:
        """A file; the store is asked if it is not known.

        Raises:
            DataError: it is missing, or the store cannot be asked.
        """
        info = self.known(address)
        if info is None:
            info = self._found[address] = self.look_again(address)
        return info

    def look_again(self, address: str) -> FileInfo:
        """A file as it is now."""
        store = self.store(address)
        return self._retry(address, lambda: store.look(address))

    def listing(self, address: str) -> Listing:
        """All files below a folder.

        Raises:
            DataError: there are none, they don't end, or the store cannot be asked.
        """
        address = address.rstrip("/")
        if address not in self._listings:
            indexed = None if self.store(address).lists else self._indexed(address)
            if indexed is not None:
                self._listings[address] = indexed
                return indexed
            with progress(f"listing {address}") as show:
                listing = self._listed(address, show)
            if not self.store(address).lists:
                names = [os.fsdecode(name) for name in listing.names.tolist()]
                listing = Listing.of(self._looked(address, names))
            if not len(listing):
                raise DataError(
                    f"{address!r} is missing in its store, or holds no files. Check the address"
                    + ("." if self.store(address).lists else "; its server has to list its files.")
                )
            self._listings[address] = listing
        return self._listings[address]

    def there(self, address: str) -> Listing:
        """The files below a folder of a store that lists them, as they are now; perhaps none."""
        store = self.store(address)
        with progress(f"listing {address}") as show:
            crawl = Crawl(address, self._limits, show)
            listed = self._unless_missing(address, lambda: store.files(address, crawl, deep=True))
        return listed[0] if listed else Listing.of([])

    def _indexed(self, address: str) -> Listing | None:
        """The entries of the folder's own index; None without one."""
        file, store = join(address, file_index.NAME), self.store(address)
        content = self._unless_missing(file, lambda: store.bounded(file, file_index.MOST))
        return file_index.parsed(content, file, self._limits) if content else None

    def sizes(self, address: str, names: Sequence[str]) -> IntArray:
        """Sizes in bytes of files below a folder, int64[n].

        0 where the store doesn't say, -1 for a file that is not there.
        """
        address = address.rstrip("/")
        if address in self._listings or self.store(address).lists:
            return self.listing(address).sizes_of(bytes_of(names))
        new = [name for name in names if join(address, name) not in self._found]
        for info in self._looked(address, new):
            self._found[join(address, info.name)] = info
        infos = (self._found.get(join(address, name)) for name in names)
        return np.array([-1 if info is None else info.size or 0 for info in infos], np.int64)

    def _listed(self, address: str, show: Callable[..., None]) -> Listing:
        """The files below a folder: level by level, until there are enough folders to list at once.

        These are then listed side by side, each with all that is below it. One request comes before
        them, for all files: it is enough where they are few.
        """
        store, crawl = self.store(address), Crawl(address, self._limits, show)
        few = self._unless_missing(address, lambda: store.few(address))
        if few is not None and len(few):
            return few
        parts: list[tuple[str, Listing]] = []
        folders, depth = [address], 0
        # A page that links to itself one level deeper has the same names at every level: folder ->
        # hash of the names in its parent, and at how many levels these were the same.
        same = {address: (b"", 0)}

        def level(folder: str) -> tuple[Listing, list[str]]:
            listed = self._unless_missing(folder, lambda: store.files(folder, crawl))
            return listed or (Listing.of([]), [])

        def below(folder: str) -> Listing:
            files, inner = self._retry(folder, lambda: store.files(folder, crawl, deep=True))
            if inner:  # what is in them would be missing
                raise DataError(
                    f"{address!r} cannot be listed: asked for all files below {folder!r}, its "
                    f"store answered with a folder, {inner[0]!r}"
                )
            return files

        while folders and (len(folders) < _AT_ONCE or not store.lists):
            if depth > _DEEPEST:
                raise crawl.endless(f"its folders go deeper than {_DEEPEST} levels")
            inside: dict[str, tuple[bytes, int]] = {}
            for at, (files, inner) in zip(folders, list(self._many(level, folders)), strict=True):
                parts.append((at, files))
                names = [os.fsencode(folder[len(at) :]) for folder in sorted(inner)]
                joined = b"\0".join([*files.names.tolist(), b"", *names]) if inner else b""
                digest = hashlib.blake2b(joined, digest_size=8).digest()
                levels = same[at][1] + 1 if same[at][0] == digest else 1
                if levels >= _SAME:
                    raise crawl.endless(f"{levels} nested folders have the same names")
                inside |= dict.fromkeys(inner, (digest, levels))
            folders, same, depth = list(inside), inside, depth + 1
        if len(folders) > _FOLDERS:
            crawl = Crawl(address, self._limits, show)  # the listing starts anew
            return below(address)
        parts += zip(folders, self._many(below, folders), strict=True)
        prefixes = ((name_in(address, folder), part) for folder, part in parts)
        return Listing.joined((f"{name}/" if name else "", part) for name, part in prefixes)

    def _looked(self, address: str, names: Sequence[str]) -> list[FileInfo]:
        """Those of the files `names` that are there, each looked at."""
        store = self.store(address)

        def look(name: str) -> FileInfo | None:
            file = join(address, name)
            return self._unless_missing(file, lambda: store.look(file))

        looks = watched(self._many(look, names), len(names), f"looking at files in {address}")
        pairs = zip(names, looks, strict=True)
        return [info._replace(name=name) for name, info in pairs if info is not None]

    def _unless_missing(self, address: str, action: Callable[[], T]) -> T | None:
        def attempt() -> T | None:
            try:
                return action()
            except FileNotFoundError as error:
                if is_transient(error):  # fsspec makes one of a refused connection, too
                    raise
                return None

        return self._retry(address, attempt)

    def _many(self, action: Callable[[str], T], over: Iterable[str]) -> Iterator[T]:
        """`action` for each, several at a time, in order."""
        with ThreadPoolExecutor(self._at_once, "penstock-files") as pool:
            yield from pool.map(action, over)
