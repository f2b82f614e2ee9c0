"""Samples in tar archives, as WebDataset lays them out: a stream of shards.

    shard-000000.tar        digits/000017.jpg, digits/000017.cls, digits/000018.jpg ...
    shard-000001.tar.gz     compressed ones are read forwards only

`tar.archive` says which files make up a sample, `tar.fields` what they become. Of a plain archive
the headers are read and the data is skipped; the owner of a sample reads it by one `pread`. So a
raw record is where a sample lies (or its bytes, when compressed).

With `index`, the headers of plain archives of this machine are read once when the dataset is built,
10 us a sample of two files, and 24 bytes a sample are kept: then lengths are known, an epoch is
resumed without reading, and a damaged archive is found at once. Archives at other addresses are
fetched when they are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from torch.utils.data import IterableDataset

from penstock.addons.record_files.positioned_file import PositionedFile
from penstock.addons.record_files.shard_files import OpenFiles, ShardFiles, data_file
from penstock.addons.shards.tar.archive import (
    COMPRESSED,
    PLAIN,
    Dots,
    GzipTar,
    PlainTar,
    read_parts,
    read_samples,
)
from penstock.addons.shards.tar.fields import check_label, choose_fields, make_fields
from penstock.datasets.files import DataFile, Files
from penstock.datasets.reading.base import FileDataset, Part, Sample, Split, check_split
from penstock.datasets.reading.image import Reader, check_reader
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Fraction, Limits, Seed
from penstock.files.paths import is_remote
from penstock.order.keys import IntArray
from penstock.terminal import watched

if TYPE_CHECKING:
    from penstock.addons.storage.client import Client

# Shard, number in it, and where it lies: start and stop, or the bytes themselves.
Record = tuple[int, int, int, int | bytes]

_BLOCKS = 16  # of 4 KiB of an archive that the fingerprint is made of


class TarShards(FileDataset, IterableDataset[Record]):
    """One sample: the files of one name, each a field.

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
        index: read the headers of all plain archives of this machine first.
        files: how remote archives are fetched and kept.
        lazy: give images undecoded, for a transform that decodes; the build sets it.
        limits: what the archives may claim: `record_bytes` of a sample, `expansion`, `classes`.
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
        limits: Limits | None = None,
        test_fraction: Fraction = 0.0,
        dots: Dots | None = None,
    ) -> None:
        check_split(split, val_fraction, test_fraction)
        check_reader(reader)
        self._dots: Dots = dots or "first"
        self.classes = list(classes or [])
        self.reader, self.lazy = reader, lazy
        self._limits = limits or Limits()
        self._files = files or Files()
        shards = ShardFiles.of(root, split, (*PLAIN, *COMPRESSED), self._files)
        self._addresses = np.array([address.encode() for address in shards.addresses])
        self._names = np.array([name.encode() for name in shards.names])
        val, test = shards.shares(val_fraction, test_fraction)
        whole = shards.whole or (shards.divided and split == "train" and not test)
        self._share = None if whole else _Share(split, val, split_seed, test)
        if split == "test" and not (whole or test):
            reason = "is 0, and no archive is named test...: there is no test split"
            raise ConfigError(Problem("dataset.test_fraction", reason))
        self._open = OpenFiles(self._opened)
        plain = all(address.lower().endswith(PLAIN) for address in shards.addresses)
        self._index = self._indexed() if index and plain and not is_remote(root) else None
        where, parts = self._first()
        self._whole = where if fields is None else ""
        self.fields = choose_fields(fields, list(parts), where, dots, split == "train")

    def _first(self) -> tuple[str, dict[str, bytes]]:
        """The first sample: its name for messages, and its parts."""
        record = next(iter(self), None)
        if record is None:
            raise DataError(
                f"dataset.root: {self._address(0)!r} ...: there are no samples of this split in "
                "the archives."
            )
        return self._parts(record)

    def _holds(self, key: bytes) -> bool:
        return self._share is None or self._share.holds(key)

    def __len__(self) -> int:
        if self._index is None:
            raise TypeError("only indexed archives know their length")
        return len(self._index[1])

    def __iter__(self) -> Iterator[Record]:
        for shard in self.shards():
            yield from self.read_shard(shard)

    def shards(self) -> range:
        """The archives, by number."""
        return range(len(self._addresses))

    def shard_lengths(self) -> list[int] | None:
        """Samples of this split in each archive, if they are indexed."""
        return None if self._index is None else np.diff(self._index[0]).tolist()

    @property
    def remote_files(self) -> Client | None:
        """The fetcher of the archives, if they are at an address."""
        return self._files.remote if is_remote(self._address(0)) else None

    def files_of_shard(self, shard: int) -> list[str]:
        """The address of an archive."""
        return [self._address(shard)]

    def read_shard(self, shard: int) -> Iterator[Record]:
        """Samples of one archive that are in this split."""
        if self._index is not None:
            bounds, places = self._index
            first, last = bounds[shard : shard + 2].tolist()
            for number, begin, stop in places[first:last].tolist():
                yield shard, number, begin, stop
            return
        yield from self._records(shard)

    def decode(self, record: Record) -> Sample:
        """The sample of a raw record.

        Raises:
            DataError: a part is missing, there twice, or damaged.
        """
        where, parts = self._parts(record)
        sample = make_fields(
            parts, self.fields, self._whole, where, self.reader, self._limits, self.lazy
        )
        check_label(sample.get("label"), self.classes, where)
        return sample

    def _address(self, shard: int) -> str:
        address: bytes = self._addresses[shard]
        return address.decode()

    def _opened(self, shard: int) -> PlainTar:
        name = self._address(shard)
        return self._files.read(name, lambda path: PlainTar(name, path))

    def _records(self, shard: int) -> Iterator[Record]:
        """Records of one archive in this split, found by reading its headers."""
        name = self._address(shard)
        if not name.lower().endswith(COMPRESSED):
            for sample in read_samples(self._open[shard], self._dots):
                if self._holds(sample.key):
                    yield shard, sample.number, sample.start, sample.stop
            return
        with self._files.read(name, lambda path: GzipTar(name, path, self._limits)) as source:
            for sample in read_samples(source, self._dots):
                source.forget(sample.start)
                if self._holds(sample.key):
                    yield shard, sample.number, 0, source.read(sample.start, sample.stop)

    def _check_size(self, record: Record) -> None:
        """Raise DataError for a sample of too many bytes, headers and all."""
        shard, number, start, stop = record
        size = len(stop) if isinstance(stop, bytes) else stop - start
        if size > self._limits.record_bytes:
            refusal = self._limits.refusal("record_bytes", f"it has {size} bytes, headers and all")
            raise DataError(f"{self._address(shard)!r}, sample {number}: {refusal}.")

    def _parts(self, record: Record) -> tuple[str, dict[str, bytes]]:
        """A sample's name for messages, and its parts."""
        shard, number, start, stop = record
        self._check_size(record)
        where = f"{self._address(shard)!r}, sample {number}"
        content = stop if isinstance(stop, bytes) else self._open[shard].read(start, stop)
        key, parts = read_parts(where, content, self._dots)
        return f"{where} ({key!r})", parts

    def _indexed(self) -> tuple[IntArray, IntArray]:
        """The first sample of each shard and their number, int64[shards + 1]; where samples lie.

        A row of int64[samples, 3] is a sample's number in its shard, start and stop.
        """
        bounds = []
        for shard in watched(self.shards(), len(self.shards()), "indexing archives"):
            places = [record[1:] for record in self._records(shard)]
            bounds.append(np.array(places, dtype=np.int64).reshape(-1, 3))
        return np.cumsum([0, *map(len, bounds)]), np.concatenate(bounds)

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The fields, the split and the archives: blocks of local ones, versions of remote ones."""
        parts: list[Part] = ["tar_shards", self.reader, *self.classes, str(self._share)]
        if self._share is not None and self._share.test_fraction:
            parts.append(repr(self._share.test_fraction))
        parts += [f"{field.name} {' '.join(field.endings)}" for field in self.fields]
        parts += ["last dot"] * (self._dots == "last")
        for shard, name in enumerate(self._names.tolist()):
            parts.append(name)
            address = self._address(shard)
            if sized and is_remote(address):
                info = self._files.remote.look(address)
                parts += [str(info.size), info.version]
            elif sized:
                file = PositionedFile(self._files.local(address))
                parts += [file.size, *file.sample(_BLOCKS)]
        return parts

    def data_files(self) -> list[DataFile]:
        return [
            data_file(name.decode(), self._address(shard), self._files)
            for shard, name in enumerate(self._names.tolist())
        ]


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
