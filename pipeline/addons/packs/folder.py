"""A pack: samples of a dataset, or rows of a table, as `.npy` files that are read where they lie.

    pack.json               what is in it; written last
    image.npy               [N, H, W, C] when all samples have one shape, else numbers in a row
    image.offsets.npy       int64[N + 1]: where each sample's numbers begin     (unequal shapes)
    image.shapes.npy        int32[N, ndim]                                      (unequal shapes)
    landmarks.canvas.npy    int32[N, 2]: height and width of each one's picture (points, boxes)
    table.*                 what the dataset tells besides its samples (packed.py)

Writing takes memory for a batch, opening 0.1 ms a file of any size; processes share the pages. At
an address, numbers of large fields are read row by row, and everything else is fetched whole.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from penstock import program
from penstock.addons.packs.fields import Column, Field, Numbers, difference
from penstock.addons.storage.files import RecordFiles, Spans
from penstock.datasets.files import Files, Root, open_root
from penstock.errors import DataError
from penstock.loading.collate import Ragged

VERSION = 2
RECORD = "pack.json"
_KIND = "penstock pack"
_REMEDY = "Delete the pack's folder to make it again (data.packed=auto, or task=pack)."
_WHOLE = 1 << 20  # bytes of a file at an address that is fetched whole
_HEADER = 256  # bytes; room for a shape that is known only at the end
_PIECE = 4 << 20  # bytes that are written at once
_CONTENT = ("str", "bytes", "file")
Indices = npt.NDArray[np.int64]


class NpyStream:
    """A `.npy` file of numbers of one type, which is written row by row."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self._file = path.open("xb", buffering=_PIECE)
        self._file.write(bytes(_HEADER))

    def append(self, numbers: Numbers) -> None:
        """Add numbers."""
        self._file.write(np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data)

    def finish(self, shape: tuple[int, ...]) -> None:
        """Write the header and flush the file to the disk."""
        fields = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        start = np.lib.format.MAGIC_PREFIX + bytes([1, 0]) + struct.pack("<H", _HEADER - 10)
        self._file.seek(0)
        self._file.write(start + repr(fields).encode().ljust(_HEADER - 11) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def close(self) -> None:
        """Close the file as it is."""
        self._file.close()


class _FieldStreams:
    """The files of a field."""

    def __init__(self, folder: Path, name: str, field: Field, even: bool) -> None:
        self.field, self.name, self._folder = field, name, folder
        dtypes = {"": field.dtype, ".offsets": "<i8", ".shapes": "<i4"}
        if field.has_canvas:
            dtypes[".canvas"] = "<i4"
        self.streams = {
            suffix: NpyStream(folder / f"{name}{suffix}.npy", dtype)
            for suffix, dtype in dtypes.items()
        }
        self.streams[".offsets"].append(np.zeros(1, np.int64))
        # Text and files are read by offsets even where all have one length.
        self._even, self._end = even and field.kind not in _CONTENT, 0
        self._first: tuple[int, ...] | None = None

    def append(self, column: Column) -> None:
        shapes = column.shapes
        if self._first is None:
            self._first = tuple(shapes[0].tolist())
        self._even = self._even and bool((shapes == np.array(self._first)).all())
        ends = self._end + np.cumsum(shapes.prod(axis=1, dtype=np.int64))
        self._end = int(ends[-1])
        self.streams[""].append(column.numbers.numpy())
        self.streams[".offsets"].append(ends)
        self.streams[".shapes"].append(shapes)
        if column.canvases is not None:
            self.streams[".canvas"].append(column.canvases)

    def finish(self, count: int) -> dict[str, Any]:
        """Write the headers; returns the field's entry in pack.json."""
        shapes = {
            "": (count, *(self._first or ())) if self._even else (self._end,),
            ".offsets": (count + 1,),
            ".shapes": (count, self.field.ndim),
            ".canvas": (count, 2),
        }
        for suffix, stream in self.streams.items():
            stream.finish(shapes[suffix])
            if self._even and suffix in (".offsets", ".shapes"):
                (self._folder / f"{self.name}{suffix}.npy").unlink()
        return {"file": self.name, "even": self._even, **dataclasses.asdict(self.field)}


class PackWriter:
    """Writes a pack into an empty folder, for samples with these fields.

    Args:
        ragged: fields that are stored as values of unequal shapes even where all have one.
    """

    def __init__(
        self, folder: Path, fields: Mapping[str, Field], ragged: Sequence[str] = ()
    ) -> None:
        self.folder, self.fields, self.count = folder, dict(fields), 0
        self._streams: dict[str, _FieldStreams] = {}
        taken = {"table"}
        for number, (name, field) in enumerate(fields.items()):
            plain = re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name) and name.lower() not in taken
            file = name if plain else f"field-{number}"
            taken.add(file.lower())
            self._streams[name] = _FieldStreams(folder, file, field, name not in ragged)

    def append(self, columns: Mapping[str, Column], fields: Mapping[str, Field]) -> None:
        """Add samples; raises DataError if they have no fields, or others than those before."""
        reason = difference(self.fields, fields)
        if reason or not columns:
            raise DataError(reason or "the samples have no fields, so there is nothing to pack")
        for name, column in columns.items():
            self._streams[name].append(column)
        self.count += len(next(iter(columns.values())).shapes)

    def finish(self, record: Mapping[str, Any]) -> None:
        """Write the rest, and pack.json with the entries of `record` last."""
        fields = [streams.finish(self.count) for streams in self._streams.values()]
        sizes = {path.name: path.stat().st_size for path in sorted(self.folder.iterdir())}
        head = {"kind": _KIND, "version": VERSION, "count": self.count}
        with (self.folder / RECORD).open("x", encoding="utf-8") as file:
            json.dump({**head, **record, "fields": fields, "files": sizes}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close files that are not finished."""
        for streams in self._streams.values():
            for stream in streams.streams.values():
                stream.close()


class Pack:
    """An opened pack.

    Args:
        folder: a path or an address, or its `Root`.
        files: access to addresses.

    Attributes:
        record: the content of pack.json.
        count: number of samples.
        fields: of the samples, by name.
        files: of the pack, in the order of the record.

    Raises:
        DataError: the folder is not a pack, or one of its files is missing or was cut off.
    """

    def __init__(self, folder: Root | Path | str, files: Files | None = None) -> None:
        at = folder if isinstance(folder, Root) else open_root(str(folder), "a pack", files)
        self.folder, record = str(at), read_record(at)
        sizes = record["files"]
        if strange := [name for name in sizes if Path(name).name != name]:
            raise damaged(self.folder, f"{strange[0]!r} leads out of the pack")
        missing = at.first_missing([*sizes])
        if missing is not None:
            raise damaged(at.path([*sizes][missing]), "No such file")
        self.files = RecordFiles.named(at, [*sizes])
        for name, size, actual in zip(sizes, sizes.values(), self.files.sizes, strict=True):
            if actual != size:
                cut = "was cut off" if actual < size else "is longer than it was"
                raise damaged(at.path(name), f"it {cut}: {actual} bytes instead of {size}")
        self._open(record)

    def _open(self, record: dict[str, Any]) -> None:
        self.record, self.count = record, int(record["count"])
        self.fields: dict[str, Field] = {}
        self._stems: dict[str, str] = {}
        self._even: dict[str, bool] = {}
        for described in record["fields"]:
            known = dict(described)
            name = known["name"]
            self._stems[name], self._even[name] = known.pop("file"), known.pop("even")
            self.fields[name] = Field(**known)
        self._maps: dict[str, Numbers] = {}

    @classmethod
    def in_memory(
        cls,
        columns: Mapping[str, Column],
        fields: Mapping[str, Field],
        ragged: Sequence[str],
        **arrays: Numbers,
    ) -> Pack:
        """The same of columns that are written nowhere, for as long as they are needed."""
        pack, maps = cls.__new__(cls), dict(arrays)
        described = [
            {"file": name, "even": name not in ragged, **vars(field)}
            for name, field in fields.items()
        ]
        for name, column in columns.items():
            numbers, count = column.numbers.numpy().view(fields[name].dtype), len(column.shapes)
            if name in ragged:
                ends = np.cumsum(column.shapes.prod(axis=1, dtype=np.int64))
                maps[f"{name}.offsets"] = np.concatenate([[0], ends])
                maps[f"{name}.shapes"] = column.shapes
            maps[name] = numbers if name in ragged else numbers.reshape(count, *column.shapes[0])
        pack._open({"count": count, "fields": described, "files": {}})
        pack.folder, pack.files, pack._maps = "", RecordFiles([], []), maps
        return pack

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_maps": {}}  # a pickled map would hold all of the numbers

    @property
    def even(self) -> bool:
        """Whether every field has one shape for all samples."""
        return all(self._even.values())

    def is_even(self, name: str) -> bool:
        """Whether a field has one shape for all samples."""
        return self._even[name]

    def _number(self, stem: str) -> int:
        """The number of a file among `files`."""
        try:
            return self.files.names.index(f"{stem}.npy")
        except ValueError:
            raise damaged(self.folder, f"{RECORD} names no file '{stem}.npy'") from None

    def array(self, stem: str) -> Numbers:
        """The `.npy` file of that name (without its ending), mapped, not read."""
        if stem not in self._maps:
            number = self._number(stem)
            try:
                mapped = np.load(self.files.path(number), mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError, EOFError) as error:
                raise damaged(self.files.addresses[number], error) from error
            # Plain arrays: every access to a memmap makes an object of that slow class.
            self._maps[stem] = mapped.view(np.ndarray)
        return self._maps[stem]

    def _is_spread(self, name: str) -> bool:
        """Whether the numbers of a field are fetched row by row."""
        far = self.files.is_remote and self.count > 0
        return far and bool(self.files.sizes[self._number(self._stems[name])] >= _WHOLE)

    def _shapes(self, name: str, indices: Indices) -> Indices:
        """The shapes of rows: int64[n, ndim]."""
        stem = self._stems[name]
        if not self._even[name]:
            return self.array(f"{stem}.shapes")[indices].astype(np.int64)
        shape = self._head(stem)[0] if self._is_spread(name) else self.array(stem).shape
        return np.broadcast_to(np.array(shape[1:], np.int64), (len(indices), len(shape) - 1))

    def _head(self, stem: str) -> tuple[tuple[int, ...], int]:
        """The shape of a file at an address, and the byte at which its numbers begin."""
        key = f"{stem}.head"
        if key not in self._maps:
            head = io.BytesIO(bytes(self.files.at(self._number(stem), 0, _HEADER)))
            np.lib.format.read_magic(head)
            shape, _, _ = np.lib.format.read_array_header_1_0(head)
            self._maps[key] = np.array([*shape, head.tell()])
        *shape, start = self._maps[key].tolist()
        return tuple(shape), start

    def spans(self, name: str, indices: Indices) -> Spans:
        """Where the numbers of a field lie in their file, for rows int64[n]."""
        stem, size = self._stems[name], np.dtype(self.fields[name].dtype).itemsize
        if self._even[name]:
            width = int(self._shapes(name, indices[:1]).prod())
            starts, stops = indices * width, (indices + 1) * width
        else:
            offsets = self.array(f"{stem}.offsets")
            starts, stops = offsets[indices], offsets[indices + 1]
        first = self._head(stem)[1]
        numbers = np.full(len(indices), self._number(stem))
        return Spans(numbers, first + starts * size, first + stops * size)

    def want(self, indices: Indices) -> float:
        """Rows are read soon: fetch what is missing of them; their part of `files.ahead`."""
        spread = [name for name in self.fields if self._is_spread(name)]
        return sum(self.files.want(self.spans(name, indices)) for name in spread)

    def places(self, name: str, indices: Indices) -> tuple[Numbers, Indices, Indices]:
        """Numbers of a field, 1-D, and for rows int64[n]: their offsets in these, int64[n], and
        shapes, int64[n, ndim]. On this machine the numbers are all there are, and not copied."""
        shapes = self._shapes(name, indices)
        if self._is_spread(name):
            content = bytearray().join(self.files.read(self.spans(name, indices)))
            sizes = shapes.prod(axis=1)
            numbers = np.frombuffer(content, self.fields[name].dtype)
            return numbers, np.cumsum(sizes) - sizes, shapes
        array = self.array(self._stems[name])
        if self._even[name]:
            return array.reshape(-1), indices * int(np.prod(array.shape[1:])), shapes
        return array, self.array(f"{self._stems[name]}.offsets")[indices], shapes

    def rows(self, name: str, indices: Indices) -> Numbers:
        """The numbers of a field of one shape, int64[n] -> [n, *shape], in one copy."""
        if self._is_spread(name):
            numbers, _, shapes = self.places(name, indices)
            return numbers.reshape(len(indices), *shapes[0])
        array = self.array(self._stems[name])
        if array[:1].nbytes < 1 << 14:
            return np.take(array, indices, axis=0)
        # Large rows are read in the order in which they lie on the disk.
        out = np.empty((len(indices), *array.shape[1:]), array.dtype)
        for number in np.argsort(indices, kind="stable").tolist():
            out[number] = array[indices[number]]
        return out

    def each(self, name: str, indices: Indices) -> list[Numbers]:
        """Copies of the numbers of a field, an array for each row."""
        numbers, starts, shapes = self.places(name, indices)
        found = zip(starts.tolist(), shapes.prod(axis=1).tolist(), shapes.tolist(), strict=True)
        return [np.array(numbers[at : at + size]).reshape(shape) for at, size, shape in found]

    def texts(self, stem: str, indices: Indices) -> list[str]:
        """Texts that lie in the files `stem`."""
        offsets = self.array(f"{stem}.offsets")
        parts = [None, pa.py_buffer(offsets), pa.py_buffer(self.array(stem))]
        everything = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, parts)
        # Arrow gathers texts in a third of the time of a slice for each; but it imports pandas to
        # take rows of an array of numpy, so they come as Arrow's.
        rows = pa.Array.from_buffers(
            pa.int64(), len(indices), [None, pa.py_buffer(np.ascontiguousarray(indices, np.int64))]
        )
        contents = everything.take(rows).to_pylist()
        return [content.decode("utf-8", "surrogateescape") for content in contents]

    def values(self, name: str, indices: Indices) -> list[Any]:
        """The values of a field for rows, int64[n]; of image files, their bytes."""
        field = self.fields[name]
        if field.kind == "str" and not self._is_spread(name):
            return self.texts(self._stems[name], indices)
        if field.kind in ("int", "float", "bool"):
            return list(self.rows(name, indices).tolist())
        canvases: Sequence[Any] = [None] * len(indices)
        if field.has_canvas:
            canvases = self.array(f"{self._stems[name]}.canvas")[indices].tolist()
        if self._even[name]:
            stored = [np.asarray(row) for row in self.rows(name, indices)]
        else:
            stored = self.each(name, indices)
        return [field.value(*pair) for pair in zip(stored, canvases, strict=True)]

    def gathered(self, name: str, indices: Indices) -> torch.Tensor | Ragged | list[Any]:
        """A field of a batch: [n, ...], lists of unequal lengths, or texts.

        Raises:
            DataError: values of unequal lengths differ in another dimension than the first.
        """
        field = self.fields[name]
        if field.kind in _CONTENT:
            return self.values(name, indices)
        if self._even[name]:
            return field.tensor(self.rows(name, indices))
        numbers, starts, shapes = self.places(name, indices)
        if (shapes[:, 1:] != shapes[:1, 1:]).any():
            raise DataError(f"field {name!r} has rows of several shapes: {shapes.tolist()[:8]}")
        sizes = shapes.prod(axis=1)
        ends = np.cumsum(sizes)
        at = np.repeat(starts - (ends - sizes), sizes) + np.arange(int(ends[-1]))
        values = torch.from_numpy(numbers[at].reshape(-1, *shapes[0, 1:]))
        return Ragged(values, torch.from_numpy(shapes[:, 0].copy()))


def damaged(path: Path | str, reason: object) -> DataError:
    """The error of a pack that is not as it was written."""
    return DataError(f"packed data is damaged: {str(path)!r}: {reason}. {_REMEDY}")


def is_pack(folder: Path) -> bool:
    """Whether a folder has a pack.json."""
    return (folder / RECORD).is_file()


def read_record(folder: Root) -> dict[str, Any]:
    """The content of a pack.json."""
    name = folder.path(RECORD)
    if folder.first_missing([RECORD]) is not None:
        raise DataError(
            f"{str(folder)!r} has no packed data: there is no {RECORD!r}. "
            f"`{program.text('task=pack')}` makes some."
        )
    try:
        record = json.loads(folder.read(RECORD, lambda path, _: Path(path).read_bytes()))
    except (OSError, ValueError) as error:
        raise damaged(name, error) from error
    if not isinstance(record, dict) or record.get("kind") != _KIND:
        raise DataError(f"{name!r} does not describe packed data")
    if record.get("version") != VERSION:
        raise DataError(
            f"{name!r} has version {record.get('version')} of packed data, not {VERSION}. {_REMEDY}"
        )
    return record
