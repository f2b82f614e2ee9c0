"""Compressed data: read forwards, and how many bytes may come out of it (`limits.expansion`).

`gzip.GzipFile` would do for the former if it did not read zeros behind a member byte by byte, and a
name in its header, too: a sparse file of zeros keeps it busy for hours.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

from penstock.errors import DataError
from penstock.files.limits import Limits

Buffer = Any  # bytes, or what gives them without a copy
FREE = 64 << 20  # bytes that any file may expand to, however small it is
PADDING = 64 << 20  # zeros behind a member of gzip, as tapes leave them; more is refused


def allowed(packed: int, limits: Limits) -> int:
    """Bytes that may come out of `packed` bytes."""
    return FREE + int(limits.expansion * packed)


def check_expansion(unpacked: int, packed: int, limits: Limits, name: str) -> None:
    """Raise DataError if `unpacked` bytes are too many for `packed` compressed ones."""
    if unpacked > allowed(packed, limits):
        shown = f"its {packed} compressed bytes expand to {unpacked} or more"
        raise DataError(f"{name}: {limits.refusal('expansion', shown)}.")


class DamagedError(Exception):
    """Compressed data is damaged."""


class Decompressed:
    """Reads concatenated members of gzip, or frames of zstd, forwards.

    Args:
        raw: at the first byte of the first member.
        new: a decompressor of one member, with `decompress`, `eof` and `unused_data`.
        errors: what that raises.
        padding: what may stand between members, and behind the last one.
        fed: bytes that it gets at once, so that what comes out at once is bounded.
    """

    def __init__(
        self,
        raw: BinaryIO,
        new: Callable[[], Any],
        errors: type[Exception],
        padding: bytes = b"",
        fed: int = 2048,
    ) -> None:
        self._raw, self._new, self._errors, self._padding = raw, new, errors, padding
        self._fed = fed
        self._member = new()
        self._begun = False  # whether the current member has any bytes
        self._skipped = 0  # bytes of padding since the last member
        self._left = b""  # compressed, of the next member
        self._content = memoryview(b"")  # decompressed, and not returned yet

    def read(self, size: int) -> bytes:
        """`size` bytes, fewer only at the end.

        Raises:
            EOFError: the last member is not complete.
            DamagedError: the data is damaged.
        """
        parts, missing = [], size
        while missing:
            packed = b"" if self._content else self._left or self._raw.read(self._fed)
            if packed:
                self._decompress(packed)
            elif not self._content:
                break
            parts.append(bytes(self._content[:missing]))
            self._content = self._content[missing:]
            missing -= len(parts[-1])
        if missing and self._begun:
            raise EOFError("it ends in the middle of its compressed data")
        return b"".join(parts)

    def _decompress(self, packed: bytes) -> None:
        if self._padding and not self._begun and self._member.eof:
            size = len(packed)
            packed = packed.lstrip(self._padding)
            self._skipped += size - len(packed)
            if self._skipped > PADDING:
                raise DamagedError(f"more than {PADDING} bytes of padding follow its content")
            if not packed:
                self._left = b""
                return
        if self._member.eof:
            self._member, self._skipped = self._new(), 0
        try:
            self._content = memoryview(self._member.decompress(packed[: self._fed]))
        except self._errors as error:
            raise DamagedError(str(error)) from error
        self._begun = not self._member.eof
        unused = self._member.unused_data if self._member.eof else b""
        self._left = unused + packed[self._fed :]


def decompressed_gzip(raw: BinaryIO) -> Decompressed:
    """Concatenated members of gzip, whose checksums and lengths are verified."""
    wbits = 16 + zlib.MAX_WBITS  # a header and a trailer of gzip
    return Decompressed(raw, lambda: zlib.decompressobj(wbits), zlib.error, b"\0", 64 << 10)
