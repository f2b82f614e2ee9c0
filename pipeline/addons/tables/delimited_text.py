"""A CSV or TSV file of any size as a map-style dataset: a text and its class in each record.

    Label<tab>SMS
    ham<tab>Ok lar... Joking wif u oni...

The file is indexed once (`text.record_index`), so every sampler works on files larger than memory:
5 s for 2 GB and 8 bytes a record; a record is one read. Labels and lengths take another pass if
they are needed (`ColumnScan`), 10 s for 2 GB, and are also kept: in pieces of about 1 MiB, a mask
of delimiters gives the bounds of every field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from penstock.addons.storage.arrays import NamedArrays
from penstock.addons.storage.rows import RowSplit
from penstock.addons.tables.text.delimited_format import (
    BadRecord,
    Columns,
    DelimitedFormat,
    class_codes,
    miscounted,
    unknown_label,
)
from penstock.addons.tables.text.record_index import Quoting, RecordIndex
from penstock.addons.tables.text.record_reader import compression_of
from penstock.datasets.files import DataFile, Files
from penstock.datasets.reading.base import (
    FileDataset,
    Part,
    Sample,
    Split,
    fingerprint,
)
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Fraction, Limits, Seed
from penstock.order.keys import IntArray
from penstock.terminal import watched

if TYPE_CHECKING:
    import pandas as pd


class DelimitedText(FileDataset, Dataset[Sample]):
    """One sample: `text` (str) and, with a label column, `label` (int).

    Args:
        root: the file, or its folder; a path or an address.
        split: "train", "val" or "test".
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
        test_fraction: share of the rows to keep for a test.

    Raises:
        DataError: the file is missing, empty, has no rows or other columns, or its quotes are
            wrong. A record with too few fields, in another encoding or of an unknown class is
            refused with its line when it is read.
        ConfigError: the file is compressed, or an argument is out of range.
    """

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
        test_fraction: Fraction = 0.0,
    ) -> None:
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
        test_fraction = 0.0 if val_file and split == "val" else test_fraction
        self.rows = RowSplit(count, split, share, split_seed, test_fraction)
        self._identity = [split, share, split_seed, *([test_fraction] if test_fraction else [])]
        self._given = class_codes(classes) if classes is not None else None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
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


_PIECE = 1 << 20
_LONGEST = 256  # bytes; a longer label is a text in the wrong column
_RETURN, _QUOTE = b'\r"'

Codes = npt.NDArray[np.int32]


class ColumnScan:
    """Lengths and labels of the records of a file, without the header.

    Cost: about 0.2 GB/s on one core, once; the result is kept beside the index, 8 bytes a record,
    and mapped.

    Args:
        index: of the file; its cache folder keeps the result.
        format, columns: syntax and fields of the records.
        codes: class name -> number; None finds the classes and numbers them by name.

    Attributes:
        lengths: int32[N], bytes of each record, without its line end.
        labels: int32[N], or None without a label column.
        classes: their names by number; empty without a label column.

    Raises:
        DataError: a record has too few or too many fields, or a label that is not a class, empty or
            not text; names the file and the line.
    """

    def __init__(
        self,
        index: RecordIndex,
        format: DelimitedFormat,
        columns: Columns,
        codes: Mapping[str, int] | None = None,
    ) -> None:
        self._index, self._format, self._columns, self._codes = index, format, columns, codes
        numbering = repr(codes and list(codes.items()))
        arrays = self._kept("columns", numbering, self._scanned)
        self.classes: list[str] = json.loads(arrays["classes"].tobytes())
        allowed = format.limits.classes
        if len(self.classes) > allowed and codes is None:  # kept under higher limits
            claim = f"it has {len(self.classes)} classes (dataset.label)"
            raise DataError(f"{str(index.file.path)!r}: {format.limits.refusal('classes', claim)}.")
        self.lengths: Codes = arrays["lengths"]
        self.labels: Codes | None = arrays["labels"] if columns.label is not None else None

    def text_lengths(self, length: Callable[[str], int], name: str) -> Codes:
        """The length of each record's text as `length` counts it: int32[N], kept under `name`."""

        def counted() -> NamedArrays:
            count = len(self.lengths)
            lengths = np.fromiter(map(length, self._texts()), np.int32, count)
            return {"lengths": lengths, "labels": lengths[:0], "classes": lengths[:0]}

        counts: Codes = self._kept("tokens", name, counted)["lengths"]
        return counts

    def _kept(self, kind: str, how: str, make: Callable[[], NamedArrays]) -> NamedArrays:
        if self._index.folder is None:
            return make()
        count = len(self._index) - self._columns.in_file

        def is_sound(arrays: NamedArrays) -> bool:
            sizes = len(arrays["lengths"]), len(arrays["labels"])
            return "classes" in arrays and sizes in ((count, 0), (count, count))

        key = fingerprint([repr(self._format), repr(self._columns), how])
        return self._index.folder.arrays(f"{kind}-{key[:16]}", make, is_sound)

    def _texts(self) -> Iterator[str]:
        for piece in self._pieces():
            begin, end = piece.field(self._columns.text, len(self._columns.names))
            for row, (first, last) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
                try:
                    yield "".join(self._format.fields(piece.text[first:last].tobytes()))
                except BadRecord as bad:
                    raise self._bad(piece.first + row, str(bad)) from None

    def _scanned(self) -> NamedArrays:
        # Into one array each, so that the peak of memory is 8 bytes a record.
        count = len(self._index) - self._columns.in_file
        lengths = np.empty(count, dtype=np.int32)
        labels = np.empty(count if self._columns.label is not None else 0, dtype=np.int32)
        known = _Classes(self._format, self._columns, self._codes)
        for piece in self._pieces():
            start = piece.first - self._columns.in_file
            lengths[start : start + len(piece)] = piece.lengths
            if len(labels):
                labels[start : start + len(piece)] = self._labels_of(piece, known)
            del piece  # before the next one is read
        names = list(known.names)
        if self._codes is None and names:  # numbered by appearance until now
            order = {name: code for code, name in enumerate(sorted(names))}
            labels = np.array([order[name] for name in names], dtype=np.int32)[labels]
            names = list(order)
        classes = np.frombuffer(json.dumps(names).encode(), np.uint8)
        return {"lengths": lengths, "labels": labels, "classes": classes}

    def _pieces(self) -> Iterator[_Piece]:
        limit, name = self._index.limits.record_bytes, self._index.file.path.name
        blocks = self._index.blocks(_PIECE)
        for first, start, stop in watched(blocks, len(blocks), f"reading columns of {name}"):
            if stop - start > limit + 2 * _PIECE:
                self._index.check_lengths(start, stop)
            header = first == 0 and self._columns.in_file
            text = self._index.file.read(start, stop)
            piece = _Piece(text, self._index.starts(start, stop), first, header, self._format)
            wrong = piece.miscounted(len(self._columns.names))
            if wrong is not None:
                number = piece.first + wrong
                del piece, text  # a record may be most of it
                record = self._index[number]
                try:  # a wrong encoding or wrong quotes say more
                    count = len(self._format.fields(record))
                    raise BadRecord(miscounted(count, self._columns, not record))
                except BadRecord as bad:
                    raise self._bad(number, str(bad)) from None
            if int(piece.lengths.max(initial=0)) > limit:
                self._index[piece.first + int(piece.lengths.argmax())]  # raises DataError
            yield piece
            del piece, text  # before the next one is read

    def _labels_of(self, piece: _Piece, known: _Classes) -> Codes:
        assert self._columns.label is not None
        begin, end = piece.field(self._columns.label, len(self._columns.names))
        longest = int((end - begin).max(initial=0))
        if longest > _LONGEST:
            raise self._bad(
                piece.first + int((end - begin).argmax()),
                f"a label of {longest} bytes in column {self._columns.label_name!r}; at most "
                f"{_LONGEST} are allowed. Is dataset.label the right column?",
            )
        codes = np.empty(len(begin), dtype=np.int32)
        text = piece.text.tobytes()
        for row, (first, last) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
            try:
                codes[row] = known.code(text[first:last])
            except BadRecord as bad:
                raise self._bad(piece.first + row, str(bad)) from None
        return codes

    def _bad(self, number: int, reason: str) -> DataError:
        return DataError(
            f"{str(self._index.file.path)!r}, line {self._index.line(number)}: {reason}"
        )


