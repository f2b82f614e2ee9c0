"""Where records begin in a text file, found at memory speed by numpy.

A record ends at a line end that is not inside quotes. The file is read in chunks that stay in the
processor's cache, and cut into cells of 4 KiB. Of each cell two numbers are taken: how many records
begin in it and where the first one does. That is all that an index needs (see
`text.record_index`), and it costs the same however short the records are.

1. `byte == newline` gives a mask, a byte each.
2. With RFC 4180 quoting and a quote in the chunk: a prefix xor over the packed mask of quotes tells
   what is inside (Langdale, Lemire: "Parsing gigabytes of JSON per second", 2019, section 3.1.1);
   line ends inside are taken out. On the way every quote is checked to open or to close a field.
3. Ones are counted by adding the mask up as words of eight lanes.

Cost on one core: a chunk without quotes about as much as reading it twice, 3 to 4 GB/s; a chunk
with quotes 1 GB/s. `benchmarks/text_index.py` measures it beside `wc -l`; docs/benchmarks.md has
the figures and what did not help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from pipeline.datasets.reading.positioned_file import PositionedFile
from pipeline.order.randomness import IntArray

Quoting = Literal["standard", "none"]
Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

CELL = 4096
_CHUNK = 256 * 1024  # with its mask, well inside a second-level cache
_CHUNKS = 256  # whose cells are summed up at once: numpy's calls cost more than their sums
_MARGIN = 64  # on both sides of a chunk, of which one byte is used; keeps the chunk aligned
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'

_PAIRS = np.uint64(0x00FF00FF00FF00FF)
_ADD_UP = np.uint64(0x0001000100010001)


class StrayQuote(Exception):
    """A quote that neither opens nor closes a field, or one that is never closed (place -1)."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


@dataclass(frozen=True)
class Blocks:
    """Records of a file by block; a block begins with the first record that begins in a cell.

    Attributes:
        numbers: int64[n], number of the first record of each block; the first is 0.
        offsets: int64[n], where that record begins in the file.
        records: in the file.
        stop: where the last record ends, without its line end.
    """

    numbers: IntArray
    offsets: IntArray
    records: int
    stop: int


def scan(file: PositionedFile, quoting: Quoting, delimiter: str) -> Blocks:
    """Find all records of `file`. Blank lines at its end are none.

    Raises:
        StrayQuote: with quoting "standard".
        DataError: the file changed on the way.
    """
    start, stop = text_bounds(file)
    scanner = _Scanner(file, start, stop, quoting, ord(delimiter))
    return scanner.run()


def text_bounds(file: PositionedFile) -> tuple[int, int]:
    """First byte after a byte order mark, and the end without the line ends that come last."""
    start = 3 if file.read(0, min(3, file.size)) == b"\xef\xbb\xbf" else 0
    stop = file.size
    while stop > start:
        before = max(start, stop - 64 * 1024)
        text = file.read(before, stop).rstrip(b"\r\n")
        stop = before + len(text)
        if text:
            break
    return start, stop


