"""A pack: samples of a dataset, or rows of a table, as `.npy` files that are read where they lie.

    pack.json               what is in it; written last
    image.npy               [N, H, W, C] when all samples have one shape, else numbers in a row
    image.offsets.npy       int64[N + 1]: where each sample's numbers begin     (unequal shapes)
    image.shapes.npy        int32[N, ndim]                                      (unequal shapes)
    landmarks.canvas.npy    int32[N, 2]: height and width of each one's picture (points, boxes)
    table.*                 what the dataset tells besides its samples (packed.py)

Values come back to the bit, in one copy each way. Opening takes 0.1 ms a file of any size;
processes share the pages. At an address, numbers of large fields are read row by row, and
everything else is fetched whole.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torchvision import tv_tensors

from penstock import program
from penstock.addons.storage.files import RecordFiles, Spans
from penstock.datasets.files import Files, Root, open_root
from penstock.errors import DataError
from penstock.files.disk import write_atomically
from penstock.loading.collate import Mismatch, Ragged
from penstock.loading.encoded import EncodedImage, allocate

Numbers = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

VERSION = 3
RECORD = "pack.json"
_REMEDY = "Delete the pack's folder to make it again (data.packed=auto, or task=pack)."
# Below this a request for each batch costs more than the whole file once.
_WHOLE = 1 << 20  # bytes of a file at an address that is fetched whole
# Bytes before the numbers of a field. The header is written over them at the end, when the number
# of rows is known, and rows at an address are found without a look at it.
_HEADER = 256
# Python's own types: kind, dtype, dimensions, torchvision's type. A text is its bytes in UTF-8.
_PLAIN: dict[type, tuple[str, str, int, str]] = {
    bool: ("bool", "|b1", 0, ""),
    int: ("int", "<i8", 0, ""),
    float: ("float", "<f8", 0, ""),
    str: ("str", "|u1", 1, ""),
    bytes: ("bytes", "|u1", 1, ""),
    EncodedImage: ("file", "|u1", 1, "Image"),
}
_CONTENT = ("str", "bytes", "file")
_TYPES = {
    name: getattr(tv_tensors, name)
    for name in ("Image", "Video", "Mask", "KeyPoints", "BoundingBoxes")
    if hasattr(tv_tensors, name)  # an older torchvision has no KeyPoints
}


@dataclass(frozen=True)
class Field:
    """One field of every sample.

    Attributes:
        name: its key in a sample.
        kind: "tensor", "array" (numpy's), "scalar" (numpy's), "int", "float", "bool", "str",
            "bytes" or "file" (an EncodedImage).
        dtype: of its numbers, as numpy writes it; "|u1" for text and files.
        ndim: dimensions of one value.
        type: torchvision's type: "Image", "KeyPoints" ...; "" for none.
        attributes: of that type, such as {"format": "XYXY"}.
        file: in a pack, the file of its numbers, without the ending.
        shape: in a pack, of the stored numbers of a sample; None where samples have several.
    """

    name: str
    kind: str
    dtype: str
    ndim: int
    type: str = ""
    attributes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    file: str = ""
    shape: Sequence[int] | None = None

    def __str__(self) -> str:
        shown = f"{self.type or self.kind} of {np.dtype(self.dtype)}, {self.ndim} dimension(s)"
        return f"{shown} {dict(self.attributes) or ''}".rstrip()

    @property
    def channels_last(self) -> bool:
        """Whether numbers [C, H, W] are stored as [H, W, C].

        Decoders give images so, torchvision resizes that layout fastest, and each row of a crop is
        one run of bytes.
        """
        return self.type == "Image" and self.ndim == 3

    def tensor(self, stored: Numbers) -> torch.Tensor:
        """Stored numbers [..., *shape] as the tensor that a sample or a batch of them holds."""
        made = torch.from_numpy(stored)
        return made.movedim(-1, -3) if self.channels_last else made

    def value(self, stored: Numbers, canvas: Sequence[int] | None = None) -> Any:
        """The numbers of one sample as the value that it had; they are shared."""
        if self.kind != "tensor":
            return stored[()] if self.kind == "scalar" else stored
        size = {} if canvas is None else {"canvas_size": tuple(canvas)}
        tensor = self.tensor(stored)
        return _TYPES[self.type](tensor, **self.attributes, **size) if self.type else tensor


def describe(sample: Mapping[str, Any]) -> dict[str, Field]:
    """The fields of a sample; raises DataError if one cannot be stored."""
    return {str(name): _field(str(name), value) for name, value in sample.items()}


def _field(name: str, value: Any) -> Field:
    kind, is_plain = type(value), type(value) in (torch.Tensor, torch.nn.Parameter)
    # By the exact type: True is an int as well, and a float64 of numpy a float, and each has to
    # come back as what it was.
    if kind in _PLAIN:
        return Field(name, *_PLAIN[kind])
    # numpy has no bfloat16, so such numbers would come back as others.
    if (is_plain or kind in _TYPES.values()) and value.dtype != torch.bfloat16:
        # JSON knows no enumerations, such as the format of boxes; torchvision takes their values,
        # too.
        known = {} if is_plain else {key: getattr(v, "value", v) for key, v in vars(value).items()}
        known.pop("canvas_size", None)  # samples have several
        type_ = "" if is_plain else kind.__name__
        return Field(name, "tensor", _numpy(value).dtype.str, value.ndim, type_, known)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        word = "array" if isinstance(value, np.ndarray) else "scalar"
        return Field(name, word, value.dtype.str, value.ndim)
    what = f"a {kind.__name__}" + (f" of {value.dtype}" if hasattr(value, "dtype") else "")
    raise DataError(
        f"field {name!r} is {what}, which cannot be packed; make it a tensor, an array, a number "
        "or text"
    )


def _numpy(value: torch.Tensor) -> Numbers:
    # Parameters and results of a model need no graph, and samples on a GPU are packed as well.
    return value.detach().as_subclass(torch.Tensor).cpu().numpy()


@dataclass
class Column:
    """The numbers of one field of several samples, concatenated.

    Attributes:
        numbers: uint8[bytes of all].
        shapes: as they are stored, int32[B, ndim].
        canvases: height and width of each value's picture, int32[B, 2]; None if it has none.
    """

    numbers: torch.Tensor
    shapes: npt.NDArray[np.int32]
    canvases: npt.NDArray[np.int32] | None = None

    @property
    def offsets(self) -> Indices:
        """Where the numbers of each value begin, and where they end: int64[B + 1]."""
        return np.concatenate([[0], np.cumsum(self.shapes.prod(axis=1, dtype=np.int64))])


class Unlike(Mismatch):
    """A sample of a batch, by its place, whose fields are not those of the pack."""

    def __init__(self, name: str, row: int, field: Field | None, before: Field | None) -> None:
        reason = f"field {name!r} is {field} and was {before} before"
        DataError.__init__(self, f"cannot be packed with those before it: {reason}")
        self.rows = 0, row


class Encode:
    """Samples with these fields to a `Column` for each: a collate function; raises `Unlike`."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.fields = fields

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        # Every sample is described: numbers of another type, or a field more, would be stored as
        # those of the first sample are, or be lost, without an error.
        was = self.fields
        for row, sample in enumerate(samples):
            now = describe(sample)
            unlike = [name for name in {**was, **now} if was.get(name) != now.get(name)]
            if unlike:
                raise Unlike(unlike[0], row, now.get(unlike[0]), was.get(unlike[0]))
        return {n: column(of, [sample[n] for sample in samples]) for n, of in self.fields.items()}


