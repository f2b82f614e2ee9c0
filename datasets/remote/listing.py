"""The files below a folder as flat arrays: about 100 bytes a file, none of them Python objects."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pipeline.order.randomness import IntArray

Bytes = npt.NDArray[np.bytes_]


def bytes_of(names: Iterable[str]) -> Bytes:
    """Names as in a listing."""
    return np.array([os.fsencode(name) for name in names], dtype=np.bytes_)


class FileInfo(NamedTuple):
    """A file in a store.

    Attributes:
        name: relative to the folder that was listed, with forward slashes.
        size: bytes; None when the store doesn't say.
        version: changes with the content; "md5:..." is a checksum of it. Empty if unknown.
    """

    name: str
    size: int | None
    version: str


@dataclass(frozen=True)
class Listing:
    """Files, sorted by name.

    Attributes:
        names: bytes[N], relative to the folder, with forward slashes.
        sizes: int64[N]; -1 where it is not known.
        versions: bytes[N], as `FileInfo.version`.
    """

    names: Bytes
    sizes: IntArray
    versions: Bytes

    @classmethod
    def of(cls, found: Iterable[FileInfo]) -> Listing:
        """The listing of `found`, in whatever order."""
        rows = [(os.fsencode(one.name), one.size, one.version.encode()) for one in found]
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
        given = [(os.fsencode(prefix), part) for prefix, part in parts if len(part)]
        if not given:
            return cls.of([])
        names = np.concatenate([np.char.add(prefix, part.names) for prefix, part in given])
        order = np.argsort(names, kind="stable")
        sizes = np.concatenate([part.sizes for _, part in given])
        versions = np.concatenate([part.versions for _, part in given])
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
        """One file, if it is there; about 10 us."""
        row = int(self.rows(bytes_of([name]))[0])
        return None if row < 0 else self.at(row)

    def at(self, row: int) -> FileInfo:
        """The file in a row."""
        size = int(self.sizes[row])
        name, version = os.fsdecode(self.names[row]), self.versions[row].decode()
        return FileInfo(name, None if size < 0 else size, version)

    def folders(self, rows: slice, start: int) -> list[str]:
        """The folders that the names of some rows begin with after `start` bytes, sorted."""
        found: list[str] = []
        row = rows.start
        while row < rows.stop:
            name: bytes = self.names[row]
            end = name.find(b"/", start)
            if end <= start:
                row += 1
                continue
            found.append(os.fsdecode(name[start:end]))
            row = self.below(os.fsdecode(name[:end])).stop
        return sorted(found)

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
