"""Rows of Parquet and Arrow files as samples: shared by the map-style dataset and the stream.

A row is (row group, row in it). Its row group is read with the chosen columns only and prepared
once; the last used ones are kept.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from penstock.addons.record_files.positioned_file import blocks_of_each
from penstock.addons.record_files.remote_bytes import side_by_side
from penstock.addons.record_files.shard_files import ShardFiles, data_file, split_of
from penstock.addons.storage.rows import (
    ListedRows,
    TableRows,
    no_column,
    rows_before,
)
from penstock.addons.tables.arrow.cells import Cells, read_cells
from penstock.addons.tables.arrow.columns import (
    Fields,
    TableField,
    choose_fields,
    find_classes,
    num_features,
    require_pyarrow,
)
from penstock.addons.tables.arrow.files import (
    SUFFIXES,
    ArrowFiles,
    damage_errors,
    first_line,
    in_one_piece,
    written_classes,
)
from penstock.addons.tables.arrow.gathering import (
    Gatherer,
    Layout,
    Lists,
    Numbers,
    Texts,
    columns_of,
    layouts_of,
)
from penstock.datasets.files import DataFile, Files
from penstock.datasets.reading.base import FileDataset, Part, Sample, Split, check_split
from penstock.datasets.reading.image import Reader, check_reader
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import Count, Fraction, Limits, Seed
from penstock.files.paths import is_remote
from penstock.order.keys import IntArray
from penstock.terminal import watched

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.addons.storage.client import Client

_log = logging.getLogger(__name__)

_PREPARED = 4096  # bytes of a prepared column beside its data, about,
_PER_ROW = 8  # and for each of its rows (offsets, codes)
_SPREAD = 1 << 16  # rows of the split, likewise

T = TypeVar("T")


class ArrowTable(FileDataset):
    """The rows of one split: base of the map-style dataset and the stream.

    Arguments and errors as `penstock.addons.tables.parquet.Parquet`.

    Attributes:
        files: the row groups.
        fields: of a sample.
        label_classes: label field -> names of its classes.
        classes: of the first label field.
        rows: which rows of the files belong to the split.
    """

    lazy: bool = False  # images stay undecoded
    outside: Callable[[str], bytes] | None = None  # reads a file that a cell has the path of

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
        cache_mb: Count = 512,
        files: Files | None = None,
        limits: Limits | None = None,
        test_fraction: Fraction = 0.0,
    ) -> None:
        check_split(split, val_fraction, test_fraction)
        check_reader(reader)
        require_pyarrow()
        self._reader, self._limits = reader, limits or Limits()
        self._files = files or Files()
        shards = self._shards(root, split)
        self._names = np.array([os.fsencode(name) for name in shards.names])
        self.files = self._opened(shards)
        self.fields = self._chosen_fields(fields, split_column, warn=split == "train")
        self._columns = list(
            dict.fromkeys(column for field in self.fields for column in field.sources)
        )
        labels = [field for field in self.fields if field.kind == "label"]
        labels.sort(key=lambda field: field.name != "label")
        trained = self.files
        if shards.whole and (fields is None or (classes is None and labels)):
            trained = self._opened(self._shards(root, "train"))
        needed = [*self._columns, *([split_column] if split_column else [])]
        self.files.check(needed, trained, fields is None)
        self.label_classes = find_classes(trained, labels, classes, self._limits)
        self.classes = next(iter(self.label_classes.values()), [])
        named = {field.column: self.label_classes[field.name] for field in labels}
        if classes is not None and labels:  # they may be new names for the numbers of the first
            written = written_classes(trained.schema, labels[0].column)
            named[labels[0].column] = written or self.classes
        self.files.number_by(named)
        total = int(self.files.bounds[-1])
        self.rows: TableRows
        if split_column is not None:
            self.rows = self._rows_by_column(split, split_column)
        else:
            self.rows = shards.rows(total, split, val_fraction, split_seed, test_fraction)
        if len(self) == 0 and split != "test":  # of which there may be none
            raise DataError(f"dataset.root: {root!r} has no rows for the split {split!r}.")
        self._most = cache_mb << 20
        self._groups = RowGroups(self._prepare, self._most)
        self._gatherer: Gatherer | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_gatherer": None}  # what it keeps is read again in a worker

    def __len__(self) -> int:
        return len(self.rows)

    def _shards(self, root: str, split: str) -> ShardFiles:
        """The files of a split."""
        return ShardFiles.of(root, split, SUFFIXES, self._files)

    def _opened(self, shards: ShardFiles) -> ArrowFiles:
        """Their row groups."""
        return ArrowFiles(shards.addresses, self._files)

    def _chosen_fields(
        self, fields: Fields | None, split_column: str | None, warn: bool
    ) -> list[TableField]:
        schema = self.files.schema
        if split_column is not None and split_column not in schema.names:
            reason = no_column(split_column, schema.names)
            raise ConfigError(Problem("dataset.split_column", reason))
        without = [] if split_column is None else [split_column]
        chosen, left_out = choose_fields(schema, fields, without)
        if not chosen:
            raise DataError(f"{self.files.name(0)!r} has no column that a field can be made of.")
        if left_out and warn:
            types = ", ".join(f"{name} ({schema.field(name).type})" for name in left_out[:20])
            types += f" and {len(left_out) - 20} more" if len(left_out) > 20 else ""
            _log.warning("%s: no fields are made of %s", self.files.name(0), types)
        return chosen

    def _rows_by_column(self, split: str, column: str) -> ListedRows:
        chosen = [np.empty(0, np.int64)]
        count = len(self.files)
        for group in watched(range(count), count, f"dividing rows by {column}"):
            table, _ = self.files.read(group, [column])
            with self.files.reading(group):
                values = in_one_piece(table, column).to_pylist()
            in_split = [split_of(str(value)) == split for value in values]
            chosen.append(self.files.bounds[group] + np.flatnonzero(in_split))
        return ListedRows(np.concatenate(chosen))

    def locate(self, indices: Sequence[int] | IntArray) -> tuple[IntArray, IntArray]:
        """Row groups of samples, and their rows in them: int64[n] each."""
        rows = self.rows.rows(indices)
        groups = np.searchsorted(self.files.bounds, rows, side="right") - 1
        return groups, rows - self.files.bounds[groups]

    @property
    def remote_files(self) -> Client | None:
        """The fetcher of the files, if they are at an address."""
        return self._files.remote if is_remote(self.files.name(0)) else None

    def files_of(self, indices: Sequence[int] | IntArray) -> list[list[str]]:
        """The addresses of the files of rows, or of their blocks: of a row group with its first."""
        groups, _ = self.locate(indices)
        _, firsts = np.unique(groups, return_index=True)
        addresses: list[list[str]] = [[] for _ in range(len(groups))]
        for first in firsts.tolist():
            addresses[first] = self.files_of_shard(int(groups[first]))
        return addresses

    def files_of_shard(self, group: int) -> list[str]:
        """The addresses that a row group is read from."""
        return [*self.files.addresses_of(group, tuple(self._columns))]

    def rows_in(self, group: int) -> IntArray:
        """The rows of a row group that belong to the split, ascending."""
        first, last = rows_before(self.rows, self.files.bounds[group : group + 2]).tolist()
        return self.rows.rows(np.arange(first, last)) - self.files.bounds[group]

    @cached_property
    def group_lengths(self) -> list[int]:
        """Rows of the split in each row group."""
        return np.diff(rows_before(self.rows, self.files.bounds)).tolist()

    def samples(self, group: int, rows: Sequence[int]) -> list[Sample]:
        """Samples of some rows of one row group.

        Raises:
            DataError: names the file, the row in it and the column.
        """
        prepared = self._groups.get(group).cells
        return [
            {field: self._cell(group, row, field, cells) for field, cells in prepared.items()}
            for row in rows
        ]

    def _cell(self, group: int, row: int, field: str, cells: Cells) -> Any:
        try:
            return cells(row)
        except DataError as error:  # of an image, with advice of its own
            raise DataError(f"{self._where(group, row, field)}: {error}") from error
        except damage_errors() as error:
            where = self._where(group, row, field, getattr(error, "column", None))
            raise DataError(
                f"{where}: {first_line(error)}. Repair the value or take the row out."
            ) from error

    def _where(self, group: int, row: int, field: str, column: str | None = None) -> str:
        column = column or next(known.column for known in self.fields if known.name == field)
        return self.files.where(group, row, column)

    def _prepare(self, group: int) -> tuple[_Group, int]:
        table, size = self.files.read(group, self._columns)
        with self.files.reading(group):
            arrays = {name: in_one_piece(table, name) for name in self._columns}
        prepared = _Preparation(
            self.fields,
            self.label_classes,
            self._reader,
            self._limits,
            self.files,
            self.lazy,
            self.outside,
        )
        return _Group(prepared, group, arrays), size + (
            _PREPARED + _PER_ROW * table.num_rows
        ) * len(self.fields)

    @cached_property
    def fetches_batches(self) -> bool:
        """Whether `gathered` can be used: every field is one of numbers, texts, bytes or lists."""
        return self._layouts is not None

    @cached_property
    def _layouts(self) -> dict[str, Layout] | None:
        types = {name: self.files.schema.field(name).type for name in self._columns}
        return layouts_of(self.fields, types, self._limits)

    def gathered(self, indices: IntArray) -> dict[str, Any]:
        """Rows of the split as the fields of a batch; see `gathering`.

        Raises:
            DataError: one of them cannot be read. By `samples` it is found which one.
        """
        gatherer = self._gatherer
        if gatherer is None:
            gatherer = Gatherer(
                self.fields,
                self._layouts or {},
                self.group_lengths,
                self.rows_in,
                self.locate,
                self._groups,
                self._most,
            )
            self._groups.limit = self._most - gatherer.kept_bytes
            self._gatherer = gatherer
        try:
            return gatherer.batch(indices)
        except damage_errors() as error:
            raise DataError(first_line(error)) from error

    @property
    def facts(self) -> dict[str, int]:
        """num_classes and num_outputs of the first label, num_features of the first tensor."""
        count = len(self.classes)
        facts = {"num_classes": count, "num_outputs": count} if self.label_classes else {}
        features = num_features(self.files.schema, self.fields)
        return facts if features is None else facts | {"num_features": features}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The fields and rows, the files' names, and a spread of blocks of each."""
        parts: list[Part] = ["arrow_table", self._reader]
        parts += [f"{known.name} {known.column} {known.kind}" for known in self.fields]
        parts += [repr(known.more) for known in self.fields if known.more]
        parts += [
            f"{field} {name}" for field, names in self.label_classes.items() for name in names
        ]
        names = self._names.tolist()
        if sized:
            sample = partial(self.files.sample, blocks=blocks_of_each(len(names)))
            remote = self.remote_files is not None
            samples = (side_by_side if remote else map)(sample, range(len(names)))
            for name, (size, blocks) in zip(names, samples, strict=True):
                parts += [name, size, *blocks]
        else:
            parts += names
        total = len(self)
        spread = np.unique(np.linspace(0, total - 1, min(total, _SPREAD)).astype(np.int64))
        return [*parts, total, self.rows.rows(spread)]

    def data_files(self) -> list[DataFile]:
        named = enumerate(map(os.fsdecode, self._names.tolist()))
        return [data_file(name, self.files.name(file), self._files) for file, name in named]