def column(field: Field, values: Sequence[Any]) -> Column:
    """The values of a field of several samples."""
    arrays = [_stored(field, value) for value in values]
    shapes = np.array([array.shape for array in arrays], np.int32).reshape(len(arrays), field.ndim)
    with_canvas = [value.canvas_size for value in values if hasattr(value, "canvas_size")]
    # Memory that a worker shares: the process that writes the pack gets it without a copy.
    numbers = allocate((sum(array.nbytes for array in arrays),), np.dtype(np.uint8))
    flat = [array.reshape(-1) for array in arrays]
    np.concatenate(flat, out=numbers.numpy().view(field.dtype))
    return Column(numbers, shapes, np.array(with_canvas, np.int32) if with_canvas else None)


def _stored(field: Field, value: Any) -> Numbers:
    """The numbers of a value in the stored layout; a view if possible."""
    match field.kind:
        case "tensor":
            array = _numpy(value)
            return np.moveaxis(array, -3, -1) if field.channels_last else array
        case "str":
            # Names of files may hold bytes that are no UTF-8.
            return np.frombuffer(value.encode("utf-8", "surrogateescape"), np.uint8)
        case "file":
            return np.frombuffer(value.content, np.uint8)
        case "bytes":
            return np.frombuffer(value, np.uint8)
    return np.asarray(value, field.dtype)


