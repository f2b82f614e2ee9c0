"""Tables of any format as map-style datasets: read once by pyarrow, then mapped.

    root/*.parquet, *.arrow, *.feather, *.csv, *.tsv, *.jsonl

The columns that the fields are made of are converted once into the files of a pack in `cache_dir`
(one for each version of the files), which every sampler reads in any order. They take the room of
the decoded columns; what is larger than the disk is read by a stream (`stream.py`).

Cost: 0.1 us a row and column, once; then 0.02 us a number and 0.2 us a text, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from torch.utils.data import Dataset

from penstock.addons.packs.folder import Pack, PackWriter
from penstock.addons.storage.arrays import CacheFolder
from penstock.addons.storage.files import RecordFiles
from penstock.addons.tables.kinds import (
    Fields,
    has_lengths,
    is_text,
    kinds_of,
)
from penstock.addons.tables.read import SUFFIXES, Csv, Quoting, exact
from penstock.addons.tables.source import BAD, DECODED, BadFields, Source, TableDataset
from penstock.datasets.files import Files, generated_folder
from penstock.datasets.reading.base import (
    Part,
    Sample,
    Split,
    fingerprint,
)
from penstock.datasets.reading.image import Reader
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Fraction, Limits, Seed
from penstock.files.paths import is_remote, join
from penstock.order.keys import IntArray

if TYPE_CHECKING:
    import pandas as pd

_VERSION = 2  # of converted tables


class Parquet(TableDataset, Dataset[Sample]):
    """One sample: a row, with the fields that its columns are made into (`kinds`).

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
        val_fraction: share of the rows that validate; 0 and 1 leave all to one split.
        split_seed: another seed, another split.
        reader: of images: "torchvision", "pillow" or "skimage".
        cache_dir: where converted tables are kept.
        files: how remote files are fetched and kept.
        limits: `record_bytes` of a cell, `classes`.
        test_fraction: share of the rows to keep for a test.

    Raises:
        DataError: a file is missing, cut off, or of another schema than the first; the split has no
            row. A cell that is null or damaged is refused when it is read.
        ConfigError: there is no such column, or it is not of that kind.
    """

    kinds: ClassVar[dict[str, str]] = {}  # of fields of torchvision's types, which are not gathered

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
        cache_dir: str = "data/cache/tables",
        files: Files | None = None,
        limits: Limits | None = None,
        test_fraction: Fraction = 0.0,
    ) -> None:
        self._cache_dir = cache_dir
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
        self._pack = self._mapped(trained)
        self._texts = self._pack.record["classes"]
        if trained is not self.source:  # files of validation have the classes of training
            self._pack = self._mapped(self.source)
        self._ends = np.cumsum(self._pack.record["rows"])
        self.rows = self._rows_of(int(self._ends[-1]))

    def _mapped(self, source: Source) -> Pack:
        """The converted columns of some files, which are made if they are not there."""
        # All that the converted columns depend on names their folder, so two runs never read each
        # other's.
        how: list[Part] = [_VERSION, self._limits.record_bytes, repr(source.text)]
        how += [*map(repr, (*self.fields, self._stored, self._texts))]
        how += map(source.files.key, range(len(source.files)))
        folder = Path(self._cache_dir).expanduser().absolute() / f"columns-{fingerprint(how)}"
        # Ranks and jobs of a sweep wait for the first one, which converts.
        generated_folder(folder, partial(self._convert, source), "dataset.cache_dir")
        return Pack(folder)

    def _convert(self, source: Source, folder: Path) -> None:
        """Write the columns of all rows of some files into a folder."""
        # Another pass over the labels, because a label is stored as its number.
        self._find_classes(source)
        counts, bad = [0] * len(source.files), list[BadFields]()
        writer = PackWriter(folder, self._stored, self._ragged)
        for number, batch in source.batches(self._columns):
            columns, wrong = self._converted(batch)
            writer.append(columns)
            counts[number] += batch.num_rows
            bad.append(wrong)
        if not sum(counts):
            raise DataError(f"{source.files.addresses[0]!r} has no rows.")
        np.save(folder / f"{BAD}.npy", np.concatenate(bad))
        writer.finish({"rows": counts, "classes": self._texts})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        return self._samples(self._pack, self.rows.rows([index]), self._place)[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Samples of a whole batch."""
        return self._samples(self._pack, self.rows.rows(indices), self._place)

    @cached_property
    def fetches_batches(self) -> bool:
        """Whether `fetch_batch` can be used: no field is decoded."""
        return all(field.kind not in DECODED for field in self.fields)

    def fetch_batch(self, indices: IntArray, in_place: bool = False) -> dict[str, Any]:
        """Rows as the fields of a batch, by a gather of each column."""
        rows = self.rows.rows(indices)
        self._check(self._pack, rows, self._place)
        return {name: self._pack.gathered(name, rows) for name in self._stored}

    def _place(self, row: int) -> tuple[int, int]:
        file = int(np.searchsorted(self._ends, row, side="right"))
        return file, row - int(self._ends[file - 1] if file else 0)

    def text_lengths(self, length: Callable[[str], int], name: str) -> npt.NDArray[np.int32]:
        """The length of each sample's first text as `length` counts it, int32[N], kept under
        `name`.

        Raises:
            ConfigError: there is no text.
        """
        field = next((field.name for field in self.fields if field.kind == "text"), None)
        if field is None:
            raise ConfigError(Problem("dataset.fields", "no field is a text, of which to count"))
        # A tokenizer counts a text at a time; the texts of a piece are in memory together.
        pieces = np.array_split(np.arange(self._pack.count), 1 + self._pack.count // 4096)
        texts = (text for rows in pieces for text in self._pack.values(field, rows))
        cache = CacheFolder(self._cache_dir, f"lengths-{Path(self._pack.folder).name}")
        kept_as = fingerprint([field, name])[:16]
        return cache.text_lengths(kept_as, texts, self._pack.count, length)[self._all]

    @property
    def _all(self) -> IntArray:
        return self.rows.rows(np.arange(len(self)))

    def _classes_of(self, rows: IntArray) -> dict[str, Any]:
        """Label fields -> the number of each row's class; and `class`, the first one's name."""
        import pandas as pd

        made: dict[str, Any] = {name: self._pack.rows(name, rows) for name in self._labels}
        for codes in [*made.values()][:1]:
            made["class"] = pd.Categorical.from_codes(codes, pd.Index(self.classes))
        return made

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample, without images:

            column of the files     in the table
            numbers                 as they are
            label fields            the number of the class; the first one's name too, as `class`
            text                    as it is, and its length in characters as `<name>_length`
            lists                   their length as `<name>_length`

        A field has its name in the samples, any other column its name in the files, from which the
        columns are read.
        """
        import pandas as pd

        made, schema = self._classes_of(self._all), self.source.schema
        names = {of.columns[0]: of.name for of in self.fields if of.kind != "numbers"}
        kinds = {column: kinds_of(schema.field(column).type)[:1] for column in schema.names}
        # Images would be gigabytes, and no sampler or filter asks for their bytes.
        told = [n for n, kind in kinds.items() if {*kind} & {"number", "text", "label", "tensor"}]
        batches = [batch for _, batch in self.source.batches(told)]
        table = pa.Table.from_batches(batches).take(pa.array(self._all)) if told else pa.table({})
        for column, cells in zip(table.column_names, table.columns, strict=True):
            name = names.get(column, column)
            if name in made:  # a label
                continue
            if is_text(cells.type):
                made[f"{name}_length"] = exact(pc.utf8_length(cells))
            if has_lengths(cells.type):
                made[f"{name}_length"] = exact(pc.list_value_length(cells))
            elif kinds[column] != ("tensor",):
                made[name] = exact(cells)
        return pd.DataFrame(made, index=pd.RangeIndex(len(self)))


class DelimitedText(Parquet):
    """One sample of a CSV or TSV: `text` (str) and, with a label column, `label` (int).

    Args:
        root: the file, or its folder; a path or an address.
        split: "train", "val" or "test".
        file: name of the file in the folder `root`.
        val_file: another file that validates; without one, rows of `file` do.
        delimiter: one character; None is a comma for `.csv`, else a tab.
        header: whether the first record names the columns; None: it does if `columns` are not
            given, or are the same.
        columns: names of all columns, in order.
        text: the column of texts.
        label: the column of classes, or None.
        classes: their names, numbered in this order; None finds them in the file that trains, and
            numbers them by name.
        quoting: "standard" (RFC 4180) or "none", where quotes are characters like others.
        encoding: any that Python knows.
        val_fraction: share of the rows that validate, spread evenly over the file.
        split_seed: another seed, another split.
        cache_dir: where converted tables are kept.
        files: access to addresses.
        limits: `record_bytes` and `classes`.
        test_fraction: share of the rows to keep for a test.

    Raises:
        DataError: the file is missing, empty, has no rows or other columns, or an open quote; a
            record has too few or too many fields. A label that is no class is refused with its row
            when it is read.
        ConfigError: an argument is out of range.
    """

    columns: ClassVar[tuple[str, ...]] = ("length", "label", "class")  # without label: length
    _key = "dataset."

    def __init__(
        self,
        root: str,
        split: Split = "train",
        file: str | None = None,
        val_file: str | None = None,
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
        cache_dir: str = "data/cache/tables",
        files: Files | None = None,
        limits: Limits | None = None,
        test_fraction: Fraction = 0.0,
    ) -> None:
        def files_of(split: str) -> RecordFiles:
            whole = val_file is not None and split == "val"
            name = val_file if whole else file
            address = root if name is None else join(root, name)
            made = RecordFiles([address], [address.rpartition("/")[2]], files)
            # With a file that validates, no row of the other one does.
            made.divided, made.whole = val_file is not None, whole
            return made

        self._cache_dir = cache_dir
        if file is None and not is_remote(root) and Path(root).expanduser().is_dir():
            reason = f"{root!r} is a folder; name the file in it"
            raise ConfigError(Problem("dataset.file", reason))
        self._open(
            files_of,
            split,
            text_fields(text, label),
            None,
            classes,
            (val_fraction, split_seed, test_fraction),
            "torchvision",
            limits,
            Csv(delimiter, header, columns, quoting, encoding),
        )

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: length (bytes of its text), label, class (its name)."""
        import pandas as pd

        # Not by way of the files, whose texts a filter or sampler of labels would read.
        offsets, rows = self._pack.array("text.offsets"), self._all
        return pd.DataFrame({"length": offsets[rows + 1] - offsets[rows], **self._classes_of(rows)})


def text_fields(text: str, label: str | None) -> Fields:
    """The fields of a text and its class."""
    fields: dict[str, Mapping[str, str]] = {"text": {"column": text, "kind": "text"}}
    return fields if label is None else {**fields, "label": {"column": label, "kind": "label"}}