class _Scanner:
    def __init__(
        self, file: PositionedFile, start: int, stop: int, quoting: Quoting, delimiter: int
    ) -> None:
        self._file, self._start, self._stop = file, start, stop
        self._quoted = quoting == "standard"
        self._delimiter = delimiter
        self._inside = False  # a quoted field, at the start of the next chunk
        self._buffer = bytearray(_MARGIN + _CHUNK + _MARGIN)
        self._bytes = np.frombuffer(self._buffer, dtype=np.uint8)
        self._chunk = self._bytes[_MARGIN : _MARGIN + _CHUNK]
        self._around = self._bytes[_MARGIN - 1 : _MARGIN + _CHUNK + 1]
        self._mask = np.empty(_CHUNK, dtype=np.bool_)
        self._scratch = np.empty(_CHUNK + 2, np.bool_), np.empty(_CHUNK + 2, np.bool_)

    def run(self) -> Blocks:
        if self._start == self._stop:
            empty = np.zeros(0, dtype=np.int64)
            return Blocks(empty, empty, 0, self._stop)
        numbers, offsets = [np.zeros(1, np.int64)], [np.array([self._start])]
        seen = 0  # line ends so far
        for position in range(0, self._stop, _CHUNKS * _CHUNK):
            counts, firsts = self._cells(position)
            before = seen + np.cumsum(counts) - counts
            cells = np.flatnonzero(counts)
            numbers.append(before[cells] + 1)
            offsets.append(position + cells * CELL + firsts[cells] + 1)
            seen += int(counts.sum())
        if self._inside:
            raise StrayQuote(-1)
        self._file.check_unchanged()
        return Blocks(np.concatenate(numbers), np.concatenate(offsets), seen + 1, self._stop)

    def _cells(self, position: int) -> tuple[IntArray, IntArray]:
        """Line ends in each cell of the next chunks, and where the first of them is in it."""
        count = min(_CHUNKS, -(-(self._stop - position) // _CHUNK))
        lanes = np.empty((count, _CHUNK // 1024), dtype=np.uint64)
        firsts = np.empty((count, _CHUNK // CELL), dtype=np.int64)
        for chunk in range(count):
            mask = self._line_ends(position + chunk * _CHUNK)
            mask.view(np.uint64).reshape(-1, 128).sum(axis=1, out=lanes[chunk])
            mask.reshape(-1, CELL).argmax(axis=1, out=firsts[chunk])
        return _lane_sums(lanes).reshape(-1, 4).sum(axis=1), firsts.reshape(-1)

    def _line_ends(self, position: int) -> Mask:
        """A mask of the next chunk; what lies before or after the records is all zero."""
        self._load(position)
        mask = np.equal(self._chunk, _NEWLINE, out=self._mask)
        if self._quoted and (self._inside or self._has_quote()):
            mask &= _unpacked(~self._quoted_part(position))
        mask[: max(0, self._start - position)] = False
        mask[max(0, self._stop - position) :] = False
        return mask

    def _load(self, position: int) -> None:
        """Read a chunk and a byte on both sides; outside of the records all is line ends."""
        buffer = memoryview(self._buffer)
        buffer[_MARGIN - 1] = buffer[_MARGIN + _CHUNK - 1] if position else _NEWLINE
        got = self._file.read_into(buffer[_MARGIN : _MARGIN + _CHUNK + 1], position)
        if position < self._start:
            self._chunk[: self._start] = _NEWLINE
        if got > self._stop - position or got <= _CHUNK:
            self._bytes[_MARGIN + min(got, self._stop - position) :] = _NEWLINE

    def _has_quote(self) -> bool:
        return self._buffer.find(_QUOTE, _MARGIN, _MARGIN + _CHUNK) >= 0

    def _quoted_part(self, position: int) -> Words:
        """Which bytes are inside quotes, a bit each; an opening quote is, a closing one is not."""
        quotes = _packed(self._mask_of(_QUOTE)[1:-1])
        inside, self._inside = _prefix_xor(quotes, self._inside)
        returns = _packed(self._mask_of(_RETURN)[2:])
        border = self._mask_of(_NEWLINE, _QUOTE, self._delimiter)
        before, after = _packed(border[:-2]), _packed(border[2:]) | returns
        stray = quotes & ~((inside & before) | (~inside & after))
        if stray.any():
            raise StrayQuote(position + int(_unpacked(stray).argmax()))
        return inside

    def _mask_of(self, *values: int) -> Mask:
        """Which bytes of the chunk, and of the bytes around it, have one of the values."""
        # Into memory that is there: as fresh arrays these masks took more time than their making.
        mask, other = self._scratch
        np.equal(self._around, values[0], out=mask)
        for value in values[1:]:
            mask |= np.equal(self._around, value, out=other)
        return mask


def _packed(mask: Mask) -> Words:
    """A bit each, the first one lowest."""
    return np.packbits(mask, bitorder="little").view("<u8")


def _unpacked(words: Words) -> Mask:
    packed = words.astype("<u8", copy=False).view(np.uint8)
    return np.unpackbits(packed, bitorder="little").view(np.bool_)


def _prefix_xor(bits: Words, carry: bool) -> tuple[Words, bool]:
    """Parity of the ones up to and with each bit, begun at `carry`; and the last parity."""
    words = bits.copy()
    for shift in (1, 2, 4, 8, 16, 32):
        words ^= words << np.uint64(shift)
    parity = np.bitwise_xor.accumulate(words >> np.uint64(63)) ^ np.uint64(carry)
    words[1:] ^= np.negative(parity[:-1])  # all ones where the words before have an odd number
    words[0] ^= np.uint64(0xFFFFFFFFFFFFFFFF) if carry else np.uint64(0)
    return words, bool(parity[-1])


def _lane_sums(lanes: Words) -> IntArray:
    """Eight lanes of a byte each, added up: at most 8 x 128, so in lanes of two bytes first."""
    pairs = (lanes & _PAIRS) + ((lanes >> np.uint64(8)) & _PAIRS)
    return ((pairs * _ADD_UP) >> np.uint64(48)).astype(np.int64)
