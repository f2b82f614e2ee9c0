"""Tables in Parquet and Arrow files as a stream: row group after row group.

The way to shuffle tables larger than memory: `sampler=stream` reads the row groups in another order
each epoch and mixes the rows of `sampler.buffer` neighbours. Every row group is read once an epoch
by each worker that owns a row of it.

A raw record is (row group, row): skipping one costs nothing, and only its owner reads. So the
buffer takes no memory; but the row groups that it spans should fit into `cache_mb`, or they are
read again and again.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import IterableDataset

from penstock.addons.tables.arrow.table import ArrowTable
from penstock.datasets.reading.base import Sample

Record = tuple[int, int]


class ParquetStream(ArrowTable, IterableDataset[Record]):
    """One sample: a row, with the fields that its columns are made into.

    Args:
        root, split, fields, split_column, classes: as for `penstock.addons.tables.parquet.Parquet`.
        val_fraction, split_seed, reader, cache_mb, files, limits: as in Parquet.

    Raises:
        DataError, ConfigError: as `penstock.addons.tables.parquet.Parquet`.
    """

    def __iter__(self) -> Iterator[Record]:
        for group in self.shards():
            yield from self.read_shard(group)

    def shards(self) -> range:
        """The row groups, by number."""
        return range(len(self.files))

    def shard_lengths(self) -> list[int]:
        """Rows of this split in each row group."""
        return self.group_lengths

    def read_shard(self, shard: int) -> Iterator[Record]:
        """Rows of this split in one row group, which is not read for it."""
        for row in self.rows_in(shard).tolist():
            yield shard, row

    def decode(self, record: Record) -> Sample:
        """The sample of a row."""
        group, row = record
        return self.samples(group, [row])[0]
