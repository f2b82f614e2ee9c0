"""Tables of any format as map-style datasets: read once by pyarrow, then mapped.

    root/*.parquet, *.arrow, *.feather, *.csv, *.tsv, *.jsonl

The columns that the fields are made of are converted once into the files of a pack in `cache_dir`
(one for each version of the files), which every sampler reads in any order. They take the room of
the decoded columns; what is larger than the disk is read by `StreamedTable`.

Cost: 0.1 us a row and column, once; then 0.02 us a number and 0.2 us a text, in any order.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, ClassVar

# pyarrow's allocator reads it when it is loaded. A huge page is zeroed whole: 0.1 s of the 0.4 s of
# CPU that 46 MB of CSV take.
os.environ.setdefault("MIMALLOC_ALLOW_THP", "0")

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from torch.utils.data import Dataset, IterableDataset

from penstock.addons.audio.reading import read_audio, read_header
from penstock.addons.packs.folder import Column, Pack, PackWriter
from penstock.addons.storage.arrays import CacheFolder
from penstock.addons.storage.files import RecordFiles, Spans
from penstock.addons.storage.rows import TableRows, no_column, rows_before
from penstock.addons.tables.kinds import (
    Fields,
    TableField,
    choose_fields,
    converted,
    is_whole,
    kinds_of,
    label_numbers,
    stored_field,
    written,
)
from penstock.addons.tables.read import SUFFIXES, Csv, Quoting, Source, Types, exact, files_at
from penstock.datasets.arrays import check_classes
from penstock.datasets.files import DataFile, Files, generated_folder
from penstock.datasets.reading.base import (
    FileDataset,
    Part,
    Sample,
    Shares,
    Split,
    Table,
    check_split,
    fingerprint,
)
from penstock.datasets.reading.image import Reader, check_reader, undecoded
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Limits
from penstock.loading.collate import joined
from penstock.order.keys import IntArray, hash64, uniform

_log = logging.getLogger(__name__)

_VERSION = 3  # of converted tables
BAD = "table.bad"  # each row's bad field; no field has a file with a dot in its name
_DECODED = ("image", "audio", "rate")
# What is wrong with a bad cell, by the kind of its field.
_WRONG = {
    "number": "is no finite number of 64 bits",
    "numbers": "is no finite number of 64 bits",
    "tensor": "is no tensor of finite numbers",
    "label": "is none of the {} classes {}",
    "content": "has no bytes, or more than limits.record_bytes allows",
}


class Rows(Pack):
    """Converted rows; records in the shuffle buffer of a stream refer to them.

    Attributes:
        starts: the row here at which each file begins, int64[files]; below 0, if some of its rows
            are not here.
    """

    starts: IntArray

    def __deepcopy__(self, memo: object) -> Rows:
        return self  # samples are copies

    def place(self, row: int) -> tuple[int, int]:
        """The number of a row's file, and the row there."""
        file = int(np.searchsorted(self.starts, row, side="right")) - 1
        return file, row - int(self.starts[file])


Record = tuple[Rows, int]  # and which of them