class _Preparation(NamedTuple):
    """How the columns of a row group are prepared; arguments of `read_cells` and `columns_of`."""

    fields: Sequence[TableField]
    classes: Mapping[str, list[str]]
    reader: str
    limits: Limits
    files: ArrowFiles
    lazy: bool
    outside: Callable[[str], bytes] | None


class _Group:
    """A row group in the cache: its columns, as they are asked for, by cell or together."""

    def __init__(self, how: _Preparation, number: int, arrays: Mapping[str, pa.Array]) -> None:
        self._how, self._number, self._arrays = how, number, arrays
        self._columns: dict[str, Numbers | Texts | Lists] = {}

    def of(self, field: TableField) -> list[pa.Array]:
        """The columns of a field."""
        return [self._arrays[name] for name in field.sources]

    @cached_property
    def cells(self) -> dict[str, Cells]:
        """Field -> row -> value."""
        how = self._how
        with how.files.reading(self._number):
            return {
                field.name: read_cells(
                    field,
                    self.of(field),
                    how.classes.get(field.name, []),
                    how.reader,
                    how.limits,
                    partial(self._where, field.column) if how.lazy else None,
                    how.outside,
                )
                for field in how.fields
            }

    def _where(self, column: str, row: int) -> str:
        return self._how.files.where(self._number, row, column)

    def column(self, name: str) -> Any:
        """A field as `gathering.columns_of` has it; kept for the next batch."""
        column = self._columns.get(name)
        if column is None:
            how = self._how
            field = next(field for field in how.fields if field.name == name)
            with how.files.reading(self._number):
                column = columns_of(field, self.of(field), how.classes.get(name, []), how.limits)
            self._columns[name] = column
        return column


