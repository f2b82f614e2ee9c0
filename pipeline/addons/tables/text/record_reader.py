"""Records of a text file, plain or compressed, read forwards.

The first bytes of a file tell its compression (gzip or zstd), not its name; concatenated files are
read as one. The output is checked against `limits.expansion`, and no call gives more than it was
asked for, so a small file cannot fill the memory. Cost: 300 MB/s of text for gz, 1 GB/s for zst;
then 0.15 us a record and 1 ms a MB without quotes: only lines with quotes are joined in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

from penstock.addons.record_files.positioned_file import PositionedFile
from penstock.addons.record_files.shard_files import (
    DamagedError,
    Decompressed,
    check_expansion,
    decompressed_gzip,
)
from penstock.addons.tables.text.record_index import QUOTES, Quoting, line_of, text_bounds
from penstock.errors import DataError
from penstock.files.limits import Limits

_PIECE = 1 << 20
_BLANK = 1 << 20  # lines in a row, which are kept until it is known whether they end the file
_MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
_WINDOW = 27  # log2 of the bytes that a frame of zstd may look back, the default limit of `zstd`

Batch = tuple[list[int], list[bytes]]


def read_records(path: Path, quoting: Quoting, limits: Limits) -> Iterator[Batch]:
    """Batches of records, without line ends, and their places in the (unpacked) text.

    Blank lines at the end of the file are not records.

    Args:
        path: of the file.
        quoting: "standard" allows line ends in quotes.
        limits: `record_bytes` and `expansion`.

    Raises:
        DataError: the file cannot be read or is damaged, a quote is not closed, or a record is
            longer than `limits` allow; names the file and the line.
    """
    if compression_of(path) is not None:
        start, pieces = 0, unpacked(path, limits)
    else:
        file = PositionedFile(path)
        start, stop = text_bounds(file)
        bounds = range(start, stop, _PIECE)
        pieces = (file.read(at, min(at + _PIECE, stop)) for at in bounds)
    yield from _Splitter(path, quoting, start, limits).records(pieces)


def line_at(path: Path, offset: int, limits: Limits) -> int:
    """The line of the text, from 1, with the byte at `place`; reads the file up to there."""
    if compression_of(path) is None:
        return line_of(PositionedFile(path), offset)
    lines, before = 1, 0
    for piece in unpacked(path, limits):
        lines += piece[: offset - before].count(b"\n")
        before += len(piece)
        if before >= offset:
            break
    return lines


class _Splitter:
    """Pieces of a text -> its records; every byte is read once, however long a record is."""

    def __init__(self, path: Path, quoting: Quoting, start: int, limits: Limits) -> None:
        self._path, self._limits = path, limits
        self._quoted = quoting == "standard"
        self._place = start  # of the next record
        self._begun = bytearray()  # of a record that is not complete yet
        self._inside = False  # a quoted field, at its end
        self._blank: Batch = ([], [])  # records that count only if something follows

    def records(self, pieces: Iterable[bytes]) -> Iterator[Batch]:
        first = self._place == 0
        for piece in pieces:
            if first and piece.startswith(b"\xef\xbb\xbf"):
                piece, self._place = piece[3:], 3
            first = False
            yield self._without_blank_end(self._whole(piece))
        if not self._begun:
            return
        if self._inside:
            raise DataError(
                f"{self._where(self._place)}: a quote in this record is not closed. {QUOTES}"
            )
        yield self._without_blank_end(self._placed([bytes(self._begun)]))

    def _whole(self, piece: bytes) -> Batch:
        """The records that end in a piece; the rest of it begins the next one."""
        if self._inside and b'"' not in piece:
            self._keep(piece, self._place)
            return [], []
        *lines, rest = piece.split(b"\n")
        if lines and (self._inside or (self._quoted and b'"' in piece)):
            lines = self._joined(lines)
        elif lines and self._begun:
            lines[0] = self._ended(lines[0])
        batch = self._placed(lines)
        self._keep(rest, self._place)
        return batch

    def _joined(self, lines: list[bytes]) -> list[bytes]:
        """Records from lines; those with a line end in quotes are joined."""
        records, start = [], self._place
        for line in lines:
            inside = self._inside ^ (line.count(b'"') % 2 == 1)
            if inside:
                self._keep(line + b"\n", start)
            else:
                records.append(self._ended(line) if self._begun else line)
                self._inside = False
                start += len(records[-1]) + 1
        return records

    def _keep(self, part: bytes, start: int) -> None:
        """Add to the record that begins at `place`."""
        self._begun += part
        self._inside ^= self._quoted and part.count(b'"') % 2 == 1
        if len(self._begun) > self._limits.record_bytes:
            raise self._too_long(start, len(self._begun))

    def _ended(self, last: bytes) -> bytes:
        record = b"".join([self._begun, last])
        self._begun = bytearray()
        return record

    def _placed(self, lines: list[bytes]) -> Batch:
        places = list(accumulate((len(line) + 1 for line in lines), initial=self._place))
        self._place = places.pop()
        most = self._limits.record_bytes
        # Only the first line can be longer than a piece.
        checked = len(lines) if most < _PIECE else 1
        for start, line in zip(places[:checked], lines[:checked], strict=True):
            if len(line) > most:
                raise self._too_long(start, len(line))
        return places, [line.removesuffix(b"\r") for line in lines]

    def _too_long(self, start: int, size: int) -> DataError:
        refusal = self._limits.refusal("record_bytes", f"a record has {size} bytes or more")
        return DataError(
            f"{self._where(start)}: {refusal}. Is this a text file of lines, and are all quotes "
            "closed (dataset.quoting)?"
        )

    def _where(self, offset: int) -> str:
        return f"{str(self._path)!r}, line {line_at(self._path, offset, self._limits)}"

    def _without_blank_end(self, batch: Batch) -> Batch:
        places, records = batch
        last = len(records)
        while last and not records[last - 1]:
            last -= 1
        blank_places, blank = self._blank
        if not last:
            blank_places += places
            blank += records
            if len(blank) > _BLANK:
                raise DataError(
                    f"{self._where(blank_places[0])}: more than {_BLANK} blank lines begin here. "
                    "Remove them."
                )
            return [], []
        self._blank = (places[last:], records[last:])
        return blank_places + places[:last], blank + records[:last]


def compression_of(path: Path) -> str | None:
    """ "gzip", "zstd" or None; raises DataError if the file cannot be read."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise DataError(
            f"{str(path)!r} ({path.absolute()}) cannot be read: {error.strerror}. Set dataset.root."
        ) from error
    return next((name for name, magic in _MAGIC.items() if start.startswith(magic)), None)


