"""A tar archive, read header by header: its members, and the samples that they make up.

Names may be of ustar, GNU or pax. Data is skipped by adding its size, and never extracted to a file
system. Links, devices and sparse files are refused. Cost: 5 us a member, where `tarfile` takes 30
and takes a damaged header for the end; every checksum is verified.

Files that stand next to each other and share a name up to its first dot are a sample:

    digits/000017.jpg       sample "digits/000017", part "jpg"
    digits/000017.seg.png   the same sample, part "seg.png"; up to the last dot: another sample
    digits/000017.cls       the same sample, part "cls"

Files without an ending, and those that begin with a dot (as macOS adds to archives), are left out.

Format: https://www.gnu.org/software/tar/manual/html_node/Standard.html and, for pax,
https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BufferedReader
from typing import Literal, NamedTuple

from penstock.errors import DataError

Dots = Literal["first", "last"]  # at which the name of a sample ends
Read = Callable[[int, int], bytes | memoryview]  # bytes start .. stop-1, fewer only at the end
PLAIN = (".tar",)
COMPRESSED = (".tar.gz", ".tgz")
_BLOCK = 512
_PAX = re.compile(rb"\d+ (path|size)=(.*?)\n(?=\d+ |\Z)", re.DOTALL)
_OTHERS = {b"1": "a hard link", b"2": "a symbolic link", b"S": "a sparse file"}


class Member(NamedTuple):
    """One regular file in an archive; places in bytes."""

    number: int  # among all members that were read, from 0
    name: bytes  # with folders, as it is written
    start: int  # of its first header
    data: int  # of its content
    size: int  # of its content
    end: int  # where the next member begins


class Sample(NamedTuple):
    """Where a sample lies."""

    number: int  # among the samples of its archive, from 0
    key: bytes  # its name
    start: int  # bytes of the archive, headers and all
    stop: int


class Unzipped:
    """A compressed archive, which can only be read forwards; bytes from `kept` on are held.

    Args:
        name: for messages.
        file: compressed by gzip.
    """

    def __init__(self, name: str, file: BufferedReader) -> None:
        self._name, self._file, self._held, self.kept = name, gzip.GzipFile(fileobj=file), b"", 0

    def read(self, start: int, stop: int) -> bytes:
        """Bytes start .. stop-1, fewer only at the end; `start` is not before `kept`."""
        try:
            missing = stop - self.kept - len(self._held)
            self._held += self._file.read(max(missing, 0))
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{self._name!r} cannot be decompressed: {error}. It was cut off or damaged: copy "
                "or make it again."
            ) from error
        return self._held[start - self.kept : stop - self.kept]

    def forget(self, offset: int) -> None:
        """Nothing before `offset` will be read again."""
        self._held, self.kept = self._held[offset - self.kept :], offset


def read_members(name: str, read: Read, size: int | None, is_part: bool) -> Iterator[Member]:
    """The regular files of an archive.

    Args:
        name: for messages.
        size: its bytes, if they are known.
        is_part: it is a part of an archive, which has no end mark.

    Raises:
        DataError: the archive is cut off or damaged, or has a member of another type; names the
            archive, the member's number and its name.
    """
    offset, start, number, path, longer = 0, 0, 0, b"", -1
    while not is_part or size is None or offset < size:
        header = bytes(read(offset, offset + _BLOCK))
        where = f"{name!r}, member {number}"
        cut = "but the file ends before: it was cut off. Copy or make it again."
        if len(header) < _BLOCK:
            raise DataError(f"{where}: a header or the end mark is due at byte {offset}, {cut}")
        if not header.strip(b"\0"):
            if bytes(read(offset, offset + (1 << 16))).strip(b"\0"):
                raise DataError(
                    f"{name!r}: there is more after its end mark at byte {offset}, as when "
                    "archives are joined by cat. Keep them in files of their own."
                )
            return
        # The sum of all bytes, with blanks instead of the sum itself. adler32 keeps such a sum,
        # modulo 65521, in its low half; summing in Python takes ten times as long.
        found = (zlib.adler32(header) & 0xFFFF) - (zlib.adler32(header[148:156]) & 0xFFFF) + 256
        length = wanted = -1
        with suppress(ValueError):
            length, wanted = _number(header[124:136]), _number(header[148:156])
        if wanted < 0 or length < 0 or (found - wanted) % 65521:
            raise DataError(
                f"{where}, byte {offset}: {'is damaged' if offset else 'is not a tar archive'} "
                "(the checksum of its header does not match). Copy or make it again."
            )
        kind, data = header[156:157], offset + _BLOCK
        is_file = kind in (b"\0", b"0", b"7")
        length = longer if is_file and longer >= 0 else length
        offset = data + -(-length // _BLOCK) * _BLOCK
        shown = path or _name(header)
        if size is not None and data + length > size:
            raise DataError(f"{where} ({shown.decode(errors='replace')!r}): {length} bytes, {cut}")
        if kind == b"x":
            records = dict(_PAX.findall(bytes(read(data, data + length))))
            path = records.get(b"path", path)
            longer = int(records.get(b"size", longer))
        elif kind == b"L":
            path = bytes(read(data, data + length)).rstrip(b"\0")
        elif is_file and not shown.endswith(b"/"):
            yield Member(number, shown, start, data, length, offset)
        elif not is_file and kind not in (b"5", b"g", b"K"):
            what = _OTHERS.get(kind, f"of type {kind.decode('latin-1')!r}")
            raise DataError(
                f"{where} ({shown.decode(errors='replace')!r}): is {what}, not a plain file. Make "
                "the archive of plain files."
            )
        if is_file or kind == b"5":
            start, path, longer, number = offset, b"", -1, number + 1


def _number(field: bytes) -> int:
    """Octal digits, or GNU's binary form for larger numbers."""
    if field[0] & 0x80:
        return int.from_bytes(field, "big") & ~(0x80 << (8 * (len(field) - 1)))
    return int(field.strip(b" \0") or b"0", 8)


