"""The samples of tar archives, and where they lie, so that any of them can be read alone.

    digits/000017.jpg       sample "digits/000017", part "jpg"
    digits/000017.seg.png   the same sample, part "seg.png"; up to the last dot: another sample
    digits/000017.cls       the same sample, part "cls"

Files that stand next to each other and share a name up to its first dot are a sample. Files without
an ending, and those that begin with a dot (as macOS adds to archives), are left out. Links, devices
and sparse files are refused. Nothing is extracted.

    python -m penstock.addons.tars.index FOLDER    writes NAME.tar.index beside each archive

An index is numpy's `.npz`, for n samples of m files:

    keys     bytes[n]      names of the samples
    counts   int64[n]      their files
    endings  bytes[m]      of the files
    spans    int64[m, 2]   first and one past last byte of each file in the archive
    size     int64[1]      bytes of the archive

Cost: 20 us a sample of two files, to write, and 80 bytes to keep.
"""

from __future__ import annotations

import io
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from penstock.addons.storage import index
from penstock.addons.storage.files import RecordFiles
from penstock.datasets.files import open_root
from penstock.errors import DataError
from penstock.files.disk import replacing
from penstock.files.limits import Limits
from penstock.terminal import watched

Dots = Literal["first", "last"]  # at which the name of a sample ends
PLAIN = (".tar",)
COMPRESSED = (".tar.gz", ".tgz")
SUFFIX = ".index"
HEADER = 512  # bytes before the content of a file

# A plain file's header, as all programs write it: name, size, sum of its bytes.
_PLAIN = re.compile(
    rb"(?=([^\0]{0,98}[^\0/])\0).{124}([0-7]{11})[\0 ].{12}([0-7]{6})\0 0.{188}\0.{166}", re.DOTALL
)

Index = Mapping[str, npt.NDArray[Any]]


class Sample(NamedTuple):
    """The files of one name."""

    number: int  # among the samples of its archive, from 0
    key: str
    parts: dict[str, Any]  # ending -> first and one past last byte in the archive, or content


class _Member(tarfile.TarInfo):
    """A member of an archive; the header of a plain file is read in 3 us, and by tarfile in 15."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        plain = _PLAIN.fullmatch(buf)
        # The sum is that with blanks in its own place. adler32 has it and 1 more, modulo 65521.
        if plain is None or (int(plain[3], 8) + 1) % 65521 != (
            zlib.adler32(buf[:148] + b" " * 8 + buf[156:]) & 0xFFFF
        ):
            return super().frombuf(buf, encoding, errors)
        member = cls(str(plain[1], encoding, errors))
        member.size = int(plain[2], 8)
        return member


def read_samples(
    name: str, file: IO[bytes], dots: Dots, limits: Limits | None = None
) -> Iterator[Sample]:
    """The samples of an archive, in order: of a compressed one with their content.

    Args:
        name: for messages; its ending tells whether it is compressed.
        limits: `record_bytes` of a member, by its header; None: any.

    Raises:
        DataError: the archive is cut off or damaged, a member is no plain file or too large, or a
            part occurs twice. Names archive and member.
    """
    keeps, number, where = name.lower().endswith(COMPRESSED), 0, repr(name)
    current = Sample(0, "", {})
    try:
        archive: Any = tarfile.open(  # noqa: SIM115
            fileobj=file, mode="r:gz" if keeps else "r:", tarinfo=_Member
        )
        # Not `for`, which counts the members that the archive keeps.
        while (member := archive.next()) is not None:
            archive.members = []  # it would keep 1 kB of each
            where, number = f"{name!r}, member {number} ({member.name!r})", number + 1
            key, ending = split_name(member.name, dots)
            if not key or member.isdir():
                continue
            problem = (
                "is a link, a device or a sparse file. Make the archive of plain ones"
                if not member.isreg() or member.issparse()
                else "occurs twice. Make the archive with every file once"
                if key == current.key and ending in current.parts
                else limits.refusal("record_bytes", f"has {member.size} bytes")
                if limits and member.size > limits.record_bytes
                else ""
            )
            if problem:
                raise DataError(f"{where} {problem}.")
            if key != current.key:
                if current.parts:
                    yield current
                current = Sample(current.number + bool(current.parts), key, {})
            # A compressed archive cannot be read here and there later.
            current.parts[ending] = (
                archive.extractfile(member).read()
                if keeps
                else (member.offset_data, member.offset_data + member.size)
            )
        # tarfile takes a damaged header for the end, and a missing end for one.
        archive.fileobj.seek(archive.offset)
        tail = archive.fileobj.read(1 << 16)  # zeros may end an archive
    # The last two are gzip's: cut off, damaged.
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{where}: {error}: it is no tar archive, or it was cut off or damaged. Copy or make "
            "it again."
        ) from error
    if len(tail) < HEADER or tail.strip(b"\0"):
        raise DataError(
            f"{name!r}, member {number}: at byte {archive.offset} is neither the header of a file "
            "nor the end of the archive: it was cut off or damaged, or archives were joined by "
            "cat. Copy or make it again, or keep them in files of their own."
        )
    if current.parts:
        yield current


def split_name(name: str, dots: Dots) -> tuple[str, str]:
    """Key and ending of a file's name, empty for one that belongs to no sample."""
    folder, slash, base = name.rpartition("/")
    # A name that begins with a dot has no stem before it, wherever names end.
    stem, _, ending = (
        base.partition(".") if dots == "first" or base[:1] == "." else base.rpartition(".")
    )
    if not stem or not ending:
        return "", ""
    return folder.removeprefix("./") + slash + stem if slash else stem, ending.lower()


