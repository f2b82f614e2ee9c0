"""The names, sizes and MD5s of the files of a folder, for web servers, which do not list theirs.

    python -m penstock.addons.storage.index FOLDER    before it is uploaded

writes FOLDER/penstock-files.index, a JSON object: name -> [MD5, bytes]. Files that are added later
are not seen, and one that has changed is an error that names it. Cost: the time to read all files.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

from penstock.datasets.files import open_root
from penstock.errors import DataError, PenstockError
from penstock.files.disk import write_atomically
from penstock.terminal import put, watched

INDEX = "penstock-files.index"


def parsed(content: bytes, address: str) -> list[tuple[str, int, str]]:
    """The files that an index names, their sizes and versions; DataError if it is damaged."""
    try:
        files = json.loads(content)
        return [(name, int(size), f"md5:{digest}") for name, (digest, size) in files.items()]
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"{address!r} does not name files with their sizes and MD5s ({error}). Write it again: "
            "python -m penstock.addons.storage.index FOLDER"
        ) from error


def write(folder: str | Path) -> int:
    """Write the index of a folder of this machine; the number of its files.

    Raises:
        DataError: the folder is missing or cannot be written, or a file cannot be read.
    """
    root = open_root(str(folder), "the files")
    names, files = [name for name in root.files() if name != INDEX], {}
    for name in watched(names, len(names), f"reading the files of {folder}"):
        with Path(root.path(name)).open("rb") as file:
            files[name] = hashlib.file_digest(file, "md5").hexdigest(), file.tell()
    # JSON escapes what is no UTF-8, as names of files may have it.
    write_atomically(Path(root.path(INDEX)), json.dumps(files, indent=0).encode())
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