class TableDataset(FileDataset):
    """The fields and classes of the rows of one split, in any order or forwards.

    Args:
        root: folder of the files, one file, or a pattern such as "train-{000..127}.parquet"; here
            or at an address such as "s3://bucket/folder".
        split: "train", "val" or "test". Files named `train...`, `val...` and `test...` are divided
            already; else the rows are divided by `shares`.
        file: the one file of the folder `root`, of any name.
        fields: field -> null (the column of that name), a kind (the same), {column, kind}, or
            {columns: [...]} for numbers put together in this order; null takes all columns that a
            field can be made of.
        text, label: instead of `fields`, the columns of a text and of its class, or None: fields
            `text` and `label`. In a CSV or TSV no text is then taken for a number.
        classes: names of the classes of the first label field; null takes those that the files
            name, or else the labels in the files of training, sorted.
        delimiter: of a CSV or TSV, one character; None is a comma for `.csv`, else a tab.
        header: whether the first record names the columns; None: it does without `columns`, and if
            it is equal to them.
        columns: names of all columns of a CSV or TSV, in order.
        quoting: "standard" (RFC 4180) or "none", where quotes are characters like others.
        encoding: of a CSV or TSV, any that Python knows.
        types: of columns of a CSV, TSV or JSON lines: "int", "float", "bool" or "text". Others are
            what they are in the first 8 MiB of the first file.
        shares: of the rows that validate and test, spread evenly over the files.
        reader: of images: "torchvision", "pillow" or "skimage".
        cache_dir: where the columns of map-style tables are kept.
        files: how remote files are fetched and kept.
        limits: `record_bytes` of a cell, `classes`.

    Attributes:
        fields: of a sample.
        classes: of the first label field.
        label_classes: label field -> names of its classes.

    Raises:
        DataError: a file is missing, cut off, or of another schema than the first; a record has too
            few or too many fields; the split has no row. A cell that is null or damaged, and a
            label that is no class, are refused with their row when they are read.
        ConfigError: there is no such column, or it is not of that kind.
    """

    kinds: ClassVar[dict[str, str]] = {}  # of fields of torchvision's types, which are not gathered

    def __init__(
        self,
        root: str,
        split: Split = "train",
        file: str | None = None,
        fields: Fields | None = None,
        text: str | None = None,
        label: str | None = "label",
        classes: Sequence[str] | None = None,
        delimiter: str | None = None,
        header: bool | None = None,
        columns: Sequence[str] | None = None,
        quoting: Quoting = "standard",
        encoding: str = "utf-8",
        shares: Shares = Shares(),
        reader: Reader = "torchvision",
        cache_dir: str = "data/cache/tables",
        files: Files | None = None,
        limits: Limits = DEFAULT,
        types: Types | None = None,
    ) -> None:
        if text is not None:
            fields = {
                kind: {"column": name, "kind": kind}
                for kind, name in (("text", text), ("label", label))
                if name
            }
        self._open(
            partial(files_at, root, file, SUFFIXES, files),
            Csv(delimiter, header, columns, quoting, encoding, text is not None, types=types or {}),
            split,
            shares,
            cache_dir,
            limits,
            fields,
            classes,
            reader,
        )

    def _open(
        self,
        files_of: Callable[[str], RecordFiles],
        text: Csv,
        split: Split,
        shares: Shares,
        cache_dir: str,
        limits: Limits,
        fields: Fields | None = None,
        classes: Sequence[str] | None = None,
        reader: Reader = "torchvision",
    ) -> None:
        """Read the schema, choose the fields, name the classes and find the rows.

        `files_of` gives the files of a split.
        """
        check_split(split)
        self._split, self._shares, self._cache_dir = split, shares, cache_dir
        self._reader, self._limits, self.lazy = check_reader(reader), limits, False
        self.source = trained = Source(files_of(split), text, fields is None)
        if trained.files.whole:  # the training files say which fields and classes there are
            trained = Source(files_of("train"), text, fields is None)
            self.source.schema, self.source.name = trained.schema, trained.name
        schema = trained.schema
        for name in {*text.types}.difference(schema.names):
            raise ConfigError(Problem("dataset.types", no_column(name, schema.names)))
        self.fields = choose_fields(schema, fields, "dataset" if text.texts else "dataset.fields")
        # Whether `fetch_batch` can be used: no field is decoded.
        self.fetches_batches = all(field.kind not in _DECODED for field in self.fields)
        if not self.fields:
            raise DataError(
                f"{trained.name!r} has no rows, or no column that a field can be made of. Repair "
                "it; of a CSV, dataset.types can make columns text."
            )
        self._columns = list(dict.fromkeys(c for field in self.fields for c in field.columns))
        left_out = {*schema.names}.difference(self._columns)
        if left_out and fields is None and split == "train":
            _log.warning(
                "%s: no fields are made of %s; of a CSV, dataset.types can make them text",
                trained.name,
                ", ".join(f"{of} ({schema.field(of).type})" for of in sorted(left_out)[:20]),
            )
        self._stored = {field.name: stored_field(field, schema) for field in self.fields}
        self._ragged = [name for name, stored in self._stored.items() if stored.shape is None]
        if classes is not None and not (len({*classes}) == len(classes) > 0):
            raise ConfigError(
                Problem("dataset.classes", f"{list(classes)!r}; allowed: a list of different texts")
            )
        # `dataset.classes` names one label; the one that is called so is meant.
        self._labels = {
            field.name: field.columns[0]
            for field in sorted(self.fields, key=lambda field: field.name != "label")
            if field.kind == "label"
        }
        # Of labels whose classes are known: their names, and as they are written.
        names, self._texts = dict[str, list[str]](), dict[str, list[str]]()
        self._codes = defaultdict[str, dict[str, int]](dict)  # of others, in the order of rows
        mine: list[str] = [*map(str, classes or ())]
        for name, column in self._labels.items():
            # `datasets` writes numbers and names them; a person's names are for those as well.
            if known := written(schema, column).get("names"):
                names[name] = mine or [*map(str, known)]
                self._texts[name] = [*map(str, range(len(known)))]
            elif mine:
                self._texts[name] = mine
            mine = []
        self._load(trained)
        self.source.head = None  # converted by now; workers get a copy of what is here
        self.label_classes = {name: names.get(name, texts) for name, texts in self._texts.items()}
        self.classes = next(iter(self.label_classes.values()), [])

    def _load(self, trained: Source) -> None:
        """Find the rows, and the classes of the training files if none are named."""

    def _sort_classes(self, source: Source) -> None:
        """Name the classes that are in `_codes`: in the order of texts, or all numbers to the
        largest."""
        for name in [name for name in self._labels if name not in self._texts]:
            # The largest number counts, so it is compared with the limit before names are made.
            codes, whole = self._codes[name], is_whole(source.schema.field(self._labels[name]).type)
            count = max(map(int, codes), default=-1) + 1 if whole else len(codes)
            check_classes(count, f"{source.name!r}, {name!r}", self._limits)
            self._texts[name] = [*map(str, range(count))] if whole else sorted(codes)

    def _converted(self, batch: pa.RecordBatch) -> tuple[dict[str, Column], npt.NDArray[np.int16]]:
        """The fields of some rows as a pack stores them, and the number of each row's first bad
        field, from 1: int16[n]."""
        made, bad = dict[str, Column](), np.zeros(batch.num_rows, np.int16)
        for number, field in enumerate(self.fields, 1):
            stored, classes = self._stored[field.name], self._texts.get(field.name)
            made[field.name], wrong = converted(
                field, stored, batch, classes, self._codes, self._limits
            )
            # One bad field a row is enough: a person mends the cell and looks again.
            bad[wrong & (bad == 0)] = number
        return made, bad

    def _check(self, pack: Rows, rows: IntArray) -> None:
        """Raise DataError that names a cell if one of some rows is bad."""
        # Conversion continues after a bad cell, so the other rows of its table stay usable.
        if (bad := pack.array(BAD)[rows]).any():
            at = int((bad > 0).argmax())
            raise self._cell_error(self.fields[bad[at] - 1], *pack.place(int(rows[at])))

    def _samples(self, pack: Rows, rows: IntArray) -> list[Sample]:
        """The samples of some rows."""
        self._check(pack, rows)
        return pack.samples(
            rows,
            {
                of.name: partial(self._decoded, of, pack)
                for of in self.fields
                if of.kind in _DECODED
            },
        )

    def _gathered(self, pack: Rows, rows: IntArray) -> dict[str, Any]:
        """Some rows as the fields of a batch."""
        self._check(pack, rows)
        return {name: pack.gathered(name, rows) for name in self._stored}

    def _decoded(self, field: TableField, pack: Rows, row: int, content: bytes) -> Any:
        file, row = pack.place(row)
        where = f"{self.source.files.addresses[file]}, row {row}, column {field.columns[0]}"
        match field.kind:
            case "image":
                image = undecoded(content, where, self._reader, self._limits)
                return image if self.lazy else image.decode()
            case "audio":
                return read_audio(content, self._limits, where)[0]
        return read_header(content, self._limits, where).rate

    def _cell_error(self, field: TableField, number: int, row: int) -> DataError:
        """The error of a bad row of a file, which is read again to tell what it holds."""
        # A pack keeps zeros for a bad cell; its content is only in the file.
        file, at = self.source.open(number), row
        for batch in file.batches(field.columns):
            if at < batch.num_rows:
                break
            at -= batch.num_rows
        shown = ", ".join(
            f"column {column!r}: {value!r:.60}"
            for column, value in batch.slice(at, 1).to_pylist()[0].items()
        )
        texts = self._texts.get(field.name, [])
        wrong = _WRONG.get(field.kind, _WRONG["content"]).format(len(texts), ", ".join(texts[:8]))
        return DataError(
            f"{file.name!r}, row {row}, {shown} {wrong}. Repair the value or take the row out."
        )

    def _rows_of(self, total: int) -> TableRows:
        """The rows of the split, of `total` in the files."""
        rows = self._divided(total)
        if not len(rows) and self._split != "test":  # of which there may be none
            raise DataError(
                f"{self.source.files.addresses[0]!r} has no rows for the split {self._split!r}."
            )
        return rows

    def _divided(self, total: int) -> TableRows:
        return self.source.files.rows(total, self._split, self._shares)

    @property
    def facts(self) -> dict[str, int]:
        """num_classes and num_outputs of the first label, num_features of the first tensor whose
        type says its last dimension."""
        sizes = [of.shape[-1] for of in self._stored.values() if of.kind == "tensor" and of.shape]
        return super().facts | ({"num_features": sizes[0]} if sizes else {})

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """How rows are read and divided, and the files."""
        files, text = self.source.files, self.source.text
        how = (
            *(self._shares, None, *self.fields, *self.label_classes.values()),
            *text.types.items(),
            *([] if text == Csv(texts=text.texts) else [text]),  # beside the usual way of reading
        )
        parts: list[Part] = ["table", self._reader, self._split, *map(repr, how), *files.names]
        return [*parts, *files.sizes.tolist(), *map(bytes, files.pieces())] if sized else parts

    def data_files(self) -> list[DataFile]:
        return self.source.files.data_files()


