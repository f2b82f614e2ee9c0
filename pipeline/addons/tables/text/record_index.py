"""Any record of a text file of any size, without reading the file: an index of places.

For each cell of 4 KiB the index holds the number and place of the first record that begins there:
16 bytes a cell, 8 MB for 2 GB, however short the records are. A record is then one `pread` of about
4 KiB and a count of line ends in it. To find them, `byte == newline` gives a mask, whose ones are
counted as words of eight lanes. With quotes in a chunk, a prefix xor over their packed mask removes
line ends in quotes (Langdale, Lemire: "Parsing gigabytes of JSON per second", 2019, section 3.1.1),
and every quote is checked to open or close a field. Cost on one core: 3 to 4 GB/s without quotes,
1 GB/s with.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.datasets.reading.fingerprint import fingerprint
from penstock.datasets.reading.generated_folder import CacheFolder, NamedArrays
from penstock.datasets.reading.positioned_file import PositionedFile
from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Limits
from penstock.order.randomness import IntArray
from penstock.terminal import ProgressDisplay

Quoting = Literal["standard", "none"]
QUOTES = (
    "Repair it; or, if quotes are characters like others in this file, set dataset.quoting=none."
)
Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

CELL = 4096
_CHUNK = 256 * 1024  # with its mask, well inside a second-level cache
_CHUNKS = 256  # whose cells are summed up at once: numpy's calls cost more than their sums
_MARGIN = 64  # on both sides of a chunk, of which one byte is used; keeps the chunk aligned
_VERSION = 2
_SAMPLED = 64  # blocks of 4 KiB that go into the key
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'

_PAIRS = np.uint64(0x00FF00FF00FF00FF)
_ADD_UP = np.uint64(0x0001000100010001)


class RecordIndex:
    """The records of one file, by number from 0; a header is number 0.

    Blank lines at the end of the file are not records; elsewhere a blank line is an empty one. The
    index is made once and kept under a name made of the file's size, time of change and a sample of
    its content; one process makes it while others wait. Cost of a record: about 6 us of a cached
    file; resident memory is that of the index, which all processes share.

    Args:
        path: a plain text file whose encoding agrees with ASCII in line ends, quotes and delimiter.
        quoting: "standard" (RFC 4180: a field in quotes may contain line ends) or "none".
        delimiter: one ASCII character; only used by "standard", to check the quotes.
        cache_dir: where indexes are kept; None keeps none.
        limits: `record_bytes`; a longer record is refused when it is read, and never read whole.

    Attributes:
        folder: this file's part of the cache, also for other data derived from it.

    Raises:
        DataError: the file cannot be read, or its quotes don't follow RFC 4180 (names the line);
            the cache cannot be written.
    """

    def __init__(
        self,
        path: Path,
        quoting: Quoting = "standard",
        delimiter: str = ",",
        cache_dir: str | None = "data/cache/text",
        limits: Limits = DEFAULT,
    ) -> None:
        self.limits = limits
        self.file = file = PositionedFile(path)
        self.quoting = quoting
        self._delimiter = delimiter
        parts = [_VERSION, file.size, file.mtime_ns, quoting, delimiter, *file.sample(_SAMPLED)]
        key = f"{path.name[:60]}-{fingerprint(parts)[:16]}"
        self.folder = None if cache_dir is None else CacheFolder(cache_dir, key)
        self._load()

    def _load(self) -> None:
        if self.folder is None:
            arrays = self._scan()
        else:
            arrays = self.folder.arrays("records", self._scan, _is_sound)
        # Of the first record that begins in a cell, for each cell with one: number and offset.
        self._numbers, self._offsets = arrays["places"]
        self._records, self._stop = arrays["bounds"].tolist()

    def _scan(self) -> NamedArrays:
        places, records, stop = scan(self.file, self.quoting, self._delimiter)
        bounds = np.array([records, stop])
        check = np.frombuffer(fingerprint([places, bounds]).encode(), np.uint8)
        return {"places": places, "bounds": bounds, "check": check}

    def __getstate__(self) -> dict[str, object]:
        if self.folder is None:
            return self.__dict__
        return self.__dict__ | {"_numbers": None, "_offsets": None}  # mapped again by the receiver

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        if self.folder is not None:
            self._load()

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, number: int) -> bytes:
        """A record without its line end; DataError if it exceeds `limits.record_bytes`."""
        block = bisect_right(self._numbers, number) - 1
        start, end = int(self._offsets[block]), self._end_of(block)
        count, near = number - int(self._numbers[block]), min(end, start + 4 * CELL)
        record, whole = self._part(start, near, count)
        if not whole and near < end:
            # It is the last one that begins in the cell, and all that follows belongs to it.
            longest = len(record) + end - near
            if longest > self.limits.record_bytes + 2:
                raise self._too_long(number, f"{longest - 2} bytes or more")
            record = self.file.read(near - len(record), end)
            record = record.removesuffix(b"\n") if end < self._stop else record
        record = record.removesuffix(b"\r")
        if len(record) > self.limits.record_bytes:
            raise self._too_long(number, f"{len(record)} bytes")
        return record

    def _part(self, start: int, stop: int, count: int) -> tuple[bytes, bool]:
        """Of the records that begin at `start` the one after `count` others, as far as it lies
        before `stop`, and whether it ends there.
        """
        text = self.file.read(start, stop)
        if self.quoting == "none" or b'"' not in text:
            lines = text.split(b"\n", count + 1)
            return lines[count], len(lines) > count + 1
        records, unclosed = join_quoted(text.split(b"\n"))
        if count < len(records):
            return records[count], count + 1 < len(records) or bool(unclosed)
        return b"\n".join(unclosed), False

    def _too_long(self, number: int, size: str) -> DataError:
        refusal = self.limits.refusal("record_bytes", f"the record has {size}")
        where = f"line {self.line(number)} (record {number})"
        return DataError(f"{str(self.file.path)!r}, {where}: {refusal}.")

    def check_lengths(self, start: int, stop: int) -> None:
        """Raise DataError for a far too long record between two of the places of `blocks`.

        Only the last one that begins in a cell can be, so no other is read.
        """
        first, last = np.searchsorted(self._offsets, [start, stop])
        ends = np.append(self._offsets[first + 1 : last], stop)
        wide = np.flatnonzero(ends - self._offsets[first:last] > self.limits.record_bytes + CELL)
        for block in (first + wide).tolist():
            self[int(self._numbers[block + 1] if block + 1 < len(self._numbers) else len(self)) - 1]

    def blocks(self, size: int) -> list[tuple[int, int, int]]:
        """Pieces of about `size` bytes, whole records each: (first record, start, stop) of each."""
        bounds = np.arange(0, self._stop + size, size)
        cuts = np.unique(np.searchsorted(self._offsets, bounds))
        cuts = cuts[cuts < len(self._offsets)]
        ends = [*self._offsets[cuts[1:]].tolist(), self._stop]
        starts = self._offsets[cuts].tolist()
        return list(zip(self._numbers[cuts].tolist(), starts, ends, strict=True))

    def line(self, number: int) -> int:
        """The line of the file, from 1, in which a record begins; reads the file up to there."""
        if self.quoting == "none":
            return number + 1
        block = bisect_right(self._numbers, number) - 1
        start, first = int(self._offsets[block]), int(self._numbers[block])
        text = self.file.read(start, min(self._end_of(block), start + CELL))
        records = join_quoted(text.split(b"\n"))[0][: number - first]
        before = sum(record.count(b"\n") + 1 for record in records)
        return line_of(self.file, start) + before

    def _end_of(self, block: int) -> int:
        return int(self._offsets[block + 1]) if block + 1 < len(self._offsets) else self._stop


def join_quoted(lines: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Join lines whose fields contain line ends: (whole records, lines of one not closed yet)."""
    records: list[bytes] = []
    unclosed: list[bytes] = []
    inside = False
    for line in lines:
        inside ^= line.count(b'"') % 2 == 1
        unclosed.append(line)
        if not inside:
            records.append(b"\n".join(unclosed))
            unclosed = []
    return records, unclosed


