"""All files below a folder, through links, each folder once."""

from __future__ import annotations

import logging
import os
from functools import cache
from heapq import heappop, heappush
from pathlib import Path

from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Limits
from penstock.terminal import ProgressDisplay

_log = logging.getLogger(__name__)


def walk(folder: Path, limits: Limits = DEFAULT) -> list[str]:
    """Names of all files below a folder, relative, sorted; hidden ones left out.

    Links are followed, also out of the folder, as people link data that they keep elsewhere; real
    folders come first, then links in the order of their names. Folders that were seen before or
    contain this one are skipped, so loops end; those that may not be read, and empty ones named
    like files, too. One warning counts them. Entries that are not files (a FIFO, a broken link) are
    listed: reading them says what they are. Cost: about 2 us a file.

    Raises:
        DataError: there are more than `limits.files`.
    """
    names: list[str] = []
    skipped: list[str] = []
    seen = {_identity(parent) for parent in folder.resolve().parents}
    waiting = [""]  # folders, each with a slash at its end
    links: list[str] = []  # to folders; a heap
    with ProgressDisplay(f"listing {folder}") as shown:
        while waiting or links:
            shown.to(len(names))
            below = waiting.pop() if waiting else heappop(links)
            try:
                identity = _identity(Path(folder, below))
                if identity in seen:
                    skipped.append(f"{below[:-1]} (seen before, through another link)")
                    continue
                seen.add(identity)
                empty = True
                with os.scandir(f"{folder}/{below}") as entries:
                    for entry in entries:
                        if entry.name[0] == ".":
                            continue
                        empty = False
                        if not is_folder(entry):
                            names.append(below + entry.name)
                        elif entry.is_symlink():
                            heappush(links, f"{below}{entry.name}/")
                        else:
                            waiting.append(f"{below}{entry.name}/")
            except OSError as error:
                skipped.append(f"{below[:-1]} ({error.strerror})")
                continue
            if empty and "." in below:
                skipped.append(f"{below[:-1]} (a folder without files)")
            if len(names) + len(waiting) + len(links) > limits.files:
                refusal = limits.refusal("files", f"{len(names)} files and more")
                raise DataError(f"{str(folder)!r} holds {refusal}")
    if skipped:
        _warn(str(folder), len(skipped), skipped[0])
    return sorted(names)


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or to what may not be looked at
        return False


@cache
def _warn(folder: str, count: int, first: str) -> None:
    """Warn once in a process: both splits walk through the same folder."""
    _log.warning("%s: skipped %d folder(s), the first %s.", folder, count, first)
