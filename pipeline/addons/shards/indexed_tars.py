"""Samples in tar archives, in any order: the archives of `tar_shards` with an index of each.

    shard-000000.tar          as `tar_shards` reads them, uncompressed
    shard-000000.tar.index    where its samples lie, as `tar.index` writes it

An index that is missing is made when the dataset is, and kept in `cache_dir`; at an address its
archive is fetched for that once. Of an archive of 4 MiB and more at an address with an index no
more is fetched than the samples that are read, with those that begin in the same 64 KiB.

Memory: 16 bytes a sample. Cost: a read by `pread` for each sample; for one at an address that is in
the cache 0.1 ms.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch.utils.data import Dataset

from penstock.addons.record_files.positioned_file import PositionedFile, blocks_of_each
from penstock.addons.record_files.remote_bytes import RemoteBytes, side_by_side
from penstock.addons.record_files.shard_files import OpenFiles, ShardFiles, data_file
from penstock.addons.shards.tar import index
from penstock.addons.shards.tar.archive import PLAIN, Dots, PlainTar, read_parts
from penstock.addons.shards.tar.fields import (
    NUMBERS,
    TEXTS,
    check_label,
    choose_fields,
    make_fields,
)
from penstock.addons.storage.arrays import CacheFolder
from penstock.datasets.files import DataFile, Files, WholeFilesError
from penstock.datasets.reading.base import FileDataset, Part, Sample, Split, check_split
from penstock.datasets.reading.image import Reader, check_reader
from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Fraction, Limits, Seed
from penstock.files.paths import is_remote
from penstock.order.keys import IntArray
from penstock.terminal import watched

if TYPE_CHECKING:
    import pandas as pd

    from penstock.addons.storage.client import Client

_LARGE = 4 << 20  # bytes of an archive of which parts are fetched
_PART = 1 << 16  # bytes in which samples begin that are fetched together
_AT_ONCE = 16  # indexes
_BLOCKS = 16  # of 4 KiB of an archive that the fingerprint is made of, at most


class IndexedTars(FileDataset, Dataset[Sample]):
    """One sample: the files of one name, each a field.

    Args:
        root: folder of the archives, one archive, or a pattern such as "train-{000..127}.tar"; here
            or at an address such as "s3://bucket/folder".
        split: "train", "val" or "test". Archives named `train...` and `val...` are divided already;
            otherwise rows are, by `val_fraction`.
        fields: field -> ending of its file, or several as "jpg;png"; see `tar_shards`.
        classes: names of the classes of `label`, in the order of their numbers.
        val_fraction: share of the samples that validate.
        split_seed: another seed, another split.
        reader: of images: "torchvision", "pillow" or "skimage".
        cache_dir: for the indexes that are made.
        files: how remote archives are fetched and kept.
        lazy: give images undecoded, for a transform that decodes; the build sets it.
        limits: `record_bytes` of a sample, `expansion`, `classes`.
        test_fraction: share of the samples that are kept for a test.
        dots: at which dot of a file's name that of its sample ends, "first" or "last"; None: the
            first, and names that have digits before another one are refused.

    Raises:
        DataError: there are no archives, or no samples; one is damaged, or has another index. Names
            the archive and the sample.
        ConfigError: a part is a pickle, or two of them would be the same field.
    """

    def __init__(
        self,
        root: str,
        split: Split = "train",
        fields: Mapping[str, str | None] | None = None,
        classes: Sequence[str] | None = None,
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        reader: Reader = "torchvision",
        cache_dir: str = "data/cache/tars",
        files: Files | None = None,
        lazy: bool = False,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
        dots: Dots | None = None,
    ) -> None:
        check_split(split, val_fraction, test_fraction)
        check_reader(reader)
        self._dots: Dots = dots or "first"
        self.classes, self.reader, self._limits = list(classes or []), reader, limits
        self.lazy = lazy
        self._files, self._cache_dir = files or Files(), cache_dir
        self._shards = ShardFiles.of(root, split, PLAIN, self._files)
        self._in_parts = True  # as far as is known
        self._open = OpenFiles(self._opened)
        numbers = range(len(self._shards.addresses))
        with ThreadPoolExecutor(_AT_ONCE, "penstock-files") as pool:
            indexes = pool.map(self._index, numbers)
            made = list(watched(indexes, len(numbers), "reading indexes of archives"))
        self._bounds = np.cumsum([0, *(len(each) - 1 for each in made)])
        self._places = np.concatenate([each[:-1] for each in made])
        self._bytes = [int(each[-1, 0]) for each in made]
        total = len(self._places)
        if not total:
            raise DataError(f"dataset.root: there are no samples in the archives at {root!r}.")
        self._rows = self._shards.rows(total, split, val_fraction, split_seed, test_fraction)
        if not len(self._rows):
            raise DataError(f"dataset.root: {root!r} has no sample of the split {split!r}.")
        where, parts = self._parts(0)
        self._whole = where if fields is None else ""
        self.fields = choose_fields(fields, list(parts), where, dots, split == "train")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Sample:
        where, parts = self._parts(row)
        sample = make_fields(
            parts, self.fields, self._whole, where, self.reader, self._limits, self.lazy
        )
        check_label(sample.get("label"), self.classes, where)
        return sample

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: its numbers and texts. Reads all of the archives."""
        import pandas as pd

        plain = (*NUMBERS, *TEXTS)
        fields = [
            field
            for field in self.fields
            if all(ending.rpartition(".")[2] in plain for ending in field.endings)
        ]
        rows = []
        for row in watched(range(len(self)), len(self), "reading samples of archives"):
            where, parts = self._parts(row)
            rows.append(make_fields(parts, fields, "", where, self.reader, self._limits))
        return pd.DataFrame(rows, columns=[field.name for field in fields])

    def path(self, row: int) -> str:
        """The archive of a row."""
        return self._shards.addresses[int(self._shards_of(self._rows.rows([row]))[0])]

    @property
    def remote_files(self) -> Client | None:
        """The fetcher of the archives, if they are at an address."""
        return self._files.remote if is_remote(self._shards.addresses[0]) else None

    def files_of(self, indices: Sequence[int] | IntArray) -> list[list[str]]:
        """The address of what each row is read from: a part of an archive, or all of it."""
        rows = self._rows.rows(indices)
        shards = self._shards_of(rows).tolist()
        return [
            [self._part(shard, row)[0]] for shard, row in zip(shards, rows.tolist(), strict=True)
        ]

    def _shards_of(self, rows: IntArray) -> IntArray:
        return np.searchsorted(self._bounds, rows, side="right") - 1

    def _part(self, shard: int, row: int) -> tuple[str, int]:
        """The place of a sample: its address, and the byte of the archive that it begins with."""
        address = self._shards.addresses[shard]
        if not self._in_parts or self._bytes[shard] < _LARGE or not is_remote(address):
            return address, 0
        places = self._places[self._bounds[shard] : self._bounds[shard + 1]]
        begin = int(self._places[row, 0]) // _PART * _PART
        first, last = np.searchsorted(places[:, 0], [begin, begin + _PART]).tolist()
        start, stop = int(places[first, 0]), int(places[last - 1, 1])
        return self._files.remote.part(address, start, stop), start

    def _parts(self, number: int) -> tuple[str, dict[str, bytes]]:
        """A sample's name for messages, and its parts.

        Raises:
            DataError: it has too many bytes, is missing, or damaged.
        """
        row = int(self._rows.rows([number])[0])
        shard = int(self._shards_of(np.array([row]))[0])
        start, stop = self._places[row].tolist()
        where = f"{self._shards.addresses[shard]!r}, sample {row - int(self._bounds[shard])}"
        if stop - start > self._limits.record_bytes:
            claim = f"it has {stop - start} bytes, headers and all"
            raise DataError(f"{where}: {self._limits.refusal('record_bytes', claim)}.")
        content = self._content(shard, row, start, stop)
        key, parts = read_parts(where, content, self._dots)
        return f"{where} ({key!r})", parts

    def _content(self, shard: int, row: int, start: int, stop: int) -> bytes:
        part, begin = self._part(shard, row)
        if part == self._shards.addresses[shard]:
            return self._open[shard].read(start, stop)

        try:
            return self._files.remote.content(part, start - begin, stop - start)
        except WholeFilesError:
            self._in_parts = False
            return self._open[shard].read(start, stop)

    def _opened(self, shard: int) -> PlainTar:
        name = self._shards.addresses[shard]
        return self._files.read(name, lambda path: PlainTar(name, path))

    def _index(self, shard: int) -> IntArray:
        """The index beside an archive, or one that is made."""
        address, name = self._shards.addresses[shard], self._shards.names[shard]
        beside = self._dots == "first"  # the index beside an archive is for that
        if is_remote(address):
            remote = self._files.remote
            info = remote.look(address)
            size, version = info.size or 0, info.version
            folder = remote.folder(address.removesuffix(name).rstrip("/"))
            if beside and folder.first_missing([name + index.SUFFIX]) is None:
                return self._files.read(
                    folder.path(name + index.SUFFIX), lambda path: index.read(path, address, size)
                )
        else:
            path = str(self._files.local(address))
            file = PositionedFile(Path(path))
            size, version = file.size, str(file.mtime_ns)
            if beside and Path(path + index.SUFFIX).is_file():
                return index.read(path + index.SUFFIX, address, size)
        parts = (address, size, version) + ("last",) * (not beside)
        key = hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()
        kept = CacheFolder(self._cache_dir, key).arrays(
            "places",
            lambda: {
                "index": self._files.read(
                    address, lambda path: index.make(address, path, self._dots)
                )
            },
            lambda arrays: index.is_sound(arrays["index"], size),
        )
        return np.array(kept["index"])

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The fields, the rows of this split, where samples lie, and blocks of the archives."""
        parts: list[Part] = ["indexed_tars", self.reader, *self.classes]
        parts += [f"{field.name} {' '.join(field.endings)}" for field in self.fields]
        parts += ["last dot"] * (self._dots == "last")
        spread = np.linspace(0, len(self) - 1, min(len(self), 4096)).astype(np.int64)
        parts += [*self._shards.names, len(self), self._rows.rows(spread)]
        if sized:
            parts += [self._places, *self._bytes]
            numbers = range(len(self._bytes))
            remote = self.remote_files is not None
            blocks = (side_by_side if remote else map)(self._blocks, numbers)
            parts += itertools.chain.from_iterable(blocks)
        return parts

    def _blocks(self, shard: int) -> list[bytes]:
        address = self._shards.addresses[shard]
        count = blocks_of_each(len(self._bytes), _BLOCKS)
        if self._in_parts and is_remote(address) and self._bytes[shard] >= _LARGE:
            with suppress(WholeFilesError):
                source = RemoteBytes(self._files.remote, address, self._bytes[shard])
                return source.sample(count)
        return self._files.read(address, lambda path: PositionedFile(Path(path)).sample(count))

    def data_files(self) -> list[DataFile]:
        return [
            data_file(name, address, self._files)
            for name, address in zip(self._shards.names, self._shards.addresses, strict=True)
        ]
