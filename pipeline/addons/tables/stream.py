"""Tables read forwards, for what is larger than the disk: nothing is kept.

    Parquet, Arrow      a shard is a row group or record batch; the rows are divided as those of the
                        map-style table, and a shard is read when a row of it is wanted
    CSV, JSON lines     a shard is a file, plain or compressed; a keyed hash of its name and of a
                        row's number divides the rows, so the share is met within chance

`sampler=stream` reads the shards in another order each epoch and mixes the rows of `sampler.buffer`
neighbours. Every shard is read once an epoch by each worker that owns a row of it; those that the
buffer spans are in memory. Cost: 0.1 us a row and column, and 5 us a sample and field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
from torch.utils.data import IterableDataset

from penstock.addons.packs.folder import Pack
from penstock.addons.storage.files import RecordFiles
from penstock.addons.storage.rows import TableRows, rows_before
from penstock.addons.tables.kinds import Fields
from penstock.addons.tables.read import PACKED, SUFFIXES, TEXT, Csv, Quoting
from penstock.addons.tables.source import BAD, Source, TableDataset
from penstock.addons.tables.table import text_fields
from penstock.datasets.files import Files
from penstock.datasets.reading.base import Sample, Split
from penstock.datasets.reading.image import Reader
from penstock.files.limits import Fraction, Limits, Seed
from penstock.order.keys import IntArray, hash64, uniform

_DELIMITED = tuple(kind + packed for kind in TEXT if kind != ".jsonl" for packed in PACKED)


class _Rows:
    """Some rows of a file, which are read and converted when the first of them is wanted.

    Records in the shuffle buffer refer to it, so it goes with the last of them.
    """

    def __init__(
        self, data: ParquetStream, number: int, first: int, read: Callable[[], pa.RecordBatch]
    ) -> None:
        self._data, self._number, self._first, self._read = data, number, first, read

    def __deepcopy__(self, memo: object) -> _Rows:
        return self  # samples are copies

    @cached_property
    def _pack(self) -> Pack:
        columns, bad = self._data._converted(self._read())
        return Pack.in_memory(columns, self._data._stored, self._data._ragged, **{BAD: bad})

    def sample(self, row: int) -> Sample:
        def place(row: int) -> tuple[int, int]:
            return self._number, self._first + row

        return self._data._samples(self._pack, np.array([row]), place)[0]


Record = tuple[_Rows, int]


class ParquetStream(TableDataset, IterableDataset[Record]):
    """One sample: a row, with the fields that its columns are made into.

    Args:
        root, split, fields, split_column, classes: as for `penstock.addons.tables.table.Parquet`.
        val_fraction, split_seed, reader, files, limits, test_fraction: as there. Classes that
            nobody names are looked for in the files of training: a pass over their labels.

    Raises:
        DataError, ConfigError: as `penstock.addons.tables.table.Parquet`.
    """

    def __init__(
        self,
        root: str,
        split: Split = "train",
        fields: Fields | None = None,
        split_column: str | None = None,
        classes: Sequence[str] | None = None,
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        reader: Reader = "torchvision",
        files: Files | None = None,
        limits: Limits | None = None,
        test_fraction: Fraction = 0.0,
    ) -> None:
        self._open(
            lambda split: RecordFiles.of(root, SUFFIXES, files, split),
            split,
            fields,
            split_column,
            classes,
            (val_fraction, split_seed, test_fraction),
            reader,
            limits,
            Csv(texts=False),
        )

    def _load(self, trained: Source) -> None:
        self._find_classes(trained)
        files = [self.source.open(number) for number in range(len(self.source.files))]
        for file in files:
            self.source.check(file, self._columns)
        lengths = [file.lengths for file in files]
        self.rows: TableRows | None = None
        self._parts: list[tuple[int, int | None]] = [(n, None) for n in range(len(lengths))]
        if None not in lengths:
            self._parts = [
                (n, part) for n, of in enumerate(lengths) for part in range(len(of or ()))
            ]
            self._bounds = np.cumsum([0, *(length for of in lengths for length in of or ())])
            self.rows = self._rows_of(int(self._bounds[-1]))

    def __len__(self) -> int:
        if self.rows is None:
            raise TypeError("the rows of a text are counted by nobody")
        return len(self.rows)

    def __iter__(self) -> Iterator[Record]:
        for shard in self.shards():
            yield from self.read_shard(shard)

    def shards(self) -> range:
        """The row groups, record batches or files, by number."""
        return range(len(self._parts))

    def shard_lengths(self) -> list[int] | None:
        """Rows of this split in each shard; None where the files don't say."""
        if self.rows is None:
            return None
        return np.diff(rows_before(self.rows, self._bounds)).tolist()

    def read_shard(self, shard: int) -> Iterator[Record]:
        """Rows of this split in one shard."""
        number, part = self._parts[shard]
        if self.rows is not None:
            start, stop = self._bounds[shard : shard + 2].tolist()
            first, last = rows_before(self.rows, np.array([start, stop])).tolist()
            own = self.rows.rows(np.arange(first, last)) - start
            before = start - int(self._bounds[shard - (part or 0)])
            rows = _Rows(self, number, before, partial(self._part, number, part))
            yield from ((rows, row) for row in own.tolist())
            return
        first = 0
        for batch in self.source.open(number).batches(self._columns):
            rows = _Rows(self, number, first, batch.slice)
            own = self._own(number, np.arange(first, first + batch.num_rows)) - first
            yield from ((rows, row) for row in own.tolist())
            first += batch.num_rows

    def _part(self, number: int, part: int | None) -> pa.RecordBatch:
        batches = list(self.source.open(number).batches(self._columns, part))
        return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]

    def _own(self, number: int, rows: IntArray) -> IntArray:
        """Those of some rows of a file, of whose number nobody knows, that belong to the split."""
        files, (val, seed, test) = self.source.files, self._shares
        if files.whole:
            return rows
        val, test = files.shares(val, test)
        draws = uniform(hash64(seed, "split", files.names[number]), rows)
        tests = (draws >= val) & (draws >= 1 - test)
        kept = {"val": draws < val, "test": tests, "train": (draws >= val) & ~tests}
        return rows[kept[self._split]]

    def decode(self, record: Record) -> Sample:
        """The sample of a row.

        Raises:
            DataError: one of its cells is bad; names the file, the row and the column.
        """
        rows, row = record
        return rows.sample(row)

    def want_shard(self, shard: int) -> float:
        """The file of a shard is read soon."""
        files = self.source.files
        return files.want(files.whole_of([self._parts[shard][0]]))


class DelimitedStream(ParquetStream):
    """Samples of CSV and TSV files read forwards: `text` (str) and, with a label column, `label`.

    Args:
        root: a file, a folder of them, or a pattern of braces; a path or an address. File names
            that begin with train and val divide the data.
        split, delimiter, header, columns, text, label, classes, quoting, encoding: as in
            `penstock.addons.tables.table.DelimitedText`.
        val_fraction, split_seed, files, limits, test_fraction: as there.

    Raises:
        DataError, ConfigError: as there.
    """

    _key = "dataset."

    def __init__(
        self,
        root: str,
        split: Split = "train",
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
        limits: Limits | None = None,
        test_fraction: Fraction = 0.0,
    ) -> None:
        self._open(
            lambda split: RecordFiles.of(root, _DELIMITED, files, split),
            split,
            text_fields(text, label),
            None,
            classes,
            (val_fraction, split_seed, test_fraction),
            "torchvision",
            limits,
            Csv(delimiter, header, columns, quoting, encoding),
        )
