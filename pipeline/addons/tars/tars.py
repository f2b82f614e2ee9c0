"""Samples in tar archives: a stream of shards, and rows in any order.

    shard-000000.tar        digits/000017.jpg, digits/000017.cls, digits/000018.jpg ...
    shard-000001.tar.gz     compressed ones are only streamed
    shard-000000.tar.index  where the samples of an archive lie, as `index` writes it

`archive` says which files make up a sample, `fields` what they become. Of a plain archive
the headers are read and the data is skipped; the owner of a sample reads it by one span. So a raw
record of a stream is where a sample lies (or its bytes, when compressed).

Cost: 10 us a sample of two files to find it, and 16 to 24 bytes to keep where it lies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from torch.utils.data import Dataset, IterableDataset

from penstock.addons.storage.arrays import CacheFolder
from penstock.addons.storage.files import RecordFiles, Spans
from penstock.addons.tars import index
from penstock.addons.tars.archive import (
    COMPRESSED,
    PLAIN,
    Dots,
    Unzipped,
    read_parts,
    read_samples,
)
from penstock.addons.tars.fields import NUMBERS, TEXTS, check_label, choose_fields, make_fields
from penstock.datasets.files import DataFile, Files
from penstock.datasets.reading.base import FileDataset, Part, Sample, Split, check_split
from penstock.datasets.reading.image import Reader, check_reader
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Fraction, Limits, Seed
from penstock.order.keys import IntArray
from penstock.terminal import watched

if TYPE_CHECKING:
    import pandas as pd

# Shard, number in it, and where it lies: start and stop, or the bytes themselves.
Record = tuple[int, int, int, int | bytes]
_PIECES = 16  # of 4 KiB of an archive that the fingerprint is made of


class Tars(FileDataset):
    """What both datasets share: the archives, and what a sample becomes."""

    def _open(
        self,
        root: str,
        split: Split,
        suffixes: Sequence[str],
        classes: Sequence[str] | None,
        reader: Reader,
        files: Files | None,
        lazy: bool,
        limits: Limits,
        dots: Dots | None,
        shares: tuple[float, float],
    ) -> None:
        check_split(split, *shares)
        check_reader(reader)
        self._split, self._dots, self._asked = split, dots or "first", dots
        self.classes, self.reader, self.lazy, self._limits = (
            [*(classes or [])],
            reader,
            lazy,
            limits,
        )
        self.files = RecordFiles.of(root, suffixes, files, split)

    def _choose(
        self, fields: Mapping[str, str | None] | None, where: str, parts: Mapping[str, bytes]
    ) -> None:
        """Choose the fields by the first sample."""
        self._whole = where if fields is None else ""
        self.fields = choose_fields(fields, [*parts], where, self._asked, self._split == "train")

    def _parts(self, shard: int, number: int, content: bytes) -> tuple[str, dict[str, bytes]]:
        """A sample's name for messages, and its parts.

        Raises:
            DataError: it has too many bytes, or is damaged.
        """
        where = f"{self.files.addresses[shard]!r}, sample {number}"
        if len(content) > self._limits.record_bytes:
            claim = f"it has {len(content)} bytes, headers and all"
            raise DataError(f"{where}: {self._limits.refusal('record_bytes', claim)}.")
        key, parts = read_parts(where, content, self._dots)
        return f"{where} ({key!r})", parts

    def _sample(self, where: str, parts: Mapping[str, bytes]) -> Sample:
        given = parts, self.fields, self._whole, where, self.reader, self._limits, self.lazy
        sample = make_fields(*given)
        check_label(sample.get("label"), self.classes, where)
        return sample

    def _field_parts(self) -> list[Part]:
        fields = [f"{field.name} {' '.join(field.endings)}" for field in self.fields]
        return [*fields, *["last dot"] * (self._dots == "last")]

    def data_files(self) -> list[DataFile]:
        return self.files.data_files()


class TarShards(Tars, IterableDataset[Record]):
    """A stream. One sample: the files of one name, each a field.

    Args:
        root: folder of the archives, one archive, or a pattern such as "train-{000..127}.tar"; here
            or at an address such as "s3://bucket/folder".
        split: "train", "val" or "test". Archives named `train...` and `val...` are divided already;
            otherwise a hash of its name decides for each sample.
        fields: field -> ending of its file, or several as "jpg;png"; null for one named as the
            field. Null in all makes a field of every file of the first sample, with jpg, png ... as
            `image`, cls as `label` and txt as `text`.
        classes: names of the classes of `label`, in the order of their numbers.
        val_fraction: share of the samples that validate, about; 0 and 1 leave all to one split.
        split_seed: another seed, another split.
        reader: of images: "torchvision", "pillow" or "skimage".
        index: read the headers of all plain archives of this machine first: then the length is
            known, an epoch is resumed without reading, and a damaged archive is found at once.
        files: how remote archives are fetched and kept.
        lazy: give images undecoded, for a transform that decodes; the build sets it.
        limits: `record_bytes` of a sample, headers and all.
        test_fraction: share of the samples to keep for a test.
        dots: at which dot of a file's name that of its sample ends, "first" or "last"; None: the
            first, and names that have digits before another one are refused.

    Raises:
        DataError: there are no archives, or no samples; an archive is cut off or damaged, a sample
            lacks a part or has one twice. Names the archive and the member or sample.
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
        index: bool = True,
        files: Files | None = None,
        lazy: bool = False,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
        dots: Dots | None = None,
    ) -> None:
        shares, suffixes = (val_fraction, test_fraction), (*PLAIN, *COMPRESSED)
        self._open(root, split, suffixes, classes, reader, files, lazy, limits, dots, shares)
        val, test = self.files.shares(*shares)
        whole = self.files.whole or (self.files.divided and split == "train" and not test)
        self._share = None if whole else _Share(split, val, split_seed, test)
        if split == "test" and not (whole or test):
            reason = "is 0, and no archive is named test...: there is no test split"
            raise ConfigError(Problem("dataset.test_fraction", reason))
        plain = all(name.lower().endswith(PLAIN) for name in self.files.names)
        self._index = self._indexed() if index and plain and not self.files.is_remote else None
        record = next(iter(self), None)
        if record is None:
            raise DataError(
                f"dataset.root: {self.files.addresses[0]!r} ...: there are no samples of this "
                "split in the archives."
            )
        self._choose(fields, *self._parts(*self._content(record)))

    def __len__(self) -> int:
        if self._index is None:
            raise TypeError("only indexed archives know their length")
        return len(self._index[1])

    def __iter__(self) -> Iterator[Record]:
        for shard in self.shards():
            yield from self.read_shard(shard)

    def shards(self) -> range:
        """The archives, by number."""
        return range(len(self.files))

    def shard_lengths(self) -> list[int] | None:
        """Samples of this split in each archive, if they are indexed."""
        return None if self._index is None else np.diff(self._index[0]).tolist()

    def want_shard(self, shard: int) -> float:
        """An archive is read soon: fetch it ahead; its part of `files.ahead`."""
        return self.files.want(self.files.whole_of([shard]))

    def read_shard(self, shard: int) -> Iterator[Record]:
        """Samples of one archive that are in this split."""
        if self._index is None:
            yield from self._records(shard)
            return
        bounds, places = self._index
        first, last = bounds[shard : shard + 2].tolist()
        for number, start, stop in places[first:last].tolist():
            yield shard, number, start, stop

    def decode(self, record: Record) -> Sample:
        """The sample of a raw record.

        Raises:
            DataError: a part is missing, there twice, or damaged.
        """
        return self._sample(*self._parts(*self._content(record)))

    def _content(self, record: Record) -> tuple[int, int, bytes]:
        shard, number, start, stop = record
        if isinstance(stop, bytes):
            return shard, number, stop
        return shard, number, bytes(self.files.at(shard, start, stop))

    def _records(self, shard: int) -> Iterator[Record]:
        """Records of one archive in this split, found by reading its headers."""
        name, size = self.files.addresses[shard], int(self.files.sizes[shard])
        if name.lower().endswith(PLAIN):
            read = partial(self.files.at, shard)
            for sample in read_samples(name, read, size, self._dots):
                if self._share is None or self._share.holds(sample.key):
                    yield shard, sample.number, sample.start, sample.stop
            return
        with self.files.open(shard) as file:
            unzipped = Unzipped(name, file)
            for sample in read_samples(name, unzipped.read, None, self._dots):
                unzipped.forget(sample.start)
                if self._share is None or self._share.holds(sample.key):
                    content = unzipped.read(sample.start, sample.stop)
                    yield shard, sample.number, 0, content

    def _indexed(self) -> tuple[IntArray, IntArray]:
        """The first sample of each shard and their number, int64[shards + 1]; where samples lie.

        A row of int64[samples, 3] is a sample's number in its shard, start and stop.
        """
        places = [
            np.array([record[1:] for record in self._records(shard)], np.int64).reshape(-1, 3)
            for shard in watched(self.shards(), len(self.files), "indexing archives")
        ]
        return np.cumsum([0, *map(len, places)]), np.concatenate(places)

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The fields, the split and the archives: blocks of local ones, versions of remote ones."""
        parts: list[Part] = ["tar_shards", self.reader, *self.classes, str(self._share)]
        if self._share is not None and self._share.test_fraction:
            parts.append(repr(self._share.test_fraction))
        parts += self._field_parts()
        for shard, name in enumerate(self.files.names):
            parts.append(name)
            if sized and self.files.is_remote:
                parts += [str(self.files.sizes[shard]), self.files.versions[shard]]
            elif sized:
                parts += [int(self.files.sizes[shard])]
                parts += map(bytes, self.files.sample(shard, _PIECES))
        return parts


@dataclass(frozen=True)
class _Share:
    """Which samples one split gets, by a keyed hash of their names; 1 us each."""

    split: str
    val_fraction: float
    seed: int
    test_fraction: float = field(default=0.0, repr=False)

    def holds(self, key: bytes) -> bool:
        digest = hashlib.blake2b(key, digest_size=8, key=str(self.seed).encode()).digest()
        draw = int.from_bytes(digest, "little")
        if draw < self.val_fraction * 2**64:
            return self.split == "val"
        tests = draw >= (1 - self.test_fraction) * 2**64
        return self.split == ("test" if tests else "train")


class IndexedTars(Tars, Dataset[Sample]):
    """Rows in any order, by an index of each archive. Arguments and errors as for `TarShards`.

    An index that is missing is made when the dataset is, and kept; at an address its archive is
    fetched for that once. Otherwise no more is fetched than the blocks of the samples that are
    read.

    Args:
        val_fraction: share of the samples that validate, exactly.
        cache_dir: for the indexes that are made.
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
        shares = val_fraction, test_fraction
        self._open(root, split, PLAIN, classes, reader, files, lazy, limits, dots, shares)
        numbers = range(len(self.files))
        # Indexes beside archives are of names that end at their first dot.
        beside = self.files.beside(index.SUFFIX) if self._dots == "first" else [None] * len(numbers)
        indexes = [
            self._made(shard, cache_dir)
            if (content := beside[shard]) is None
            else index.read(content, self.files.addresses[shard], int(self.files.sizes[shard]))
            for shard in watched(numbers, len(numbers), "reading indexes of archives")
        ]
        self._bounds = np.cumsum([0, *(len(each) - 1 for each in indexes)])
        self._places = np.concatenate([each[:-1] for each in indexes])
        total = len(self._places)
        self._rows = self.files.rows(total, split, val_fraction, split_seed, test_fraction)
        if not total or not len(self._rows):
            raise DataError(f"dataset.root: {root!r} has no sample of the split {split!r}.")
        self._choose(fields, *self._read(0))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Sample:
        return self._sample(*self._read(row))

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: its numbers and texts. Reads all of the archives."""
        import pandas as pd

        plain = {*NUMBERS, *TEXTS}
        fields = [
            field
            for field in self.fields
            if plain.issuperset(ending.rpartition(".")[2] for ending in field.endings)
        ]
        rows = []
        for row in watched(range(len(self)), len(self), "reading samples of archives"):
            where, parts = self._read(row)
            rows.append(make_fields(parts, fields, "", where, self.reader, self._limits))
        return pd.DataFrame(rows, columns=[field.name for field in fields])

    def path(self, row: int) -> str:
        """The archive of a row."""
        return self.files.addresses[int(self._spans(np.array([row])).file[0])]

    def want(self, indices: IntArray) -> float:
        """Rows are read soon: fetch them ahead; their part of `files.ahead`."""
        return self.files.want(self._spans(indices))

    def _spans(self, indices: IntArray) -> Spans:
        rows = self._rows.rows(indices)
        shards = np.searchsorted(self._bounds, rows, side="right") - 1
        return Spans(shards, self._places[rows, 0], self._places[rows, 1])

    def _read(self, number: int) -> tuple[str, dict[str, bytes]]:
        """A sample's name for messages, and its parts."""
        spans = self._spans(np.array([number]))
        shard = int(spans.file[0])
        row = int(self._rows.rows([number])[0]) - int(self._bounds[shard])
        return self._parts(shard, row, bytes(self.files.read(spans)[0]))

    def _made(self, shard: int, cache_dir: str) -> IntArray:
        """An index that was made of an archive, or is now."""
        size = int(self.files.sizes[shard])
        key = hashlib.blake2b(f"{self.files.key(shard)} {self._dots}".encode(), digest_size=12)

        def make() -> Mapping[str, IntArray]:
            self.files.want(self.files.whole_of([shard]))
            return {"index": index.make(self.files, shard, self._dots)}

        cache = CacheFolder(cache_dir, key.hexdigest())
        kept = cache.arrays("places", make, lambda arrays: index.is_sound(arrays["index"], size))
        return np.array(kept["index"])

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The fields, the rows of this split, where samples lie, and pieces of the archives."""
        parts: list[Part] = ["indexed_tars", self.reader, *self.classes, *self._field_parts()]
        spread = np.linspace(0, len(self) - 1, min(len(self), 4096)).astype(np.int64)
        parts += [*self.files.names, len(self), self._rows.rows(spread)]
        if sized:
            parts += [self._places, self.files.sizes]
            parts += map(bytes, self.files.pieces())
        return parts