def make(
    files: RecordFiles, number: int, dots: Dots = "first", limits: Limits | None = None
) -> Index:
    """The index of one of the archives, by reading its headers; DataError if it is damaged."""
    with files.open(number, ahead=True) as file:
        samples = [*read_samples(files.addresses[number], file, dots, limits)]
    parts = [part for sample in samples for part in sample.parts.items()]
    # Texts of a fixed width, which can be mapped; names within an archive are about as long.
    return {
        "keys": np.array(
            [sample.key.encode("utf-8", "surrogateescape") for sample in samples], "S"
        ),
        "counts": np.array([len(sample.parts) for sample in samples], np.int64),
        "endings": np.array([ending.encode("utf-8", "replace") for ending, _ in parts], "S"),
        "spans": np.array([span for _, span in parts], np.int64).reshape(-1, 2),
        "size": files.sizes[[number]],
    }


def read(content: bytes, archive: str, size: int) -> Index:
    """The index of an archive of `size` bytes that lies beside it; DataError if it is another."""
    with suppress(Exception):  # any file may be called so
        made = dict(np.load(io.BytesIO(content), allow_pickle=False))
        if made["size"] == [size] and made["counts"].sum() == len(made["spans"]):
            return made
    raise DataError(
        f"{archive + SUFFIX!r} is not the index of that archive, which has {size} bytes. Write it "
        "again (python -m penstock.addons.tars.index FOLDER), or delete it."
    )


def write(folder: str) -> int:
    """Write the index of each archive below a folder of this machine; the number of them.

    Raises:
        DataError: there are none, one is damaged, or an index cannot be written.
    """
    root = open_root(folder, "the archives")
    files = RecordFiles.named(root, [n for n in root.files() if n.lower().endswith(PLAIN)])
    if not len(files):
        raise DataError(f"{folder!r} is not a folder with .tar files")
    for number, address in enumerate(watched(files.addresses, len(files), f"indexing {folder}")):
        with replacing(Path(address + SUFFIX)) as file:
            np.savez(file, **make(files, number))  # type: ignore[arg-type]
    return len(files)


if __name__ == "__main__":
    index.main(write, "archives are indexed")
