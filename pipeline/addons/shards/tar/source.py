"""The bytes of one tar archive: of a plain file at any place, of a compressed one forwards."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

from penstock.datasets.reading.expansion import check_expansion
from penstock.datasets.reading.positioned_file import PositionedFile, open_regular
from penstock.errors import DataError
from penstock.files.batch_bytes import temporary
from penstock.files.limits import Limits

PLAIN = (".tar",)
COMPRESSED = (".tar.gz", ".tgz")

_CHUNK = 1 << 18
_AROUND = 1 << 20  # bytes of headers and padding that may be kept beside a sample


class TarBytes:
    """The bytes of an uncompressed archive, or of a part of one, in memory.

    Args:
        name: for messages.
        content: whole members.
    """

    def __init__(self, name: str, content: bytes = b"") -> None:
        self.name = name
        self._content = content

    def read(self, start: int, stop: int) -> bytes:
        """Bytes start .. stop-1, fewer only at the end."""
        return self._content[start:stop]

    def reaches(self, place: int) -> bool:
        """Whether there are bytes up to `place`."""
        return place <= len(self._content)

    def forget(self, place: int) -> None:
        """Nothing before `place` will be read again."""


class PlainTar(TarBytes):
    """An archive in a plain file; any part of it can be read, by many threads.

    Args:
        name: for messages.
        path: of the file.
    """

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name)
        self._file = PositionedFile(Path(path))

    def read(self, start: int, stop: int) -> bytes:
        return self._file.read(start, max(start, min(stop, self._file.size)))

    def reaches(self, place: int) -> bool:
        return place <= self._file.size


class GzipTar(TarBytes):
    """An archive that can only be decompressed forwards.

    Bytes are kept from the last `forget` on, so memory is that of one sample, which
    `limits.record_bytes` bounds; `limits.expansion` bounds the size of the whole archive.

    Args:
        name: for messages.
        path: of the file.
        limits: see above.
    """

    def __init__(self, name: str, path: str, limits: Limits) -> None:
        super().__init__(name)
        self._limits = limits
        try:
            self._raw = open_regular(path)
        except OSError as error:
            raise DataError(f"{name!r} cannot be read: {error.strerror}.") from error
        self._file: Any = gzip.GzipFile(fileobj=self._raw, mode="rb")
        self._kept = bytearray()
        self._start = self._done = 0

    def read(self, start: int, stop: int) -> bytes:
        self.reaches(stop)
        return bytes(self._kept[start - self._start : stop - self._start])

    def reaches(self, place: int) -> bool:
        """Whether there are bytes up to `place`; they are kept from now on.

        Raises:
            DataError: these are more than `limits.record_bytes` since the last `forget`; the
                archive is damaged; it expands too much.
        """
        if place - self._start > self._limits.record_bytes + _AROUND:
            claim = f"a sample has {place - self._start} bytes"
            where = f"{self.name!r}, byte {self._start} of its decompressed content"
            raise DataError(f"{where}: {self._limits.refusal('record_bytes', claim)}.")
        missing = place - self._start - len(self._kept)
        with temporary(max(0, missing), "a part of a sample"):
            while missing > 0:
                found = self._decompressed(min(missing, _CHUNK))
                if not found:
                    return False
                self._kept += found
                missing -= len(found)
        return True

    def forget(self, place: int) -> None:
        del self._kept[: place - self._start]
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
