"""What a converted table (`table.py`) and one that is read forwards (`stream.py`) share: the files,
the fields that their rows become, the classes, and the samples of some rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.addons.audio.reading import check_soundfile, read_audio, read_header
from penstock.addons.packs.folder import Column, Pack
from penstock.addons.storage.files import RecordFiles, split_of
from penstock.addons.storage.rows import ListedRows, TableRows, no_column
from penstock.addons.tables.columns import Labels, Mask, converted, stored_field
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

BAD = "table.bad"  # which rows are bad; no field has a file with a dot in its name
DECODED = ("image", "audio", "rate")


class Source:
    """Some files with the same columns.

    Attributes:
        schema: of the first file.
        exact: whether no file may have other columns, for nobody has chosen some.
    """

    exact = False

    def __init__(self, files: RecordFiles, text: Csv) -> None:
        self.files, self.text = files, text
        self.schema = self.open(0).schema

    def open(self, number: int) -> TableFile:
        """A file; of Parquet at an address, only what is read is fetched."""
        address = self.files.addresses[number]
        in_parts = self.files.is_remote and address.lower().endswith(".parquet")
        file = self.files.open(number) if in_parts else str(self.files.path(number))
        return TableFile(file, address, self.text)

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[int, TableFile, pa.RecordBatch]]:
        """All rows of these columns: the number of the file, the file, some of its rows.

        Raises:
            DataError: a file is damaged, or has other columns than the first.
        """
        for number in range(len(self.files)):
            file = self.open(number)
            self.check(file, columns)
            for batch in file.batches(columns):
                yield number, file, batch

    def check(self, file: TableFile, columns: Sequence[str]) -> None:
        """Refuse a file whose `columns` are missing or of other types than in the first file."""
        others = {*file.schema.names} ^ {*self.schema.names} if self.exact else set()
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
        """Read the schema, choose the fields and number the classes.

        Args:
            files_of: split -> its files.
            shares: val_fraction, split_seed, test_fraction.
            lazy: images stay undecoded.
        """
        check_split(split, shares[0], shares[2])
        self._split, self._shares, self._split_column = split, shares, split_column
        self._reader, self._limits, self.lazy = check_reader(reader), limits or DEFAULT, lazy
        files = files_of(split)
        self.source = trained = Source(files, text)
        if files.whole:  # the training files say which fields and classes there are
            trained = Source(files_of("train"), text)
        self._schema = schema = trained.schema
        if split_column is not None and split_column not in schema.names:
            reason = no_column(split_column, schema.names)
            raise ConfigError(Problem("dataset.split_column", reason))
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
            check_soundfile()
        self.source.exact = trained.exact = fields is None
        trained.check(self.source.open(0), self._columns)
        layouts = {field.name: stored_field(field, schema) for field in self.fields}
        self._stored = {name: stored for name, (stored, _) in layouts.items()}
        self._shapes = {name: shape for name, (_, shape) in layouts.items()}
        self._ragged = [name for name, shape in self._shapes.items() if shape is None]
        self._number(trained, classes)
        self._divide()

    def _labels_of(self, source: Source, named: bool) -> dict[str, Labels]:
        """Label field -> the texts in its column of these files.

        Args:
            named: whether the classes of the first one are known.
        """
        raise NotImplementedError

    def _divide(self) -> None:
        """Find the rows of the split."""
        raise NotImplementedError

    def _new_labels(self, schema: pa.Schema) -> dict[str, Labels]:
        labels = [field for field in self.fields if field.kind == "label"]
        labels.sort(key=lambda field: field.name != "label")
        named = [(field.name, field.columns[0]) for field in labels]
        return {
            name: Labels(written_classes(schema, column), is_whole(schema.field(column).type))
            for name, column in named
        }

    def _number(self, trained: Source, classes: Sequence[str] | None) -> None:
        """Number the classes by those of the files of training, or by `classes`."""
        if classes is not None and not (len({*classes}) == len(classes) > 0):
            reason = f"{list(classes)!r}; allowed: a list of different texts"
            raise ConfigError(Problem("dataset.classes", reason))
        self.label_classes: dict[str, list[str]] = {}
        self._order: dict[str, dict[str, int]] = {}  # label field -> text -> number of its class
        for name, labels in self._labels_of(trained, classes is not None).items():
            given = [str(text) for text in classes or ()] if not self.label_classes else []
            names, where = labels.written or given, f"{trained.files.addresses[0]!r}, {name!r}"
            if not names and not labels.codes:
                raise DataError(f"{where}: there are no labels. Name the classes: dataset.classes.")
            if not names and labels.whole:
                names = [str(number) for number in range(max(map(int, labels.codes)) + 1)]
            names = names or sorted(labels.codes)
            check_classes(len(names), where, self._limits)
            self._order[name] = {text: number for number, text in enumerate(names)}
            self.label_classes[name] = given or names  # new names for the numbers that files have
        self.classes = next(iter(self.label_classes.values()), [])

    def _converted(
        self, file: TableFile, batch: pa.RecordBatch, labels: Mapping[str, Labels]
    ) -> tuple[dict[str, Column], Mask]:
        """The fields of some rows as a pack stores them, and which rows are bad."""
        made, bad = {}, np.zeros(batch.num_rows, np.bool_)
        for field in self.fields:
            name, codes = field.name, None
            if name in labels:
                codes = labels[name].of(batch, field.columns[0], file.schema)
            made[name], wrong = converted(
                field, self._stored[name], self._shapes[name], batch, codes, self._limits
            )
            bad |= wrong
        return made, bad

    def _remapped(self, labels: Mapping[str, Labels]) -> dict[str, IntArray]:
        """Label field -> the class of each number of its texts, -1 of none: int64[n + 1]."""
        return {
            name: np.array([*(self._order[name].get(text, -1) for text in of.codes), -1])
            for name, of in labels.items()
        }

    def _check(
        self,
        pack: Pack,
        remap: Mapping[str, IntArray],
        rows: IntArray,
        place: Callable[[int], tuple[int, int]],
    ) -> None:
        """Raise DataError that names a cell if one of some rows of a pack is bad.

        Args:
            place: row of the pack -> the number of its file, and its row there.
        """
        bad = pack.array(BAD)[rows]
        for name, numbers in remap.items():
            bad = bad | (numbers[pack.rows(name, rows)] < 0)
        if bad.any():
            raise self._cell_error(*place(int(rows[bad.argmax()])))

    def _samples(
        self,
        pack: Pack,
        remap: Mapping[str, IntArray],
        rows: IntArray,
        place: Callable[[int], tuple[int, int]],
    ) -> list[Sample]:
        """The samples of some rows of a pack; arguments as for `_check`."""
        self._check(pack, remap, rows, place)
        columns: dict[str, list[Any]] = {}
        for field in self.fields:
            columns[field.name] = values = pack.values(field.name, rows)
            if field.name in remap:
                columns[field.name] = remap[field.name][values].tolist()
            elif field.kind in DECODED:
                places = [place(row) for row in rows.tolist()]
                columns[field.name] = [
                    self._decoded(field, value, *at)
                    for value, at in zip(values, places, strict=True)
                ]
        return [dict(zip(columns, of, strict=True)) for of in zip(*columns.values(), strict=True)]

    def _decoded(self, field: TableField, content: bytes, number: int, row: int) -> Any:
        where = f"{self.source.files.addresses[number]}, row {row}, column {field.columns[0]}"
        if field.kind == "image":
            image = undecoded(content, where, self._reader, self._limits)
            return image if self.lazy else image.decode()
        if field.kind == "audio":
            return read_audio(content, self._limits, where)[0]
        return read_header(content, self._limits, where).rate

    def _cell_error(self, number: int, row: int) -> DataError:
        """The error of a bad row of a file, which is read again to tell what it holds."""
        file, first = self.source.open(number), 0
        for batch in file.batches(self._columns):
            if row < first + batch.num_rows:
                break
            first += batch.num_rows
        one = batch.slice(row - first, 1)
        for field in self.fields:
            for column in field.columns:
                part = TableField(field.name, (column,), field.kind)
                value, labels = one.column(column)[0].as_py(), Labels(None, False)
                if field.kind == "label":
                    labels.of(one, column, file.schema)
                    bad = {*labels.codes}.isdisjoint(self._order[field.name])
                else:
                    stored = stored_field(part, self._schema)
                    bad = bool(converted(part, *stored, one, None, self._limits)[1].any())
                if not bad:
                    continue
                reason = f"{value!s:.60} is not finite, or too large"
                if value is None:
                    reason = "there is no value (null)"
                elif field.kind == "label":
                    names = self.label_classes[field.name]
                    shown = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
                    reason = f"{value!r:.60} is none of the {len(names)} classes {shown}"
                elif isinstance(value, dict):
                    reason = f"there are no bytes, only the path {value.get('path')!r:.60}"
                elif isinstance(value, list):
                    reason = f"{value!r:.60} is no tensor of finite numbers"
                where = f"{file.name!r}, row {row}, column {column!r}"
                return DataError(f"{where}: {reason}. Repair the value or take the row out.")
        raise AssertionError(f"row {row} of {file.name!r} is not bad")

    def _rows_of(self, total: int) -> TableRows:
        """The rows of the split, of so many in the files."""
        files, (val, seed, test) = self.source.files, self._shares
        rows: TableRows = files.rows(total, self._split, val, seed, test)
        if self._split_column is not None:
            batches = self.source.batches([self._split_column])
            texts = [str(text) for *_, batch in batches for text in batch.column(0).to_pylist()]
            rows = ListedRows(np.flatnonzero([split_of(text) == self._split for text in texts]))
        if not len(rows) and self._split != "test":  # of which there may be none
            raise DataError(f"{files.addresses[0]!r} has no rows for the split {self._split!r}.")
        return rows

    @property
    def facts(self) -> dict[str, int]:
        """num_classes and num_outputs of the first label, num_features of the first tensor whose
        type says its last dimension."""
        for field in self.fields:
            shape = self._shapes[field.name]
            if field.kind in ("tensor", "numbers") and shape:
                return super().facts | {"num_features": shape[-1]}
        return super().facts

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """How rows are read and divided, and the files."""
        parts: list[Part] = ["table", self._reader, self._split, repr(self._shares)]
        parts += [repr(self._split_column), *map(repr, self.fields)]
        parts += [repr(names) for names in self.label_classes.values()]
        files, each = self.source.files, max(2, 64 // len(self.source.files))
        for number, name in enumerate(files.names):
            parts += [name, *([int(files.sizes[number])] if sized else [])]
            parts += [bytes(piece) for piece in (files.sample(number, each) if sized else ())]
        return parts

    def data_files(self) -> list[DataFile]:
        return self.source.files.data_files()
