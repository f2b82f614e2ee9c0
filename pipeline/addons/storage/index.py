"""The names, sizes and MD5s of the files of a folder, for web servers, which do not list theirs.

    python -m penstock.addons.storage.index FOLDER    before it is uploaded

writes FOLDER/penstock-files.index. Files that are added later are not seen, and one that has
changed is an error that names it. Cost: the time to read all files.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, unquote

from penstock.addons.storage.client import INDEX
from penstock.datasets.files import open_root
from penstock.errors import DataError, PenstockError
from penstock.files.disk import write_atomically
from penstock.terminal import put, watched

_FIRST = b"penstock files 1"
_ENTRY = re.compile(rb"([0-9]{1,18}) ([0-9a-f]{32}) ([!-~]{1,12288})")


def parsed(content: bytes, address: str) -> list[tuple[str, int, str]]:
    """The files that an index names, their sizes and versions.

    Raises:
        DataError: it is damaged, or leads out of its folder.
    """
    first, *lines = content.splitlines()
    files = []
    for number, line in enumerate(lines, 2):
        match = _ENTRY.fullmatch(line) if first == _FIRST else None
        name = unquote(match[3].decode(), errors="surrogateescape") if match else ""
        if match is None or "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise DataError(
                f"{address!r}: line {number} is not a size, an MD5 and the name of a file below "
                "it. Write it again: python -m penstock.addons.storage.index FOLDER"
            )
        files.append((name, int(match[1]), f"md5:{match[2].decode()}"))
    return files


def write(folder: str | Path) -> int:
    """Write the index of a folder of this machine; the number of its files.

    Raises:
        DataError: the folder is missing or cannot be written, or a file cannot be read.
    """
    root = open_root(str(folder), "the files")
    names = [name for name in root.files() if name != INDEX]
    lines = [_FIRST]
    for name in watched(names, len(names), f"reading the files of {folder}"):
        with Path(root.path(name)).open("rb") as file:
            digest = hashlib.file_digest(file, "md5").hexdigest()
            size = file.tell()
        encoded = quote(name, safe="/", errors="surrogateescape")
        lines.append(f"{size} {digest} {encoded}".encode())
    write_atomically(Path(root.path(INDEX)), b"\n".join([*lines, b""]))
    return len(names)


def main(write: Callable[[str], int], done: str) -> None:
    """Let a command line write something for a folder, and say so."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m MODULE FOLDER")
    try:
        put(f"{write(sys.argv[1])} {done} in {sys.argv[1]}")
    except (PenstockError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(write, f"files are in the {INDEX}")
