"""Samples in tar archives: a stream of shards, and rows in any order.

    shard-000000.tar        digits/000017.jpg, digits/000017.cls, digits/000018.jpg ...
    shard-000001.tar.gz     compressed ones are only streamed
    shard-000000.tar.index  where the samples of an archive lie, as `index` writes it

`index` says which files make up a sample; by their endings they become fields:

    ending                       value
    jpg, jpeg, png, webp, gif    Image, uint8 [3, H, W]; an EncodedImage if `lazy`
    cls, id, index               int
    txt, text                    str
    json                         its content
    npy                          tensor; floats become float32
    pyd, pkl, pickle, pt, pth    refused: pickles run any code when they are read
    others                       bytes

Of "seg.png" the last ending counts. A sample of a plain archive is one span, which its owner reads;
of a compressed one it is the bytes themselves.

Cost: 20 us a sample of two files to find it, once for `IndexedTars`, which keeps 80 bytes of where
it lies, and 30 us in each epoch of a stream.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from penstock.addons.storage.arrays import CacheFolder
from penstock.addons.storage.files import RecordFiles, Spans
from penstock.addons.storage.rows import RowSplit
from penstock.addons.tars import index
from penstock.addons.tars.index import COMPRESSED, HEADER, PLAIN, Dots
from penstock.datasets.arrays import not_finite, plain_numbers
from penstock.datasets.files import DataFile, Files
from penstock.datasets.reading.base import (
    FileDataset,
    Part,
    Sample,
    Shares,
    Split,
    Table,
    check_split,
)
from penstock.datasets.reading.image import Reader, check_reader, decode_image, undecoded
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Limits
from penstock.order.keys import IntArray
from penstock.terminal import watched

Record = tuple[int, index.Sample]  # the number of an archive, and a sample
Fields = Mapping[str, Sequence[str]]  # field -> endings of its part; any of them will do
IMAGES = ("jpg", "jpeg", "png", "webp", "gif")
NUMBERS = ("cls", "id", "index")
TEXTS = ("txt", "text")
PICKLES = ("pyd", "pkl", "pickle", "pt", "pth")
_NAMES = {**dict.fromkeys(IMAGES, "image"), "cls": "label", "txt": "text"}
_DOTS = (
    "If names of samples have dots in them, set dataset.dots=last: a name ends at its last dot. If "
    "these are parts of one sample, set dataset.dots=first."
)


class Tars(FileDataset):
    """What both datasets share. One sample: the files of one name, each a field.

    Args:
        root: folder of the archives, one archive, or a pattern such as "train-{000..127}.tar"; here
            or at an address such as "s3://bucket/folder".
        split: "train", "val" or "test". Archives named `train...` and `val...` are divided already.
        fields: field -> ending of its file, or several as "jpg;png"; null for one named as the
            field. Null in all makes a field of every file of the first sample, with jpg, png ... as
            `image`, cls as `label` and txt as `text`.
        classes: names of the classes of `label`, in the order of their numbers.
        shares: of the samples that validate and test; of a stream within chance.
        reader: of images: "torchvision", "pillow" or "skimage".
        cache_dir: for the indexes that `IndexedTars` makes.
        files: how remote archives are fetched and kept.
        lazy: give images undecoded, for a transform that decodes; the build sets it.
        limits: of images, and `record_bytes` of a member, wherever archives are read through.
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
        shares: Shares = Shares(),
        reader: Reader = "torchvision",
        cache_dir: str = "data/cache/tars",
        files: Files | None = None,
        lazy: bool = False,
        limits: Limits = DEFAULT,
        dots: Dots | None = None,
    ) -> None:
        check_split(split)
        self.classes, self.reader, self.lazy = [*(classes or [])], check_reader(reader), lazy
        self._split, self._limits, self._dots = split, limits, dots or "first"
        suffixes = (*PLAIN, *COMPRESSED) if isinstance(self, IterableDataset) else PLAIN
        self.files = files_ = RecordFiles.of(root, suffixes, files, split)
        shares = files_.shares(shares)
        if split == "test" and not (files_.whole or shares.test):
            raise ConfigError(
                Problem(
                    "data.split.test",
                    "is 0, and no archive is named test...: there is no test split",
                )
            )
        # None: this split has all samples.
        is_all = files_.whole or (files_.divided and split == "train" and not shares.test)
        self._division = None if is_all else shares
        self._find(cache_dir)
        first = next(self._records(), None)
        if first is None:
            raise DataError(
                f"dataset.root: {root!r} has no sample of the split {split!r} in its archives."
            )
        where = self._where(first)
        self._whole = where if fields is None else ""  # the first sample, which others are like
        self.fields = choose_fields(fields, [*first[1].parts], where, dots)

    def _find(self, cache_dir: str) -> None:
        """Find out where samples lie; a stream finds them as it reads."""

    def _records(self) -> Iterator[Record]:
        """The samples of this split, in order."""
        raise NotImplementedError

    def _where(self, record: Record) -> str:
        shard, sample = record
        return f"{self.files.addresses[shard]!r}, sample {sample.number} ({sample.key!r})"

    def _parts(self, record: Record, content: bytes | memoryview | None = None) -> dict[str, bytes]:
        """The content of a sample's files, by their endings.

        Args:
            content: of its span, headers and all; None: it is read.

        Raises:
            DataError: its index is of another archive.
        """
        (shard, sample), parts = record, dict[str, bytes]()
        spans = [*sample.parts.values()]
        if isinstance(spans[0], bytes):
            return sample.parts
        before = spans[0][0] - HEADER
        content = content or self.files.at(shard, before, spans[-1][1])
        # The header before a file repeats its size, in octal digits: an index of another archive of
        # the same length would give wrong bytes, and no error.
        for ending, (first, last) in sample.parts.items():
            size = bytes(content[first - before - HEADER : first - before])[124:136].strip(b" \0")
            parts[ending] = bytes(content[first - before : last - before])
            if size.lstrip(b"0") != b"%o" % (last - first) and last > first:
                raise DataError(
                    f"{self._where(record)}: its index is of another archive. Delete or write it "
                    "again."
                )
        return parts

    def _sample(self, record: Record, content: bytes | memoryview | None = None) -> Sample:
        """A decoded sample; DataError if a part is missing, left over or damaged."""
        made = self._made(self._parts(record, content), self.fields, self._whole, record)
        label, count = made.get("label"), len(self.classes)
        if count and isinstance(label, int) and not 0 <= label < count:
            raise DataError(
                f"{self._where(record)}: label {label} is none of the {count} classes. Correct it, "
                "or name all classes in dataset.classes."
            )
        return made

    def _made(
        self, parts: Mapping[str, bytes], fields: Fields, first: str, record: Record
    ) -> Sample:
        """Some fields of a sample.

        Args:
            parts: ending -> content.
            first: the first sample, whose parts all others have; "" where parts may be left over.

        Raises:
            DataError: a part is missing, left over or damaged.
        """
        where, sample = self._where(record), dict[str, Any]()
        # A part that the first sample lacks is a mistake in one of them, and is not lost
        # silently.
        strange = {*parts}.difference(*fields.values()) if first else {}
        for name, endings in fields.items():
            ending = next((end for end in endings if end in parts), None)
            if ending is None or strange:
                lacks = (
                    f"no part {' or '.join(endings)!r}" if not ending else f"{sorted(strange)[0]!r}"
                )
                raise DataError(
                    f"{where} has {lacks}, unlike {first or 'other samples'} (it has "
                    f"{', '.join(parts)}). Take the sample out, or say with dataset.fields which "
                    "parts are wanted; the files of a sample have to stand together in the "
                    "archive. If names of samples have dots in them, set dataset.dots=last."
                )
            content, shown, kind = (
                parts[ending],
                f"{where}, part {ending!r}",
                ending.rpartition(".")[2],
            )
            if kind in IMAGES:
                sample[name] = (undecoded if self.lazy else decode_image)(
                    content, shown, self.reader, self._limits
                )
                continue
            # What has no decoder stays as it is: bytes.
            decode, expected = _DECODERS.get(kind, (bytes, "content"))
            try:
                sample[name] = decode(content)
            except (
                ValueError,
                EOFError,
                RecursionError,
                SyntaxError,
                TypeError,
                MemoryError,
            ) as error:
                raise DataError(
                    f"{shown} ({len(content)} bytes) is not {expected}: {error}. Repair it or "
                    "take the sample out."
                ) from error
        return sample

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The fields, how samples are divided, and the archives: pieces of them if `sized`."""
        return [
            *(type(self).__name__, self.reader, *self.classes, self._split, str(self._division)),
            *(str(self.fields), self._dots, *self.files.names),
            *([self.files.sizes] if sized else []),
            *(map(bytes, self.files.pieces()) if sized else []),
        ]

    def data_files(self) -> list[DataFile]:
        return self.files.data_files()


class TarShards(Tars, IterableDataset[Record]):
    """A stream, of compressed archives, too; see `Tars`. A hash of its name divides the samples."""

    def _is_own(self, key: str) -> bool:
        """Whether a sample is of this split, by a keyed hash of its name; 1 us."""
        if self._division is None:
            return True
        # By its name and not its number: a stream does not know how many there are, and samples
        # that are added later move none.
        shares = self._division
        digest = hashlib.blake2b(
            key.encode("utf-8", "surrogateescape"), digest_size=8, key=str(shares.seed).encode()
        )
        draw = int.from_bytes(digest.digest(), "little")
        return self._split == (
            "val"
            if draw < shares.val * 2**64
            else "test"
            if draw >= (1 - shares.test) * 2**64
            else "train"
        )

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(map(self.read_shard, self.shards()))

    _records = __iter__

    def shards(self) -> range:
        """The archives, by number."""
        return range(len(self.files))

    def want_shard(self, shard: int) -> float:
        """An archive is read soon: fetch it ahead; its part of `files.ahead`."""
        return self.files.want(self.files.whole_of([shard]))

    def read_shard(self, shard: int) -> Iterator[Record]:
        """Samples of one archive that are in this split."""
        with self.files.open(shard, ahead=True) as file:
            for sample in index.read_samples(
                self.files.addresses[shard], file, self._dots, self._limits
            ):
                if self._is_own(sample.key):
                    yield shard, sample

    def decode(self, record: Record) -> Sample:
        """The sample of a raw record; DataError if a part is missing or damaged."""
        return self._sample(record)


class IndexedTars(Tars, Dataset[Sample]):
    """Rows in any order; see `Tars`. Shares are exact.

    An index that is missing is made and kept: to make that of an archive at an address, all of it
    is fetched, once. Otherwise no more is fetched than the blocks of the samples that are read.
    """

    def _find(self, cache_dir: str) -> None:
        # Indexes beside archives are of names that end at their first dot.
        written = self.files.companions(index.SUFFIX) if self._dots == "first" else []
        indexes = [
            self._index(shard, written[shard] if written else None, cache_dir)
            for shard in watched(
                range(len(self.files)), len(self.files), "reading indexes of archives"
            )
        ]
        # Arrays: forked workers share them, and do not copy them by counting references.
        self._shards = np.cumsum([0, *(len(each["keys"]) for each in indexes)])
        self._keys, counts, self._endings, self._bounds = (
            np.concatenate([each[name] for each in indexes])
            for name in ("keys", "counts", "endings", "spans")
        )
        self._files = np.cumsum([0, *counts])  # where those of each sample begin
        own = (self._split, self._division) if self._division else ()
        self._rows = RowSplit(len(self._keys), *own)

    def _index(self, shard: int, written: bytes | None, cache_dir: str) -> index.Index:
        """The index of an archive: that beside it, one that was made before, or one made now."""
        if written is not None:
            return index.read(written, self.files.addresses[shard], int(self.files.sizes[shard]))
        # "2" is the form of an index; what an older version has kept is left alone.
        key = hashlib.blake2b(
            f"{self.files.key(shard)} {self._dots} {self._limits.record_bytes} 2".encode(),
            digest_size=12,
        )
        # Headers are read one by one: at an address, each block would be waited for.
        self.files.want(self.files.whole_of([shard]))
        return CacheFolder(cache_dir, key.hexdigest()).arrays(
            "index", partial(index.make, self.files, shard, self._dots, self._limits)
        )

    def _record(self, index_: int) -> Record:
        row = int(self._rows.rows([index_])[0])
        shard = int(np.searchsorted(self._shards, row, side="right")) - 1
        own = slice(self._files[row], self._files[row + 1])
        spans = zip(self._endings[own].tolist(), self._bounds[own].tolist(), strict=True)
        return shard, index.Sample(
            row - int(self._shards[shard]),
            self._keys[row].decode("utf-8", "surrogateescape"),
            {ending.decode("utf-8", "replace"): span for ending, span in spans},
        )

    def _records(self) -> Iterator[Record]:
        return map(self._record, range(len(self)))

    def _spans(self, indices: IntArray) -> Spans:
        """What samples are read from, the headers of their files included."""
        # One span, as files of a sample stand together: one request, with 512 bytes more a file.
        rows = self._rows.rows(indices)
        shards = np.searchsorted(self._shards, rows, side="right") - 1
        starts = self._bounds[self._files[rows], 0] - HEADER
        return Spans(shards, starts, self._bounds[self._files[rows + 1] - 1, 1])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Sample:
        return self._sample(self._record(row))

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Samples of a whole batch; what is missing of them is fetched at once."""
        spans = self._spans(np.asarray(indices, np.int64))
        return [*map(self._sample, map(self._record, indices), self.files.read(spans))]

    @property
    def metadata(self) -> Table:
        """A row per sample: its numbers and texts. Reads all of the archives."""
        import pandas as pd

        plain = {*NUMBERS, *TEXTS}
        # Without images, which would take 100 times as long.
        fields = {
            name: endings
            for name, endings in self.fields.items()
            if plain.issuperset(ending.rpartition(".")[2] for ending in endings)
        }
        records = watched(self._records(), len(self), "reading samples of archives")
        return pd.DataFrame(
            [self._made(self._parts(record), fields, "", record) for record in records],
            columns=[*fields],
        )

    def path(self, row: int) -> str:
        """The archive of a row."""
        return self.files.addresses[self._record(row)[0]]

    def want(self, indices: IntArray) -> float:
        """Rows are read soon: fetch them ahead; their part of `files.ahead`."""
        return self.files.want(self._spans(indices))


