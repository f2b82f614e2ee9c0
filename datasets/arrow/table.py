"""Rows of Parquet and Arrow files as samples: what the map-style dataset and the stream share.

A row is (row group, row in it). Its row group is read with the chosen columns only, and prepared
once; the last used ones are kept (`arrow.row_groups`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from pipeline.datasets.arrow.cells import Cells, read_cells
from pipeline.datasets.arrow.columns import (
    Column,
    Fields,
    choose_columns,
    num_features,
    require_pyarrow,
)
from pipeline.datasets.arrow.file import SUFFIXES, damage_errors, first_line
from pipeline.datasets.arrow.files import ArrowFiles, in_one_piece
from pipeline.datasets.arrow.labels import find_classes
from pipeline.datasets.arrow.row_groups import RowGroups
from pipeline.datasets.files import Files
from pipeline.datasets.reading.data_file import DataFile, data_file
from pipeline.datasets.reading.fingerprint import FileDataset, Part
from pipeline.datasets.reading.image import check_reader
from pipeline.datasets.reading.shard_files import ShardFiles, split_of
from pipeline.datasets.reading.split import (
    AllRows,
    ListedRows,
    RowSplit,
    TableRows,
    check_split,
    rows_before,
)
from pipeline.errors import ConfigError, DataError, Problem
from pipeline.files.limits import Limits
from pipeline.order.randomness import IntArray

_log = logging.getLogger(__name__)

_MIB = 1 << 20
_PREPARED = 4096  # bytes of a prepared column beside its data, about,
_PER_ROW = 8  # and for each of its rows (offsets, codes)
_BLOCKS = 64  # of 4 KiB of a file that its fingerprint is made of
_SPREAD = 1 << 16  # rows of the split, likewise


@dataclass(frozen=True)
class TableOptions:
    """What a person says about a table; `pipeline.datasets.parquet.Parquet` tells the meaning."""

    fields: Fields | None = None
    split_column: str | None = None
    classes: Sequence[str] | None = None
    metadata_columns: Sequence[str] | None = None
    val_fraction: float = 0.2
    split_seed: int = 0
    reader: str = "torchvision"
    cache_mb: int = 512
    limits: Limits = field(default_factory=Limits)


class ArrowTable(FileDataset):
    """The rows of one split.

    Args:
        root: a folder, a file or a pattern, here or at an address.
        split: "train" or "val".
        options: what else there is to say.
        files: how to get at what lies at an address.
        advice: said once when most of what is read goes unused.

    Attributes:
        files: the row groups.
        columns: the fields of a sample.
        classes: label field -> names of its classes.
        rows: which rows of the files belong to the split.
    """

    def __init__(
        self,
        root: str,
        split: str,
        options: TableOptions,
        files: Files | None = None,
        advice: str = "",
    ) -> None:
        check_split(split, options.val_fraction)
        check_reader(options.reader)
        require_pyarrow()
        self.options = options
        files = files or Files()
        shards = ShardFiles.of(root, split, SUFFIXES, files)
        self.files = ArrowFiles(shards.addresses, files, options.limits)
        self._files = files
        self._names = np.array([os.fsencode(name) for name in shards.names])
        self.columns = self._chosen_columns(warn=split == "train")
        self.files.check([*self._read, *([options.split_column] if options.split_column else [])])
        trained = self.files
        if shards.divided and split == "val" and options.classes is None and self._labels:
            train = ShardFiles.of(root, "train", SUFFIXES, files)
            trained = ArrowFiles(train.addresses, files, options.limits)
        self.classes = find_classes(trained, self._labels, options.classes, options.limits)
        self.rows = self._rows_of(split, shards.divided)
        if len(self) == 0:
            raise DataError(f"dataset.root: {root!r} has no rows for the split {split!r}.")
        self._groups = RowGroups(self._prepare, options.cache_mb * _MIB, advice)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def _read(self) -> list[str]:
        """Names of the columns that samples are made of, each once."""
        return list(dict.fromkeys(column.name for column in self.columns))

    @property
    def _labels(self) -> list[Column]:
        """The fields of labels, the one called so first."""
        labels = [column for column in self.columns if column.kind == "label"]
        return sorted(labels, key=lambda column: column.field != "label")

    def _chosen_columns(self, warn: bool) -> list[Column]:
        options, schema = self.options, self.files.schema
        split_column = options.split_column
        if split_column is not None and split_column not in schema.names:
            known = ", ".join(schema.names)
            reason = f"there is no column {split_column!r}; there are {known}"
            raise ConfigError(Problem("dataset.split_column", reason))
        without = [] if split_column is None else [split_column]
        columns, left_out = choose_columns(schema, options.fields, without)
        if not columns:
            raise DataError(f"{self.files.name(0)!r} has no column that a field can be made of.")
        if left_out and warn:
            types = ", ".join(f"{name} ({schema.field(name).type})" for name in left_out[:20])
            types += f" and {len(left_out) - 20} more" if len(left_out) > 20 else ""
            _log.warning("%s: no fields are made of %s", self.files.name(0), types)
        return columns

    def _rows_of(self, split: str, divided: bool) -> TableRows:
        options, total = self.options, self.files.num_rows
        if options.split_column is not None:
            return self._rows_by_column(split, options.split_column)
        if divided:
            return AllRows(total)
        return RowSplit(total, split, options.val_fraction, options.split_seed)

    def _rows_by_column(self, split: str, column: str) -> ListedRows:
        chosen = [np.empty(0, np.int64)]
        for group in range(len(self.files)):
            table, _ = self.files.read(group, [column])
            with self.files.reading(group):
                values = in_one_piece(table, column).to_pylist()
            wanted = [split_of(str(value)) == split for value in values]
            chosen.append(self.files.bounds[group] + np.flatnonzero(wanted))
        return ListedRows(np.concatenate(chosen))

    def locate(self, indices: Sequence[int]) -> tuple[IntArray, IntArray]:
        """Row groups of samples, and their rows in them: int64[n] each."""
        rows = self.rows.rows(indices)
        groups = np.searchsorted(self.files.bounds, rows, side="right") - 1
        return groups, rows - self.files.bounds[groups]

    def rows_in(self, group: int, start: int = 0) -> IntArray:
        """The rows of a row group that belong to the split, ascending, from the `start`th on."""
        first, last = rows_before(self.rows, self.files.bounds[group : group + 2]).tolist()
        return self.rows.rows(np.arange(first + start, last)) - self.files.bounds[group]

    @cached_property
    def group_lengths(self) -> list[int]:
        """Rows of the split in each row group."""
        return np.diff(rows_before(self.rows, self.files.bounds)).tolist()

    def samples(self, group: int, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Samples of some rows of one row group.

        Raises:
            DataError: names the file, the row in it and the column.
        """
        prepared, check_length = self._groups.get(group, len(rows))
        check_length()
        return [
            {field: self._cell(group, row, field, cells) for field, cells in prepared.items()}
            for row in rows
        ]

    def _cell(self, group: int, row: int, field: str, cells: Cells) -> Any:
        try:
            return cells(row)
        except DataError as error:  # of an image, which says what to do
            raise DataError(f"{self._where(group, row, field)}: {error}") from error
        except damage_errors() as error:
            reason = first_line(error)
            raise DataError(
                f"{self._where(group, row, field)}: {reason}. Repair the value or take the row out."
            ) from error

    def _where(self, group: int, row: int, field: str) -> str:
        column = next(column.name for column in self.columns if column.field == field)
        return self.files.where(group, row, column)

    def _prepare(self, group: int) -> tuple[tuple[Mapping[str, Cells], Callable[[], None]], int]:
        table, size = self.files.read(group, self._read)
        with self.files.reading(group):
            prepared = {
                column.field: read_cells(
                    column,
                    in_one_piece(table, column.name),
                    self.classes.get(column.field, []),
                    self.options.reader,
                    self.options.limits,
                )
                for column in self.columns
            }
        size += (_PREPARED + _PER_ROW * table.num_rows) * len(prepared)
        return (prepared, self.files.length_check(group)), size

    @property
    def facts(self) -> dict[str, int]:
        """num_classes and num_outputs of the first label, num_features of the first tensor."""
        facts = {}
        for classes in list(self.classes.values())[:1]:
            facts = {"num_classes": len(classes), "num_outputs": len(classes)}
        features = num_features(self.files.schema, self.columns)
        return facts if features is None else facts | {"num_features": features}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The fields and rows, the files' names, and a spread of blocks of each."""
        parts: list[Part] = ["arrow_table", self.options.reader]
        parts += [f"{one.field} {one.name} {one.kind}" for one in self.columns]
        parts += [f"{field} {name}" for field, names in self.classes.items() for name in names]
        for file, name in enumerate(self._names.tolist()):
            parts.append(name)
            if sized:
                content = self.files.content(file)
                parts += [content.size, *content.sample(_BLOCKS)]
        total = len(self)
        spread = np.unique(np.linspace(0, total - 1, min(total, _SPREAD)).astype(np.int64))
        return [*parts, total, self.rows.rows(spread)]

    def data_files(self) -> list[DataFile]:
        named = enumerate(map(os.fsdecode, self._names.tolist()))
        return [data_file(name, self.files.name(file), self._files) for file, name in named]