def unpacked(path: Path, limits: Limits) -> Iterator[bytes]:
    """The content of a file in pieces of 1 MiB, unpacked if it is compressed.

    DataError: it cannot be read, is damaged or cut off, or expands beyond `limits.expansion`.
    """
    name = repr(str(path))
    kind = compression_of(path)
    done = 0
    try:
        with path.open("rb") as raw:
            text: BinaryIO | Decompressed = raw
            if kind is not None:
                text = decompressed_gzip(raw) if kind == "gzip" else _decompressed_zstd(raw, name)
            while piece := text.read(_PIECE):
                done += len(piece)
                if kind is not None:
                    check_expansion(done, raw.tell(), limits, name)
                yield piece
    except (EOFError, DamagedError) as error:
        raise DataError(
            f"{name} is damaged or cut off ({kind}: {error}). Copy or write it again."
        ) from error
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}.") from error


def _decompressed_zstd(raw: BinaryIO, name: str) -> Decompressed:
    # A block can be 4 bytes for 128 KiB, so the 2048 bytes that it gets at once expand to 64 MiB at
    # most; for ordinary text, 64 KiB at once are 5 % faster.
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]

        options = {zstd.DecompressionParameter.window_log_max: _WINDOW}
        return Decompressed(raw, lambda: zstd.ZstdDecompressor(options=options), zstd.ZstdError)
    except ImportError:
        pass
    try:
        import zstandard
    except ImportError as error:
        raise DataError(
            f"{name} is compressed by zstd, which before Python 3.14 needs a package: pip install "
            "zstandard"
        ) from error
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW)
    return Decompressed(raw, decompressor.decompressobj, zstandard.ZstdError)
