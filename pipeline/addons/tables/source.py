"""What a converted table (`table.py`) and one that is read forwards (`stream.py`) share: the files,
the fields that their rows become, the classes, and the samples of some rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.addons.audio.reading import check_soundfile, read_audio, read_header
from penstock.addons.packs.folder import Column, Pack
from penstock.addons.storage.files import RecordFiles, split_of
from penstock.addons.storage.rows import TableRows, no_column
from penstock.addons.tables.columns import converted, label_texts, stored_field
from penstock.addons.tables.kinds import (
    Fields,
    TableField,
    choose_fields,
    is_whole,
    written_classes,
)
from penstock.addons.tables.read import Csv, TableFile
from penstock.datasets.arrays import check_classes
from penstock.datasets.files import DataFile
from penstock.datasets.reading.base import FileDataset, Part, Sample, check_split
from penstock.datasets.reading.image import Reader, check_reader, undecoded
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Limits
from penstock.order.keys import IntArray

_log = logging.getLogger(__name__)

BAD = "table.bad"  # each row's bad field; no field has a file with a dot in its name
BadFields = npt.NDArray[np.int16]
DECODED = ("image", "audio", "rate")
Place = Callable[[int], tuple[int, int]]  # row of a pack -> the number of its file, its row there
# What is wrong with a bad cell, by the kind of its field.
_WRONG = {
    "number": "is no finite number of 64 bits",
    "numbers": "is no finite number of 64 bits",
    "tensor": "is no tensor of finite numbers",
}


class Source:
    """Some files with the same columns.

    Args:
        exact: whether no file may have other columns, for nobody has chosen some.

    Attributes:
        schema: of the first file.
    """

    def __init__(self, files: RecordFiles, text: Csv, exact: bool) -> None:
        self.files, self.text, self._exact = files, text, exact
        # Of one file alone: to open 1,000 files at an address takes a minute, and each is checked
        # when its rows are read.
        self.schema = self.open(0).schema

    def open(self, number: int) -> TableFile:
        """A file; of Parquet at an address, only what is read is fetched."""
        address = self.files.addresses[number]
        # Row groups alone are fetched of Parquet; of other formats all is read anyway.
        in_parts = self.files.is_remote and address.lower().endswith(".parquet")
        file = self.files.open(number) if in_parts else str(self.files.path(number))
        return TableFile(file, address, self.text)

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """All rows of these columns: the number of the file, and some of its rows.

        Raises:
            DataError: a file is damaged, or has other columns than the first.
        """
        for number in range(len(self.files)):
            file = self.open(number)
            self.check(file, columns)
            for batch in file.batches(columns):
                yield number, batch

    def check(self, file: TableFile, columns: Sequence[str]) -> None:
        """Refuse a file whose `columns` are missing or of other types than in the first file."""
        # A person who names the fields has chosen from what may differ.
        others = {*file.schema.names} ^ {*self.schema.names} if self._exact else set()
        for column in [*columns, *sorted(others.difference(columns))]:
            here, there = (
                schema.field(column).type if column in schema.names else "missing"
                for schema in (file.schema, self.schema)
            )
            if here != there:
                raise DataError(
                    f"{file.name!r}: column {column!r} is {here}, but in "
                    f"{self.files.addresses[0]!r} it is {there}. All files need the same columns: "
                    "write one of them again, or choose columns that all have (dataset.fields)."
                )


class TableDataset(FileDataset):
    """The fields and classes of the rows of one split, in any order or forwards.

    Attributes:
        fields: of a sample.
        classes: of the first label field.
        label_classes: label field -> names of its classes.
    """

    _key = "dataset.fields."  # that names a field

    def _open(
        self,
        files_of: Callable[[str], RecordFiles],
        split: str,
        fields: Fields | None,
        split_column: str | None,
        classes: Sequence[str] | None,
        shares: tuple[float, int, float],
        reader: Reader,
        limits: Limits | None,
        text: Csv,
        lazy: bool = False,
    ) -> None:
        """Read the schema, choose the fields, name the classes and find the rows.

        Args:
            files_of: split -> its files.
            shares: val_fraction, split_seed, test_fraction.
            lazy: images stay undecoded.
        """
        check_split(split, shares[0], shares[2])
        self._split, self._shares, self._split_column = split, shares, split_column
        self._reader, self._limits, self.lazy = check_reader(reader), limits or DEFAULT, lazy
        files = files_of(split)
        self.source = trained = Source(files, text, fields is None)
        if files.whole:  # the training files say which fields and classes there are
            trained = Source(files_of("train"), text, fields is None)
        self._schema = schema = trained.schema
        if split_column is not None and split_column not in schema.names:
            reason = no_column(split_column, schema.names)
            raise ConfigError(Problem("dataset.split_column", reason))
        # It says where a row belongs, and a model that sees it learns that.
        without = [split_column] if split_column else []
        self.fields = choose_fields(schema, fields, without, self._key)
        if not self.fields:
            raise DataError(f"{files.addresses[0]!r} has no column that a field can be made of.")
        self._columns = list(dict.fromkeys(c for field in self.fields for c in field.columns))
        left_out = {*schema.names}.difference(self._columns, without)
        if left_out and fields is None and split == "train":
            types = ", ".join(f"{n} ({schema.field(n).type})" for n in sorted(left_out)[:20])
            _log.warning("%s: no fields are made of %s", files.addresses[0], types)
        if any(field.kind in ("audio", "rate") for field in self.fields):
            # Before a table of gigabytes is converted for fields that nothing here can decode.
            check_soundfile()
        if files.whole:
            trained.check(self.source.open(0), self._columns)
        self._stored = {field.name: stored_field(field, schema) for field in self.fields}
        self._ragged = [name for name, stored in self._stored.items() if stored.shape is None]
        # `datasets` writes numbers and names them; a person's names are for those as well.
        names = self._name_classes(classes)
        # Names come first: a class that is named and has no row keeps its number.
        self._load(trained)
        self.label_classes = {name: names.get(name, texts) for name, texts in self._texts.items()}
        self.classes = next(iter(self.label_classes.values()), [])

    def _load(self, trained: Source) -> None:
        """Find the classes that nobody names in the files of training, and the rows."""
        raise NotImplementedError

    def _name_classes(self, classes: Sequence[str] | None) -> dict[str, list[str]]:
        """Label field -> the names that somebody has given to its classes.

        What its column has instead, which are numbers where `datasets` wrote it, is in `_texts`.
        """
        if classes is not None and not (len({*classes}) == len(classes) > 0):
            reason = f"{list(classes)!r}; allowed: a list of different texts"
            raise ConfigError(Problem("dataset.classes", reason))
        labels = [field for field in self.fields if field.kind == "label"]
        # `dataset.classes` names one label; the one that is called so is meant.
        labels.sort(key=lambda field: field.name != "label")
        self._labels = {field.name: field.columns[0] for field in labels}
        self._texts, names = dict[str, list[str]](), dict[str, list[str]]()
        given = [str(text) for text in classes or ()]
        for name, column in self._labels.items():
            written = written_classes(self._schema, column)
            if known := given or written:
                names[name] = known
                self._texts[name] = [str(n) for n in range(len(written))] if written else known
            given = []
        return names

    def _find_classes(self, source: Source) -> None:
        """Find the classes that nobody names, by a pass over the labels: in the order of texts, or
        all numbers to the largest."""
        found = {name: set[str]() for name in self._labels if name not in self._texts}
        columns = [*{self._labels[name] for name in found}]
        for _, batch in source.batches(columns) if columns else ():
            for name, texts in found.items():
                texts.update(label_texts(batch.column(self._labels[name]))[0])
        for name, texts in found.items():
            where = f"{source.files.addresses[0]!r}, {name!r}"
            if not texts:
                raise DataError(f"{where}: there are no labels. Name the classes: dataset.classes.")
            # The largest number counts, so it is compared with the limit before names are made.
            whole = is_whole(self._schema.field(self._labels[name]).type)
            count = max(map(int, texts)) + 1 if whole else len(texts)
            check_classes(count, where, self._limits)
            self._texts[name] = [*map(str, range(count))] if whole else sorted(texts)

    def _converted(self, batch: pa.RecordBatch) -> tuple[dict[str, Column], BadFields]:
        """The fields of some rows as a pack stores them, and the number of each row's first bad
        field, from 1: int16[n]."""
        made, bad = dict[str, Column](), np.zeros(batch.num_rows, np.int16)
        for number, field in enumerate(self.fields, 1):
            stored, classes = self._stored[field.name], self._texts.get(field.name, [])
            made[field.name], wrong = converted(field, stored, batch, classes, self._limits)
            # One bad field a row is enough: a person mends the cell and looks again.
            bad[wrong & (bad == 0)] = number
        return made, bad

    def _check(self, pack: Pack, rows: IntArray, place: Place) -> None:
        """Raise DataError that names a cell if one of some rows of a pack is bad."""
        # Conversion goes on over bad cells, so a table with one is of use for the other rows.
        bad = pack.array(BAD)[rows]
        if bad.any():
            at = int((bad > 0).argmax())
            raise self._cell_error(self.fields[bad[at] - 1], *place(int(rows[at])))

    def _samples(self, pack: Pack, rows: IntArray, place: Place) -> list[Sample]:
        """The samples of some rows of a pack."""
        self._check(pack, rows, place)
        # Column by column, because a pack reads a column's rows in one call.
        columns: dict[str, list[Any]] = {}
        for field in self.fields:
            values = pack.values(field.name, rows)
            if field.kind in DECODED:
                places = map(place, rows.tolist())
                values = [self._decoded(field, *of) for of in zip(values, places, strict=True)]
            columns[field.name] = values
        return [dict(zip(columns, of, strict=True)) for of in zip(*columns.values(), strict=True)]

    def _decoded(self, field: TableField, content: bytes, place: tuple[int, int]) -> Any:
        address = self.source.files.addresses[place[0]]
        where = f"{address}, row {place[1]}, column {field.columns[0]}"
        if field.kind == "image":
            image = undecoded(content, where, self._reader, self._limits)
            return image if self.lazy else image.decode()
        if field.kind == "audio":
            return read_audio(content, self._limits, where)[0]
        return read_header(content, self._limits, where).rate

    def _cell_error(self, field: TableField, number: int, row: int) -> DataError:
        """The error of a bad row of a file, which is read again to tell what it holds."""
        # A pack keeps zeros for a bad cell; its content is only in the file.
        file, first = self.source.open(number), 0
        for batch in file.batches(field.columns):
            if row < first + batch.num_rows:
                break
            first += batch.num_rows
        cells = batch.slice(row - first, 1).to_pylist()[0].items()
        shown = ", ".join(f"column {column!r}: {value!r:.60}" for column, value in cells)
        wrong = f"has no bytes, or more than limits.record_bytes allows ({field.kind})"
        if texts := self._texts.get(field.name):
            wrong = f"is none of the {len(texts)} classes {', '.join(texts[:8])}"
        wrong = _WRONG.get(field.kind, wrong)
        return DataError(
            f"{file.name!r}, row {row}, {shown} {wrong}. Repair the value or take the row out."
        )

    def _rows_of(self, total: int) -> TableRows:
        """The rows of the split, of so many in the files."""
        rows: TableRows = self.source.files.rows(total, self._split, *self._shares)
        if self._split_column is not None:
            batches = self.source.batches([self._split_column])
            texts = [str(text) for _, batch in batches for text in batch.column(0).to_pylist()]
            rows = TableRows(np.flatnonzero([split_of(text) == self._split for text in texts]))
        if not len(rows) and self._split != "test":  # of which there may be none
            where = self.source.files.addresses[0]
            raise DataError(f"{where!r} has no rows for the split {self._split!r}.")
        return rows

    @property
    def facts(self) -> dict[str, int]:
        """num_classes and num_outputs of the first label, num_features of the first tensor whose
        type says its last dimension."""
        for field in self.fields:
            shape = self._stored[field.name].shape
            if field.kind in ("tensor", "numbers") and shape:
                return super().facts | {"num_features": shape[-1]}
        return super().facts

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """How rows are read and divided, and the files."""
        parts: list[Part] = ["table", self._reader, self._split, repr(self._shares)]
        parts += [repr(self._split_column), *map(repr, self.fields)]
        parts += [repr(names) for names in self.label_classes.values()]
        files = self.source.files
        parts += files.names
        return [*parts, *files.sizes.tolist(), *map(bytes, files.pieces())] if sized else parts

    def data_files(self) -> list[DataFile]:
        return self.source.files.data_files()
