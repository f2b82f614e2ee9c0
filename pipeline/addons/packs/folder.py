"""A pack: samples of a dataset, or rows of a table, as `.npy` files that are read where they lie.

    pack.json               what is in it; written last
    image.npy               [N, H, W, C] when all samples have one shape, else numbers in a row
    image.offsets.npy       int64[N + 1]: where each sample's numbers begin     (unequal shapes)
    image.shapes.npy        int32[N, ndim]                                      (unequal shapes)
    landmarks.canvas.npy    int32[N, 2]: height and width of each one's picture (points, boxes)
    table.feather           the dataset's table (`metadata`), with the `path` of each row, and its
                            `lengths`; pack.json has its `classes` and `facts`

Values come back to the bit, in one copy each way. Opening takes 0.1 ms a file of any size;
processes share the pages. At an address, numbers of large fields are read row by row, and
everything else is fetched whole.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset
from torchvision import tv_tensors

from penstock import program
from penstock.addons.storage.files import RecordFiles, Spans
from penstock.datasets.files import DataFile, Files, Root, open_root
from penstock.datasets.reading.image import undecoded
from penstock.errors import DataError
from penstock.files.disk import write_atomically
from penstock.files.limits import DEFAULT, Limits
from penstock.loading.collate import Ragged, kinds_of
from penstock.loading.encoded import EncodedImage, StoredPictures, allocate

if TYPE_CHECKING:
    import pandas as pd

Numbers = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]
# Of some values of a field, int32[n, ndim], and the sizes of their pictures, int32[n, 2].
_Shapes = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32] | None]

VERSION = 3
RECORD, TABLE = "pack.json", "table.feather"
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
_CONTENT, _NUMBERS = ("str", "bytes", "file"), ("tensor", "array", "int", "float", "bool")
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
        attributes: of that type, such as {"format": "XYXY"}; None for none.
        file: in a pack, the file of its numbers, without the ending.
        shape: in a pack, of the stored numbers of a sample; None where samples have several.
    """

    name: str
    kind: str
    dtype: str
    ndim: int
    type: str = ""
    attributes: Mapping[str, str] | None = None
    file: str = ""
    shape: Sequence[int] | None = None

    def __str__(self) -> str:
        kind, shown = self.type or self.kind, self.attributes or ""
        return f"{kind} of {np.dtype(self.dtype)}, {self.ndim} dimension(s) {shown}".rstrip()

    @property
    def channels_last(self) -> bool:
        """Whether numbers [C, H, W] are stored as [H, W, C].

        Decoders give images so, torchvision resizes that layout fastest, and each row of a crop is
        one run of bytes.
        """
        return self.type == "Image" and self.ndim == 3

    @property
    def is_picture(self) -> bool:
        """Whether these are decoded pictures, uint8 [3, H, W]."""
        return self.channels_last and self.dtype == "|u1"

    def tensor(self, stored: Numbers) -> torch.Tensor:
        """Stored numbers [..., *shape] as the tensor that a sample or a batch of them holds."""
        return torch.from_numpy(np.moveaxis(stored, -1, -3) if self.channels_last else stored)

    def value(self, stored: Numbers, canvas: Sequence[int] | None = None) -> Any:
        """The numbers of one sample as the value that it had; they are shared."""
        if self.kind != "tensor":
            return stored[()] if self.kind == "scalar" else np.asarray(stored)
        size = {} if canvas is None else {"canvas_size": tuple(canvas)}
        tensor = self.tensor(np.asarray(stored))
        return _TYPES[self.type](tensor, **self.attributes or {}, **size) if self.type else tensor


def describe(sample: Mapping[str, Any]) -> dict[str, Field]:
    """The fields of a sample; raises DataError if one cannot be stored."""
    return {str(name): _field(str(name), value) for name, value in sample.items()}


