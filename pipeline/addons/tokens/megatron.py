"""Megatron's pairs of a `.bin` file of tokens and an `.idx` file that says where sequences lie.

The index, all numbers little-endian:

    9 bytes    MMIDIDX\\0\\0
    uint64     version, 1
    uint8      type of the tokens: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16
               (6 and 7 are floats, which are no tokens)
    uint64     S, number of sequences
    uint64     D, number of the entries of the last table
    int32[S]   tokens of each sequence
    int64[S]   byte of the `.bin` file at which each begins
    int64[D]   sequence at which each document begins, and at the end S
    int8[S]    mode of each sequence; optional, and not used here
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.addons.tokens.token_file import MappedNumbers, RemoteNumbers, samples_of
from penstock.datasets.files import DataFile, FolderFile
from penstock.datasets.reading.base import Part
from penstock.errors import DataError
from penstock.order.keys import IntArray

Rows = Literal["sequences", "documents"]

MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
_TYPES = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_PIECE = 1 << 20  # sequences that are checked at once


class _Tables(NamedTuple):
    """The tables of an index, mapped: views of its bytes, which need not be aligned."""

    lengths: npt.NDArray[np.int32]
    pointers: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int64]


class MegatronFile:
    """A pair of files; see `TokenFile`.

    Sizes and counts of the index are compared with the files here, which costs nothing; where a
    sequence lies is compared when it is read. With documents as rows, sequences are checked once
    to follow each other.

    Args:
        tokens: the `.bin` file.
        index: the `.idx` file.
        rows: what a row is; documents are the sequences between two entries of the last table.

    Raises:
        DataError: a file is missing, damaged or of another kind.
    """

    def __init__(self, tokens: FolderFile, index: FolderFile, rows: Rows = "sequences") -> None:
        self.name, self.rows = tokens.name, rows
        self._index = MappedNumbers(index, "dataset.tokens", np.dtype(np.uint8))
        self.dtype, sequences, documents = self._header()
        self._sizes = sequences, documents
        self._views: _Tables | None = None
        remote = RemoteNumbers.of(tokens, self.dtype)
        self._tokens = remote or MappedNumbers(tokens, "dataset.tokens", self.dtype)
        self.total = self._tokens.size
        self.count = sequences if rows == "sequences" else documents - 1
        if rows == "documents":
            self._check_documents()

    def __str__(self) -> str:
        return str(self._tokens.file)

    @property
    def tokens(self) -> npt.NDArray[Any] | RemoteNumbers:
        return self._tokens if isinstance(self._tokens, RemoteNumbers) else self._tokens.array

    def spans(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        lengths, pointers, documents = self._tables()
        if self.rows == "sequences":
            return self._places(pointers[rows]), self._places(pointers[rows], lengths[rows])
        first, last = documents[rows], documents[rows + 1]
        wrong = (first < 0) | (last < first) | (last > len(lengths))
        if wrong.any():
            row = int(rows[wrong.argmax()])
            raise self._damaged(
                f"document {row} is sequences {documents[row]} to "
                f"{documents[row + 1]} of {len(lengths)}"
            )
        starts, stops = np.zeros((2, len(rows)), np.int64)
        some = last > first
        starts[some] = self._places(pointers[first[some]])
        stops[some] = self._places(pointers[last[some] - 1], lengths[last[some] - 1])
        return starts, stops

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """Names and sizes of both files, and evenly spread blocks of them."""
        parts: list[Part] = ["megatron", self.rows, self.name]
        if sized:
            parts += [self.total, self.dtype.str, *self._sizes]
            parts += [*samples_of(self._index.array), *samples_of(self.tokens)]
        return parts

    def data_files(self) -> Iterable[DataFile]:
        files = (self._tokens.file, self._index.file)
        return [file.folder.data_file(file.name) for file in files]

    def _header(self) -> tuple[np.dtype[Any], int, int]:
        """The type of the tokens and both counts, compared with the size of the index."""
        content, size = self._index.array[: _HEADER.size].tobytes(), self._index.size
        if content[: len(MAGIC)] != MAGIC:
            raise self._damaged(
                f"it begins with {content[: len(MAGIC)]!r}, and an index of "
                f"Megatron's with {MAGIC!r}"
            )
        if len(content) < _HEADER.size:
            raise self._damaged(f"it has {size} bytes, and its header alone {_HEADER.size}")
        _, version, code, sequences, documents = _HEADER.unpack(content)
        if version != 1:
            raise self._damaged(f"its version is {version}; 1 is known")
        if code not in _TYPES:
            known = ", ".join(f"{number} ({np.dtype(name)})" for number, name in _TYPES.items())
            raise self._damaged(f"the type of its tokens is {code}; known: {known}")
        tables = 12 * sequences + 8 * documents
        if size - _HEADER.size not in (tables, tables + sequences):
            raise self._damaged(
                f"it has {size} bytes, and {sequences} sequences and {documents} entries of "
                f"documents need {_HEADER.size + tables} (or {sequences} more, with modes)"
            )
        if self.rows == "documents" and documents < 1:
            raise self._damaged("it has no table of documents; set dataset.rows=sequences")
        return np.dtype(_TYPES[code]), sequences, documents

    def _tables(self) -> _Tables:
        if self._views is not None:
            return self._views
        (sequences, documents), content = self._sizes, self._index.array
        sizes = (4 * sequences, 8 * sequences, 8 * documents)
        a, b, c = np.cumsum([_HEADER.size, *sizes[:-1]]).tolist()
        self._views = _Tables(
            content[a:b].view("<i4"),
            content[b:c].view("<i8"),
            content[c : c + sizes[-1]].view("<i8"),
        )
        return self._views

    def _places(
        self, pointers: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32] | None = None
    ) -> IntArray:
        """Numbers of tokens at bytes, or of those that follow; -1 for a byte inside of a token."""
        inside = pointers & (self.dtype.itemsize - 1)
        places = pointers >> (self.dtype.itemsize.bit_length() - 1)
        if lengths is not None:
            places += lengths
        if inside.any():
            places[inside != 0] = -1
        return places

    def _check_documents(self) -> None:
        lengths, pointers, _ = self._tables()
        for start in range(0, len(lengths), _PIECE):
            stop = min(start + _PIECE + 1, len(lengths))
            sizes = lengths[start:stop].astype(np.int64) * self.dtype.itemsize
            gaps = np.flatnonzero(np.diff(pointers[start:stop]) != sizes[:-1])
            if gaps.size:
                at = start + int(gaps[0])
                raise self._damaged(
                    f"sequence {at + 1} does not begin where sequence {at} ends, so documents "
                    "cannot be read; set dataset.rows=sequences"
                )

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_views": None}  # a pickled view would hold its part of the file

    def _damaged(self, wrong: str) -> DataError:
        return DataError(f"dataset.tokens: {str(self._index.file)!r}: {wrong}. Write it again.")
