"""Any record of a text file of any size, without reading the file: an index of places.

For each 4 KiB of the file the index holds the number and the place of the first record that begins
there. A record is then one `pread` of its block, about 4 KiB and never much more than the record
itself, and a count of line ends in that. So the index has 16 bytes per 4 KiB of file, 8 MB for
2 GB, however short the records are. With the place of every record it would have 200 MB where
records have 86 bytes, and writing it down would take longer than finding it.

It is made once at memory speed (see `text.record_scan`) and kept in a cache folder, under a
name made of the file's size, time of change and a sample of its content. It appears there whole or
not at all, and one process makes it while others wait. Cost of a record: about 6 us of a cached
file; resident memory stays that of the index, which all processes share.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.datasets.reading.cache_folder import CacheFolder
from pipeline.datasets.reading.fingerprint import fingerprint
from pipeline.datasets.reading.positioned_file import PositionedFile
from pipeline.datasets.text.record_scan import CELL, Blocks, Quoting, StrayQuote, scan
from pipeline.errors import DataError
from pipeline.files.limits import Limits
from pipeline.order.randomness import IntArray

_VERSION = 1
_SAMPLED = 64  # blocks of 4 KiB that go into the key


class RecordIndex:
    """The records of one file, by number from 0; a header is number 0.

    Blank lines at the end of the file are no records; elsewhere a blank line is an empty one.

    Args:
        path: a plain text file whose encoding agrees with ASCII in line ends, quotes and delimiter.
        quoting: "standard" (RFC 4180: a field in quotes may hold line ends) or "none".
        delimiter: one ASCII character; matters for "standard" only, to check the quotes.
        cache_dir: where indexes are kept; None makes this one anew.
        limits: of a record; a longer one is refused when it is asked for, and never read whole.

    Attributes:
        folder: where this file's part of the cache is, for what else is made of it.

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
        limits: Limits | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.file = PositionedFile(path)
        self.quoting = quoting
        self._delimiter = delimiter
        self.folder = None if cache_dir is None else CacheFolder(cache_dir, self._key())
        self._path: Path | None = None  # of the index on the disk
        if self.folder is None:
            blocks = self._scan()
            self._take(blocks.numbers, blocks.offsets, blocks.records, blocks.stop)
        else:
            self._path = self.folder.made("records", self._write, _is_sound)
            self._load()

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, number: int) -> bytes:
        """A record without its line end.

        Raises:
            DataError: it is longer than `limits.record_bytes`.
        """
        block = bisect_right(self._numbers, number) - 1
        start, end = int(self._offsets[block]), self._end_of(block)
        # Of the records that begin in a cell, only the last one can be longer than the cell.
        stop = min(end, start + CELL + self.limits.record_bytes + 2)
        text = self.file.read(start, stop)
        record = self._nth(text, number - int(self._numbers[block]))
        if len(record) > self.limits.record_bytes:
            found = f"the record has {len(record)} bytes{' or more' if stop < end else ''}"
            raise DataError(
                f"{str(self.file.path)!r}, line {self.line(number)} (record {number}): "
                f"{self.limits.refusal('record_bytes', found)}."
            )
        return record

    def blocks(self, size: int) -> list[tuple[int, int, int]]:
        """The file in pieces of about `size` bytes: (first record, start, stop) of each.

        A piece is whole records; a longer record is a piece of its own.
        """
        wanted = np.arange(0, self._stop + size, size)
        cuts = np.unique(np.searchsorted(self._offsets, wanted))
        cuts = cuts[cuts < len(self._offsets)]
        ends = [*self._offsets[cuts[1:]].tolist(), self._stop]
        starts = self._offsets[cuts].tolist()
        return list(zip(self._numbers[cuts].tolist(), starts, ends, strict=True))

    def line(self, number: int) -> int:
        """The line of the file, from 1, in which a record begins. Reads the file up to there."""
        if self.quoting == "none":
            return number + 1
        block = bisect_right(self._numbers, number) - 1
        start, first = int(self._offsets[block]), int(self._numbers[block])
        text = self.file.read(start, min(self._end_of(block), start + CELL))
        records = self._split(text)[: number - first]
        before = sum(record.count(b"\n") + 1 for record in records)
        return line_of(self.file, start) + before

    def _end_of(self, block: int) -> int:
        return int(self._offsets[block + 1]) if block + 1 < len(self._offsets) else self._stop

    def _nth(self, text: bytes, count: int) -> bytes:
        if self.quoting == "none" or b'"' not in text:
            record = text.split(b"\n", count + 1)[count]
        else:
            records, unclosed = join_quoted(text.split(b"\n"))
            record = records[count] if count < len(records) else b"\n".join(unclosed)
        return record.removesuffix(b"\r")

    def _split(self, text: bytes) -> list[bytes]:
        lines = text.split(b"\n")
        return lines if self.quoting == "none" else join_quoted(lines)[0]

    def _key(self) -> str:
        file = self.file
        parts = [_VERSION, file.size, file.mtime_ns, self.quoting, self._delimiter]
        return f"{file.path.name[:60]}-{fingerprint([*parts, *file.sample(_SAMPLED)])[:16]}"

    def _scan(self) -> Blocks:
        try:
            return scan(self.file, self.quoting, self._delimiter)
        except StrayQuote as stray:
            raise self._stray(stray.place) from None

    def _stray(self, place: int) -> DataError:
        name, way_out = repr(str(self.file.path)), (
            "Repair it; or, if quotes are characters like others in this file, set "
            "dataset.quoting=none."
        )  # fmt: skip
        if place < 0:
            return DataError(f"{name}: a quoted field is not closed at the end of it. {way_out}")
        return DataError(
            f"{name}, line {line_of(self.file, place)}: a quote that neither opens nor closes a "
            f"field (RFC 4180); or one before it is missing. {way_out}"
        )

    def _write(self, folder: Path) -> None:
        blocks = self._scan()
        places = np.stack([blocks.numbers, blocks.offsets])
        np.save(folder / "places.npy", places)
        about = {"records": blocks.records, "stop": blocks.stop, "check": fingerprint([places])}
        (folder / "records.json").write_text(json.dumps(about))

    def _load(self) -> None:
        assert self._path is not None
        about = json.loads((self._path / "records.json").read_text())
        places = np.load(self._path / "places.npy", mmap_mode="r")
        self._take(places[0], places[1], about["records"], about["stop"])

    def _take(self, numbers: IntArray, offsets: IntArray, records: int, stop: int) -> None:
        # As plain arrays: every access to a memmap makes an object of that slow class.
        self._numbers, self._offsets = numbers.view(np.ndarray), offsets.view(np.ndarray)
        self._records, self._stop = records, stop

    def __getstate__(self) -> dict[str, Any]:
        if self._path is None:
            return self.__dict__
        return self.__dict__ | {"_numbers": None, "_offsets": None}  # mapped again over there

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._path is not None:
            self._load()


def join_quoted(lines: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Put together the lines of records whose fields have line ends in them.

    Returns:
        The whole records, and the lines of one that is not closed yet.
    """
    records: list[bytes] = []
    kept: list[bytes] = []
    inside = False
    for line in lines:
        inside ^= line.count(b'"') % 2 == 1
        kept.append(line)
        if not inside:
            records.append(kept[0] if len(kept) == 1 else b"\n".join(kept))
            kept = []
    return records, kept


def line_of(file: PositionedFile, place: int) -> int:
    """The line, from 1, that the byte at `place` is in; about 1 s a GB, for messages."""
    size = 1 << 20
    starts = range(0, place, size)
    return 1 + sum(file.read(at, min(at + size, place)).count(b"\n") for at in starts)


def _is_sound(folder: Path) -> bool:
    """Whether an index is all there; a machine that lost its power may have torn it."""
    try:
        about = json.loads((folder / "records.json").read_text())
        places = np.load(folder / "places.npy")
        return bool(about["check"] == fingerprint([places]))
    except (OSError, ValueError, KeyError, EOFError):  # the last: an empty file
        return False