def choose_fields(
    fields: Mapping[str, str | None] | None,
    parts: Sequence[str],
    where: str,
    dots: Dots | None,
) -> Fields:
    """The fields of the samples.

    Args:
        fields: field -> ending, or several as "jpg;png"; null for one named as the field. None
            makes a field of each of `parts`: `image` of jpg, `label` of cls, `seg` of seg.png.
        parts: endings of the first sample.
        where: the first sample, for messages.
        dots: the dot at which names end; None: the default, "first".

    Raises:
        ConfigError: two parts would be one field, a field would be a pickle, or names of samples
            seem to have dots in them.
    """
    # "seg.png" becomes seg, and "json" json.
    pairs = (
        [(_NAMES.get(e) or e.rpartition(".")[0].replace(".", "_") or e, e) for e in parts]
        if fields is None
        else [*fields.items()]
    )
    chosen = {
        name: [part.strip().lower() for part in (endings or name).split(";")]
        for name, endings in pairs
    }
    names = [name for name, _ in pairs]
    problems = {
        f"after the first dot of a name. {_DOTS}": (
            "dots",
            # As of 0.5 or 12.30.
            [e for e in parts if "." in e and e[0].isdigit() and fields is None and dots is None],
        ),
        "which is a pickle and may run any code when it is read. Make the archives with npy or "
        "json, or name the other parts: dataset.fields={image: jpg, label: cls}": (
            "fields",
            [e for own in chosen.values() for e in own if e.rpartition(".")[2] in PICKLES],
        ),
        "which would be the same field; name them: dataset.fields={one: ENDING, other: ENDING}. "
        + _DOTS: (
            "fields",
            [str(ending) for name, ending in pairs if names.count(name) > 1],
        ),
    }
    for reason, (key, wrong) in problems.items():
        if wrong:
            raise ConfigError(
                Problem(
                    f"dataset.{key}",
                    f"{where} has {' and '.join(map(repr, wrong[:10]))}, {reason}",
                )
            )
    return chosen


def _array(content: bytes) -> torch.Tensor:
    # Not np.load, which takes a pickle or a zip archive for an array.
    values = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    if (position := not_finite(values)) is not None:
        raise ValueError(
            f"value {', '.join(map(str, position))} is {values[tuple(position)]}, which is not "
            "finite"
        )
    return torch.from_numpy(plain_numbers(values))


# Ending -> how its content is decoded, and what it should be, for messages.
_DECODERS: dict[str, tuple[Callable[[bytes], object], str]] = {
    **dict.fromkeys(NUMBERS, (int, "a whole number")),
    **dict.fromkeys(TEXTS, (lambda content: content.decode("utf-8"), "UTF-8 text")),
    "json": (json.loads, "JSON"),
    "npy": (_array, "a usable array of numbers"),
}
