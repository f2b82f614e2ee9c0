"""Tables in Parquet and Arrow files, a row a sample, in any order.

    root/*.parquet              Parquet; reading a row costs its row group
    root/*.arrow, *.feather     Arrow's own format; uncompressed, a row costs only its pages

In the order of the files, every row group is read once. In random order from Parquet, it is read
for every row in the worst case: with 1000 rows in a group, about 1000 times the work. Decoded row
groups are kept up to `cache_mb` in each worker, so this is fine for tables that fit there. Others
need the stream (`parquet_stream`), which shuffles row groups and within a buffer, smaller row
groups, or uncompressed Arrow files. Rows of one batch in one row group are read together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch.utils.data import Dataset

from penstock.addons.storage.rows import no_column
from penstock.addons.tables.arrow.columns import (
    Fields,
    Kind,
    has_lengths,
    is_text,
    kinds_of,
    label_codes,
)
from penstock.addons.tables.arrow.files import exact_frame, in_one_piece
from penstock.addons.tables.arrow.table import ArrowTable
from penstock.datasets.reading.base import Sample, Split
from penstock.datasets.reading.image import Reader
from penstock.errors import ConfigError, Problem
from penstock.files.limits import Count, Fraction, Limits, Seed
from penstock.order.keys import IntArray
from penstock.terminal import watched

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from penstock.datasets.files import Files

# A column of the table: the column of the files it is made of, and a conversion, if any.
_Made = tuple[str, Callable[["pa.Array"], object] | None]

_CLASS = "class"


class Parquet(ArrowTable, Dataset[Sample]):
    """One sample: a row, with the fields that its columns are made into.

    `arrow.columns` lists what a column can become.

    Args:
        root: folder of the files, one file, or a pattern such as "train-{000..127}.parquet"; here
            or at an address such as "s3://bucket/folder".
        split: "train", "val" or "test". Files named `train...`, `val...` and `test...` are divided
            already. Otherwise `split_column` tells, or else the rows are divided by `val_fraction`.
        fields: field -> null (the column of that name), a kind (the same), {column, kind}, or
            {columns: [...]} for numbers put together in this order; null takes all columns that a
            field can be made of.
        split_column: the column that says "train", "val" or "test" ("validation" is as good).
        classes: names of the classes of the first label field; null takes those that the files
            name, or else the labels in the files of training.
        metadata_columns: columns of `metadata`; null takes all there are.
        val_fraction: share of the rows that validate; 0 and 1 leave all to one split.
        split_seed: another seed, another split.
        reader: of images: "torchvision", "pillow" or "skimage".
        cache_mb: MiB of decoded row groups that a worker keeps.
        files: how remote files are fetched and kept.
        limits: what the files may claim: `expansion`, `record_bytes` of a cell, `classes`,
            `columns`.
        test_fraction: share of the rows to keep for a test.

    Raises:
        DataError: a file is missing, cut off, or of another schema than the first; the split has no
            row. A cell that is null or damaged is refused when it is read.
        ConfigError: pyarrow is not installed, there is no such column, or it is not of that kind.
    """

    def __init__(
        self,
        root: str,
        split: Split = "train",
        fields: Fields | None = None,
        split_column: str | None = None,
        classes: Sequence[str] | None = None,
        metadata_columns: Sequence[str] | None = None,
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        reader: Reader = "torchvision",
        cache_mb: Count = 512,
        files: Files | None = None,
        limits: Limits | None = None,
        test_fraction: Fraction = 0.0,
    ) -> None:
        super().__init__(
            root,
            split,
            fields,
            split_column,
            classes,
            val_fraction,
            split_seed,
            reader,
            cache_mb,
            files,
            limits,
            test_fraction,
        )
        self._metadata_columns = metadata_columns

    def __getitem__(self, index: int) -> Sample:
        groups, rows = self.locate([index])
        return self.samples(int(groups[0]), rows.tolist())[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Samples of a whole batch; each row group is visited once."""
        groups, rows = self.locate(indices)
        samples: list[Sample] = [{}] * len(groups)
        for group in np.unique(groups).tolist():
            places = np.flatnonzero(groups == group)
            made = self.samples(group, rows[places].tolist())
            for position, sample in zip(places.tolist(), made, strict=True):
                samples[position] = sample
        return samples

    kinds: ClassVar[dict[str, str]] = {}

    def fetch_batch(self, indices: IntArray, in_place: bool = False) -> dict[str, Any]:
        """Rows as the fields of a batch, by a gather of each column; see `fetches_batches`."""
        return self.gathered(indices)

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample, without images:

            column of the files     in the table
            numbers                 as they are
            label fields            the number of the class; the first one's name too, as `class`
            text                    as it is, and its length in characters as `<name>_length`
            lists                   their length as `<name>_length`

        A field has its name in the samples, any other column its name in the files. Only these
        columns are read, a row group at a time. Text is most of the cost: `metadata_columns` can
        ask for `text_length` without `text`.

        Raises:
            ConfigError: `metadata_columns` names a column that cannot be made.
        """
        import pandas as pd
        import pyarrow as pa

        made = self._table_columns()
        if self._metadata_columns is not None:
            for name in self._metadata_columns:
                if name not in made:
                    reason = no_column(name, list(made))
                    raise ConfigError(Problem("dataset.metadata_columns", reason))
            made = {name: made[name] for name in self._metadata_columns}
        sources = list(dict.fromkeys(source for source, _ in made.values()))
        parts = []
        groups = [group for group, count in enumerate(self.group_lengths) if count]
        for group in watched(groups, len(groups), "reading columns of row groups"):
            read, _ = self.files.read(group, sources)
            arrays = {source: in_one_piece(read, source) for source in sources}
            part = pa.table(
                {
                    name: make(arrays[source]) if make else arrays[source]
                    for name, (source, make) in made.items()
                }
            )
            rows = self.rows_in(group)
            parts.append(part if len(rows) == part.num_rows else part.take(pa.array(rows)))
        frame = exact_frame(pa.concat_tables(parts).unify_dictionaries())
        if _CLASS in made:
            names = pd.Index(self.classes)
            frame[_CLASS] = pd.Categorical.from_codes(frame[_CLASS].to_numpy(), categories=names)
        return frame

    def _table_columns(self) -> dict[str, _Made]:
        """Everything that can be in the table, by name."""
        schema = self.files.schema
        columns: dict[str, tuple[str, Kind]] = {
            field.name: (field.column, field.kind)
            for field in self.fields
            if field.kind != "numbers"  # its columns are there by their own names
        }
        taken = {name for name, _ in columns.values()}
        for name in schema.names:
            kinds = kinds_of(schema.field(name).type)
            if kinds and name not in taken and name not in columns:
                columns[name] = (name, kinds[0])
        made: dict[str, _Made] = {}
        for field, (name, kind) in columns.items():
            if kind == "label" and field in self.label_classes:
                made[field] = (name, partial(label_codes, classes=self.label_classes[field]))
                if field == next(iter(self.label_classes)):
                    made.setdefault(_CLASS, made[field])
            elif kind in ("number", "label", "text"):
                made[field] = (name, None)
            if kind == "text" or has_lengths(schema.field(name).type):
                made[f"{field}_length"] = (name, _lengths)
        return made


def _lengths(array: pa.Array) -> pa.Array:
    """Lengths of lists, or of texts in characters."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        return _lengths(array.dictionary).take(array.indices)
    if is_text(array.type):
        return pc.utf8_length(array.cast(pa.large_string()))
    return pc.list_value_length(array)