class MappedTable(TableDataset, Dataset[Sample]):
    """One sample: a row, in any order, with the fields that its columns are made into.

    Arguments and errors are those of `TableDataset`.
    """

    def _load(self, trained: Source) -> None:
        self._pack = self._mapped(trained)
        self._texts = self._pack.record["classes"]
        if trained is not self.source:  # files of validation have the classes of training
            self._pack = self._mapped(self.source)
        self._pack.starts = np.cumsum([0, *self._pack.record["rows"][:-1]])
        self.rows = self._rows_of(self._pack.count)

    def _mapped(self, source: Source) -> Rows:
        """The converted columns of some files, which are made if they are not there."""
        # All that the converted columns depend on names their folder, so two runs never read each
        # other's.
        key = fingerprint(
            [
                *map(repr, (_VERSION, self._limits.record_bytes, source.text, self._stored)),
                *map(repr, (self._texts, *self.fields, *source.text.types.items())),
                *map(source.files.key, range(len(source.files))),
            ]
        )
        folder = Path(self._cache_dir).expanduser().absolute() / f"columns-{key}"
        # Ranks and jobs of a sweep wait for the first one, which converts.
        generated_folder(folder, partial(self._convert, source), "dataset.cache_dir")
        return Rows(folder)

    def _convert(self, source: Source, folder: Path) -> None:
        """Write the columns of all rows of some files into a folder."""
        counts, bad = [0] * len(source.files), list[npt.NDArray[np.int16]]()
        writer = PackWriter(folder, self._stored, self._ragged)
        for number, batch in source.batches(self._columns):
            columns, wrong = self._converted(batch)
            writer.append(columns)
            counts[number] += batch.num_rows
            bad.append(wrong)
        if not sum(counts):
            raise DataError(f"{source.files.addresses[0]!r} has no rows.")
        np.save(folder / f"{BAD}.npy", np.concatenate(bad))
        self._sort_classes(source)
        writer.finish({"rows": counts, "classes": self._texts})
        # Classes that nobody names have the numbers in which they were met, and get those of the
        # sorted ones: so a file is read once.
        for name, codes in self._codes.items():
            numbers = {text: number for number, text in enumerate(self._texts[name])}
            order = np.array([*(numbers[text] for text in codes), 0])  # bad rows have the last one
            mapped = np.load(folder / f"{Pack(folder).fields[name].file}.npy", mmap_mode="r+")
            for rows in np.array_split(mapped, 1 + len(mapped) // 65_536):
                rows[:] = order[rows]
            mapped.flush()  # before the folder gets its name
        self._codes.clear()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        return self._samples(self._pack, self.rows.rows([index]))[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Samples of a whole batch."""
        return self._samples(self._pack, self.rows.rows(indices))

    def fetch_batch(self, indices: IntArray, in_place: bool = False) -> dict[str, Any]:
        """Rows as the fields of a batch, by a gather of each column."""
        return self._gathered(self._pack, self.rows.rows(indices))

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
        texts = (
            text
            for rows in np.array_split(np.arange(self._pack.count), 1 + self._pack.count // 4096)
            for text in self._pack.values(field, rows)
        )
        return CacheFolder(self._cache_dir, f"lengths-{Path(self._pack.folder).name}").text_lengths(
            fingerprint([field, name])[:16], texts, self._pack.count, length
        )[self.rows.rows(np.arange(len(self)))]

    @property
    def metadata(self) -> Table:
        """A row per sample:

        label fields            the number of the class; the first one's name too, as `class`
        text fields             the bytes of the first one, as `length`
        lists                   their length as `<name>_length`
        other columns           numbers and texts, as the files have and name them
        """
        import pandas as pd

        rows, made = self.rows.rows(np.arange(len(self))), dict[str, Any]()
        for field in self.fields:
            if field.kind == "label":
                made[field.name] = codes = self._pack.rows(field.name, rows)
                made.setdefault("class", pd.Categorical.from_codes(codes, pd.Index(self.classes)))
            elif field.kind in ("text", "tensor") and self._stored[field.name].shape is None:
                shapes = self._pack.array(f"{self._pack.fields[field.name].file}.shapes")
                name = "length" if field.kind == "text" else f"{field.name}_length"
                made.setdefault(name, shapes[rows, 0])
        # Texts and images would be gigabytes, and no sampler asks for their content.
        known = {of.columns[0] for of in self.fields if of.kind in ("label", "text")}
        if others := [
            of.name
            for of in self.source.schema
            if of.name not in known and {"number", "label"} & {*kinds_of(of.type)}
        ]:
            table = pa.Table.from_batches([batch for _, batch in self.source.batches(others)])
            made |= zip(others, map(exact, table.take(pa.array(rows)).columns), strict=True)
        return pd.DataFrame(made, index=pd.RangeIndex(len(self)))


class StreamedTable(TableDataset, IterableDataset[Record]):
    """One sample: a row, forwards, of what is larger than the disk: nothing is kept.

        Parquet, Arrow      a shard is a row group or record batch; the rows are divided as those of
                            `MappedTable`
        CSV, JSON lines     a shard is a file, plain or compressed; a keyed hash of its name and of
                            a row's number divides the rows, so the share is met within chance

    `sampler=stream` reads the shards in another order each epoch and mixes the rows of
    `sampler.buffer` neighbours. Every shard is read once an epoch by each worker; those that the
    buffer spans are in memory. Unnamed classes are found by a pass over the labels.
    Cost: 0.1 us a row and column, and 1 us a row; 7 us a field where samples are transformed.

    Arguments and errors are those of `TableDataset`.
    """

    def _load(self, trained: Source) -> None:
        unknown = {name: of for name, of in self._labels.items() if name not in self._texts}
        for _, batch in trained.batches([*{*unknown.values()}]) if unknown else ():
            for name, column in unknown.items():
                label_numbers(batch.column(column), None, self._codes[name])
        self._sort_classes(trained)
        lengths = [
            self.source.checked(number, self._columns).lengths
            for number in range(len(self.source.files))
        ]
        self._parts: list[tuple[int, int | None]] = [
            (n, part)
            for n, of in enumerate(lengths)
            for part in ([None] if None in lengths else range(len(of or ())))
        ]
        self._bounds = np.cumsum([0, *(length for of in lengths for length in of or ())])
        # Files of text do not say how many rows they have.
        self.rows = None if None in lengths else self._rows_of(int(self._bounds[-1]))

    def __len__(self) -> int:
        if self.rows is None:
            raise TypeError("files of text do not say how many rows they have")
        return len(self.rows)

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(map(self.read_shard, self.shards()))

    def shards(self) -> range:
        """The row groups, record batches or files, by number."""
        return range(len(self._parts))

    def shard_lengths(self) -> list[int] | None:
        """Rows of this split in each shard; None where the files don't say."""
        return None if self.rows is None else np.diff(rows_before(self.rows, self._bounds)).tolist()

    def read_shard(self, shard: int) -> Iterator[Record]:
        """Rows of this split in one shard."""
        number, part = self._parts[shard]
        # Rows of earlier files, and of earlier parts of this one.
        before, first = (
            (0, 0) if part is None else np.diff(self._bounds[[0, shard - part, shard]]).tolist()
        )
        for batch in self.source.open(number).batches(self._columns, part):
            columns, bad = self._converted(batch)
            piece = Rows.in_memory(columns, self._stored, self._ragged, **{BAD: bad})
            piece.starts = np.full(number + 1, -first)
            own = self._own(number, before, np.arange(first, first + batch.num_rows))
            yield from zip(repeat(piece), (own - first).tolist(), strict=False)
            first += batch.num_rows

    def _own(self, number: int, before: int, rows: IntArray) -> IntArray:
        """Those of some rows of a file that belong to the split."""
        if self.rows is not None:
            ends = rows_before(self.rows, before + np.array([rows[0], rows[-1] + 1]))
            return self.rows.rows(np.arange(*ends)) - before
        files, shares = self.source.files, self.source.files.shares(self._shares)
        draws = uniform(hash64(shares.seed, "split", files.names[number]), rows)
        splits = np.array(["val", "train", "test"])[
            np.digitize(draws, [shares.val, max(shares.val, 1 - shares.test)])
        ]
        return rows if files.whole else rows[splits == self._split]

    def decode(self, record: Record) -> Sample:
        """The sample of a row.

        Raises:
            DataError: one of its cells is bad; names the file, the row and the column.
        """
        return self._samples(record[0], np.array([record[1]]))[0]

    def fetch_batch(self, records: Sequence[Record], in_place: bool = False) -> dict[str, Any]:
        """Rows as the fields of a batch, by a gather of each piece's columns."""
        by_piece = defaultdict[Rows, list[int]](list)
        for number, (piece, _) in enumerate(records):
            by_piece[piece].append(number)
        rows, back = np.array([row for _, row in records]), np.argsort([*chain(*by_piece.values())])
        parts = [self._gathered(piece, rows[of]) for piece, of in by_piece.items()]
        return {name: joined([part[name] for part in parts], back) for name in self._stored}

    def want_shard(self, shard: int) -> float:
        """A shard is read soon: of a row group at an address its columns, else all of its file."""
        files, (number, part) = self.source.files, self._parts[shard]
        if not (files.is_remote and files.addresses[number].lower().endswith(".parquet")):
            return files.want(files.whole_of([number]))
        chunks = [
            (
                start := of["dictionary_page_offset"] or of["data_page_offset"],
                start + of["total_compressed_size"],
            )
            for of in self.source.open(number).parquet.row_group(part).to_dict()["columns"]
            if any(f"{of['path_in_schema']}.".startswith(f"{name}.") for name in self._columns)
        ]
        return files.want(Spans(np.full(len(chunks), number), *np.array(chunks, np.int64).T))
