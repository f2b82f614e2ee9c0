"""Samples in a tar archive: files that stand next to each other and share a name up to its dot.

    digits/000017.jpg       sample "digits/000017", part "jpg"
    digits/000017.seg.png   the same sample, part "seg.png"
    digits/000017.cls       the same sample, part "cls"

Files without an ending, and those that begin with a dot (as macOS adds to archives), are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.addons.shards.tar.members import read_members
from penstock.addons.shards.tar.source import TarBytes
from penstock.errors import DataError


class TarSample(NamedTuple):
    """Where a sample lies."""

    number: int  # among the samples of its archive, from 0
    key: bytes  # its name
    start: int  # bytes of the archive, headers and all
    stop: int


def read_samples(source: TarBytes) -> Iterator[TarSample]:
    """The samples of an archive, in order; reads headers only.

    Raises:
        DataError: as `read_members`; or the files of a sample do not stand together.
    """
    seen: set[int] = set()  # hashes of keys
    current: TarSample | None = None
    for member in read_members(source):
        split = split_name(member.name)
        if split is None:
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
                f"{_shown(key)} stood there before. The files of a sample have to stand together, "
                "and every sample needs a name of its own: sort the names when you make the "
                "archive."
            )
        current = TarSample(len(seen), key, member.start, member.end)
        seen.add(hash(key))
    if current is not None:
        yield current


def read_parts(where: str, content: bytes) -> tuple[str, dict[str, bytes]]:
    """The one sample that whole members in memory make up: its key, and ending -> content.

    Raises:
        DataError: as `read_members`; or a part is there twice.
    """
    key, parts, source = b"", dict[str, bytes](), TarBytes(where, content)
    for member in read_members(source, 0, len(content)):
        split = split_name(member.name)
        if split is None:
            continue
        key, ending = split[0], split[1].decode("utf-8", "replace").lower()
        if ending in parts:
            raise DataError(
                f"{where}: {_shown(member.name)} is there twice. Make the archive again with every "
                "file once."
            )
        parts[ending] = source.read(member.data, member.data + member.size)
    return key.decode("utf-8", "replace"), parts


def split_name(name: bytes) -> tuple[bytes, bytes] | None:
    """Key and ending of a file's name; None for one that belongs to no sample."""
    folder, slash, base = name.rpartition(b"/")
    stem, _, ending = base.partition(b".")
    if not stem or not ending:
        return None
    return folder.removeprefix(b"./") + slash + stem if slash else stem, ending


def _shown(name: bytes) -> str:
    return repr(name.decode(errors="replace"))
