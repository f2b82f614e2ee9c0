"""A tar archive, read header by header: its bytes, its members, and the samples that they make up.

Reads regular files, under names of ustar, GNU or pax. Data is skipped by adding its size, and never
extracted to a file system. Links, devices, sparse files and names that lead out of the archive are
refused. Cost: 5 us a member, where `tarfile` takes 30; every checksum is verified. `tarfile` would
do if it were as fast, bounded what a header claims, and kept no list of all members.

Files that stand next to each other and share a name up to its first dot are a sample:

    digits/000017.jpg       sample "digits/000017", part "jpg"
    digits/000017.seg.png   the same sample, part "seg.png"; up to the last dot: another sample
    digits/000017.cls       the same sample, part "cls"

Files without an ending are left out with a warning, and those that begin with a dot (as macOS adds
to archives) without one.

Format: https://www.gnu.org/software/tar/manual/html_node/Standard.html and, for pax,
https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from penstock.addons.record_files.positioned_file import PositionedFile
from penstock.addons.record_files.shard_files import (
    DamagedError,
    check_expansion,
    decompressed_gzip,
)
from penstock.errors import DataError
from penstock.files.limits import Limits

Dots = Literal["first", "last"]  # at which the name of a sample ends
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

    def reaches(self, offset: int) -> bool:
        """Whether there are bytes up to `offset`."""
        return offset <= len(self._content)

    def forget(self, offset: int) -> None:
        """Nothing before `offset` will be read again."""


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

    def reaches(self, offset: int) -> bool:
        return offset <= self._file.size


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
            self._raw = Path(path).open("rb")  # noqa: SIM115  (closed by `__exit__`)
        except OSError as error:
            raise DataError(f"{name!r} cannot be read: {error.strerror}.") from error
        self._file = decompressed_gzip(self._raw)
        self._kept = bytearray()
        self._start = self._done = 0

    def read(self, start: int, stop: int) -> bytes:
        self.reaches(stop)
        return bytes(self._kept[start - self._start : stop - self._start])

    def reaches(self, offset: int) -> bool:
        """Whether there are bytes up to `offset`; they are kept from now on.

        Raises:
            DataError: these are more than `limits.record_bytes` since the last `forget`; the
                archive is damaged; it expands too much.
        """
        if offset - self._start > self._limits.record_bytes + _AROUND:
            claim = f"a sample has {offset - self._start} bytes"
            where = f"{self.name!r}, byte {self._start} of its decompressed content"
            raise DataError(f"{where}: {self._limits.refusal('record_bytes', claim)}.")
        missing = offset - self._start - len(self._kept)
        while missing > 0:
            content = self._decompressed(min(missing, _CHUNK))
            if not content:
                return False
            self._kept += content
            missing -= len(content)
        return True

    def forget(self, offset: int) -> None:
        del self._kept[: offset - self._start]
        self._start = offset

    def __enter__(self) -> GzipTar:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def _decompressed(self, size: int) -> bytes:
        try:
            content = self._file.read(size)
        except EOFError as error:
            raise DataError(
                f"{self.name!r} ends in the middle of its compressed data: it was cut off. Copy or "
                "make it again."
            ) from error
        except (OSError, DamagedError) as error:
            raise DataError(
                f"{self.name!r} cannot be decompressed: {error}. Copy or make it again."
            ) from error
        self._done += len(content)
        check_expansion(self._done, self._raw.tell(), self._limits, repr(self.name))
        return content


BLOCK = 512

_REGULAR = b"\x0007"
_FOLDER, _PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK = b"5xgLK"
_OTHERS = {ord("1"): "a hard link", ord("2"): "a symbolic link", ord("S"): "a sparse file"}
_LONGEST = 1 << 20  # bytes of a name; allowed
_HEADERS = 64  # that say something about one member; there are two or three
_DIGITS = 19  # of a size; as many as 2^63 has
_USTAR = b"ustar\0"


class Member(NamedTuple):
    """One regular file in an archive; places in bytes."""

    number: int  # among all members that were read, from 0
    name: bytes  # with folders, as it is written
    start: int  # of its first header
    data: int  # of its content
    size: int  # of its content
    end: int  # where the next member begins


def read_members(source: TarBytes, start: int = 0, stop: int | None = None) -> Iterator[Member]:
    """The regular files of an archive, or of the part of it from `start` to `stop`.

    Raises:
        DataError: the archive is cut off or damaged, or has a member of another type; names the
            archive, the member's number and its name.
    """
    offset, number, name, size, before = start, 0, b"", -1, 0
    while stop is None or offset < stop:
        header = source.read(offset, offset + BLOCK)
        if header[:1] in (b"", b"\0") and not header.strip(b"\0"):
            _check_end(source, header, offset, number)
            return
        _check_header(source, header, offset, number)
        kind = header[156]
        data = offset + BLOCK
        length = _number(header[124:136]) if size < 0 or kind not in _REGULAR else size
        end = data + -(-length // BLOCK) * BLOCK
        if not source.reaches(data + length):
            member = _shown(name or _name(header))
            raise _cut(source, number, f"{member} has {length} bytes from byte {data} on")
        if kind in (_PAX, _LONG_NAME):
            if length > _LONGEST:
                raise DataError(f"{_where(source, number)}: its name has {length} bytes.")
            content = source.read(data, data + length)
            if kind == _PAX:
                name, size = _pax(content, name, source, number)
            else:
                name = content.rstrip(b"\0")
        elif kind in _REGULAR:
            name = name or _name(header)
            if name.startswith(b"/") or (b".." in name and b".." in name.split(b"/")):
                raise DataError(
                    f"{_where(source, number)}: its name {_shown(name)} leads out of the archive. "
                    "Make the archive with relative names."
                )
            if not name.endswith(b"/"):
                yield Member(number, name, start, data, length, end)
        elif kind not in (_FOLDER, _PAX_GLOBAL, _LONG_LINK):
            what = _OTHERS.get(kind, f"of type {chr(kind)!r}")
            raise DataError(
                f"{_where(source, number)} ({_shown(name or _name(header))}): is {what}, not a "
                "plain file. Make the archive of plain files."
            )
        offset, before = end, before + 1
        if kind in _REGULAR or kind == _FOLDER:
            start, name, size, before = end, b"", -1, 0
            number += 1
        elif before > _HEADERS:
            raise DataError(
                f"{_where(source, number)}: more than {_HEADERS} headers come before it. Make the "
                "archive again."
            )


def _check_end(source: TarBytes, header: bytes, offset: int, number: int) -> None:
    """Archives end in blocks of zeros; one that does not was cut, and nothing may follow them."""
    if len(header) < BLOCK:
        raise _cut(source, number, "the archive's end mark should be there")
    if source.read(offset, offset + (1 << 16)).strip(b"\0"):
        raise DataError(
            f"{source.name!r}: there is more after its end mark at byte {offset}, as when archives "
            "are joined by cat. Keep them in files of their own."
        )


def _check_header(source: TarBytes, header: bytes, offset: int, number: int) -> None:
    if len(header) < BLOCK:
        raise _cut(source, number, f"its header begins at byte {offset}")
    # The sum of all bytes, with blanks instead of the sum itself. adler32 keeps such a sum,
    # modulo 65521, in its low half; summing in Python takes ten times as long.
    checksum = (zlib.adler32(header) & 0xFFFF) - (zlib.adler32(header[148:156]) & 0xFFFF) + 8 * 32
    is_sound = False
    with suppress(ValueError):
        size = _number(header[124:136])
        is_sound = (checksum - _number(header[148:156])) % 65521 == 0 and size >= 0
    if not is_sound:
        what = "is not a tar archive" if offset == 0 else "is damaged"
        raise DataError(
            f"{_where(source, number)}, byte {offset}: {what} (the checksum of its header "
            "does not match). Copy or make it again."
        )


def _number(field: bytes) -> int:
    """Octal digits, or GNU's binary form for larger numbers."""
    if field[0] & 0x80:
        return int.from_bytes(field, "big") & ~(0x80 << (8 * (len(field) - 1)))
    return int(field.strip(b" \0") or b"0", 8)  # of 12 characters at most