def _name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    if header[257:263] == b"ustar\0" and header[345]:
        name = header[345:500].split(b"\0", 1)[0] + b"/" + name
    return name


def read_samples(name: str, read: Read, size: int | None, dots: Dots) -> Iterator[Sample]:
    """The samples of an archive, in order; reads headers only.

    Raises:
        DataError: as `read_members`; or the files of a sample do not stand together.
    """
    seen: set[int] = set()  # hashes of keys
    current: Sample | None = None
    for member in read_members(name, read, size, is_part=False):
        split = split_name(member.name, dots)
        if split is None:
            continue
        if current is not None and split[0] == current.key:
            current = current._replace(stop=member.end)
            continue
        if current is not None:
            yield current
        if hash(split[0]) in seen:
            raise DataError(
                f"{name!r}, member {member.number} ({member.name.decode(errors='replace')!r}): "
                "its sample occurred before. The files of a sample must be together, and every "
                "sample needs a name of its own: sort the names when you make the archive."
            )
        current = Sample(len(seen), split[0], member.start, member.end)
        seen.add(hash(split[0]))
    if current is not None:
        yield current


def read_parts(where: str, content: bytes, dots: Dots) -> tuple[str, dict[str, bytes]]:
    """The one sample that whole members in memory make up: its key, and ending -> content.

    Raises:
        DataError: as `read_members`; or a part occurs twice.
    """
    key, parts = b"", dict[str, bytes]()
    for member in read_members(where, lambda a, b: content[a:b], len(content), is_part=True):
        split = split_name(member.name, dots)
        if split is None:
            continue
        key, ending = split[0], split[1].decode("utf-8", "replace").lower()
        if ending in parts:
            raise DataError(
                f"{where}: {member.name.decode(errors='replace')!r} occurs twice. Make the archive "
                "again with every file once."
            )
        parts[ending] = content[member.data : member.data + member.size]
    return key.decode("utf-8", "replace"), parts


def split_name(name: bytes, dots: Dots) -> tuple[bytes, bytes] | None:
    """Key and ending of a file's name; None for one that belongs to no sample."""
    folder, slash, base = name.rpartition(b"/")
    cut = base.partition if dots == "first" or base[:1] == b"." else base.rpartition
    stem, _, ending = cut(b".")
    if not stem or not ending:
        return None
    return folder.removeprefix(b"./") + slash + stem if slash else stem, ending
