"""The index of a folder: names, sizes and checksums of its files, so that nobody has to ask.

    python -m penstock.addons.stores.file_index FOLDER     writes FOLDER/penstock-files.index

    penstock files 1
    78123 0cc175b9c0f1b6a831c399e269772661 train/a/00001.jpg
    ...

A web server's listing has names alone, so each file costs one HEAD. Where the folder at the address
of `root` has this file, one GET takes the place of the listing and of them all. Names are
percent-encoded. A file that changed later is found by its checksum, or by its size where only parts
of it are fetched. Stores with a listing of their own (S3, Google Cloud) are not asked for it.
"""

from __future__ import annotations

import hashlib
import io
import re
import sys
from pathlib import Path
from urllib.parse import quote, unquote

from penstock.addons.stores.listing import FileInfo, Listing
from penstock.datasets.files import walk
from penstock.errors import DataError, PenstockError
from penstock.files.disk import write_atomically
from penstock.files.limits import Limits
from penstock.terminal import put, watched

NAME = "penstock-files.index"
MOST = 256 * 2**20  # bytes of an index: some two million files
_AT_ONCE = 8192  # files
_FIRST = b"penstock files 1"
_ENTRY = re.compile(rb"([0-9]{1,18}) ([0-9a-f]{32}) ([!-~]{1,12288})")


def parsed(content: bytes, address: str, limits: Limits) -> Listing | None:
    """The files that an index names; None if it is none: some servers answer anything to all.

    Raises:
        DataError: it is damaged, leads out of its folder, or names more files than the limit.
    """
    first, _, rest = content.partition(b"\n")
    if first.rstrip() != _FIRST:
        return None
    count = rest.count(b"\n")
    if count > limits.files:
        raise DataError(f"{address!r} lists {limits.refusal('files', f'{count} files')}")
    parts: list[Listing] = []
    infos: list[FileInfo] = []
    for number, line in enumerate(io.BytesIO(rest), 2):
        if len(infos) == _AT_ONCE:  # Python's objects take ten times what a listing does
            parts.append(Listing.of(infos))
            infos = []
        match = _ENTRY.fullmatch(line.rstrip(b"\r\n"))
        name = unquote(match[3].decode(), errors="surrogateescape") if match else ""
        if match is None or "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise DataError(
                f"{address!r}: line {number} is not a size, an MD5 and the name of a file below "
                "it. Write it again: python -m penstock.addons.stores.file_index FOLDER"
            )
        infos.append(FileInfo(name, int(match[1]), f"md5:{match[2].decode()}"))
    return Listing.joined(("", part) for part in [*parts, Listing.of(infos)])


def write(folder: Path) -> int:
    """Write the index of a folder of this machine; the number of its files.

    Cost: the time to read them all.

    Raises:
        DataError: the folder is missing or cannot be written, or a file cannot be read.
    """
    if not folder.is_dir():
        raise DataError(f"{str(folder)!r} is not a folder")
    names = [name for name in walk(folder) if name != NAME]
    lines = [_FIRST]
    for name in watched(names, len(names), f"reading the files of {folder}"):
        try:
            with (folder / name).open("rb") as file:
                digest = hashlib.file_digest(file, _md5).hexdigest()
                size = file.tell()
        except OSError as error:
            raise DataError(
                f"{str(folder / name)!r} cannot be read: {error.strerror or error}"
            ) from error
        encoded = quote(name, safe="/", errors="surrogateescape")
        lines.append(f"{size} {digest} {encoded}".encode())
    write_atomically(folder / NAME, b"\n".join([*lines, b""]))
    return len(names)


def _md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m penstock.addons.stores.file_index FOLDER")
    try:
        count = write(Path(sys.argv[1]).expanduser())
    except PenstockError as error:
        sys.exit(str(error))
    put(f"{count} files are in {Path(sys.argv[1]) / NAME}")