class _Classes:
    """Codes of raw labels, in order of appearance unless classes are given."""

    def __init__(
        self, format: DelimitedFormat, columns: Columns, codes: Mapping[str, int] | None
    ) -> None:
        self._format, self._columns, self._given = format, columns, codes
        self._raw: dict[bytes, int] = {}
        self.names: dict[str, int] = dict(codes or {})

    def code(self, raw: bytes) -> int:
        if raw in self._raw:
            return self._raw[raw]
        name = "".join(self._format.fields(raw)) if raw else ""
        if self._given is not None and name not in self._given:
            raise BadRecord(unknown_label(name, self._columns, self._given))
        if not name:
            raise BadRecord(f"column {self._columns.label_name!r} is empty: it needs a class")
        if len(self.names) >= self._format.limits.classes and name not in self.names:
            claim = f"it is class {len(self.names) + 1} in column"
            claim += f" {self._columns.label_name!r} (dataset.label)"
            raise BadRecord(f"{self._format.limits.refusal('classes', claim)}.")
        return self._raw.setdefault(raw, self.names.setdefault(name, len(self.names)))


class _Piece:
    """The records of `text` from number `first` on, without a header, and their fields' bounds.

    Args:
        starts: of all of them, int64[n]; and one more, behind the last line end.
    """

    def __init__(
        self, text: bytes, starts: IntArray, first: int, header: bool, format: DelimitedFormat
    ) -> None:
        self.first = first + header
        self.text = np.frombuffer(text, dtype=np.uint8)
        self._delimiters = np.empty(len(text), dtype=np.bool_)
        quoted = format.quoting == "standard" and b'"' in text
        inside = False
        # One block as a rule. A record may have `limits.record_bytes`, and several masks of it at
        # once would take more than the record.
        for start in range(0, len(text), 2 * _PIECE):
            block = self.text[start : start + 2 * _PIECE]
            delimiters = self._delimiters[start : start + len(block)]
            np.equal(block, ord(format.delimiter), out=delimiters)
            if quoted:
                outside = np.logical_xor.accumulate(block == _QUOTE) == inside
                delimiters &= outside
                inside = not outside[-1]
        self._starts, self._ends = starts[header:-1], starts[1 + header :] - 1
        before = self.text[np.maximum(self._ends - 1, 0)]
        self._stops = self._ends - ((before == _RETURN) & (self._ends > self._starts))
        self.lengths: IntArray = self._stops - self._starts

    def __len__(self) -> int:
        return len(self._starts)

    def miscounted(self, count: int) -> int | None:
        """The first record that has not `count` fields; None if all have."""
        if np.count_nonzero(self._delimiters) >= count * (len(self) + 1):
            # One has far too many: their places would take 8 bytes each.
            spans = zip(self._starts.tolist(), self._ends.tolist(), strict=True)
            counts = (np.count_nonzero(self._delimiters[begin:end]) + 1 for begin, end in spans)
            return next((row for row, fields in enumerate(counts) if fields != count), None)
        wrong = np.searchsorted(self._places, self._ends) - self._first_place + 1 != count
        return int(wrong.argmax()) if wrong.any() else None

    def field(self, number: int, count: int) -> tuple[IntArray, IntArray]:
        """Begin and end of a field in each record; all records have `count` fields."""
        begin, end = self._starts, self._stops
        if number > 0:
            begin = self._places[self._first_place + number - 1] + 1
        if number < count - 1:
            end = self._places[self._first_place + number]
        return begin, end

    @cached_property
    def _places(self) -> IntArray:
        return np.flatnonzero(self._delimiters)

    @cached_property
    def _first_place(self) -> IntArray:
        return np.searchsorted(self._places, self._starts)
