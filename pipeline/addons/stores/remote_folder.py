"""A folder at an address: `penstock.datasets.reading.folder.Folder`."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from penstock.datasets.files import is_hidden
from penstock.datasets.reading.fingerprint import DataFile, data_file
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.addresses import join

if TYPE_CHECKING:
    from penstock.addons.stores.remote_files import RemoteFiles
    from penstock.order.randomness import IntArray

T = TypeVar("T")


class RemoteFolder:
    """The folder `inner` below the address `root`, which is listed on first use."""

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

    def read_content(self, name: str, function: Callable[[str | bytes, str], T]) -> T:
        address = self.path(name)
        content = self.remote_files.small(address)
        return self.read(name, function) if content is None else function(content, address)

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
        return [name for name in below if not is_hidden(name)]

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
