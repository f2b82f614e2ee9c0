"""Compressed files, read forwards as what they hold.

    .gz     Python's own
    .zst    Python's own from 3.14 on, before that the package zstandard

Told by their first bytes and not by their names. Concatenated files are read as one, as gzip and
zstd themselves do. What comes out is counted against what went in (`limits.expansion`), and no call
gives more than it was asked for, so that a small file cannot fill the memory. Cost: about 300 MB/s
of text for gz and 1 GB/s for zst.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from pipeline.datasets.reading.expansion import check_expansion
from pipeline.datasets.reading.regular_file import open_regular
from pipeline.errors import DataError
from pipeline.files.limits import Limits

_MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
# Bytes given to zstd at once. A block can be 4 bytes for 128 KiB, so they become 64 MiB at most; of
# ordinary text, 64 KiB at once are 5 % faster.
_FED = 2048
_WINDOW = 27  # log2 of the bytes that a frame of zstd may look back to: what `zstd` itself allows


class Text(Protocol):
    """What is in a file."""

    def read(self, size: int) -> bytes:
        """At most `size` bytes; b"" at the end."""
        ...


def compression_of(path: Path) -> str | None:
    """ "gzip", "zstd" or None; raises DataError if the file cannot be read."""
    try:
        with open_regular(path) as file:
            start = file.read(4)
    except OSError as error:
        raise DataError(
            f"{str(path)!r} ({path.absolute()}) cannot be read: {error.strerror}. Set dataset.root."
        ) from error
    return next((name for name, magic in _MAGIC.items() if start.startswith(magic)), None)


@contextmanager
def opened(path: Path, limits: Limits) -> Iterator[Text]:
    """The file, or what is in it if it is compressed; for reading forwards.

    Raises:
        DataError: the file cannot be read, is damaged or cut off, expands beyond
            `limits.expansion`, or there is no reader for it.
    """
    name = repr(str(path))
    kind = compression_of(path)
    try:
        with open_regular(path) as raw:
            if kind is None:
                yield raw
            else:
                text = gzip.GzipFile(fileobj=raw, mode="rb") if kind == "gzip" else _Zstd(raw, name)
                yield _Counted(text, raw, name, limits)
    except (EOFError, gzip.BadGzipFile, zlib.error, _Damage) as error:
        raise DataError(
            f"{name} is damaged or cut off ({kind}: {error}). Copy or write it again."
        ) from error
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}.") from error


class _Damage(Exception):
    """What a zstd reader says of a file that is cut off or damaged."""


class _Counted:
    """Text that may not be too many times what it was made of."""

    def __init__(self, text: Text, raw: BinaryIO, name: str, limits: Limits) -> None:
        self._text, self._raw, self._name, self._limits = text, raw, name, limits
        self._done = 0

    def read(self, size: int) -> bytes:
        found = self._text.read(size)
        self._done += len(found)
        check_expansion(self._done, self._raw.tell(), self._limits, self._name)
        return found


class _Zstd:
    """Reads frames of zstd and says so when the last one is not complete."""

    def __init__(self, raw: BinaryIO, name: str) -> None:
        self._raw = raw
        self._new, self._errors = _zstd(name)
        self._frame = self._new()
        self._begun = False  # whether the frame at hand has got any bytes
        self._left = b""  # packed, of the next frame
        self._text = memoryview(b"")  # unpacked, and not handed out yet

    def read(self, size: int) -> bytes:
        """At most `size` bytes of the text; b"" at the end."""
        parts, missing = [], size
        while missing and (self._text or self._fill()):
            parts.append(bytes(self._text[:missing]))
            self._text = self._text[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)

    def _fill(self) -> bool:
        """Unpack a little more; False at the end."""
        while not self._text:
            packed = self._left or self._raw.read(_FED)
            if not packed:
                if self._begun:
                    raise _Damage("the last frame is not complete")
                return False
            if self._frame.eof:
                self._frame = self._new()
            try:
                self._text = memoryview(self._frame.decompress(packed[:_FED]))
            except self._errors as error:
                raise _Damage(str(error)) from error
            self._begun = not self._frame.eof
            self._left = (
                self._frame.unused_data + packed[_FED:] if self._frame.eof else packed[_FED:]
            )
        return True


def _zstd(name: str) -> tuple[Any, Any]:
    """(maker of decompressors of one frame, their error)."""
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]

        options = {zstd.DecompressionParameter.window_log_max: _WINDOW}
        return lambda: zstd.ZstdDecompressor(options=options), zstd.ZstdError
    except ImportError:
        pass
    try:
        import zstandard
    except ImportError as error:
        raise DataError(
            f"{name} is compressed by zstd, and nothing here reads that before Python 3.14: "
            "pip install zstandard"
        ) from error
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW)
    return decompressor.decompressobj, zstandard.ZstdError
