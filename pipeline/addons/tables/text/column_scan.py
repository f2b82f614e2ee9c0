"""Label and length of every record, for samplers, without decoding the records.

In pieces of about 1 MiB, masks of line ends and delimiters give the bounds of every field; labels
are gathered into rows of equal width, and equal rows get one code. So Python handles every class
once a piece, and no record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt

from penstock.addons.tables.text.delimited_format import (
    BadRecord,
    Columns,
    DelimitedFormat,
    miscounted,
    unknown_label,
)
from penstock.addons.tables.text.record_index import RecordIndex
from penstock.datasets.reading.fingerprint import fingerprint
from penstock.datasets.reading.generated_folder import NamedArrays
from penstock.errors import DataError
from penstock.order.randomness import IntArray
from penstock.terminal import watched

_PIECE = 1 << 20
_GATHERED = 1 << 22  # bytes of labels that are compared at once
_LONGEST = 256  # bytes; a longer label is a text in the wrong column
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'

Codes = npt.NDArray[np.int32]


class ColumnScan:
    """Lengths and labels of the records of a file, without the header.

    Cost: about 0.4 GB/s on one core, once; the result is kept beside the index, 8 bytes a record,
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
        given = repr(codes and list(codes.items()))
        found = self._kept("columns", given, self._scanned)
        self.classes: list[str] = json.loads(found["classes"].tobytes())
        allowed = format.limits.classes
        if len(self.classes) > allowed and codes is None:  # kept under higher limits
            claim = f"it has {len(self.classes)} classes (dataset.label)"
            raise DataError(f"{str(index.file.path)!r}: {format.limits.refusal('classes', claim)}.")
        self.lengths: Codes = found["lengths"]
        self.labels: Codes | None = found["labels"] if columns.label is not None else None

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

        def is_sound(found: NamedArrays) -> bool:
            sizes = len(found["lengths"]), len(found["labels"])
            return "classes" in found and sizes in ((count, 0), (count, count))

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
            place = piece.first - self._columns.in_file
            lengths[place : place + len(piece)] = piece.lengths
            if len(labels):
                labels[place : place + len(piece)] = self._labels_of(piece, known)
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
            piece = _Piece(self._index.file.read(start, stop), first, header, self._format)
            wrong = piece.miscounted(len(self._columns.names))
            if wrong is not None:
                number = piece.first + wrong
                record = self._index[number]
                try:  # a wrong encoding or wrong quotes say more
                    count = len(self._format.fields(record))
                    raise BadRecord(miscounted(count, self._columns, not record))
                except BadRecord as bad:
                    raise self._bad(number, str(bad)) from None
            if int(piece.lengths.max(initial=0)) > limit:
                self._index[piece.first + int(piece.lengths.argmax())]  # raises DataError
            yield piece

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
        # Some rows at a time: all get the width of the longest label among them.
        step = max(1, _GATHERED // max(8, longest))
        for at in range(0, len(begin), step):
            rows = slice(at, at + step)
            # As rows of equal width, padded with a byte that UTF-8 doesn't use.
            width = max(8, -(-int((end - begin)[rows].max()) // 8) * 8)
            places = begin[rows, None] + np.arange(width)
            padded = piece.text.take(places, mode="clip")
            padded[places >= end[rows, None]] = 0xFF
            _, firsts, inverse = _distinct(padded.view(np.uint64))
            found = []
            for row in (firsts + at).tolist():
                try:
                    found.append(known.code(piece.text[begin[row] : end[row]].tobytes()))
                except BadRecord as bad:
                    raise self._bad(piece.first + row, str(bad)) from None
            codes[rows] = np.array(found, dtype=np.int32)[inverse]
        return codes

    def _bad(self, number: int, reason: str) -> DataError:
        return DataError(
            f"{str(self._index.file.path)!r}, line {self._index.line(number)}: {reason}"
        )


class _Classes:
    """Codes of raw labels, in order of appearance unless classes are given."""

    def __init__(
        self, format: DelimitedFormat, columns: Columns, given: Mapping[str, int] | None
    ) -> None:
        self._format, self._columns, self._given = format, columns, given
        self._raw: dict[bytes, int] = {}
        self.names: dict[str, int] = dict(given or {})

    def code(self, raw: bytes) -> int:
        if raw in self._raw:
            return self._raw[raw]
        name = "".join(self._format.fields(raw)) if raw else ""
        if self._given is not None and name not in self._given:
            raise BadRecord(unknown_label(name, self._columns, self._given))
        if not name:
            raise BadRecord(f"column {self._columns.label_name!r} is empty: it needs a class")
        if len(self.names) >= self._format.limits.classes and name not in self.names:
            found = f"it is class {len(self.names) + 1} in column"
            found += f" {self._columns.label_name!r} (dataset.label)"
            raise BadRecord(f"{self._format.limits.refusal('classes', found)}.")
        return self._raw.setdefault(raw, self.names.setdefault(name, len(self.names)))


class _Piece:
    """The records of `text` from number `first` on, without a header, and their fields' bounds."""

    def __init__(self, text: bytes, first: int, header: bool, format: DelimitedFormat) -> None:
        self.first = first + header
        self.text = np.frombuffer(text, dtype=np.uint8)
        line_ends, delimiters = self.text == _NEWLINE, self.text == ord(format.delimiter)
        if format.quoting == "standard" and b'"' in text:
            outside = ~np.logical_xor.accumulate(self.text == _QUOTE)
            line_ends &= outside
            delimiters &= outside
        # A piece that is not the last one ends with a line end, after which no record begins.
        ends = np.flatnonzero(line_ends)
        if not len(ends) or int(ends[-1]) < len(text) - 1:
            ends = np.append(ends, len(text))
        self._starts = np.concatenate([[0], ends[:-1] + 1])[header:]
        ends = ends[header:]
        before = self.text[np.maximum(ends - 1, 0)]
        self._stops = ends - ((before == _RETURN) & (ends > self._starts))
        self.lengths: IntArray = self._stops - self._starts
        self._delimiters, self._ends = delimiters, ends

    def __len__(self) -> int:
        return len(self._starts)

    def miscounted(self, count: int) -> int | None:
        """The first record that has not `count` fields; None if all have."""
        if np.count_nonzero(self._delimiters) >= count * (len(self) + 1):
            # One has far too many: their places would take 8 bytes each.
            spans = zip(self._starts.tolist(), self._ends.tolist(), strict=True)
            counts = (np.count_nonzero(self._delimiters[begin:end]) + 1 for begin, end in spans)
            return next((row for row, found in enumerate(counts) if found != count), None)
        wrong = np.searchsorted(self._places, self._ends) - self._first_place + 1 != count
        return int(wrong.argmax()) if wrong.any() else None

    def field(self, place: int, count: int) -> tuple[IntArray, IntArray]:
        """Begin and end of a field in each record; all records have `count` fields."""
        begin, end = self._starts, self._stops
        if place > 0:
            begin = self._places[self._first_place + place - 1] + 1
        if place < count - 1:
            end = self._places[self._first_place + place]
        return begin, end

    @cached_property
    def _places(self) -> IntArray:
        return np.flatnonzero(self._delimiters)

    @cached_property
    def _first_place(self) -> IntArray:
        return np.searchsorted(self._places, self._starts)


def _distinct(rows: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], IntArray, IntArray]:
    """Distinct rows: (one key each, a row of each, which one each row is)."""
    keys = rows[:, 0].copy()
    for lane in range(1, rows.shape[1]):
        keys = (keys ^ (keys >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15) + rows[:, lane]
    found, firsts, inverse = np.unique(keys, return_index=True, return_inverse=True)
    if not np.array_equal(rows, rows[firsts[inverse]]):  # two rows of one key: compare them whole
        whole = rows.view(np.dtype((np.void, rows.shape[1] * 8))).reshape(-1)
        _, firsts, inverse = np.unique(whole, return_index=True, return_inverse=True)
        found = keys[firsts]
    return found, firsts, inverse
