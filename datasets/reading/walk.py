"""All files below a folder, through links, each folder once.

Links to files and folders are followed, inside of the folder and out of it, as people make them who
keep data elsewhere. A folder that was met already, or that all of this lies in, is
passed over, so that loops of links end. Real
folders come before links, and links in the order of their names: the same on every machine.
What is no file (a FIFO, a link to nothing) is listed with the files: reading it says what it is.
Cost: about 2 us a file.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import DataError
from pipeline.files.limits import DEFAULT, Limits

_log = logging.getLogger(__name__)


class _Below(NamedTuple):
    """What one folder holds: names of its files, its own folders, and links to folders."""

    files: list[str]
    folders: list[str]
    links: list[str]


def walk(folder: Path, limits: Limits = DEFAULT) -> list[str]:
    """Names of all files below a folder, relative, sorted; hidden ones left out.

    One warning says which folders were passed over: those met twice, those that may not be read,
    and empty ones that are named like files.

    Raises:
        DataError: there are more than `limits.files`.
    """
    names: list[str] = []
    passed_over: list[str] = []
    seen = {_identity(parent) for parent in folder.resolve().parents}
    waiting = [""]  # folders, each with a slash at its end
    links: list[str] = []  # to folders; a heap
    while waiting or links:
        below = waiting.pop() if waiting else heappop(links)
        try:
            place = _identity(Path(folder, below))
            if place in seen:
                passed_over.append(f"{below[:-1]} (met before, through another link)")
                continue
            seen.add(place)
            found = _scan(f"{folder}/{below}")
        except OSError as error:
            passed_over.append(f"{below[:-1]} ({error.strerror})")
            continue
        if not any(found) and "." in below:
            passed_over.append(f"{below[:-1]} (a folder without files)")
        names += [below + name for name in found.files]
        if len(names) + len(waiting) + len(links) > limits.files:
            raise DataError(
                f"{str(folder)!r} holds {limits.refusal('files', f'{len(names)} files and more')}"
            )
        waiting += [f"{below}{name}/" for name in found.folders]
        for name in found.links:
            heappush(links, f"{below}{name}/")
    if passed_over:
        _warn(str(folder), len(passed_over), passed_over[0])
    return sorted(names)


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _scan(folder: str) -> _Below:
    found = files, folders, links = _Below([], [], [])
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name[0] == ".":
                continue
            try:
                is_folder = entry.is_dir()
            except OSError:  # a link to itself, or to what may not be looked at
                is_folder = False
            if not is_folder:
                files.append(entry.name)
            elif entry.is_symlink():
                links.append(entry.name)
            else:
                folders.append(entry.name)
    return found


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or to what may not be looked at
        return False


@cache
def _warn(folder: str, count: int, first: str) -> None:
    """Warn once in a process: both splits walk through the same folder."""
    _log.warning("%s: passed over %d folder(s), the first %s.", folder, count, first)