class RowGroups(Generic[T]):
    """Cache of decoded row groups in one process: the last used ones, up to a number of bytes.

    A row group that is larger than the limit is kept alone, until the next one is read. Threads
    share the cache; when two of them miss the same row group at once, both read it.

    Args:
        load: number -> (value, bytes of memory that it takes).
        limit: bytes that are kept at most.
    """

    def __init__(self, load: Callable[[int], tuple[T, int]], limit: int) -> None:
        self._load = load
        self.limit = limit
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._held: OrderedDict[int, tuple[T, int]] = OrderedDict()
        self._size = 0

    def get(self, group: int) -> T:
        """A row group."""
        if self._process != os.getpid():  # a fork copies also a lock that another thread held
            self._begin()
        with self._lock:
            if group in self._held:
                self._held.move_to_end(group)
                return self._held[group][0]
        value, size = self._load(group)
        with self._lock:
            self._size += size - self._held.get(group, (value, 0))[1]
            self._held[group] = (value, size)
            while self._size > self.limit and len(self._held) > 1:
                _, (_, freed) = self._held.popitem(last=False)
                self._size -= freed
        return value

    def held(self, groups: Sequence[int]) -> list[T] | None:
        """Row groups, if all of them are in the cache."""
        if self._process != os.getpid():
            return None
        with self._lock:
            if not all(group in self._held for group in groups):
                return None
            for group in groups:
                self._held.move_to_end(group)
            return [self._held[group][0] for group in groups]

    def __reduce__(self) -> tuple[type[RowGroups[T]], tuple[Any, ...]]:
        return type(self), (self._load, self.limit)
