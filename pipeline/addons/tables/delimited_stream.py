"""CSV and TSV files read forwards, plain or compressed (gz, zst): a text and its class a record.

For files that cannot be indexed; a plain file is better read by `delimited_text`, which works with
every sampler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, compress, repeat
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch.utils.data import IterableDataset

from penstock.addons.record_files.positioned_file import PositionedFile
from penstock.addons.record_files.shard_files import ShardFiles, data_file
from penstock.addons.tables.text.delimited_format import (
    BadRecord,
    Columns,
    DelimitedFormat,
    class_codes,
)
from penstock.addons.tables.text.record_index import Quoting
from penstock.addons.tables.text.record_reader import compression_of, line_at, read_records
from penstock.datasets.files import DataFile, Files
from penstock.datasets.reading.base import FileDataset, Part, Sample, Split, check_split
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Fraction, Limits, Seed
from penstock.files.paths import is_remote
from penstock.order.keys import hash64, uniform

if TYPE_CHECKING:
    from penstock.addons.storage.client import Client

Record = tuple[int, int, bytes]  # number of the file, place of the record in its text, its bytes

# Bytes that a process reads to count the lines of bad records; the least of a compressed file.
_COUNTED, _UNPACKED = 512 << 20, 64 << 20

SUFFIXES = tuple(
    f"{kind}{packed}" for kind in (".tsv", ".csv", ".txt") for packed in ("", ".gz", ".zst")
)


class DelimitedStream(FileDataset, IterableDataset[Record]):
    """Samples are `text` (str) and, with a label column, `label` (int).

    Raw records are the bytes of a line and their place; the executor that owns a record decodes it.
    Shards are whole files.

    The split of a record is a hash of its file's name and its place there: no count of records is
    needed, the share is met within chance, and a record keeps its split when others are appended.

    Args:
        root: a file, a folder of them, or a pattern of braces; a path or an address. File names
            that begin with train and val divide the data (`record_files.shard_files`).
        split: "train", "val" or "test".
        suffixes: of the files of a folder, in small letters.
        delimiter, header, columns, text, label, quoting, encoding: as in `DelimitedText`; the same
            for all files.
        classes: names of the classes, numbered in this order; needed with a label column.
        val_fraction: share of the records that validate, unless file names divide them.
        split_seed: another seed, another split.
        files: access to addresses.
        limits: `record_bytes`, `columns` and `expansion`.
        test_fraction: share of the records to keep for a test.

    Raises:
        DataError: there is no such file, or the first one is empty or has other columns. Bad
            records are refused, with file and line, when they are read.
        ConfigError: an argument is out of range, or there are labels and no classes.
    """

    def __init__(
        self,
        root: str,
        split: Split = "train",
        suffixes: Sequence[str] = SUFFIXES,
        delimiter: str | None = None,
        header: bool | None = None,
        columns: Sequence[str] | None = None,
        text: str = "text",
        label: str | None = "label",
        classes: Sequence[str] | None = None,
        quoting: Quoting = "standard",
        encoding: str = "utf-8",
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        files: Files | None = None,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
    ) -> None:
        check_split(split, val_fraction, test_fraction)
        if label is not None and not classes:
            reason = (
                f"is not set, and the classes of column {label!r} are only known at the end of the "
                "stream; list them: dataset.classes=[ham,spam] (or dataset.label=null)"
            )
            raise ConfigError(Problem("dataset.classes", reason))
        self._limits = limits
        self._counted = 0  # bytes read to count the lines of bad records
        self._files = files or Files()
        if not is_remote(root) and self._files.local(root).is_file():
            self._addresses, self._names = [root], [self._files.local(root).name]
            whole, val, self._test = False, val_fraction, test_fraction
        else:
            shards = ShardFiles.of(root, split, tuple(suffixes), self._files)
            self._addresses, self._names = shards.addresses, shards.names
            val, self._test = shards.shares(val_fraction, test_fraction)
            whole = shards.whole or (shards.divided and split == "train" and not self._test)
        self._share = None if whole else (split, val, split_seed)
        self.format = DelimitedFormat.of(self._names[0], delimiter, quoting, encoding, self._limits)
        self._given = (header, columns, text, label)
        batches = read_records(self._path(0), quoting, limits)
        first = next((records[0] for _, records in batches if records), None)
        if first is None:
            raise DataError(f"{self._addresses[0]!r} is empty: it needs records.")
        self._columns = self._columns_of(0, first)
        self._codes = class_codes(classes) if label is not None and classes else {}

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(self.read_shard(shard) for shard in self.shards())

    def shards(self) -> range:
        """The files, by number."""
        return range(len(self._addresses))

    @property
    def remote_files(self) -> Client | None:
        """The fetcher of the files, if they are at an address."""
        return self._files.remote if is_remote(self._addresses[0]) else None

    def files_of_shard(self, shard: int) -> list[str]:
        """The address of a shard's file."""
        return [self._addresses[shard]]

    def read_shard(self, shard: int) -> Iterator[Record]:
        """Raw records of a shard."""
        return self._records(shard)

    def decode(self, record: Record) -> Sample:
        """The sample of a raw record.

        Raises:
            DataError: it has too few or too many fields, is not text in this encoding, or its label
                is not a class.
        """
        file, start, text = record
        try:
            return self.format.sample(text, self._columns, self._codes)
        except BadRecord as bad:
            path = self._path(file)
            self._counted += start + (_UNPACKED if compression_of(path) else 0)
            where = f"byte {start} of its text"
            if self._counted <= _COUNTED:  # reads the file up to there
                where = f"line {line_at(path, start, self._limits)}"
            raise DataError(f"{self._addresses[file]!r}, {where}: {bad}") from None

    @property
    def classes(self) -> list[str]:
        """Names of the classes; empty without a label column."""
        return list(self._codes)

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """How the files are read and divided, their names and samples of local ones."""
        parts: list[Part] = ["delimited_stream", repr(self.format), repr(self._columns)]
        parts += [repr(self._share), repr(self._codes), *self._names]
        parts += [repr(self._test)] if self._test else []
        for address in self._addresses:
            if sized and not is_remote(address):
                file = PositionedFile(self._files.local(address))
                parts += [file.size, *file.sample(3)]
        return parts

    def data_files(self) -> list[DataFile]:
        pairs = zip(self._names, self._addresses, strict=True)
        return [data_file(name, address, self._files) for name, address in pairs]

    def _records(self, shard: int) -> Iterator[Record]:
        header = True
        for places, records in read_records(self._path(shard), self.format.quoting, self._limits):
            if header and records:
                if self._columns_of(shard, records[0]).in_file:
                    places, records = places[1:], records[1:]
                header = False
            numbered = zip(repeat(shard), places, records)
            if self._share is None or not places:
                yield from numbered
            else:
                split, fraction, seed = self._share
                key = hash64(seed, "split", self._names[shard])
                draws = uniform(key, np.array(places, np.int64))
                tests = (draws >= fraction) & (draws >= 1 - self._test)
                chosen = tests if split == "test" else (draws < fraction) == (split == "val")
                if split == "train" and self._test:
                    chosen &= ~tests
                yield from compress(numbered, chosen.tolist())
        if header:
            raise DataError(f"{self._addresses[shard]!r} is empty. Remove it from the data.")

    def _columns_of(self, number: int, first: bytes) -> Columns:
        """The columns of a file, the same for all files; `first` is its first record."""
        columns = self.format.columns(first, self._addresses[number], *self._given)
        if number and columns.names != self._columns.names:
            raise DataError(
                f"{self._addresses[number]!r}, line 1: the columns are {list(columns.names)}, but "
                f"in {self._addresses[0]!r} they are {list(self._columns.names)}. All files of a "
                "dataset must have the same ones."
            )
        return columns

    def _path(self, number: int) -> Path:
        return self._files.local(self._addresses[number])
