"""Any record of a text file of any size, without reading the file: an index of where each begins.

It is made in one pass, in pieces of 1 MiB: `byte == newline` finds line ends; with quotes,
their parity removes line ends in quotes, and every quote is checked to open or close a field. A
record is then one `pread`. The index takes 8 bytes a record on the disk, mapped, so all processes
share it. Cost on one core: 2 to 5 s a GB.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.addons.record_files.positioned_file import PositionedFile
from penstock.addons.storage.arrays import CacheFolder, NamedArrays
from penstock.datasets.reading.base import fingerprint
from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Limits
from penstock.order.keys import IntArray
from penstock.terminal import progress

Quoting = Literal["standard", "none"]
QUOTES = (
    "Repair it; or, if quotes are characters like others in this file, set dataset.quoting=none."
)

_PIECE = 1 << 20
_VERSION = 3
_SAMPLED = 64  # blocks of 4 KiB that go into the key
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'


class RecordIndex:
    """The records of one file, by number from 0; a header is number 0.

    Blank lines at the end of the file are not records; elsewhere a blank line is an empty one. The
    index is made once and kept under a name made of the file's size, time of change and a sample of
    its content; one process makes it while others wait.

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
        arrays = self._scan() if self.folder is None else self._kept(self.folder)
        self._starts: IntArray = arrays["starts"]  # of each record; and behind the last line end

    def _kept(self, folder: CacheFolder) -> NamedArrays:
        # A machine that lost its power may have torn it.
        return folder.arrays("starts", self._scan, lambda kept: bool(_is_sound(kept["starts"])))

    def _scan(self) -> NamedArrays:
        start, stop = text_bounds(self.file)
        starts, inside = [np.array([start] if stop > start else [], np.int64)], False
        with progress(f"indexing {self.file.path.name}", stop, "bytes") as show:
            for position in range(start, stop, _PIECE):
                end = min(position + _PIECE, stop)
                # With the byte before and the one behind: to both sides of the records, line ends.
                text = self.file.read(max(position - 1, start), min(end + 1, stop))
                text = b"\n" * (position == start) + text + b"\n" * (end == stop)
                around = np.frombuffer(text, np.uint8)
                ends = np.flatnonzero(around[1:-1] == _NEWLINE)
                if self.quoting == "standard" and (inside or b'"' in text):
                    quotes = np.flatnonzero(around[1:-1] == _QUOTE)
                    self._check(around, quotes, position, inside)
                    ends = ends[(np.searchsorted(quotes, ends) + inside) % 2 == 0]
                    inside ^= len(quotes) % 2 == 1
                starts.append(position + 1 + ends)
                show(position)
        if inside:
            raise DataError(
                f"{str(self.file.path)!r}: a quoted field is not closed at the end of the file. "
                f"{QUOTES}"
            )
        self.file.check_unchanged()
        return {"starts": np.append(np.concatenate(starts), stop + 1)}

    def _check(
        self, around: npt.NDArray[np.uint8], quotes: IntArray, position: int, inside: bool
    ) -> None:
        """Raise DataError for a quote that neither opens nor closes a field."""
        opens = (np.arange(len(quotes)) + inside) % 2 == 0
        beside = np.where(opens, around[quotes], around[quotes + 2])
        border = np.isin(beside, [_NEWLINE, _QUOTE, ord(self._delimiter)])
        stray = ~(border | (~opens & (beside == _RETURN)))
        if stray.any():
            line = line_of(self.file, position + int(quotes[stray.argmax()]))
            raise DataError(
                f"{str(self.file.path)!r}, line {line}: a quote neither opens nor closes a field "
                f"(RFC 4180), or one before it is missing. {QUOTES}"
            )

    def __getstate__(self) -> dict[str, object]:
        if self.folder is None:
            return self.__dict__
        return self.__dict__ | {"_starts": None}  # mapped again by the receiver

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        if self.folder is not None:
            self._load()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, number: int) -> bytes:
        """A record without its line end; DataError if it exceeds `limits.record_bytes`."""
        start, end = self._starts[number : number + 2].tolist()
        size = end - 1 - start
        if size > self.limits.record_bytes + 1:  # perhaps with a carriage return
            raise self._too_long(number, size)
        record = self.file.read(start, end - 1).removesuffix(b"\r")
        if len(record) > self.limits.record_bytes:
            raise self._too_long(number, size)
        return record

    def _too_long(self, number: int, size: int) -> DataError:
        refusal = self.limits.refusal("record_bytes", f"the record has {size} bytes")
        where = f"line {self.line(number)} (record {number})"
        return DataError(f"{str(self.file.path)!r}, {where}: {refusal}.")

    def check_lengths(self, start: int, stop: int) -> None:
        """Raise DataError for a far too long record between two of the places of `blocks`."""
        first, last = np.searchsorted(self._starts, [start, stop]).tolist()
        sizes = np.diff(self._starts[first : last + 1])
        for row in np.flatnonzero(sizes > self.limits.record_bytes + 2)[:1].tolist():
            self[first + row]

    def blocks(self, size: int) -> list[tuple[int, int, int]]:
        """Pieces of about `size` bytes, whole records each: (first record, start, stop) of each."""
        starts, stop = self._starts[:-1], int(self._starts[-1]) - 1
        cuts = np.unique(np.searchsorted(starts, np.arange(0, stop + size, size)))
        cuts = cuts[cuts < len(starts)]
        ends = [*starts[cuts[1:]].tolist(), stop]
        return list(zip(cuts.tolist(), starts[cuts].tolist(), ends, strict=True))

    def starts(self, start: int, stop: int) -> IntArray:
        """Where the records between two of the places of `blocks` begin, counted from the first;
        and behind the line end of the last one."""
        first, last = np.searchsorted(self._starts, [start, stop]).tolist()
        return self._starts[first : last + 1] - start

    def line(self, number: int) -> int:
        """The line of the file, from 1, in which a record begins; reads the file up to there."""
        return line_of(self.file, int(self._starts[number]))


def _is_sound(starts: IntArray) -> bool:
    return len(starts) > 0 and bool((np.diff(starts) > 0).all())


def line_of(file: PositionedFile, offset: int) -> int:
    """The line, from 1, that the byte at `place` is in; about 1 s a GB, for messages."""
    size = 1 << 20
    starts = range(0, offset, size)
    return 1 + sum(file.read(at, min(at + size, offset)).count(b"\n") for at in starts)


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