class PackWriter:
    """Writes a pack into an empty folder, for samples with these fields.

    Numbers are written as they come. What says where each row lies is kept until the end: 4 bytes a
    row and dimension.

    Args:
        ragged: fields that are stored as values of unequal shapes even where all have one.
    """

    def __init__(
        self, folder: Path, fields: Mapping[str, Field], ragged: Sequence[str] = ()
    ) -> None:
        self.folder, self.fields, self.count = folder, fields, 0
        # Text and files are read by offsets even where all have one length.
        self._ragged = {*ragged, *(name for name in fields if fields[name].kind in _CONTENT)}
        self._files, self._parts = dict[str, BinaryIO](), list[Mapping[str, Column]]()
        for number, name in enumerate(fields):
            # In small letters, as there are disks that do not tell them from others.
            plain = re.fullmatch("[a-z_][a-z0-9_]{0,60}", name) and name != "table"
            path = folder / f"{name if plain else f'field-{number}'}.npy"
            # Fields are written in turn, and small pieces would lie scattered on the disk.
            self._files[name] = path.open("xb", buffering=4 << 20)
            self._files[name].write(bytes(_HEADER))

    def append(self, columns: Mapping[str, Column]) -> None:
        """Add samples."""
        for name, column in columns.items():
            self._files[name].write(column.numbers.numpy().data)
            # Shapes are kept until the end; kept numbers would be all of the dataset in memory.
            column.numbers = torch.empty(0)
        self.count += len(next(iter(columns.values())).shapes)
        self._parts.append(columns)

    def finish(self, record: Mapping[str, Any]) -> None:
        """Write the rest, and pack.json with the entries of `record` last."""
        fields = [asdict(self._finished(*named)) for named in self.fields.items()]
        sizes = dict[str, int]()
        for path in sorted(self.folder.iterdir()):
            with path.open("rb") as file:
                os.fsync(file.fileno())  # pack.json must not be on the disk before they are
            sizes[path.name] = path.stat().st_size
        whole = {"version": VERSION, "count": self.count, **record}
        content = json.dumps({**whole, "fields": fields, "files": sizes}, indent=1)
        write_atomically(self.folder / RECORD, content.encode())

    def _finished(self, name: str, field: Field) -> Field:
        """The field with its place, when the rest of its files is written."""
        parts, file = [columns[name] for columns in self._parts], self._files[name]
        column = Column(torch.empty(0), np.concatenate([part.shapes for part in parts]))
        shape, stem = column.shapes[0].tolist(), Path(file.name).with_suffix("")
        whole = (self.count, *shape)
        # Only now it is known: any sample might have had a shape of its own.
        if name in self._ragged or (column.shapes != column.shapes[0]).any():
            shape, whole = None, (int(column.offsets[-1]),)
            np.save(f"{stem}.offsets.npy", column.offsets)
            np.save(f"{stem}.shapes.npy", column.shapes)
        if parts[0].canvases is not None:
            np.save(f"{stem}.canvas.npy", np.concatenate([part.canvases for part in parts]))
        # Not by numpy's function, which gives a header of as many bytes as its content needs: there
        # is room for one of this size, as the numbers are written already.
        described = {"descr": field.dtype, "fortran_order": False, "shape": whole}
        start = np.lib.format.MAGIC_PREFIX + bytes([1, 0]) + struct.pack("<H", _HEADER - 10)
        file.seek(0)
        file.write(start + repr(described).encode().ljust(_HEADER - 11) + b"\n")
        file.close()
        return replace(field, file=stem.name, shape=shape)

    def close(self) -> None:
        """Close files that are not finished."""
        for file in self._files.values():
            file.close()


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
        self.folder, self.record = str(at), read_record(at)
        self.fields = {entry["name"]: Field(**entry) for entry in self.record["fields"]}
        self.count, self._maps = int(self.record["count"]), dict[str, Numbers]()
        sizes = self.record["files"]
        self.files = RecordFiles.named(at, [*sizes])
        # A copy that was broken off leaves shorter files, and reads of their last rows would fail
        # in the middle of an epoch.
        for number, size in enumerate(sizes.values()):
            if self.files.sizes[number] != size:
                reason = f"it has {self.files.sizes[number]} bytes, and was written with {size}"
                raise damaged(self.files.addresses[number], reason)

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
        pack.folder, pack.files, pack.fields, pack._maps = "", RecordFiles([], []), {}, arrays
        for name, column in columns.items():
            shape = None if name in ragged else column.shapes[0].tolist()
            # A count instead of -1, which numpy cannot work out where a shape has a 0 in it.
            whole = (-1,) if shape is None else (len(column.shapes), *shape)
            pack.fields[name] = replace(fields[name], file=name, shape=shape)
            arrays[name] = column.numbers.numpy().view(fields[name].dtype).reshape(whole)
            arrays |= {f"{name}.offsets": column.offsets, f"{name}.shapes": column.shapes}
        return pack

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_maps": {}}  # a pickled map would hold all of the numbers

    def array(self, stem: str) -> Numbers:
        """The `.npy` file of that name (without its ending), mapped, not read."""
        if stem not in self._maps:
            number = self.files.names.index(f"{stem}.npy")
            try:
                mapped = np.load(self.files.path(number), mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError, EOFError) as error:
                raise damaged(self.files.addresses[number], error) from error
            # Plain arrays: every access to a memmap makes an object of that slow class.
            self._maps[stem] = mapped.view(np.ndarray)
        return self._maps[stem]

    def _spans(self, name: str, rows: Indices) -> Spans | None:
        """What of a file at an address the rows of a field are read from; None: it is mapped."""
        field, files = self.fields[name], self.files
        number = files.names.index(f"{field.file}.npy") if files.is_remote else 0
        if not files.is_remote or files.sizes[number] < _WHOLE:
            return None
        starts, shapes = self._located(name, rows)
        size, stops = np.dtype(field.dtype).itemsize, starts + shapes.prod(axis=1)
        return Spans(np.full(len(rows), number), _HEADER + starts * size, _HEADER + stops * size)

    def _located(self, name: str, rows: Indices) -> tuple[Indices, Indices]:
        """Where the numbers of rows begin among those of a field, int64[n], and their shapes."""
        field = self.fields[name]
        if field.shape is None:
            shapes = self.array(f"{field.file}.shapes")[rows].astype(np.int64)
            return self.array(f"{field.file}.offsets")[rows], shapes
        shapes = np.broadcast_to(np.array(field.shape, np.int64), (len(rows), field.ndim))
        return rows * math.prod(field.shape), shapes

    def want(self, rows: Indices) -> float:
        """Rows are read soon: fetch what is missing of them; their part of `files.ahead`."""
        spans = [self._spans(name, rows) for name in self.fields]
        return sum(self.files.want(each) for each in spans if each is not None)

    def places(self, name: str, rows: Indices) -> tuple[Numbers, Indices, Indices]:
        """Numbers of a field, 1-D, and for rows int64[n]: their offsets in these, int64[n], and
        shapes, int64[n, ndim]. On this machine the numbers are all there are, and not copied."""
        starts, shapes = self._located(name, rows)
        spans = self._spans(name, rows)
        if spans is None:
            return self.array(self.fields[name].file).reshape(-1), starts, shapes
        # A bytearray, since torch warns of memory that may not be written to.
        content, sizes = bytearray().join(self.files.read(spans)), shapes.prod(axis=1)
        return np.frombuffer(content, self.fields[name].dtype), np.cumsum(sizes) - sizes, shapes

    def rows(self, name: str, rows: Indices) -> Numbers:
        """The numbers of a field of one shape, int64[n] -> [n, *shape], in one copy."""
        if self._spans(name, rows[:0]) is None:
            return np.take(self.array(self.fields[name].file), rows, axis=0)
        numbers, _, shapes = self.places(name, rows)
        return numbers.reshape(len(rows), *shapes[0])

    def _each(self, name: str, rows: Indices) -> list[Numbers]:
        if self.fields[name].shape is not None:
            return [np.asarray(row) for row in self.rows(name, rows)]
        numbers, starts, shapes = self.places(name, rows)
        sizes = zip(starts.tolist(), shapes.prod(axis=1).tolist(), shapes.tolist(), strict=True)
        # Copies: transforms write into samples, and the map of a file is only to be read.
        return [np.array(numbers[at : at + size]).reshape(shape) for at, size, shape in sizes]

    def values(self, name: str, rows: Indices) -> list[Any]:
        """The values of a field for rows, int64[n]; of image files, their bytes."""
        field = self.fields[name]
        if field.kind in ("int", "float", "bool"):
            return list(self.rows(name, rows).tolist())
        if field.kind in _CONTENT:
            contents = self._contents(name, rows)
            if field.kind != "str":
                return contents
            return [content.decode("utf-8", "surrogateescape") for content in contents]
        if field.type not in ("KeyPoints", "BoundingBoxes"):
            return [field.value(stored) for stored in self._each(name, rows)]
        canvases = self.array(f"{field.file}.canvas")[rows].tolist()
        return [*map(field.value, self._each(name, rows), canvases)]

    def _contents(self, name: str, rows: Indices) -> list[bytes]:
        stem, spans = self.fields[name].file, self._spans(name, rows)
        if spans is not None:
            return [*map(bytes, self.files.read(spans))]
        offsets = self.array(f"{stem}.offsets")
        parts = [None, pa.py_buffer(offsets), pa.py_buffer(self.array(stem))]
        everything = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, parts)
        # Arrow gathers texts in a third of the time of a slice for each; but it imports pandas to
        # take rows of an array of numpy, so they come as Arrow's.
        chosen = [None, pa.py_buffer(np.ascontiguousarray(rows, np.int64))]
        taken = everything.take(pa.Array.from_buffers(pa.int64(), len(rows), chosen))
        contents: list[bytes] = taken.to_pylist()
        return contents

    def gathered(self, name: str, rows: Indices) -> torch.Tensor | Ragged | list[Any]:
        """A field of a batch: [n, ...], lists of unequal lengths, or texts.

        Raises:
            DataError: values of unequal lengths differ in another dimension than the first.
        """
        field = self.fields[name]
        if field.kind in _CONTENT:
            return self.values(name, rows)
        if field.shape is not None:
            return field.tensor(self.rows(name, rows))
        numbers, starts, shapes = self.places(name, rows)
        # Samples may differ so, images of several sizes for one; batches that are gathered may not.
        if (shapes[:, 1:] != shapes[:1, 1:]).any():
            raise DataError(f"field {name!r} has rows of several shapes: {shapes.tolist()[:8]}")
        sizes = shapes.prod(axis=1)
        ends = np.cumsum(sizes)
        at = np.repeat(starts - (ends - sizes), sizes) + np.arange(int(ends[-1]))
        values = torch.from_numpy(numbers[at].reshape(-1, *shapes[0, 1:]))
        return Ragged(values, torch.from_numpy(shapes[:, 0].copy()))


def damaged(path: str, reason: object) -> DataError:
    """The error of a pack that is not as it was written."""
    return DataError(f"packed data is damaged: {path!r}: {reason}. {_REMEDY}")


def is_pack(folder: Path) -> bool:
    """Whether a folder has a pack.json."""
    return (folder / RECORD).is_file()


def read_record(folder: Root) -> dict[str, Any]:
    """The content of a pack.json."""
    if folder.first_missing([RECORD]) is not None:
        raise DataError(
            f"{str(folder)!r} has no packed data: there is no {RECORD!r}. "
            f"`{program.text('task=pack')}` makes some."
        )
    try:
        content = folder.read(RECORD, lambda path, _: Path(path).read_bytes())
        record: dict[str, Any] = json.loads(content)
    except (OSError, ValueError) as error:
        raise damaged(folder.path(RECORD), error) from error
    if record.get("version") != VERSION:
        what = f"describes packed data of version {record.get('version')}, not {VERSION}"
        raise DataError(f"{folder.path(RECORD)!r} {what}. {_REMEDY}")
    return record
