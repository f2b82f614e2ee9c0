"""Label and length of every record, which samplers ask for, without making the records.

The file is gone through in pieces of about 1 MiB. In each, masks of line ends and delimiters give
the bounds of every field; labels are gathered into rows of equal width, equal rows get one code.
So Python sees every class once a piece, and no record. As every record is looked at, one with too
few or too many fields is refused here. Cost: about 0.4 GB/s on one core, once; the result is kept
beside the index, 8 bytes a record, and mapped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.datasets.reading.fingerprint import fingerprint
from pipeline.datasets.text.delimited_format import (
    BadRecord,
    Columns,
    DelimitedFormat,
    miscounted,
    unknown_label,
)
from pipeline.datasets.text.record_index import RecordIndex
from pipeline.errors import DataError
from pipeline.order.randomness import IntArray

_PIECE = 1 << 20
_GATHERED = 1 << 22  # bytes of labels that are compared at once
_LONGEST = 256  # bytes; a longer label is a text in the wrong column
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'

Codes = npt.NDArray[np.int32]


class ColumnScan:
    """Lengths and labels of the records of a file, header left out.

    Args:
        index: of the file; its cache folder keeps the result.
        format, columns: how records are written and what is in them.
        codes: class name -> number; None finds the classes and numbers them by name.

    Attributes:
        lengths: int32[N], bytes of each record, without its line end.
        labels: int32[N], or None without a label column.
        classes: their names by number; empty without a label column.

    Raises:
        DataError: a record has not as many fields as there are columns, or a label that is none of
            the classes, is empty or no text; names the file and the line.
    """

    def __init__(
        self,
        index: RecordIndex,
        format: DelimitedFormat,
        columns: Columns,
        codes: Mapping[str, int] | None = None,
    ) -> None:
        self._index, self._format, self._columns, self._codes = index, format, columns, codes
        key = fingerprint([repr(format), repr(columns), repr(codes and list(codes.items()))])
        if index.folder is None:
            lengths, labels, self.classes = self._scanned()
        else:
            folder = index.folder.made(f"columns-{key[:16]}", self._write, self._is_sound)
            lengths, labels, self.classes = _read(folder)
        allowed = format.limits.classes
        if len(self.classes) > allowed and codes is None:  # as when the result was kept
            found = f"it has {len(self.classes)} classes (dataset.label)"
            raise DataError(f"{str(index.file.path)!r}: {format.limits.refusal('classes', found)}.")
        self.lengths: Codes = lengths
        self.labels: Codes | None = labels if columns.label is not None else None

    def text_lengths(self, length: Callable[[str], int], name: str) -> Codes:
        """The length of each record's text as `length` counts it: int32[N], kept like the rest.

        Args:
            name: of the way of counting; another one, another result.
        """
        count = len(self.lengths)

        def counted() -> Codes:
            return np.fromiter(map(length, self._texts()), dtype=np.int32, count=count)

        def is_sound(folder: Path) -> bool:
            try:
                return len(np.load(folder / "lengths.npy", mmap_mode="r")) == count
            except (OSError, ValueError, EOFError):
                return False

        if self._index.folder is None:
            return counted()
        key = fingerprint([repr(self._format), repr(self._columns), name])

        def write(folder: Path) -> None:
            np.save(folder / "lengths.npy", counted())

        folder = self._index.folder.made(f"tokens-{key[:16]}", write, is_sound)
        return np.load(folder / "lengths.npy", mmap_mode="r").view(np.ndarray)

    def _texts(self) -> Iterator[str]:
        for piece in self._pieces():
            begin, end = piece.field(self._columns.text, len(self._columns.names))
            for row, (first, last) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
                try:
                    yield "".join(self._format.fields(piece.text[first:last].tobytes()))
                except BadRecord as bad:
                    raise self._bad(piece.first + row, str(bad)) from None

    def _write(self, folder: Path) -> None:
        lengths, labels, classes = self._scanned()
        np.save(folder / "lengths.npy", lengths)
        np.save(folder / "labels.npy", labels)
        (folder / "classes.json").write_text(json.dumps(classes))

    def _is_sound(self, folder: Path) -> bool:
        try:
            lengths, labels, _ = _read(folder)
        except (OSError, ValueError, EOFError):  # the last: an empty file
            return False
        count = len(self._index) - self._columns.in_file
        return len(lengths) == count and len(labels) in (0, count)

    def _scanned(self) -> tuple[Codes, Codes, list[str]]:
        # Into one array each, so that the peak of memory is 8 bytes a record.
        count = len(self._index) - self._columns.in_file
        lengths = np.empty(count, dtype=np.int32)
        labels = np.empty(count if self._columns.label is not None else 0, dtype=np.int32)
        known = _Classes(self._format, self._codes)
        for piece in self._pieces():
            place = piece.first - self._columns.in_file
            lengths[place : place + len(piece)] = piece.lengths()
            if self._columns.label is not None:
                found = self._labels_of(piece, known)
                labels[place : place + len(piece)] = found
        if self._codes is None and len(labels):
            return lengths, known.by_name()[labels], sorted(known.names)
        return lengths, labels, list(known.names)

    def _pieces(self) -> Iterator[_Piece]:
        limit = self._index.limits.record_bytes
        for first, start, stop in self._index.blocks(_PIECE):
            if stop - start > limit + 2 * _PIECE:
                self._refuse_length(first, start, stop)
            piece = _Piece(self._index.file.read(start, stop), first, self._format)
            if first == 0 and self._columns.in_file:
                piece.drop_first()
            wrong = piece.count_fields() != len(self._columns.names)
            if wrong.any():
                self._refuse_count(piece, int(wrong.argmax()))
            if int(piece.lengths().max(initial=0)) > limit:
                self._index[piece.first + int(piece.lengths().argmax())]  # which refuses it
            yield piece

    def _labels_of(self, piece: _Piece, known: _Classes) -> Codes:
        assert self._columns.label is not None
        begin, end = piece.field(self._columns.label, len(self._columns.names))
        longest = int((end - begin).max(initial=0))
        if longest > _LONGEST:
            row = int((end - begin).argmax())
            name = self._columns.names[self._columns.label]
            reason = f"a label of {longest} bytes in column {name!r} (dataset.label)"
            raise self._bad(piece.first + row, f"{reason}; {_LONGEST} are the most. Another one?")
        # Some rows at a time: all are made as wide as the longest label among them.
        step = max(1, _GATHERED // max(8, longest))
        parts = [
            self._codes_of(piece, begin[at : at + step], end[at : at + step], at, known)
            for at in range(0, len(begin), step)
        ]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)

    def _codes_of(
        self, piece: _Piece, begin: IntArray, end: IntArray, before: int, known: _Classes
    ) -> Codes:
        """Codes of the labels from `begin` to `end`, of the rows from `before` on."""
        keys, firsts, inverse = _distinct(_gathered(piece.text, begin, end))
        codes = np.empty(len(keys), dtype=np.int32)
        for number, row in enumerate(firsts.tolist()):
            raw = piece.text[begin[row] : end[row]].tobytes()
            try:
                codes[number] = known.code(raw, self._columns)
            except BadRecord as bad:
                raise self._bad(piece.first + before + row, str(bad)) from None
        return codes[inverse]

    def _refuse_length(self, first: int, start: int, stop: int) -> None:
        """Of records that are too many bytes for a piece, name the one that is too long."""
        for number in range(first, len(self._index)):
            self._index[number]
        raise DataError(f"{str(self._index.file.path)!r}, bytes {start} to {stop}: one record.")

    def _refuse_count(self, piece: _Piece, row: int) -> None:
        number = piece.first + row
        record = self._index[number]
        try:  # it may be of another encoding, or its quotes may be wrong, which says more
            reason = miscounted(len(self._format.fields(record)), self._columns, not record)
        except BadRecord as bad:
            reason = str(bad)
        raise self._bad(number, reason)

    def _bad(self, number: int, reason: str) -> DataError:
        return DataError(
            f"{str(self._index.file.path)!r}, line {self._index.line(number)}: {reason}"
        )


def _read(folder: Path) -> tuple[Codes, Codes, list[str]]:
    lengths, labels = (
        np.load(folder / f"{name}.npy", mmap_mode="r").view(np.ndarray)
        for name in ("lengths", "labels")
    )
    return lengths, labels, json.loads((folder / "classes.json").read_text())


class _Classes:
    """Classes as they turn up: raw bytes -> code, in order of appearance unless they are given."""

    def __init__(self, format: DelimitedFormat, codes: Mapping[str, int] | None) -> None:
        self._format, self._given = format, codes
        self._raw: dict[bytes, int] = {}
        self.names: dict[str, int] = dict(codes or {})

    def code(self, raw: bytes, columns: Columns) -> int:
        if raw not in self._raw:
            self._raw[raw] = self._new(raw, columns)
        return self._raw[raw]

    def _new(self, raw: bytes, columns: Columns) -> int:
        name = "".join(self._format.fields(raw)) if raw else ""
        if self._given is not None and name not in self._given:
            raise BadRecord(unknown_label(name, columns, self._given))
        if not name:
            assert columns.label is not None
            raise BadRecord(f"column {columns.names[columns.label]!r} is empty, which is no class")
        if len(self.names) >= self._format.limits.classes and name not in self.names:
            found = f"it is class {len(self.names) + 1} in column"
            found += f" {columns.names[columns.label or 0]!r} (dataset.label)"
            raise BadRecord(f"{self._format.limits.refusal('classes', found)}.")
        return self.names.setdefault(name, len(self.names))

    def by_name(self) -> Codes:
        """Code by appearance -> code in the order of the names."""
        order = {name: code for code, name in enumerate(sorted(self.names))}
        return np.array([order[name] for name in self.names], dtype=np.int32)


class _Piece:
    """Whole records, and where their fields are."""

    def __init__(self, text: bytes, first: int, format: DelimitedFormat) -> None:
        self.first = first
        self.text = np.frombuffer(text, dtype=np.uint8)
        line_ends, delimiters = self.text == _NEWLINE, self.text == ord(format.delimiter)
        if format.quoting == "standard" and b'"' in text:
            outside = ~np.logical_xor.accumulate(self.text == _QUOTE)
            line_ends &= outside
            delimiters &= outside
        # A piece that is not the last one ends with a line end; after that nothing begins.
        ends = np.flatnonzero(line_ends)
        closed = len(text) > 0 and len(ends) > 0 and int(ends[-1]) == len(text) - 1
        self._ends = ends if closed else np.append(ends, len(text))
        self._starts = np.concatenate([[0], self._ends[:-1] + 1])
        self._delimiters = np.flatnonzero(delimiters)
        self._count()

    def _count(self) -> None:
        self._first_delimiter = np.searchsorted(self._delimiters, self._starts)
        after = self.text[np.maximum(self._ends - 1, 0)]
        returns = (after == _RETURN) & (self._ends > self._starts)
        self._stops = self._ends - returns

    def __len__(self) -> int:
        return len(self._starts)

    def drop_first(self) -> None:
        """Leave out the header."""
        self.first += 1
        self._starts, self._ends = self._starts[1:], self._ends[1:]
        self._count()

    def lengths(self) -> IntArray:
        return self._stops - self._starts

    def count_fields(self) -> IntArray:
        """Fields of each record."""
        stops = np.searchsorted(self._delimiters, self._ends)
        return stops - self._first_delimiter + 1

    def field(self, place: int, count: int) -> tuple[IntArray, IntArray]:
        """Where a field of each record begins and ends; each has `count` of them."""
        begin, end = self._starts, self._stops
        if place > 0:
            begin = self._delimiters[self._first_delimiter + place - 1] + 1
        if place < count - 1:
            end = self._delimiters[self._first_delimiter + place]
        return begin, end


def _gathered(
    text: npt.NDArray[np.uint8], begin: IntArray, end: IntArray
) -> npt.NDArray[np.uint64]:
    """Fields as rows of equal width, filled up with a byte that UTF-8 doesn't have."""
    width = max(8, -(-int((end - begin).max(initial=0)) // 8) * 8)
    places = begin[:, None] + np.arange(width)
    rows = text.take(places, mode="clip")
    rows[places >= end[:, None]] = 0xFF
    return rows.view(np.uint64)


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
