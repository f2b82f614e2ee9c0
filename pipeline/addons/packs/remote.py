"""A pack at an address, of which only what batches need is fetched.

    image.npy       of a row, or of as many neighbouring ones as make up 64 KiB, the bytes
    everything else, and what has less than 1 MiB, whole: offsets, shapes, labels, the table

The division of a field's file into parts is fixed, as each part is kept in the cache as a file
would be. Cost: 0.1 ms a row that is in the cache; opening takes a request for each of these files,
side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.addons.packs.fields import Numbers
from penstock.addons.packs.folder import RECORD, Indices, Pack, damaged, read_record
from penstock.addons.record_files.remote_bytes import npy_header
from penstock.addons.record_files.shard_files import data_file
from penstock.datasets.files import DataFile, Files
from penstock.errors import DataError

if TYPE_CHECKING:
    from penstock.datasets.files import Root

_WHOLE = 1 << 20  # bytes of a file that is fetched whole
_PART = 1 << 16  # bytes of neighbouring rows that are fetched together
_AT_ONCE = 16  # requests when it is opened
_HEADER = 1 << 12  # bytes; ours has 256, and numpy's own hardly more

Bytes = npt.NDArray[np.uint8]


class _Layout(NamedTuple):
    """How the numbers of a field lie in its file, which is fetched in parts.

    Attributes:
        start: the byte at which they begin.
        rows: in a part; the last may have fewer.
    """

    address: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    rows: int


class RemotePack(Pack):
    """An opened pack at an address; see `Pack`.

    Args:
        folder: the address.
        files: access to it.
    """

    def __init__(self, folder: Root, files: Files) -> None:
        self.folder = str(folder)
        self._at, self._access, self.remote = folder, files, files.remote
        self._open(folder.read(RECORD, lambda path, _: read_record(Path(path), str(folder))))
        sizes = self.record["files"]
        for name, actual in zip(sizes, folder.sizes([*sizes]).tolist(), strict=True):
            self._check_size(name, sizes[name], actual)
        self._fetch_together()
        self._layouts = {name: self._layout(name) for name in self.fields}

    def _fetch_together(self) -> None:
        """Bring what the first row needs of all fields: small files, and headers of large ones.

        One after the other, each would wait for the store.
        """
        fields = {f"{name}.npy" for name in self._files.values()}
        addresses = []
        for name, size in self.record["files"].items():
            if size < _WHOLE:
                addresses.append(self.file(name))
            elif name in fields:
                addresses.append(self._header(self.file(name)))

        def fetch(address: str) -> None:
            with suppress(DataError):  # whoever reads it finds it again
                self.remote.local(address)

        with ThreadPoolExecutor(_AT_ONCE, "penstock-files") as pool:
            list(pool.map(fetch, addresses))

    def _header(self, address: str) -> str:
        return self.remote.part(address, 0, _HEADER)

    def file(self, name: str) -> str:
        return self._at.path(name)

    def data_files(self) -> list[DataFile]:
        """The pack's files, and their versions."""
        return [data_file(name, self.file(name), self._access) for name in self.record["files"]]

    def version(self) -> str:
        """That of pack.json."""
        return self.remote.look(self.file(RECORD)).version

    def _mapped(self, name: str) -> Numbers:
        # What was evicted meanwhile stays readable for whoever has mapped it.
        return self._at.read(name, lambda path, _: np.load(path, mmap_mode="r", allow_pickle=False))

    def _layout(self, name: str) -> _Layout | None:
        file = f"{self._files[name]}.npy"
        size: int = self.record["files"][file]
        if size < _WHOLE or not self.count:
            return None
        address = self.file(file)
        head = self.remote.content(self._header(address))
        try:
            shape, fortran, dtype, start = npy_header(head)
        except ValueError as error:
            raise damaged(address, error) from error
        # An array of this type and shape, without its numbers.
        self._check_rows(self._files[name], np.broadcast_to(np.zeros((), dtype), shape), address)
        if fortran and len(shape) > 1:
            raise damaged(address, "its numbers are not stored row by row")
        row = max(1, math.prod(shape) * dtype.itemsize // self.count)
        return _Layout(address, dtype, shape, start, max(1, _PART // row))

    def rows(self, name: str, indices: Indices) -> Numbers:
        layout = self._layouts[name]
        if layout is None:
            return super().rows(name, indices)
        shape = (len(indices), *layout.shape[1:])
        out = np.empty(shape, layout.dtype)
        flat = out.reshape(len(indices), -1).view(np.uint8)
        for slot, content in self._contents(name, layout, indices):
            flat[slot] = content
        return out

    def row(self, name: str, index: int) -> Numbers:
        layout = self._layouts[name]
        if layout is None:
            return super().row(name, index)
        (shape,) = self._shapes(name, layout, np.array([index])).tolist()
        ((_, content),) = self._contents(name, layout, np.array([index]))
        return np.array(content).view(layout.dtype).reshape(shape)

    def places(self, name: str, indices: Indices) -> tuple[Numbers, Indices, Indices]:
        layout = self._layouts[name]
        if layout is None:
            return super().places(name, indices)
        shapes = self._shapes(name, layout, indices)
        sizes = shapes.prod(axis=1, dtype=np.int64)
        starts = np.cumsum(sizes) - sizes
        total = int(sizes.sum()) * layout.dtype.itemsize
        out = np.empty(total, np.uint8)
        for slot, content in self._contents(name, layout, indices):
            start = int(starts[slot]) * layout.dtype.itemsize
            out[start : start + len(content)] = content
        return out.view(layout.dtype), starts, shapes

    def files_of(self, indices: Sequence[int] | Indices) -> list[list[str]]:
        """The addresses of the parts that each row is read from."""
        rows = np.asarray(indices, np.int64)
        addresses: list[list[str]] = [[] for _ in range(len(rows))]
        for name, layout in self._layouts.items():
            if layout is None:
                continue
            first = rows - rows % layout.rows
            last = np.minimum(first + layout.rows, self.count)
            starts, ends = self._byte(name, layout, first), self._byte(name, layout, last)
            for files, start, end in zip(addresses, starts.tolist(), ends.tolist(), strict=True):
                if start < end:
                    files.append(self.remote.part(layout.address, start, end))
        return addresses

    def _byte(self, name: str, layout: _Layout, rows: Indices) -> Indices:
        """Where rows begin in their file."""
        if self._even[name]:
            return layout.start + rows * (math.prod(layout.shape[1:]) * layout.dtype.itemsize)
        offsets: Indices = self.array(f"{self._files[name]}.offsets")[rows]
        return layout.start + offsets * layout.dtype.itemsize

    def _shapes(self, name: str, layout: _Layout, indices: Indices) -> Indices:
        """Shapes of rows, int64[n, ndim].

        Raises:
            DataError: one does not fit the bytes in its place.
        """
        if self._even[name]:
            shape = np.array(layout.shape[1:], np.int64)
            return np.broadcast_to(shape, (len(indices), len(shape)))
        shapes = self.array(f"{self._files[name]}.shapes")[indices].astype(np.int64)
        offsets = self.array(f"{self._files[name]}.offsets")
        places = zip(
            indices.tolist(),
            shapes.tolist(),
            offsets[indices].tolist(),
            offsets[indices + 1].tolist(),
            strict=True,
        )
        for index, shape, start, stop in places:
            self._check_place(name, index, tuple(shape), start, stop, layout.shape[0])
        return shapes

    def _contents(
        self, name: str, layout: _Layout, indices: Indices
    ) -> Iterator[tuple[int, Bytes]]:
        """The bytes of each row and its place among `indices`; a part is read once."""
        parts = indices // layout.rows
        starts = self._byte(name, layout, indices).tolist()
        stops = self._byte(name, layout, indices + 1).tolist()
        order = np.argsort(parts, kind="stable")
        held, begin, end, content = -1, 0, 0, np.empty(0, np.uint8)
        for slot in order.tolist():
            part = int(parts[slot])
            if part != held:
                first = part * layout.rows
                ends = np.array([first, min(first + layout.rows, self.count)])
                begin, end = self._byte(name, layout, ends).tolist()
                held, content = part, self._part(layout, begin, end)
            if not begin <= starts[slot] <= stops[slot] <= end:
                raise damaged(layout.address, f"row {int(indices[slot])} is outside of its part")
            yield slot, content[starts[slot] - begin : stops[slot] - begin]

    def _part(self, layout: _Layout, begin: int, end: int) -> Bytes:
        whole = layout.start + math.prod(layout.shape) * layout.dtype.itemsize
        if not layout.start <= begin <= end <= whole:
            raise damaged(layout.address, f"rows should be at {begin} to {end} of {whole}")
        if begin == end:
            return np.empty(0, np.uint8)
        content = self.remote.content(self.remote.part(layout.address, begin, end))
        return np.frombuffer(content, np.uint8)
