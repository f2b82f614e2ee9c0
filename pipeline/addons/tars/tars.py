"""Samples in tar archives: a stream of shards, and rows in any order.

    shard-000000.tar        digits/000017.jpg, digits/000017.cls, digits/000018.jpg ...
    shard-000001.tar.gz     compressed ones are only streamed
    shard-000000.tar.index  where the samples of an archive lie, as `index` writes it

`index` says which files make up a sample, `fields` what they become. A sample of a plain archive
is one span, which its owner reads; of a compressed one it is the bytes themselves.

Cost: 60 us a sample of two files to find it, once, and 80 bytes to keep where it lies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from torch.utils.data import Dataset, IterableDataset

from penstock.addons.storage.arrays import CacheFolder
from penstock.addons.storage.files import RecordFiles
from penstock.addons.storage.rows import RowSplit
from penstock.addons.tars import index
from penstock.addons.tars.fields import NUMBERS, TEXTS, choose_fields, make_fields
from penstock.addons.tars.index import COMPRESSED, HEADER, PLAIN, Dots
from penstock.datasets.files import DataFile, Files
from penstock.datasets.reading.base import FileDataset, Part, Sample, Split, check_split
from penstock.datasets.reading.image import Reader, check_reader
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Fraction, Limits, Seed
from penstock.order.keys import IntArray
from penstock.terminal import watched

if TYPE_CHECKING:
    import pandas as pd

Record = tuple[int, index.Sample]  # of a stream: the number of an archive, and a sample


class Tars(FileDataset):
    """What both datasets share. One sample: the files of one name, each a field.

    An index that is missing is made of a plain archive of this machine, and kept.

    Args:
        root: folder of the archives, one archive, or a pattern such as "train-{000..127}.tar"; here
            or at an address such as "s3://bucket/folder".
        split: "train", "val" or "test". Archives named `train...` and `val...` are divided already.
        fields: field -> ending of its file, or several as "jpg;png"; null for one named as the
            field. Null in all makes a field of every file of the first sample, with jpg, png ... as
            `image`, cls as `label` and txt as `text`.
        classes: names of the classes of `label`, in the order of their numbers.
        val_fraction: share of the samples that validate; 0 and 1 leave all to one split.
        split_seed: another seed, another split.
        reader: of images: "torchvision", "pillow" or "skimage".
        cache_dir: for the indexes that are made.
        files: how remote archives are fetched and kept.
        lazy: give images undecoded, for a transform that decodes; the build sets it.
        limits: `record_bytes` of a sample, headers and all.
        test_fraction: share of the samples to keep for a test.
        dots: at which dot of a file's name that of its sample ends, "first" or "last"; None: the
            first, and names that have digits before another one are refused.

    Raises:
        DataError: there are no archives, or no samples; an archive is cut off or damaged, a sample
            lacks a part. Names the archive and the member or sample.
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
        self.classes, self.reader, self.lazy = [*(classes or [])], check_reader(reader), lazy
        self._split, self._limits, self._dots = split, limits, dots or "first"
        is_stream = isinstance(self, IterableDataset)
        suffixes = (*PLAIN, *COMPRESSED) if is_stream else PLAIN
        self.files = RecordFiles.of(root, suffixes, files, split)
        # Where one is compressed, no length is known, so the others need no index either.
        plain = all(name.lower().endswith(PLAIN) for name in self.files.names)
        # The index of an archive at an address costs all of it, which a stream reads in parts.
        self._places = (
            None
            if is_stream and (self.files.is_remote or not plain)
            else (index.Places(self._indexes(cache_dir)))
        )
        val, test = self.files.shares(val_fraction, test_fraction)
        is_all = self.files.whole or (self.files.divided and split == "train" and not test)
        # Shares of the samples that validate and test, and the seed; None: this split has them all.
        self._division = None if is_all else (val, test, split_seed)
        if split == "test" and not (is_all or test):
            reason = "is 0, and no archive is named test...: there is no test split"
            raise ConfigError(Problem("dataset.test_fraction", reason))
        self._divide()
        first = self._first()
        if first is None:
            raise DataError(
                f"dataset.root: {root!r} has no sample of the split {split!r} in its archives."
            )
        where, parts = self._parts(*first)
        self._whole = where if fields is None else ""  # the first sample, which others are like
        self.fields = choose_fields(fields, [*parts], where, dots)

    def _divide(self) -> None:
        """Find out which samples are of this split."""
        raise NotImplementedError

    def _first(self) -> Record | None:
        """The first sample of this split."""
        raise NotImplementedError

    def _indexes(self, cache_dir: str) -> list[index.Index]:
        """The index of each archive: that beside it, one that was made before, or one made now."""
        numbers = range(len(self.files))
        # Indexes beside archives are of names that end at their first dot.
        written = (
            self.files.companions(index.SUFFIX) if self._dots == "first" else [None] * len(numbers)
        )
        indexes = []
        for shard in watched(numbers, len(numbers), "reading indexes of archives"):
            content = written[shard]
            if content is not None:
                size = int(self.files.sizes[shard])
                indexes.append(index.read(content, self.files.addresses[shard], size))
                continue
            # "2" is the form of an index; what an older version has kept is left alone.
            key = hashlib.blake2b(
                f"{self.files.key(shard)} {self._dots} 2".encode(), digest_size=12
            )
            # Headers are read one by one: at an address, each block would be waited for.
            self.files.want(self.files.whole_of([shard]))
            make = partial(index.make, self.files, shard, self._dots)
            indexes.append(CacheFolder(cache_dir, key.hexdigest()).arrays("index", make))
        return indexes

    def _parts(self, shard: int, sample: index.Sample) -> tuple[str, dict[str, bytes]]:
        """A sample's name for messages, and the content of its files.

        Raises:
            DataError: it has too many bytes, or its index is of another archive.
        """
        where = f"{self.files.addresses[shard]!r}, sample {sample.number} ({sample.key!r})"
        spans = [*sample.parts.values()]
        if isinstance(spans[0], bytes):
            return where, sample.parts
        start, stop = spans[0][0] - HEADER, spans[-1][1]
        if stop - start > self._limits.record_bytes:
            claim = f"it has {stop - start} bytes, headers and all"
            raise DataError(f"{where}: {self._limits.refusal('record_bytes', claim)}.")
        content, parts = bytes(self.files.at(shard, start, stop)), dict[str, bytes]()
        # The header before a file repeats its size, in octal digits: an index of another archive of
        # the same length would give wrong bytes, and no error.
        for ending, (first, last) in sample.parts.items():
            parts[ending] = content[first - start : last - start]
            size = content[first - start - HEADER :][124:136].strip(b" \0")
            if size.lstrip(b"0") != b"%o" % (last - first) and last > first:
                raise DataError(
                    f"{where}: its index is of another archive. Delete or write it again."
                )
        return where, parts

    def _sample(self, shard: int, sample: index.Sample) -> Sample:
        where, parts = self._parts(shard, sample)
        made = make_fields(
            parts, self.fields, self._whole, where, self.reader, self._limits, self.lazy
        )
        label, count = made.get("label"), len(self.classes)
        if count and isinstance(label, int) and not 0 <= label < count:
            raise DataError(
                f"{where}: label {label} is none of the {count} classes. Correct it, or name all "
                "classes in dataset.classes."
            )
        return made

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The fields, how samples are divided, and the archives: pieces of them if `sized`."""
        parts: list[Part] = [type(self).__name__, self.reader, *self.classes, self._split]
        parts += [str(self._division), str(self.fields), self._dots, *self.files.names]
        return [*parts, self.files.sizes, *map(bytes, self.files.pieces())] if sized else parts

    def data_files(self) -> list[DataFile]:
        return self.files.data_files()


class TarShards(Tars, IterableDataset[Record]):
    """A stream, of compressed archives, too; see `Tars`. A hash of its name divides the samples."""

    def _divide(self) -> None:
        if self._places is not None:
            self._rows = np.flatnonzero([self._is_own(key) for key in self._places.names()])

    def _is_own(self, key: str) -> bool:
        """Whether a sample is of this split, by a keyed hash of its name; 1 us."""
        if self._division is None:
            return True
        # By its name and not its number: a stream does not know how many there are, and samples
        # that are added later move none.
        val, test, seed = self._division
        name = key.encode("utf-8", "surrogateescape")
        digest = hashlib.blake2b(name, digest_size=8, key=str(seed).encode()).digest()
        draw = int.from_bytes(digest, "little")
        rest = "test" if draw >= (1 - test) * 2**64 else "train"
        return self._split == ("val" if draw < val * 2**64 else rest)

    def _first(self) -> Record | None:
        return next(iter(self), None)

    def __len__(self) -> int:
        if self._places is None:
            raise TypeError("only indexed archives know their length")
        return len(self._rows)

    def __iter__(self) -> Iterator[Record]:
        for shard in self.shards():
            yield from self.read_shard(shard)

    def shards(self) -> range:
        """The archives, by number."""
        return range(len(self.files))

    def shard_lengths(self) -> list[int] | None:
        """Samples of this split in each archive, if they are indexed."""
        if self._places is None:
            return None
        return np.diff(np.searchsorted(self._rows, self._places.shards)).tolist()

    def want_shard(self, shard: int) -> float:
        """An archive is read soon: fetch it ahead; its part of `files.ahead`."""
        return self.files.want(self.files.whole_of([shard]))

    def read_shard(self, shard: int) -> Iterator[Record]:
        """Samples of one archive that are in this split."""
        if self._places is not None:
            bounds = np.searchsorted(self._rows, self._places.shards[shard : shard + 2])
            yield from map(self._places.sample, self._rows[slice(*bounds)].tolist())
            return
        with self.files.open(shard) as file:
            for sample in index.read_samples(self.files.addresses[shard], file, self._dots):
                if self._is_own(sample.key):
                    yield shard, sample

    def decode(self, record: Record) -> Sample:
        """The sample of a raw record; DataError if a part is missing or damaged."""
        return self._sample(*record)


class IndexedTars(Tars, Dataset[Sample]):
    """Rows in any order; see `Tars`. `val_fraction` is exact.

    To make the index of an archive at an address, all of it is fetched, once. Otherwise no more is
    fetched than the blocks of the samples that are read.
    """

    _places: index.Places

    def _divide(self) -> None:
        val, test, seed = self._division or (0.0, 0.0, 0)
        total, split = len(self._places), self._split if self._division else "train"
        self._rows = RowSplit(total, split, val, seed, test)

    def _first(self) -> Record | None:
        return self._record(0) if len(self) else None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Sample:
        return self._sample(*self._record(row))

    def _record(self, row: int) -> Record:
        return self._places.sample(int(self._rows.rows([row])[0]))

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: its numbers and texts. Reads all of the archives."""
        import pandas as pd

        plain = {*NUMBERS, *TEXTS}
        fields = {
            name: endings
            for name, endings in self.fields.items()
            if plain.issuperset(ending.rpartition(".")[2] for ending in endings)
        }
        # Without images, which would take 100 times as long.
        rows = []
        for row in watched(range(len(self)), len(self), "reading samples of archives"):
            where, parts = self._parts(*self._record(row))
            rows.append(make_fields(parts, fields, "", where, self.reader, self._limits))
        return pd.DataFrame(rows, columns=[*fields])

    def path(self, row: int) -> str:
        """The archive of a row."""
        return self.files.addresses[self._record(row)[0]]

    def want(self, indices: IntArray) -> float:
        """Rows are read soon: fetch them ahead; their part of `files.ahead`."""
        return self.files.want(self._places.spans(self._rows.rows(indices)))