def _name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    if header[257:263] == _USTAR and header[345]:
        name = header[345:500].split(b"\0", 1)[0] + b"/" + name
    return name


def _pax(content: bytes, name: bytes, source: TarBytes, number: int) -> tuple[bytes, int]:
    """Name and size from records such as `20 path=some/name`; size -1 if there is none."""
    size, at = -1, 0
    try:
        while at < len(content):
            length = int(content[at : content.index(b" ", at)])
            if length < 5 or at + length > len(content):
                raise ValueError
            record = content[at : at + length - 1].split(b" ", 1)[1]
            key, _, value = record.partition(b"=")
            if key == b"path":
                name = value
            elif key == b"size":
                if not value.isdigit() or len(value) > _DIGITS:
                    raise ValueError
                size = int(value)
            at += length
    except ValueError as error:
        raise DataError(
            f"{_where(source, number)}: its pax header is damaged. Make the archive again."
        ) from error
    return name, size


def _cut(source: TarBytes, number: int, what: str) -> DataError:
    return DataError(
        f"{_where(source, number)}: {what}, but the file ends before: it was cut off. Copy or "
        "make it again."
    )


def _where(source: TarBytes, number: int) -> str:
    return f"{source.name!r}, member {number}"


def _shown(name: bytes) -> str:
    return repr(name.decode("utf-8", "backslashreplace"))