def line_of(file: PositionedFile, offset: int) -> int:
    """The line, from 1, that the byte at `place` is in; about 1 s a GB, for messages."""
    size = 1 << 20
    starts = range(0, offset, size)
    return 1 + sum(file.read(at, min(at + size, offset)).count(b"\n") for at in starts)


def _is_sound(arrays: NamedArrays) -> bool:
    """Whether an index is all there; a machine that lost its power may have torn it."""
    check = fingerprint([arrays["places"], arrays["bounds"]]).encode()
    return arrays["check"].tobytes() == check


def scan(
    file: PositionedFile, quoting: Quoting, delimiter: str
) -> tuple[npt.NDArray[np.int64], int, int]:
    """Find all records of `file`; errors as for `RecordIndex`.

    Returns:
        Number and offset of the first record that begins in each cell, int64[2, n]; the number of
        records; the end of the last one, without its line end.
    """
    return _Scanner(file, quoting, ord(delimiter)).run()


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
    def __init__(self, file: PositionedFile, quoting: Quoting, delimiter: int) -> None:
        self._file, self._delimiter = file, delimiter
        self._start, self._stop = text_bounds(file)
        self._quoted = quoting == "standard"
        self._inside = False  # a quoted field, at the start of the next chunk
        self._buffer = bytearray(_MARGIN + _CHUNK + _MARGIN)
        self._bytes = np.frombuffer(self._buffer, dtype=np.uint8)
        self._chunk = self._bytes[_MARGIN : _MARGIN + _CHUNK]
        self._around = self._bytes[_MARGIN - 1 : _MARGIN + _CHUNK + 1]
        self._mask = np.empty(_CHUNK, dtype=np.bool_)
        self._scratch = np.empty(_CHUNK + 2, np.bool_), np.empty(_CHUNK + 2, np.bool_)

    def run(self) -> tuple[npt.NDArray[np.int64], int, int]:
        if self._start == self._stop:
            return np.zeros((2, 0), dtype=np.int64), 0, self._stop
        numbers, offsets = [np.zeros(1, np.int64)], [np.array([self._start])]
        seen = 0  # line ends so far
        with ProgressDisplay(f"indexing {self._file.path.name}", self._stop, "bytes") as shown:
            for position in range(0, self._stop, _CHUNKS * _CHUNK):
                if self._file.next_data(position) >= position + _CHUNKS * _CHUNK:
                    # Zeros are no line ends. The byte before the next chunk is one of them.
                    self._buffer[_MARGIN + _CHUNK - 1] = 0
                    continue
                counts, firsts = self._cells(position)
                before = seen + np.cumsum(counts) - counts
                cells = np.flatnonzero(counts)
                numbers.append(before[cells] + 1)
                offsets.append(position + cells * CELL + firsts[cells] + 1)
                seen += int(counts.sum())
                shown.to(position)
        if self._inside:
            raise DataError(
                f"{str(self._file.path)!r}: a quoted field is not closed at the end of the file. "
                f"{QUOTES}"
            )
        self._file.check_unchanged()
        return np.stack([np.concatenate(numbers), np.concatenate(offsets)]), seen + 1, self._stop

    def _cells(self, position: int) -> tuple[IntArray, IntArray]:
        """Number of line ends in each cell of the next chunks, and the place of the first."""
        count = min(_CHUNKS, -(-(self._stop - position) // _CHUNK))
        lanes = np.empty((count, _CHUNK // 1024), dtype=np.uint64)
        firsts = np.empty((count, _CHUNK // CELL), dtype=np.int64)
        for chunk in range(count):
            mask = self._line_ends(position + chunk * _CHUNK)
            mask.view(np.uint64).reshape(-1, 128).sum(axis=1, out=lanes[chunk])
            mask.reshape(-1, CELL).argmax(axis=1, out=firsts[chunk])
        # Eight lanes of a byte each, at most 8 x 128 together: added up as lanes of two bytes.
        pairs = (lanes & _PAIRS) + ((lanes >> np.uint64(8)) & _PAIRS)
        sums = ((pairs * _ADD_UP) >> np.uint64(48)).astype(np.int64)
        return sums.reshape(-1, 4).sum(axis=1), firsts.reshape(-1)

    def _line_ends(self, position: int) -> Mask:
        """A mask of the next chunk; zero outside of the records."""
        self._load(position)
        mask = np.equal(self._chunk, _NEWLINE, out=self._mask)
        if self._quoted and (
            self._inside or self._buffer.find(_QUOTE, _MARGIN, _MARGIN + _CHUNK) >= 0
        ):
            mask &= _unpacked(~self._quoted_part(position))
        mask[: max(0, self._start - position)] = False
        mask[max(0, self._stop - position) :] = False
        return mask

    def _load(self, position: int) -> None:
        """Read a chunk and a byte on both sides; bytes outside of the records become line ends."""
        buffer = memoryview(self._buffer)
        buffer[_MARGIN - 1] = buffer[_MARGIN + _CHUNK - 1] if position else _NEWLINE
        got = self._file.read_into(buffer[_MARGIN : _MARGIN + _CHUNK + 1], position)
        if position < self._start:
            self._chunk[: self._start] = _NEWLINE
        if got > self._stop - position or got <= _CHUNK:
            self._bytes[_MARGIN + min(got, self._stop - position) :] = _NEWLINE

    def _quoted_part(self, position: int) -> Words:
        """Which bytes are inside quotes, a bit each; opening quotes are, closing ones are not."""
        quotes = _packed(self._mask_of(_QUOTE)[1:-1])
        inside, self._inside = _prefix_xor(quotes, self._inside)
        returns = _packed(self._mask_of(_RETURN)[2:])
        border = self._mask_of(_NEWLINE, _QUOTE, self._delimiter)
        before, after = _packed(border[:-2]), _packed(border[2:]) | returns
        stray = quotes & ~((inside & before) | (~inside & after))
        if stray.any():
            line = line_of(self._file, position + int(_unpacked(stray).argmax()))
            raise DataError(
                f"{str(self._file.path)!r}, line {line}: a quote neither opens nor closes a field "
                f"(RFC 4180), or one before it is missing. {QUOTES}"
            )
        return inside

    def _mask_of(self, *values: int) -> Mask:
        """Which bytes of the chunk, and of the two around it, have one of the values."""
        # Into existing memory: allocating these masks took more time than computing them.
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
