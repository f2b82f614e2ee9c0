"""A pack: samples of a dataset as `.npy` files that are read from where they lie.

    pack.json               what is in it; written last
    image.npy               [N, H, W, C] when all samples have one shape, else numbers in a row
    image.offsets.npy       int64[N + 1]: where each sample's numbers begin     (unequal shapes)
    image.shapes.npy        int32[N, ndim]                                      (unequal shapes)
    landmarks.canvas.npy    int32[N, 2]: height and width of each one's picture (points, boxes)
    table.<number>.npy ...  the dataset's table of samples (pipeline/addons/packs/table.py)

Writing takes memory for a batch, opening 0.1 ms a file of any size; processes share the pages.

`.npy` files that are written row by row, past the system's cache.

Going through the cache costs more than the device does: a third of a millisecond of CPU time for a
picture of 196 KB (benchmarks/README.md), and it evicts the pages of others.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock import program
from penstock.addons.packs.fields import Column, Field, Numbers, difference
from penstock.errors import DataError
from penstock.files.data import size_of
from penstock.loading.collate import Ragged

# What lies beside a field's numbers: its type and dimensions.
_LAID_OUT = {"offsets": ("<i8", 1), "shapes": ("<i4", 2), "canvas": ("<i4", 2)}
VERSION = 2
RECORD = "pack.json"
_KIND = "penstock pack"
Indices = npt.NDArray[np.int64]


class _FieldStreams:
    def __init__(self, folder: Path, name: str, field: Field, even: bool) -> None:
        self.field, self.name, self._folder = field, name, folder
        dtypes = {"": field.dtype, ".offsets": "<i8", ".shapes": "<i4"}
        if field.has_canvas:
            dtypes[".canvas"] = "<i4"
        self._streams = {
            suffix: NpyStream(folder / f"{name}{suffix}.npy", dtype)
            for suffix, dtype in dtypes.items()
        }
        self._streams[".offsets"].append(np.zeros(1, np.int64))
        self._first: tuple[int, ...] | None = None
        self._even = even
        self._end = 0

    def append(self, column: Column) -> None:
        shapes = column.shapes
        if self._first is None:
            self._first = tuple(shapes[0].tolist())
        self._even = self._even and bool((shapes == np.array(self._first)).all())
        ends = self._end + np.cumsum(shapes.prod(axis=1, dtype=np.int64))
        self._end = int(ends[-1])
        self._streams[""].append(column.numbers.numpy())
        self._streams[".offsets"].append(ends)
        self._streams[".shapes"].append(shapes)
        if column.canvases is not None:
            self._streams[".canvas"].append(column.canvases)

    def finish(self, count: int) -> dict[str, Any]:
        """Write the headers; returns the field's entry in pack.json."""
        # Text and files are read by offsets even where all have one length.
        even = self._even and self.field.kind not in ("str", "bytes", "file")
        numbers = (count, *self._first) if even and self._first is not None else (self._end,)
        shapes = {
            "": numbers,
            ".offsets": (count + 1,),
            ".shapes": (count, self.field.ndim),
            ".canvas": (count, 2),
        }
        for suffix, stream in self._streams.items():
            if even and suffix in (".offsets", ".shapes"):
                stream.close()
                (self._folder / f"{self.name}{suffix}.npy").unlink()
            else:
                stream.finish(shapes[suffix])
        return {"file": self.name, "even": even, **dataclasses.asdict(self.field)}

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()


