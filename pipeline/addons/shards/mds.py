"""Samples in MosaicML's MDS shards, in any order, read by MosaicML's own library.

    root/index.json, shard.00000.mds ...        divided by `val_fraction`
    root/train/index.json, root/val/index.json  divided already

`pip install mosaicml-streaming` brings the library (`streaming`), which wants numpy below 2.2 and
transformers; importing it takes 5 s. Only its reader of shards is used, since orders, workers and
ranks are Penstock's. Of a shard of 4 MiB and more at an address no more is fetched than the samples
that are read (`mds_parts.py`). Cost: a file is opened and 2 reads are made for each sample, 30 us.

Compressed shards have to be decompressed first; columns that are pickles are refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import tv_tensors

from penstock.addons.record_files.open_files import OpenFiles
from penstock.addons.record_files.rows import no_column
from penstock.addons.record_files.shard_files import ShardFiles
from penstock.addons.shards.mds_parts import LARGE, RemoteShards, wrong_size
from penstock.datasets.files import Files, Remote, WholeFilesError
from penstock.datasets.reading.file_kind import stranger
from penstock.datasets.reading.fingerprint import DataFile, FileDataset, Part, Sample, data_file
from penstock.datasets.reading.folder import leads_out
from penstock.datasets.reading.image import Reader, check_reader, decode_image, undecoded
from penstock.datasets.reading.labels import check_label
from penstock.datasets.reading.plain_tensor import plain_tensor
from penstock.datasets.reading.split import Split, check_split
from penstock.errors import ConfigError, DataError, Problem
from penstock.files import plain_json
from penstock.files.addresses import is_remote
from penstock.files.limits import DEFAULT, Limits
from penstock.files.regular_file import read_regular, regular_descriptor
from penstock.order.randomness import IntArray
from penstock.ranges import Fraction, Seed
from penstock.terminal import watched

if TYPE_CHECKING:
    import pandas as pd

_INDEX = "index.json"
_IMAGES = ("jpeg", "png")
_SCALARS = (
    "int",
    "str",
    "str_int",
    "str_float",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
)


class MDS(FileDataset, Dataset[Sample]):
    """One sample: its columns, by name.

    Images become Image (uint8 [3, H, W]), arrays tensors, floats float32; whole numbers, text and
    bytes are left as they are.

    Args:
        root: folder of the shards and their index, or of "train" and "val" with those in them; here
            or at an address.
        split: "train", "val" or "test".
        fields: output field -> column, null for the column of that name; null in all takes every
            column.
        classes: names of the classes of `label`, in the order of their numbers.
        val_fraction: share of the samples that validate, where the folders do not say it.
        split_seed: another seed, another split.
        reader: of JPEG and PNG: "torchvision", "pillow" or "skimage".
        files: how remote files are fetched and kept.
        lazy: give JPEG and PNG undecoded, for a transform that decodes; the build sets it.
        limits: `record_bytes` of an index and of a sample, `pixels` of a picture.
        test_fraction: share of the rows to keep for a test.

    Raises:
        DataError: there is no index, or it is damaged, or its shards differ in their columns, are
            compressed, hold pickles or lie outside of its folder. A shard that is cut off is
            refused when it is read.
        ConfigError: MosaicML's library is not installed, or there is no such column.
    """

    draws = False  # reading a sample takes no random numbers

    def __init__(
        self,
        root: str,
        split: Split = "train",
        fields: Mapping[str, str | None] | None = None,
        classes: Sequence[str] | None = None,
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        reader: Reader = "torchvision",
        files: Files | None = None,
        lazy: bool = False,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
    ) -> None:
        check_split(split, val_fraction, test_fraction)
        check_reader(reader)
        _library()
        self.reader, self.lazy, self.limits = reader, lazy, limits
        self.classes = list(classes or [])
        self._files = files or Files()
        indexes = ShardFiles.of(root, split, (_INDEX,), self._files)
        self._shards = [
            shard for at in indexes.addresses for shard in read_index(at, self._files, limits)
        ]
        self._encodings = _encodings(self._shards, indexes.addresses[0])
        self.columns_of = {field: column or field for field, column in (fields or {}).items()}
        for field, column in self.columns_of.items():
            if column not in self._encodings:
                reason = no_column(column, list(self._encodings))
                raise ConfigError(Problem(f"dataset.fields.{field}", reason))
        self.columns_of = self.columns_of or {column: column for column in self._encodings}
        self._bounds = np.cumsum([0, *(info["samples"] for _, info in self._shards)])
        total = int(self._bounds[-1])
        self._rows = indexes.rows(total, split, val_fraction, split_seed, test_fraction)
        self._readers = OpenFiles(self._opened)
        self._parts = RemoteShards(self._shards, self._files, limits)
        self._has_parts = True  # as far as is known

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Sample:
        shard, row = next(self._places([index]))
        values = self._values(shard, row)
        where = f"{self._shards[shard][0]!r}, sample {row}"
        sample = {
            field: self._value(values[column], self._encodings[column], f"{where}, {column!r}")
            for field, column in self.columns_of.items()
        }
        check_label(sample.get("label"), self.classes, where)
        return sample

    def _places(self, indices: Sequence[int] | IntArray) -> Iterator[tuple[int, int]]:
        """Shards of samples, and their rows in them."""
        rows = self._rows.rows(indices)
        shards = self._shards_of(rows)
        return zip(shards.tolist(), (rows - self._bounds[shards]).tolist(), strict=True)

    @property
    def remote_files(self) -> Remote | None:
        """The fetcher of the shards, if they are at an address."""
        return (
            self._files.remote if any(is_remote(address) for address, _ in self._shards) else None
        )

    def files_of(self, indices: Sequence[int] | IntArray) -> list[list[str]]:
        """The addresses of what samples are read from: parts of their shards, or all of these."""
        places = list(self._places(indices))
        addresses = [[self._shards[shard][0]] for shard, _ in places]
        apart = [place for place, (shard, _) in enumerate(places) if self._in_parts(shard)]
        parts = self._parts.files_of([places[place] for place in apart])
        for place, files in zip(apart, parts, strict=True):
            addresses[place] = files
        return addresses

    def _in_parts(self, shard: int) -> bool:
        address, info = self._shards[shard]
        large = bool(info["raw_data"]["bytes"] >= LARGE)
        return self._has_parts and large and is_remote(address)

    def _shards_of(self, rows: IntArray) -> IntArray:
        return np.searchsorted(self._bounds, rows, side="right") - 1

    def locality(self, indices: IntArray) -> IntArray:
        """The shard of each row."""
        return self._shards_of(self._rows.rows(indices))

    def _values(self, shard: int, row: int, whole: bool = False) -> dict[str, Any]:
        """All columns of a sample as the library gives them; JPEG and PNG as bytes.

        Args:
            whole: fetch all of its shard.
        """
        address, _ = self._shards[shard]
        try:
            content = None if whole else self._part(shard, row)
            if content is None:
                content = self._files.read(address, lambda path: self._item(shard, path, row))
            return cast(dict[str, Any], self._readers[shard].decode_sample(content))
        except (ImportError, MemoryError, DataError):
            raise
        except FileNotFoundError as error:
            zipped, reason = self._shards[shard][1].get("zip_data"), "the index names it"
            if zipped:
                name = zipped["basename"]
                reason = f"only {name!r} would be there, compressed; decompress the shards first"
            raise DataError(f"{address!r} is missing: {reason}.") from error
        except Exception as error:  # the library raises whatever it likes over damaged bytes
            raise DataError(
                f"{address!r}, sample {row} cannot be read: {type(error).__name__}: {error}. Copy "
                "or write the shard again."
            ) from error

    def _part(self, shard: int, row: int) -> bytes | None:
        """A sample of a shard that is read in parts."""
        if self._in_parts(shard):
            try:
                return self._parts.read(shard, row)
            except WholeFilesError:
                self._has_parts = False
        return None

    def _item(self, shard: int, path: str, row: int) -> bytes:
        """A sample of a shard that is on this machine."""
        descriptor, size = regular_descriptor(path)
        try:
            address, info = self._shards[shard]
            if size != info["raw_data"]["bytes"]:
                raise DataError(wrong_size(address, size, info))
            bounds = os.pread(descriptor, 8, 4 + 4 * row)
            start, end = int.from_bytes(bounds[:4], "little"), int.from_bytes(bounds[4:], "little")
            if not start <= end <= size:
                raise ValueError(f"it goes from byte {start} to {end} of {size}")
            if end - start > self.limits.record_bytes:
                refusal = self.limits.refusal("record_bytes", f"{end - start} bytes")
                raise DataError(f"{path!r}, sample {row} has {refusal}.")
            return os.pread(descriptor, end - start, start)
        finally:
            os.close(descriptor)

    def _value(self, value: Any, encoding: str, where: str) -> Any:
        if encoding in _IMAGES:
            read = undecoded if self.lazy else decode_image
            return read(value, where, self.reader, self.limits)
        if isinstance(value, Image.Image):  # of the encoding "pil"
            pixels = np.array(value.convert("RGB"))
            return tv_tensors.Image(torch.from_numpy(pixels).permute(2, 0, 1))
        if isinstance(value, (np.ndarray, np.generic, float)):
            array = np.asarray(value)
            if array.ndim == 0 and array.dtype.kind in "iu":
                return int(array)
            try:
                return plain_tensor(array)
            except ValueError as error:
                raise DataError(f"{where}: {error}. Repair it or take the sample out.") from error
        return value

    def _opened(self, shard: int) -> Any:
        """The library's decoder of a shard's samples."""
        _, info = self._shards[shard]
        plain = [
            "bytes" if encoding in _IMAGES else encoding for encoding in info["column_encodings"]
        ]
        return _library().reader_from_json("", None, {**info, "column_encodings": plain})

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: its numbers and texts, under the names of fields.

        Reads all shards, since a sample's columns lie together in them; decodes no image.
        """
        import pandas as pd

        scalars = {f: c for f, c in self.columns_of.items() if self._encodings[c] in _SCALARS}
        columns: dict[str, list[Any]] = {field: [] for field in scalars}
        places = self._places(np.arange(len(self)))
        for shard, row in watched(places, len(self), "reading columns of MDS shards"):
            values = self._values(shard, row, whole=True)
            for field, column in scalars.items():
                columns[field].append(values[column])
        return pd.DataFrame(columns)

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The fields, the rows of this split, and the descriptions of the shards."""
        parts: list[Part] = ["mds", self.reader, *self.classes]
        parts += [f"{field} {column}" for field, column in self.columns_of.items()]
        parts += [json.dumps(info, sort_keys=True) for _, info in self._shards]
        spread = np.linspace(0, len(self) - 1, min(len(self), 4096)).astype(np.int64)
        return [*parts, len(self), self._rows.rows(spread)]

    def data_files(self) -> list[DataFile]:
        return [
            data_file(f"{number} {info['raw_data']['basename']}", address, self._files)
            for number, (address, info) in enumerate(self._shards)
        ]


def _library() -> Any:
    """`streaming.base.format`; imported when it is first needed in a process."""
    try:
        from streaming.base import format as library
    except ImportError as error:
        reason = (
            "MDS is read by MosaicML's library: pip install mosaicml-streaming (it wants numpy "
            f"below 2.2; now: {error})"
        )
        raise ConfigError(Problem("dataset", reason)) from error
    return library


def read_index(address: str, files: Files, limits: Limits) -> list[tuple[str, dict[str, Any]]]:
    """Address and description of each shard that an index names.

    Raises:
        DataError: it is missing or damaged, or a shard lies outside of its folder or is not read.
    """
    try:
        content = files.read(address, lambda path: read_regular(path, limits))
    except OSError as error:
        raise DataError(
            f"{address!r} cannot be read: {error.strerror}. Check dataset.root."
        ) from error
    except DataError as error:
        raise DataError(f"{address!r}: {error}") from error
    try:
        index = plain_json.parse(content, limits.record_bytes)
        version, shards = index["version"], index["shards"]
        names = [info["raw_data"]["basename"] for info in shards]
        for info in shards:
            _check_shard(info, address)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = stranger(content[:256]) if not content.lstrip().startswith(b"{") else None
        raise DataError(
            f"{address!r} is not an index of MDS shards ({what or repr(error)}). Write it again."
        ) from error
    if version != 2:
        raise DataError(f"{address!r} has version {version}; version 2 is read.")
    folder = address.rpartition("/")[0]
    return [(f"{folder}/{name}", info) for name, info in zip(names, shards, strict=True)]


def _check_shard(info: Mapping[str, Any], index: str) -> None:
    """Raise DataError for a shard that is not read here; KeyError for one that lacks something."""
    name = info["raw_data"]["basename"]
    if leads_out(name):
        raise DataError(
            f"{index!r} names the shard {name!r}, which leads out of its folder. Shards lie beside "
            "or below their index; write it again."
        )
    for key, count in (("samples", info["samples"]), ("bytes", info["raw_data"]["bytes"])):
        if type(count) is not int or not 0 <= count < 1 << 48:
            raise ValueError(f"shard {name!r} has {key}={count!r}")
    if info["format"] != "mds":
        raise DataError(f"{name!r} is a shard of format {info['format']!r}; mds is read.")
    for column, encoding in zip(info["column_names"], info["column_encodings"], strict=True):
        if encoding.split(":")[0] == "pkl":
            raise DataError(
                f"{name!r}: column {column!r} holds pickles, which may run any code when they are "
                "read. Write the shards with another encoding (json, ndarray ...)."
            )


def _encodings(shards: Sequence[tuple[str, Mapping[str, Any]]], index: str) -> dict[str, str]:
    """Column -> encoding, the same in all shards."""
    if not shards or not sum(info["samples"] for _, info in shards):
        raise DataError(f"{index!r} names no shards with samples.")
    every = [
        dict(zip(info["column_names"], info["column_encodings"], strict=True)) for _, info in shards
    ]
    for (name, _), encodings in zip(shards, every, strict=True):
        if encodings != every[0]:
            column = sorted(set(encodings.items()) ^ set(every[0].items()))[0][0]
            raise DataError(
                f"{name!r}: column {column!r} is {encodings.get(column, 'missing')}, but in "
                f"{shards[0][0]!r} it is {every[0].get(column, 'missing')}. All shards need the "
                "same columns."
            )
    return every[0]
