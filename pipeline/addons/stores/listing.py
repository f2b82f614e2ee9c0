"""The files below a folder as flat arrays: about 100 bytes a file, none of them Python objects.

Stores and web servers give a listing page by page, perhaps without an end. It fails when it has
more files than `limits.files`, goes deeper than any sound folder, has had many folders or pages in
a row without one file, or when a store gives the same page again.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import DataError
from penstock.files.limits import Limits

if TYPE_CHECKING:
    from penstock.order.keys import IntArray


class FileInfo(NamedTuple):
    """A file in a store."""

    name: str  # relative to the folder that was listed, with forward slashes
    size: int | None  # bytes; None when the store doesn't say
    version: str  # changes with the content; "md5:..." is a checksum of it. Empty if unknown


Bytes = npt.NDArray[np.bytes_]

_BARREN = 10_000  # pages and folders in a row without a file


def bytes_of(names: Iterable[str]) -> Bytes:
    """Names as in a listing."""
    return np.array([os.fsencode(name) for name in names], dtype=np.bytes_)


@dataclass(frozen=True)
class Listing:
    """Files, sorted by name; columns as in `FileInfo`."""

    names: Bytes  # [N]
    sizes: IntArray  # int64[N]; -1 where it is not known
    versions: Bytes  # [N]

    @classmethod
    def of(cls, infos: Iterable[FileInfo]) -> Listing:
        """The listing of `found`, in any order."""
        rows = [(os.fsencode(info.name), info.size, info.version.encode()) for info in infos]
        if not rows:
            return cls(np.empty(0, "S1"), np.empty(0, np.int64), np.empty(0, "S1"))
        names = np.array([name for name, _, _ in rows])
        sizes = np.array([-1 if size is None else size for _, size, _ in rows], np.int64)
        versions = np.array([version for _, _, version in rows])
        order = np.argsort(names, kind="stable")
        return cls(names[order], sizes[order], versions[order])

    @classmethod
    def joined(cls, parts: Iterable[tuple[str, Listing]]) -> Listing:
        """Several listings, each with a prefix of its names."""
        filled = [(os.fsencode(prefix), part) for prefix, part in parts if len(part)]
        if not filled:
            return cls.of([])
        names = np.concatenate([np.char.add(prefix, part.names) for prefix, part in filled])
        order = np.argsort(names, kind="stable")
        sizes = np.concatenate([part.sizes for _, part in filled])
        versions = np.concatenate([part.versions for _, part in filled])
        return cls(names[order], sizes[order], versions[order])

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, names: Bytes) -> IntArray:
        """The row of each of `names`, int64[n]; -1 for a missing one."""
        if not len(self):
            return np.full(len(names), -1)
        # With types of two widths, numpy would copy all names to one width for each search.
        asked = names.astype(self.names.dtype)
        rows = np.minimum(np.searchsorted(self.names, asked), len(self) - 1)
        there = (self.names[rows] == asked) & (np.char.str_len(names) <= self.names.itemsize)
        return np.where(there, rows, -1)

    def sizes_of(self, names: Bytes) -> IntArray:
        """Sizes of files, int64[n]; 0 for an unknown size, -1 for a missing file."""
        rows = self.rows(names)
        return np.where(rows < 0, -1, np.maximum(self.sizes[rows], 0)) if len(self) else rows

    def find(self, name: str) -> FileInfo | None:
        """One file, if it is there; 2 us."""
        wanted = os.fsencode(name)
        row = bisect_left(self.names, wanted)  # 5 us less than numpy's, for a single name
        return self.at(row) if row < len(self) and self.names[row] == wanted else None

    def at(self, row: int) -> FileInfo:
        """The file in a row."""
        size = int(self.sizes[row])
        name, version = os.fsdecode(self.names[row]), self.versions[row].decode()
        return FileInfo(name, None if size < 0 else size, version)

    def folders(self, rows: slice, start: int) -> list[str]:
        """The folders that the names of some rows begin with after `start` bytes, sorted."""
        folders: list[str] = []
        row = rows.start
        while row < rows.stop:
            name: bytes = self.names[row]
            end = name.find(b"/", start)
            if end <= start:
                row += 1
                continue
            folders.append(os.fsdecode(name[start:end]))
            row = self.below(os.fsdecode(name[:end])).stop
        return sorted(folders)

    def below(self, folder: str) -> slice:
        """The rows of the files below `folder`; of all for an empty one."""
        if not folder:
            return slice(0, len(self))
        prefix = os.fsencode(folder)
        if len(prefix) >= self.names.itemsize:
            return slice(0, 0)
        ends = np.array([prefix + b"/", prefix + b"0"], self.names.dtype)  # "0" comes after "/"
        first, last = np.searchsorted(self.names, ends)
        return slice(int(first), int(last))


class Crawl:
    """The progress of listing an address in several threads.

    Args:
        address: for messages.
        limits: `files` of it.
        show: tells a person the number of files so far.
    """

    def __init__(
        self, address: str, limits: Limits, show: Callable[..., None] | None = None
    ) -> None:
        self._address = address
        self._limits = limits
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}
        self._total = self._barren = 0
        self._show = show

    def start(self, folder: str) -> None:
        """Start a folder, perhaps again: files of it that were counted are forgotten."""
        with self._lock:
            self._total -= self._files.pop(folder, 0)

    def page(self, folder: str, files: int) -> None:
        """Count the files of one more page of a folder.

        Raises:
            DataError: there are too many, or none for too many pages.
        """
        with self._lock:
            self._files[folder] = self._files.get(folder, 0) + files
            self._total += files
            self._barren = 0 if files else self._barren + 1
            total, barren = self._total, self._barren
            if self._show is not None:
                self._show(total)
        if total > self._limits.files:
            refusal = self._limits.refusal("files", f"{total} files, and perhaps does not end")
            raise DataError(f"{self._address!r} lists {refusal}")
        if barren > _BARREN:
            raise self.endless(f"{barren} folders or pages in a row hold no file")

    def endless(self, reason: str) -> DataError:
        """The error of a listing that does not end."""
        return DataError(
            f"{self._address!r} cannot be listed: {reason}, so it may never end. Check the "
            "address, or give one further down."
        )
