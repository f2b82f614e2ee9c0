"""Tables in Parquet and Arrow files, a row a sample, in any order.

    root/*.parquet              Parquet; a row is had by reading its row group
    root/*.arrow, *.feather     Arrow's own format; uncompressed, a row is had by touching its pages

Which order to read in is a matter of cost:

- In the order of the files, every row group is read once.
- In random order from Parquet, a row group is read for every row in the worst case: with 1000 rows
  in a group, about 1000 times the work. What is decoded is kept up to `cache_mb` in each worker, so
  this is fine for tables that fit there. For others there are three ways out: the stream
  (`parquet_stream`), which shuffles row groups and within a buffer; smaller row groups;
  and uncompressed Arrow files.

Rows of one batch that lie in one row group are read together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from pipeline.datasets.arrow.columns import Fields
from pipeline.datasets.arrow.metadata import read_metadata
from pipeline.datasets.arrow.table import ArrowTable, TableOptions
from pipeline.datasets.reading.data_file import DataFile
from pipeline.datasets.reading.fingerprint import FileDataset, Part
from pipeline.datasets.reading.image import Reader
from pipeline.datasets.reading.split import Split
from pipeline.files.limits import Limits

if TYPE_CHECKING:
    import pandas as pd

    from pipeline.datasets.files import Files

_ADVICE = (
    "rows are read in an order in which nearly every one costs a whole row group. Use "
    "dataset=parquet_stream, a larger dataset.cache_mb, smaller row groups, or uncompressed Arrow "
    "files"
)


class Parquet(FileDataset, Dataset[dict[str, Any]]):
    """One sample: a row, with the fields that its columns are made into.

    `arrow.columns` lists what a column can become.

    Args:
        root: folder of the files, one file, or a pattern such as "train-{000..127}.parquet"; here
            or at an address such as "s3://bucket/folder".
        split: "train" or "val". Files named `train...` and `val...` are divided already. Otherwise
            `split_column` tells, or else the rows are divided by `val_fraction`.
        fields: output field -> null (the column of that name), a kind (the same) or {column, kind};
            null takes all columns that a field can be made of.
        split_column: the column that says "train" or "val" ("validation" is as good).
        classes: names of the classes of the first label field; null takes those that the files
            name, or else what occurs in the files of training.
        metadata_columns: columns of `metadata`; null takes all there are.
        val_fraction: share of the rows that validate; 0 and 1 leave all to one split.
        split_seed: another seed, another split.
        reader: of images: "torchvision", "pillow" or "skimage".
        cache_mb: MiB of decoded row groups that a worker keeps.
        files: how remote files are fetched and kept.
        limits: what the files may claim: `expansion`, `record_bytes` of a cell, `classes`,
            `columns`.

    Raises:
        DataError: a file is missing, cut off, or of another schema than the first; the split has no
            row. A cell that is null or damaged is refused when it is read.
        ConfigError: pyarrow is not installed, there is no such column, or it is not of that kind.
    """

    draws = False  # reading a sample takes no random numbers

    def __init__(
        self,
        root: str,
        split: Split = "train",
        fields: Fields | None = None,
        split_column: str | None = None,
        classes: Sequence[str] | None = None,
        metadata_columns: Sequence[str] | None = None,
        val_fraction: float = 0.2,
        split_seed: int = 0,
        reader: Reader = "torchvision",
        cache_mb: int = 512,
        files: Files | None = None,
        limits: Limits | None = None,
    ) -> None:
        options = TableOptions(
            fields, split_column, classes, metadata_columns, val_fraction, split_seed, reader,
            cache_mb, limits or Limits(),
        )  # fmt: skip
        self.table = ArrowTable(root, split, options, files, _ADVICE)
        self.classes = next(iter(self.table.classes.values()), [])

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> dict[str, Any]:
        groups, rows = self.table.locate([index])
        return self.table.samples(int(groups[0]), rows.tolist())[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Samples of a whole batch; each row group is visited once."""
        groups, rows = self.table.locate(indices)
        samples: list[dict[str, Any]] = [{}] * len(groups)
        for group in np.unique(groups).tolist():
            places = np.flatnonzero(groups == group)
            found = self.table.samples(group, rows[places].tolist())
            for place, sample in zip(places.tolist(), found, strict=True):
                samples[place] = sample
        return samples

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: its numbers, labels and texts, and lengths (`arrow.metadata`).

        Reads these columns of all row groups; no image.
        """
        return read_metadata(self.table)

    @property
    def facts(self) -> dict[str, int]:
        """What a model must know: num_classes, num_outputs, num_features, as far as they are."""
        return self.table.facts

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The files, the fields made of them, and this split's rows."""
        return self.table.fingerprint_parts(sized)

    def data_files(self) -> list[DataFile]:
        return self.table.data_files()
