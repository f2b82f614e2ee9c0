"""Tables in Parquet and Arrow files as a stream: row group after row group.

The way to shuffle what is larger than memory: `sampler=stream` reads the row groups in another
order each epoch and mixes the rows of `sampler.buffer` neighbours. Every row group is read once an
epoch by each worker that owns a row of it.

A raw record is (row group, row): passing over one costs nothing, and only its owner reads. So the
buffer takes no memory; but the row groups that it spans should fit into `cache_mb`, or they are
read again and again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from pipeline.datasets.arrow.columns import Fields
from pipeline.datasets.arrow.table import ArrowTable, TableOptions
from pipeline.datasets.reading.data_file import DataFile
from pipeline.datasets.reading.fingerprint import FileDataset, Part
from pipeline.datasets.reading.image import Reader
from pipeline.datasets.reading.split import Split
from pipeline.files.limits import Limits

if TYPE_CHECKING:
    from pipeline.datasets.files import Files

Record = tuple[int, int]

_ADVICE = (
    "row groups are read again and again, since more of them are shuffled together than are kept. "
    "Use a larger dataset.cache_mb or a smaller sampler.buffer"
)


class ParquetStream(FileDataset, IterableDataset[Record]):
    """One sample: a row, with the fields that its columns are made into.

    Args:
        root, split, fields, split_column, classes: as for `pipeline.datasets.parquet.Parquet`.
        val_fraction, split_seed, reader, cache_mb, files, limits: likewise.

    Raises:
        DataError, ConfigError: as `pipeline.datasets.parquet.Parquet`.
    """

    def __init__(
        self,
        root: str,
        split: Split = "train",
        fields: Fields | None = None,
        split_column: str | None = None,
        classes: Sequence[str] | None = None,
        val_fraction: float = 0.2,
        split_seed: int = 0,
        reader: Reader = "torchvision",
        cache_mb: int = 512,
        files: Files | None = None,
        limits: Limits | None = None,
    ) -> None:
        options = TableOptions(
            fields, split_column, classes, None, val_fraction, split_seed, reader, cache_mb,
            limits or Limits(),
        )  # fmt: skip
        self.table = ArrowTable(root, split, options, files, _ADVICE)
        self.classes = next(iter(self.table.classes.values()), [])

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[Record]:
        for group in self.shards():
            yield from self.read_shard(group)

    def shards(self) -> range:
        """The row groups, by number."""
        return range(len(self.table.files))

    def shard_lengths(self) -> list[int]:
        """Rows of this split in each row group."""
        return self.table.group_lengths

    def read_shard(self, shard: int, start: int = 0) -> Iterator[Record]:
        """Rows of one row group from its `start`th of this split on; nothing is read for it."""
        for row in self.table.rows_in(shard, start).tolist():
            yield shard, row

    def decode(self, record: Record) -> dict[str, Any]:
        """The sample of a row."""
        group, row = record
        return self.table.samples(group, [row])[0]

    @property
    def facts(self) -> dict[str, int]:
        """What a model must know: num_classes, num_outputs, num_features, as far as they are."""
        return self.table.facts

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The files, the fields made of them, and this split's rows."""
        return self.table.fingerprint_parts(sized)

    def data_files(self) -> list[DataFile]:
        return self.table.data_files()
