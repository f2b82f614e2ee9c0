"""A CSV or TSV file of any size as a map-style dataset: a text and its class in each record.

    Label<tab>SMS
    ham<tab>Ok lar... Joking wif u oni...

The file is indexed once (`text.record_index`), so every sampler works on files larger than memory:
half a second and an index of 8 MB for 2 GB; a record is one read of about 4 KiB. Labels and lengths
take another pass if they are needed (`text.column_scan`), 5 s for 2 GB, and are also kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from penstock.addons.tables.text.column_scan import ColumnScan
from penstock.addons.tables.text.delimited_format import BadRecord, DelimitedFormat, class_codes
from penstock.addons.tables.text.record_index import Quoting, RecordIndex
from penstock.addons.tables.text.record_reader import compression_of
from penstock.datasets.files import Files
from penstock.datasets.reading.data_file import DataFile
from penstock.datasets.reading.fingerprint import FileDataset, Part
from penstock.datasets.reading.split import RowSplit, Split, check_split
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Limits
from penstock.ranges import Fraction, Seed

if TYPE_CHECKING:
    import pandas as pd


class DelimitedText(FileDataset, Dataset[dict[str, Any]]):
    """One sample: `text` (str) and, with a label column, `label` (int).

    Args:
        root: the file, or its folder; a path or an address.
        split: "train" or "val".
        file: name of the file in the folder `root`.
        val_file: another file that validates; without one, rows of `file` do.
        delimiter: one ASCII character; None is a comma for `.csv`, else a tab.
        header: whether the first record names the columns; None: it does if `columns` are not
            given, or are the same.
        columns: names of all columns, in order.
        text: the column of texts.
        label: the column of classes, or None.
        classes: their names, numbered in this order; None finds them in the file, which takes a
            pass over it, and numbers them by name.
        quoting: "standard" (RFC 4180) or "none", where quotes are characters like others.
        encoding: UTF-8, or one with a byte a character.
        val_fraction: share of the rows that validate, spread evenly over the file.
        split_seed: another seed, another split.
        cache_dir: where indexes are kept.
        files: access to addresses.
        limits: `record_bytes`, `columns` and `classes`.

    Raises:
        DataError: the file is missing, empty, has no rows or other columns, or its quotes are
            wrong. A record with too few fields, in another encoding or of an unknown class is
            refused with its line when it is read.
        ConfigError: the file is compressed, or an argument is out of range.
    """

    draws = False  # reading a sample takes no random numbers
    columns: ClassVar[tuple[str, ...]] = ("length", "label", "class")  # without label: length

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
        cache_dir: str = "data/cache/text",
        files: Files | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        check_split(split, val_fraction)
        chosen = val_file if val_file and split == "val" else file
        address = root if chosen is None else f"{root.rstrip('/')}/{chosen}"
        self.path = path = (files or Files()).local(address)
        if chosen is None and path.is_dir():
            reason = f"{str(path)!r} is a folder; name the file in it"
            raise ConfigError(Problem("dataset.file", reason))
        packed = compression_of(path)
        if packed is not None:
            reason = (
                f"{str(path)!r} is compressed ({packed}) and can only be read forwards: unpack it, "
                "or use dataset=delimited_stream "
                "(penstock.addons.tables.delimited_stream.DelimitedStream)"
            )
            raise ConfigError(Problem("dataset.file" if chosen else "dataset.root", reason))
        self._name = (chosen or root).rpartition("/")[2]  # a fetched file has another
        self.format = DelimitedFormat.of(path.name, delimiter, quoting, encoding, limits)
        self.index = RecordIndex(path, quoting, self.format.delimiter, cache_dir, limits)
        if not len(self.index):
            raise DataError(f"{str(path)!r} is empty: it needs records of a text and its class.")
        self._columns = self.format.columns(self.index[0], str(path), header, columns, text, label)
        count = len(self.index) - self._columns.in_file
        if not count:
            raise DataError(f"{str(path)!r} has a header and no rows.")
        share = (1.0 if split == "val" else 0.0) if val_file else val_fraction
        self.rows = RowSplit(count, split, share, split_seed)
        self._identity = [split, share, split_seed]
        self._given = class_codes(classes) if classes is not None else None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Samples of a whole batch; their rows are found at once."""
        samples = []
        for number in (self.rows.rows(indices) + self._columns.in_file).tolist():
            try:
                sample = self.format.sample(self.index[number], self._columns, self._codes)
            except BadRecord as bad:
                where = f"line {self.index.line(number)} (record {number})"
                raise DataError(f"{str(self.path)!r}, {where}: {bad}") from None
            samples.append(sample)
        return samples

    @property
    def classes(self) -> list[str]:
        """Names of the classes; empty without a label column."""
        return list(self._codes)

    @cached_property
    def _codes(self) -> dict[str, int]:
        if self._columns.label is None:
            return {}
        return self._given or {name: code for code, name in enumerate(self._scan.classes)}

    @property
    def _scan(self) -> ColumnScan:
        return ColumnScan(self.index, self.format, self._columns, self._given)

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: length (bytes of the record), label, class (its name)."""
        import pandas as pd

        scan = self._scan
        rows = self.rows.rows(np.arange(len(self)))
        table = pd.DataFrame({"length": scan.lengths[rows]})
        if scan.labels is not None:
            labels = scan.labels[rows]
            names = pd.Categorical.from_codes(labels, categories=pd.Index(self.classes))
            table["label"], table["class"] = labels, names
        return table

    def text_lengths(self, length: Callable[[str], int], name: str) -> npt.NDArray[np.int32]:
        """The length of each sample's text as `length` counts it, int32[N].

        It takes a pass over the file, whose result is kept under `name`.
        """
        return self._scan.text_lengths(length, name)[self.rows.rows(np.arange(len(self)))]

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """How the file is read and divided, and the file (of a large one, evenly spread blocks)."""
        how = [repr(self.format), repr(self._columns), repr(self._given), *self._identity]
        file = self.index.file
        content = [file.size, *file.sample(1024)] if sized else [self._name]
        return ["delimited_text", *how, *content]

    def data_files(self) -> list[DataFile]:
        return [DataFile(self._name, str(self.path))]