def _field(name: str, value: Any) -> Field:
    # By the exact type: True is an int as well, and a float64 of numpy a float, and each has to
    # come back as what it was.
    kind = type(value)
    if kind in _PLAIN:
        return Field(name, *_PLAIN[kind])
    type_ = kind.__name__ if kind in _TYPES.values() else ""
    # numpy has no bfloat16, so such numbers would come back as others.
    if (type_ or kind in (torch.Tensor, torch.nn.Parameter)) and value.dtype != torch.bfloat16:
        # JSON knows no enumerations, such as the format of boxes; torchvision takes their values,
        # too.
        known = {
            key: getattr(of, "value", of)
            for key, of in vars(value).items()
            if type_ and key != "canvas_size"  # of which samples have several
        }
        return Field(name, "tensor", _numpy(value).dtype.str, value.ndim, type_, known)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        is_array = isinstance(value, np.ndarray)
        return Field(name, "array" if is_array else "scalar", value.dtype.str, value.ndim)
    raise DataError(
        f"field {name!r} is a {kind.__name__} of {getattr(value, 'dtype', 'another kind')}, which "
        "cannot be packed; make it a tensor, an array, a number or text"
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


def _offsets(shapes: npt.NDArray[np.int32]) -> Indices:
    """Where the numbers of values of these shapes begin, and where they end: int64[B + 1]."""
    return np.concatenate([[0], np.cumsum(shapes.prod(axis=1, dtype=np.int64))])


def column(field: Field, values: Sequence[Any]) -> Column:
    """The values of a field of several samples."""
    arrays = [_stored(field, value) for value in values]
    shapes = np.array([array.shape for array in arrays], np.int32).reshape(len(arrays), field.ndim)
    with_canvas = [value.canvas_size for value in values if hasattr(value, "canvas_size")]
    # Memory that a worker shares: the process that writes the pack gets it without a copy.
    numbers = allocate((sum(array.nbytes for array in arrays),), np.dtype(np.uint8))
    np.concatenate([array.reshape(-1) for array in arrays], out=numbers.numpy().view(field.dtype))
    return Column(numbers, shapes, np.array(with_canvas, np.int32) if with_canvas else None)


def _stored(field: Field, value: Any) -> Numbers:
    """The numbers of a value in the stored layout; a view if possible."""
    if field.kind == "tensor":
        return np.moveaxis(_numpy(value), -3, -1) if field.channels_last else _numpy(value)
    if field.kind not in _CONTENT:
        return np.asarray(value, field.dtype)
    # Names of files may hold bytes that are no UTF-8.
    content = value.encode("utf-8", "surrogateescape") if field.kind == "str" else value
    return np.frombuffer(content.content if field.kind == "file" else content, np.uint8)


class PackWriter:
    """Writes a pack into an empty folder, for samples with these fields.

    Numbers are written as they come, and no file stays open. What says where each row lies is kept
    until the end: 4 bytes a row and dimension.

    Args:
        ragged: fields that are stored as values of unequal shapes even where all have one.
    """

    def __init__(
        self, folder: Path, fields: Mapping[str, Field], ragged: Sequence[str] = ()
    ) -> None:
        self.folder, self.count = folder, 0
        self._fields, self._parts = dict[str, Field](), {name: list[_Shapes]() for name in fields}
        # Text and files are read by offsets even where all have one length.
        self._ragged = {*ragged, *(name for name in fields if fields[name].kind in _CONTENT)}
        for number, (name, field) in enumerate(fields.items()):
            # In small letters, as there are disks that do not tell them from others.
            plain = re.fullmatch("[a-z_][a-z0-9_]{0,60}", name) and name != "table"
            self._fields[name] = replace(field, file=name if plain else f"field-{number}")
            self._path(name).write_bytes(bytes(_HEADER))

    def _path(self, name: str, ending: str = ".npy") -> Path:
        return self.folder / f"{self._fields[name].file}{ending}"

    def append(self, columns: Mapping[str, Column]) -> None:
        """Add samples."""
        for name, column in columns.items():
            with self._path(name).open("ab") as file:
                file.write(column.numbers.numpy().data)
            # Shapes are kept until the end; kept numbers would be all of the dataset in memory.
            self._parts[name].append((column.shapes, column.canvases))
        self.count += len(next(iter(columns.values())).shapes)

    def finish(self, record: Mapping[str, Any]) -> None:
        """Write the rest, and pack.json with the entries of `record` last."""
        fields, sizes = [*map(self._finished, self._fields)], dict[str, int]()
        for path in sorted(self.folder.iterdir()):
            with path.open("rb") as file:
                os.fsync(file.fileno())  # pack.json must not be on the disk before they are
            sizes[path.name] = path.stat().st_size
        own = {"version": VERSION, "count": self.count, "fields": fields, "files": sizes}
        write_atomically(self.folder / RECORD, json.dumps({**record, **own}, indent=1).encode())

    def _finished(self, name: str) -> dict[str, Any]:
        """The entry of a field, when the rest of its files is written."""
        field, parts = self._fields[name], [*zip(*self._parts[name], strict=True)]
        shapes = np.concatenate(parts[0])
        shape, whole = shapes[0].tolist(), (self.count, *shapes[0].tolist())
        # Only now it is known: any sample might have had a shape of its own.
        if name in self._ragged or (shapes != shapes[0]).any():
            shape, whole = None, (int(_offsets(shapes)[-1]),)
            np.save(self._path(name, ".offsets.npy"), _offsets(shapes))
            np.save(self._path(name, ".shapes.npy"), shapes)
        if parts[1][0] is not None:
            np.save(self._path(name, ".canvas.npy"), np.concatenate(parts[1]))
        # Not by numpy's function, which gives a header of as many bytes as its content needs: there
        # is room for one of this size, as the numbers are written already.
        described = {"descr": field.dtype, "fortran_order": False, "shape": whole}
        with self._path(name).open("r+b") as file:
            file.write(np.lib.format.MAGIC_PREFIX + bytes([1, 0, _HEADER - 10, 0]))
            file.write(repr(described).encode().ljust(_HEADER - 11) + b"\n")
        return asdict(replace(field, shape=shape))


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
        self.files = files_ = RecordFiles.named(at, [*self.record["files"]])
        # A copy that was broken off leaves shorter files, and reads of their last rows would fail
        # in the middle of an epoch.
        for path, size, written in zip(
            files_.addresses, files_.sizes, self.record["files"].values(), strict=True
        ):
            if size != written:
                raise DataError(
                    f"packed data is damaged: {path!r}: it has {size} bytes, and was written with "
                    f"{written}. {_REMEDY}"
                )
        # File -> its number, of those at an address that are fetched row by row.
        self._by_row = {
            files_.names[number][:-4]: number
            for number in np.flatnonzero(files_.is_remote & (files_.sizes >= _WHOLE)).tolist()
        }

    @classmethod
    def in_memory(
        cls,
        columns: Mapping[str, Column],
        fields: Mapping[str, Field],
        ragged: Sequence[str],
        **arrays: Numbers,
    ) -> Self:
        """The same of columns that are written nowhere, for as long as they are needed."""
        pack = cls.__new__(cls)
        pack.folder, pack.fields, pack._maps, pack._by_row = "", {}, arrays, {}
        for name, column in columns.items():
            shape = None if name in ragged else column.shapes[0].tolist()
            pack.fields[name] = replace(fields[name], file=name, shape=shape)
            size = (-1,) if shape is None else (len(column.shapes), *shape)
            arrays[name] = column.numbers.numpy().view(fields[name].dtype).reshape(size)
            if shape is None:
                arrays[f"{name}.shapes"] = column.shapes
                arrays[f"{name}.offsets"] = _offsets(column.shapes)
        return pack

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_maps": {}}  # a pickled map would hold all of the numbers

    def array(self, stem: str) -> Numbers:
        """The `.npy` file of that name (without its ending), mapped, not read."""
        if stem not in self._maps:
            path = self.files.path(self.files.names.index(f"{stem}.npy"))
            try:
                # Plain arrays: every access to a memmap makes an object of that slow class.
                self._maps[stem] = np.load(path, mmap_mode="r").view(np.ndarray)
            except Exception as error:  # numpy has several for a header of other bytes
                raise DataError(
                    f"packed data is damaged: {str(path)!r}: {error}. {_REMEDY}"
                ) from error
        return self._maps[stem]

    def shapes(self, name: str, rows: Indices) -> Indices:
        """The shapes of rows of a field, as they are stored: int64[n, ndim] for int64[n]."""
        field = self.fields[name]
        if field.shape is None:
            return self.array(f"{field.file}.shapes")[rows].astype(np.int64)
        return np.broadcast_to(np.array(field.shape, np.int64), (len(rows), field.ndim))

    def spans(self, name: str, rows: Indices) -> Spans:
        """What rows of a field are read from: bytes of its file."""
        field = self.fields[name]
        if field.shape is None:
            offsets = self.array(f"{field.file}.offsets")
            starts, stops = offsets[rows], offsets[rows + 1]
        else:
            starts, stops = (row * math.prod(field.shape) for row in (rows, rows + 1))
        size, file = np.dtype(field.dtype).itemsize, self._by_row.get(field.file, -1)
        return Spans(np.full(len(rows), file), _HEADER + starts * size, _HEADER + stops * size)

    def want(self, rows: Indices) -> float:
        """Rows are read soon: fetch what is missing of them; their part of `files.ahead`."""
        names = [name for name, field in self.fields.items() if field.file in self._by_row]
        return sum(self.files.want(self.spans(name, rows)) for name in names)

    def buffers(self, name: str, rows: Indices) -> list[bytes | memoryview]:
        """The bytes of each row of a field, int64[n]; on this machine they are not copied."""
        spans, file = self.spans(name, rows), self.fields[name].file
        if file in self._by_row:
            return self.files.read(spans)
        content = self.array(file).reshape(-1).view(np.uint8).data
        bounds = zip((spans.start - _HEADER).tolist(), (spans.stop - _HEADER).tolist(), strict=True)
        return [content[start:stop] for start, stop in bounds]

    def _joined(self, name: str, rows: Indices) -> Numbers:
        # A bytearray, since torch warns of memory that may not be written to.
        return np.frombuffer(bytearray().join(self.buffers(name, rows)), self.fields[name].dtype)

    def pictures(self, name: str, rows: Indices) -> StoredPictures:
        """Pictures where they lie: on this machine in the file that is mapped, not copied."""
        shapes, file = self.shapes(name, rows), self.fields[name].file
        if file in self._by_row:
            numbers, starts = self._joined(name, rows), np.cumsum([0, *shapes.prod(axis=1)[:-1]])
        else:
            numbers, starts = self.array(file).reshape(-1), self.spans(name, rows).start - _HEADER
        return StoredPictures(numbers, starts, *shapes.T)

    def rows(self, name: str, rows: Indices) -> Numbers:
        """The numbers of a field of one shape, int64[n] -> [n, *shape], in one copy."""
        field = self.fields[name]
        if field.file not in self._by_row:
            return np.take(self.array(field.file), rows, axis=0)
        return self._joined(name, rows).reshape(len(rows), *self.shapes(name, rows[:1])[0])

    def values(self, name: str, rows: Indices) -> list[Any]:
        """The values of a field for rows, int64[n]; of image files, their bytes."""
        field = self.fields[name]
        if field.kind in ("int", "float", "bool"):
            return list(self.rows(name, rows).tolist())
        if field.kind == "str":
            return [str(of, "utf-8", "surrogateescape") for of in self.buffers(name, rows)]
        if field.kind in _CONTENT:
            return [*map(bytes, self.buffers(name, rows))]
        if field.shape is not None:
            stored = [*self.rows(name, rows)]
        else:
            # Copies: transforms write into samples, and the map of a file is only to be read.
            parts = zip(self.buffers(name, rows), self.shapes(name, rows), strict=True)
            stored = [np.frombuffer(bytearray(of), field.dtype).reshape(size) for of, size in parts]
        with_canvas = [f"{field.file}.canvas"] * (field.type in ("KeyPoints", "BoundingBoxes"))
        return [*map(field.value, stored, *(self.array(of)[rows].tolist() for of in with_canvas))]

    def samples(
        self, rows: Indices, decoders: Mapping[str, Callable[[int, bytes], Any]]
    ) -> list[dict[str, Any]]:
        """The samples of rows, int64[n]; a decoder makes a field's value of a row and its bytes."""
        # Field by field, because rows of a field are read in one call.
        columns = {name: self.values(name, rows) for name in self.fields}
        for name, decode in decoders.items():
            columns[name] = [*map(decode, rows.tolist(), columns[name])]
        return [dict(zip(columns, of, strict=True)) for of in zip(*columns.values(), strict=True)]

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
        shapes = self.shapes(name, rows)
        # Samples may differ so, images of several sizes for one; batches that are gathered may not.
        if (shapes[:, 1:] != shapes[:1, 1:]).any():
            raise DataError(f"field {name!r} has rows of several shapes: {shapes.tolist()[:8]}")
        return Ragged(
            torch.from_numpy(self._joined(name, rows).reshape(-1, *shapes[0, 1:])),
            torch.from_numpy(shapes[:, 0].copy()),
        )


def read_record(folder: Root) -> dict[str, Any]:
    """The content of a pack.json."""
    if folder.first_missing([RECORD]) is not None:
        raise DataError(
            f"{str(folder)!r} has no packed data: there is no {RECORD!r}. "
            f"`{program.text('task=pack')}` makes some."
        )
    try:
        record: dict[str, Any] = json.loads(
            folder.read(RECORD, lambda at, _: Path(at).read_bytes())
        )
    except ValueError as error:
        raise DataError(
            f"packed data is damaged: {folder.path(RECORD)!r}: {error}. {_REMEDY}"
        ) from error
    if record.get("version") != VERSION:
        what = f"describes packed data of version {record.get('version')}, not {VERSION}"
        raise DataError(f"{folder.path(RECORD)!r} {what}. {_REMEDY}")
    return record


class Packed(Pack, Dataset[dict[str, Any]]):
    """Samples as the dataset gave them that was packed, to the bit and of the same types.

    Its `metadata` is that of the dataset, with the dataset's `lengths` as a column, and its texts
    where the dataset counts their tokens.

    Args:
        folder: a pack, or a folder with a pack for each split ("train", "val"); or the address of
            one, of whose large fields only what batches need is fetched.
        split: "train" or "val".
        lazy: give packed image files undecoded, for a transform that decodes; the build sets it.
        limits: what a packed image file may claim.
        files: access to addresses; None takes the defaults.

    Attributes:
        classes: names of the classes, if the dataset had any.
        facts: numbers for models, such as num_classes.
        fingerprint: the dataset's own if its samples were packed as they are, so that addresses
            keep their meaning; another one if they were made smaller.

    Raises:
        DataError: there is no pack, or it is damaged.
    """

    draws = False  # reading a sample takes no random numbers

    def __init__(
        self,
        folder: str,
        split: str = "train",
        lazy: bool = False,
        limits: Limits = DEFAULT,
        files: Files | None = None,
    ) -> None:
        self.limits, self.lazy = limits, lazy
        at = open_root(folder, "a pack", files, "dataset.folder or data.packed")
        # Both are looked for at once, as a store takes its time for each request.
        super().__init__(
            at.below(split) if at.first_missing([RECORD, f"{split}/{RECORD}"]) == 0 else at
        )
        # A pack of the training split, named by its own folder, would validate the model as well.
        if (own := self.record["split"]) != split:
            raise DataError(
                f"{folder!r} holds the split {own!r}, not {split!r}; name the folder "
                "that both are in, as task=pack writes them with pack.out"
            )
        self.reader: str = self.record["reader"] or "torchvision"
        self.facts, self.classes = self.record["facts"], self.record["classes"]
        self.fingerprint: str = self.record["fingerprint"]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        # Offsets have one entry more than there are rows, so numpy would take -1 for another row.
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} samples, not one numbered {index}")
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Samples of a whole batch."""
        images = {name: self._image for name, field in self.fields.items() if field.kind == "file"}
        return self.samples(np.asarray(indices, dtype=np.int64), images)

    def _image(self, row: int, content: bytes) -> Any:
        image = undecoded(content, f"{self.folder}, sample {row}", self.reader, self.limits)
        return image if self.lazy else image.decode()

    @cached_property
    def fetches_batches(self) -> bool:
        """Whether `fetch_batch` can be used: every field is of numbers of one shape, or texts."""
        return all(
            field.kind in ("str", "bytes") or (field.kind in _NUMBERS and field.shape is not None)
            for field in self.fields.values()
        )

    @cached_property
    def fetches_pictures(self) -> bool:
        """Whether `fetch_batch` can leave pictures in place: there are some, and no points."""
        fields = self.fields.values()
        # Points and boxes need the size of their image, which is known when that is copied.
        rest = [field for field in fields if not field.is_picture]
        return len(rest) < len(fields) and all(
            field.kind in _NUMBERS and not field.type and field.shape is not None for field in rest
        )

    def fetch_batch(
        self, indices: Sequence[int], in_place: bool = False
    ) -> dict[str, torch.Tensor | Ragged | list[Any] | StoredPictures]:
        """The samples stacked, tensors [B, ...], in one copy a field.

        Args:
            in_place: leave pictures where they lie; they may be of any sizes.
        """
        rows = np.asarray(indices, dtype=np.int64)
        return {
            name: self.pictures(name, rows)
            if in_place and field.is_picture
            else self.gathered(name, rows)
            for name, field in self.fields.items()
        }

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Kinds of fields for transforms of batches: see `penstock.loading.collate.kinds_of`."""
        return kinds_of(self[0])

    @property
    def metadata(self) -> pd.DataFrame | None:
        """The table of the dataset that was packed, a row a sample, with its `lengths`."""
        import pandas as pd

        table = pd.read_feather(self.files.path(self.files.names.index(TABLE)))
        # Texts whose tokens the dataset counts: a column of characters would give other blocks.
        for name, field in self.fields.items() if self.record["text"] else ():
            if field.kind == "str" and name not in table:
                table[name] = self.values(name, np.arange(len(self)))
        return table if len(table.columns) else None

    def names_fingerprint(self) -> str:
        """That of the dataset that was packed, at the time of packing."""
        return self.fingerprint

    def data_files(self) -> list[DataFile]:
        """The files that samples are read from: the pack's."""
        return self.files.data_files()