class TarSample(NamedTuple):
    """Where a sample lies."""

    number: int  # among the samples of its archive, from 0
    key: bytes  # its name
    start: int  # bytes of the archive, headers and all
    stop: int


def read_samples(source: TarBytes, dots: Dots = "first") -> Iterator[TarSample]:
    """The samples of an archive, in order; reads headers only.

    Raises:
        DataError: as `read_members`; or the files of a sample do not stand together.
    """
    seen: set[int] = set()  # hashes of keys
    current: TarSample | None = None
    unnamed: list[bytes] = []
    for member in read_members(source):
        split = split_name(member.name, dots)
        if split is None:
            unnamed += [member.name] * (b"." not in member.name.rpartition(b"/")[2])
            if current is None:
                source.forget(member.end)
            continue
        key = split[0]
        if current is not None and key == current.key:
            current = current._replace(stop=member.end)
            continue
        if current is not None:
            yield current
        if hash(key) in seen:
            raise DataError(
                f"{source.name!r}, member {member.number} ({_shown(member.name)}): sample "
                f"{_shown(key)} occurred before. The files of a sample must be together, "
                "and every sample needs a name of its own: sort the names when you make the "
                "archive."
            )
        current = TarSample(len(seen), key, member.start, member.end)
        seen.add(hash(key))
    if current is not None:
        yield current
    if unnamed:
        _warn_once(source.name, len(unnamed), _shown(unnamed[0]))


@cache
def _warn_once(archive: str, count: int, first: str) -> None:
    message = "%s: left out %d file(s) without an ending, the first %s."
    logging.getLogger(__name__).warning(message, archive, count, first)


def read_parts(where: str, content: bytes, dots: Dots = "first") -> tuple[str, dict[str, bytes]]:
    """The one sample that whole members in memory make up: its key, and ending -> content.

    Raises:
        DataError: as `read_members`; or a part occurs twice.
    """
    key, parts, source = b"", dict[str, bytes](), TarBytes(where, content)
    for member in read_members(source, 0, len(content)):
        split = split_name(member.name, dots)
        if split is None:
            continue
        key, ending = split[0], split[1].decode("utf-8", "replace").lower()
        if ending in parts:
            raise DataError(
                f"{where}: {_shown(member.name)} occurs twice. Make the archive again with every "
                "file once."
            )
        parts[ending] = source.read(member.data, member.data + member.size)
    return key.decode("utf-8", "replace"), parts


def split_name(name: bytes, dots: Dots = "first") -> tuple[bytes, bytes] | None:
    """Key and ending of a file's name; None for one that belongs to no sample."""
    folder, slash, base = name.rpartition(b"/")
    cut = base.partition if dots == "first" or base[:1] == b"." else base.rpartition
    stem, _, ending = cut(b".")
    if not stem or not ending:
        return None
    return folder.removeprefix(b"./") + slash + stem if slash else stem, ending
