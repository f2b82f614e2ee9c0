"""The bytes of one tar archive: of a plain file at any place, of a compressed one forwards."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

from pipeline.datasets.reading.expansion import check_expansion
from pipeline.datasets.reading.positioned_file import PositionedFile, open_regular
from pipeline.errors import DataError
from pipeline.files.limits import Limits

PLAIN = (".tar",)
COMPRESSED = (".tar.gz", ".tgz")

_CHUNK = 1 << 18
_AROUND = 1 << 20  # bytes of headers and padding that may be held beside a sample


class PlainTar:
    """An archive in a plain file; any part of it can be read, by many threads.

    Args:
        name: what messages call it.
        path: of the file.
    """

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.file = PositionedFile(Path(path))

    def read(self, start: int, stop: int) -> bytes:
        """Bytes start .. stop-1, fewer only at the end."""
        return self.file.read(start, max(start, min(stop, self.file.size)))

    def reaches(self, place: int) -> bool:
        """Whether there are bytes up to `place`."""
        return place <= self.file.size

    def forget(self, place: int) -> None:
        """Nothing is held."""


class GzipTar:
    """An archive that can only be decompressed forwards.

    Bytes are held from the last place that `forget` was told, so memory is that of one sample,
    which `limits.record_bytes` bounds; `limits.expansion` bounds what comes out in all.

    Args:
        name: what messages call it.
        path: of the file.
        limits: see above.
    """

    def __init__(self, name: str, path: str, limits: Limits) -> None:
        self.name, self._limits = name, limits
        try:
            self._raw = open_regular(path)
        except OSError as error:
            raise DataError(f"{name!r} cannot be read: {error.strerror}.") from error
        self._file: Any = gzip.GzipFile(fileobj=self._raw, mode="rb")
        self._held = bytearray()
        self._start = self._done = 0

    def read(self, start: int, stop: int) -> bytes:
        """Bytes start .. stop-1, fewer only at the end; `start` was not forgotten."""
        self.reaches(stop)
        return bytes(self._held[start - self._start : stop - self._start])

    def reaches(self, place: int) -> bool:
        """Whether there are bytes up to `place`; they are held from now on.

        Raises:
            DataError: these are more than `limits.record_bytes` since what was forgotten; the
                archive is damaged; it expands too much.
        """
        if place - self._start > self._limits.record_bytes + _AROUND:
            claim = f"a sample has {place - self._start} bytes"
            where = f"{self.name!r}, byte {self._start} of what is in it"
            raise DataError(f"{where}: {self._limits.refusal('record_bytes', claim)}.")
        while self._start + len(self._held) < place:
            missing = place - self._start - len(self._held)
            found = self._decompressed(min(missing, _CHUNK))
            if not found:
                return False
            self._held += found
        return True

    def forget(self, place: int) -> None:
        """Let go of the bytes before `place`."""
        del self._held[: place - self._start]
        self._start = place

    def __enter__(self) -> GzipTar:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._raw.close()

    def _decompressed(self, size: int) -> bytes:
        try:
            content: bytes = self._file.read(size)
        except EOFError as error:
            raise DataError(
                f"{self.name!r} ends in the middle of its compressed data: it was cut off. Copy or "
                "make it again."
            ) from error
        except (OSError, zlib.error) as error:
            raise DataError(
                f"{self.name!r} cannot be decompressed: {error}. Copy or make it again."
            ) from error
        self._done += len(content)
        check_expansion(self._done, self._raw.tell(), self._limits, repr(self.name))
        return content


class BytesTar:
    """A part of an archive in memory.

    Args:
        name: what messages call it.
        content: whole members.
    """

    def __init__(self, name: str, content: bytes) -> None:
        self.name = name
        self._content = content

    def read(self, start: int, stop: int) -> bytes:
        """Bytes start .. stop-1, fewer only at the end."""
        return self._content[start:stop]

    def reaches(self, place: int) -> bool:
        """Whether there are bytes up to `place`."""
        return place <= len(self._content)

    def forget(self, place: int) -> None:
        """Nothing is held beside what was given."""