class PackWriter:
    """Writes a pack into an empty folder, for samples with these fields.

    Args:
        ragged: fields that are stored as values of unequal shapes even where all have one.
    """

    def __init__(
        self, folder: Path, fields: Mapping[str, Field], ragged: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self.fields = dict(fields)
        self.count = 0
        self._streams: dict[str, _FieldStreams] = {}
        taken: set[str] = set()
        for number, (name, field) in enumerate(fields.items()):
            plain = re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name) and name != "table"
            file = name if plain and name.lower() not in taken else f"field-{number}"
            taken.add(file.lower())
            self._streams[name] = _FieldStreams(folder, file, field, name not in ragged)

    def append(self, columns: Mapping[str, Column], fields: Mapping[str, Field]) -> None:
        """Add samples; raises DataError if their fields differ from those before."""
        reason = difference(self.fields, fields)
        if reason:
            raise DataError(reason)
        if not columns:
            raise DataError("the samples have no fields, so there is nothing to pack")
        for name, column in columns.items():
            self._streams[name].append(column)
            rows = len(column.shapes)
        self.count += rows

    def finish(self, record: Mapping[str, Any]) -> None:
        """Write the rest, and pack.json with the entries of `record` last."""
        fields = [stream.finish(self.count) for stream in self._streams.values()]
        sizes = {
            path.name: path.stat().st_size
            for path in sorted(self.folder.iterdir())
            if path.suffix == ".npy"
        }
        whole = {
            "kind": _KIND,
            "version": VERSION,
            "count": self.count,
            **record,
            "fields": fields,
            "files": sizes,
        }
        path = self.folder / RECORD
        with path.open("x", encoding="utf-8") as file:
            json.dump(whole, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close files that are not finished."""
        for stream in self._streams.values():
            stream.close()


class Pack:
    """An opened pack.

    Attributes:
        record: the content of pack.json.
        count: number of samples.
        fields: of the samples, by name.

    Raises:
        DataError: the folder is not a pack, or one of its files is missing or was cut off.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder: Path | str = Path(folder)
        self._open(read_record(Path(folder, RECORD), str(self.folder)))
        for name, size in self.record["files"].items():
            self._check_size(name, size, size_of(Path(folder, name)))

    def _open(self, record: dict[str, Any]) -> None:
        self.record = record
        self.count: int = self.record["count"]
        self.fields: dict[str, Field] = {}
        self._files: dict[str, str] = {}
        self._even: dict[str, bool] = {}
        for described in self.record["fields"]:
            known = dict(described)
            name = known["name"]
            self._files[name], self._even[name] = known.pop("file"), known.pop("even")
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
        pack = cls.__new__(cls)
        described = [
            {"file": name, "even": name not in ragged, **vars(field)}
            for name, field in fields.items()
        ]
        pack.folder, maps = "", dict(arrays)
        for name, column in columns.items():
            numbers, count = column.numbers.numpy().view(fields[name].dtype), len(column.shapes)
            if name in ragged:
                ends = np.cumsum(column.shapes.prod(axis=1, dtype=np.int64))
                maps[f"{name}.offsets"] = np.concatenate([[0], ends])
                maps[f"{name}.shapes"] = column.shapes
            else:
                numbers = numbers.reshape(count, *column.shapes[0])
            maps[name] = numbers
        pack._open({"count": count, "fields": described})
        pack._maps = maps
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

    def array(self, name: str) -> Numbers:
        """The `.npy` file of that name (without its ending), mapped, not read."""
        if name not in self._maps:
            path = self.file(f"{name}.npy")
            if f"{name}.npy" not in self.record["files"]:
                raise damaged(self.folder, f"{RECORD} names no file '{name}.npy'")
            try:
                mapped = self._mapped(f"{name}.npy")
            except (OSError, ValueError, EOFError) as error:
                raise damaged(path, error) from error
            self._check_rows(name, mapped, path)
            if not mapped.flags.c_contiguous:  # to lay it out in rows would copy all of it
                raise damaged(path, "its numbers are not stored row by row")
            self._maps[name] = mapped.view(np.ndarray)
        return self._maps[name]

    def file(self, name: str) -> str:
        """The path or address of a file of the pack."""
        return str(Path(self.folder) / name)

    def _mapped(self, name: str) -> Numbers:
        return np.load(self.file(name), mmap_mode="r", allow_pickle=False)

    def rows(self, name: str, indices: Indices) -> Numbers:
        """The numbers of a field of one shape, int64[n] -> [n, *shape], in one copy.

        Large rows are read in the order in which they lie on the disk.
        """
        array = self.array(self._files[name])
        row = array.dtype.itemsize * math.prod(array.shape[1:])
        if row < 1 << 14:
            return np.take(array, indices, axis=0)
        out = np.empty((len(indices), *array.shape[1:]), array.dtype)
        for number in np.argsort(indices, kind="stable").tolist():
            out[number] = array[indices[number]]
        return out

    def places(self, name: str, indices: Indices) -> tuple[Numbers, Indices, Indices]:
        """All numbers of a field, 1-D and not copied, and for rows `indices`, int64[n]:
        their offsets, int64[n], and shapes, int64[n, ndim].
        """
        array = self.array(self._files[name])
        if self._even[name]:
            shape = np.array(array.shape[1:], np.int64)
            shapes = np.broadcast_to(shape, (len(indices), len(shape)))
            return array.reshape(-1), indices * int(shape.prod()), shapes
        offsets = self.array(f"{self._files[name]}.offsets")
        shapes = self.array(f"{self._files[name]}.shapes")[indices].astype(np.int64)
        return array, offsets[indices], shapes

    def row(self, name: str, index: int) -> Numbers:
        """A copy of the numbers of one sample's field."""
        array = self.array(self._files[name])
        if self._even[name]:
            numbers, shape = array[index], array.shape[1:]
        else:
            offsets = self.array(f"{self._files[name]}.offsets")
            start, stop = offsets[index : index + 2].tolist()
            shape = tuple(self.array(f"{self._files[name]}.shapes")[index].tolist())
            self._check_place(name, index, shape, start, stop, len(array))
            numbers = array[start:stop]
        return np.array(numbers).reshape(shape)

    def _check_place(
        self, name: str, index: int, shape: tuple[int, ...], start: int, stop: int, end: int
    ) -> None:
        inside = 0 <= start <= stop <= end and min(shape, default=0) >= 0
        if not inside or math.prod(shape) != stop - start:
            where = f"field {name!r} of sample {index}, of shape {list(shape)},"
            raise damaged(self.folder, f"{where} lies at {start} to {stop} of {end}")

    def contents(self, name: str, indices: Indices) -> list[Any]:
        """The texts or bytes of a field for rows, int64[n]."""
        content = self.array(self._files[name]).data
        offsets = self.array(f"{self._files[name]}.offsets")
        bounds = zip(offsets[indices].tolist(), offsets[indices + 1].tolist(), strict=True)
        if self.fields[name].kind == "str":
            return [str(content[start:stop], "utf-8", "surrogateescape") for start, stop in bounds]
        return [bytes(content[start:stop]) for start, stop in bounds]

    def values(self, name: str, indices: Indices) -> list[Any]:
        """The values of a field for rows, int64[n]."""
        field = self.fields[name]
        if field.kind in ("str", "bytes", "file"):
            return self.contents(name, indices)
        if not self._even[name]:
            return [field.value(self.row(name, index)) for index in indices.tolist()]
        block = self.rows(name, indices)
        if field.kind in ("int", "float", "bool"):
            return list(block.tolist())
        return [field.value(np.asarray(row)) for row in block]

    def gathered(self, name: str, indices: Indices) -> torch.Tensor | Ragged | list[Any]:
        """A field of a batch: [n, ...], lists of unequal lengths, or texts.

        Raises:
            DataError: values of unequal lengths differ in another dimension than the first.
        """
        field = self.fields[name]
        if field.kind in ("str", "bytes", "file"):
            return self.contents(name, indices)
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

    def canvases(self, name: str, indices: Indices) -> list[list[int]]:
        """Height and width of the pictures that points and boxes belong to."""
        sizes: list[list[int]] = self.array(f"{self._files[name]}.canvas")[indices].tolist()
        return sizes

    def _check_rows(self, name: str, array: Numbers, path: Path | str) -> None:
        stem, _, suffix = name.partition(".")
        for field, file in self._files.items():
            if file != stem:  # a table's, or another field's
                continue
            even, kind = self._even[field], self.fields[field]
            dtype, ndim = _LAID_OUT.get(suffix) or (kind.dtype, kind.ndim + 1 if even else 1)
            width = {"shapes": kind.ndim, "canvas": 2}.get(suffix)
            shape = list(array.shape)
            if array.dtype.str != dtype or array.ndim != ndim or width not in (None, shape[-1]):
                of = f" of {width}" if width is not None else ""
                raise damaged(
                    path,
                    f"it holds {array.dtype} {shape} and must hold {dtype} in "
                    f"{ndim} dimensions{of}",
                )
            rows = self.count + (suffix == "offsets")
            if (suffix or even) and len(array) != rows:
                raise damaged(path, f"it has shape {shape} and must have {rows} rows")

    def _check_size(self, name: str, size: int, actual: int) -> None:
        path = self.file(name)
        if Path(name).name != name:
            raise damaged(self.file(RECORD), f"{name!r} leads out of the pack")
        if actual < 0:
            raise damaged(path, "No such file")
        if actual != size:
            cut = "was cut off" if actual < size else "is longer than it was"
            raise damaged(path, f"it {cut}: {actual} bytes instead of {size}")


_REMEDY = "Delete the pack's folder to make it again (data.packed=auto, or task=pack)."


def damaged(path: Path | str, reason: object) -> DataError:
    """The error of a pack that is not as it was written."""
    return DataError(f"packed data is damaged: {str(path)!r}: {reason}. {_REMEDY}")


def is_pack(folder: Path) -> bool:
    """Whether a folder has a pack.json."""
    return (folder / RECORD).is_file()


def read_record(path: Path, folder: str) -> dict[str, Any]:
    """The content of a pack.json; `folder` is its pack's, for messages."""
    name = f"{folder}/{RECORD}"
    try:
        record = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"{folder!r} has no packed data: {RECORD!r} cannot be read "
            f"({error.strerror}). `{program.text('task=pack')}` makes some."
        ) from error
    except ValueError as error:
        raise damaged(name, error) from error
    if not isinstance(record, dict) or record.get("kind") != _KIND:
        raise DataError(f"{name!r} does not describe packed data")
    if record.get("version") != VERSION:
        raise DataError(
            f"{name!r} has version {record.get('version')} of packed data, not {VERSION}. {_REMEDY}"
        )
    return record


_HEADER = 256  # bytes; room for a shape that is known only at the end
_PIECE = 4 << 20  # bytes that are written at once


class NpyStream:
    """A `.npy` file that is written row by row; takes 4 MiB of memory.

    Args:
        path: of the file, which must not exist.
        dtype: of the numbers.
    """

    def __init__(self, path: Path, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self._file = path.open("xb", buffering=_PIECE)
        self._file.write(bytes(_HEADER))

    def append(self, numbers: Numbers) -> None:
        """Add numbers."""
        self._file.write(np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data)

    def finish(self, shape: tuple[int, ...]) -> None:
        """Write the header, flush the file to the disk and close it."""
        fields = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        start = np.lib.format.MAGIC_PREFIX + bytes([1, 0]) + struct.pack("<H", _HEADER - 10)
        self._file.seek(0)
        self._file.write(start + repr(fields).encode().ljust(_HEADER - 11) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()

    def close(self) -> None:
        """Close the file as it is."""
        self._file.close()
