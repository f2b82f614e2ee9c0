"""Folders of files, on this machine or at an address, and the files in them.

A `Folder` names its files relative to itself, with forward slashes. Cost: 0.5 us a file on this
machine; see `penstock.datasets.files` for an address.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from penstock.datasets.files import Files, Remote, is_folder, walk
from penstock.datasets.reading.fingerprint import DataFile
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.data import size_of
from penstock.files.limits import DEFAULT, Limits
from penstock.files.paths import is_remote, local_path
from penstock.terminal import watched

if TYPE_CHECKING:
    from penstock.order.keys import IntArray

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Folder(Protocol):
    """A folder; `str(folder)` is its path or address."""

    def path(self, name: str) -> str:
        """The path or address of a file."""

    def read(self, name: str, function: Callable[[str, str], T]) -> T:
        """`function(path, shown)` for the file `name`.

        Its content is in `path`, on this machine; `shown` is its path or address, for messages.

        Raises:
            DataError: it could not be fetched from its address.
        """

    def below(self, name: str) -> Folder:
        """A folder in this one, whether it exists or not; "." is this one."""

    def exists(self) -> bool:
        """Whether it exists."""

    def folders(self) -> list[str]:
        """Names of the folders in it, sorted; hidden ones left out."""

    def files(self) -> list[str]:
        """Names of all files below it, sorted; hidden ones left out."""

    def sizes(self, names: Sequence[str]) -> IntArray:
        """Sizes of files in bytes, int64[n]; 0 where a store doesn't say.

        On this machine -1 for files that are missing or not regular: reading them says so.

        Raises:
            DataError: one is missing in its store.
        """

    def first_missing(self, names: Sequence[str]) -> int | None:
        """The position of the first of `names` that is missing."""

    def data_file(self, name: str) -> DataFile:
        """A file, for hashing its content."""

    @property
    def remote_files(self) -> Remote | None:
        """The fetcher of its files, if it is at an address."""


@dataclass(frozen=True)
class FolderFile:
    """A file in a folder; `str(file)` is its path or address."""

    folder: Folder
    name: str

    def __str__(self) -> str:
        return self.folder.path(self.name)

    def read(self, function: Callable[[str], T]) -> T:
        """`function(path)` for a path on this machine with its content."""
        return self.folder.read(self.name, lambda path, _: function(path))

    def exists(self) -> bool:
        return self.folder.first_missing([self.name]) is None


class LocalFolder:
    """A folder of this machine; `limits.files` bounds one walk through it."""

    remote_files = None

    def __init__(self, path: str | Path, limits: Limits = DEFAULT) -> None:
        self._path = str(path)
        self._limits = limits

    def __str__(self) -> str:
        return self._path

    def path(self, name: str) -> str:
        return f"{self._path}/{name}"

    def read(self, name: str, function: Callable[[str, str], T]) -> T:
        path = f"{self._path}/{name}"
        return function(path, path)

    def below(self, name: str) -> LocalFolder:
        return LocalFolder(Path(self._path, name), self._limits)

    def exists(self) -> bool:
        return Path(self._path).is_dir()

    def folders(self) -> list[str]:
        with os.scandir(self._path) as entries:
            return sorted(
                entry.name for entry in entries if entry.name[0] != "." and is_folder(entry)
            )

    def files(self) -> list[str]:
        return walk(Path(self._path), self._limits)

    def sizes(self, names: Sequence[str]) -> IntArray:
        shown = watched(names, len(names), f"looking at files in {self._path}")
        return np.array([size_of(self.path(name)) for name in shown], np.int64)

    def first_missing(self, names: Sequence[str]) -> int | None:
        # Listing folders is faster than asking for each file, by much on a network's disk.
        there: dict[str, set[str]] = {}
        for position, name in enumerate(names):
            folder, _, base = name.rpartition("/")
            if folder not in there:
                try:
                    there[folder] = set(os.listdir(self.path(folder)))  # noqa: PTH208  (fast)
                except OSError:
                    there[folder] = set()
            if base not in there[folder]:
                return position
        return None

    def data_file(self, name: str) -> DataFile:
        return DataFile(name, self.path(name))


def with_endings(names: Sequence[str], endings: tuple[str, ...], where: str | None) -> list[str]:
    """Those of `names` with one of `endings`, in small or capital letters.

    One warning counts the others by their endings, unless `where`, the name of their folder, is
    None: of two splits of a folder one warns.
    """
    found = [name for name in names if name.lower().endswith(endings)]
    others = sorted(set(names).difference(found))
    if where is not None and others:
        kinds = Counter(Path(name).suffix.lower() or "without an ending" for name in others)
        _log.warning(
            "%s: left out %d file(s): %s, the first '%s'. Read are files that end in %s.",
            where,
            len(others),
            ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(10)),
            others[0],
            ", ".join(endings),
        )
    return found


def open_root(
    root: str, holds: str, files: Files | None = None, limits: Limits = DEFAULT
) -> Folder:
    """The folder `root`, a path of this machine or an address, which is accessed on first use.

    Args:
        holds: its expected content, for the message: "the images and their CSV".
        files: access to addresses; None takes the defaults.
        limits: `files` of one walk through a folder of this machine.

    Raises:
        DataError: there is no such folder on this machine, or it may not be read.
        ConfigError: there is no store for such addresses, or it needs something installed.
    """
    if not is_remote(root):
        return LocalFolder(existing_root(local_path(root), holds), limits)
    return (files or Files()).remote.folder(root)


def existing_root(root: str, holds: str) -> Path:
    """The folder `root` of this machine; errors and arguments as for `open_root`."""
    if "://" in root:
        reason = f"{root!r} is an address, and this dataset reads only folders of this machine"
        raise ConfigError(Problem("dataset.root", f"{reason}. Copy the data here first"))
    path = Path(root).expanduser()
    if not path.exists():
        wrong = "is missing" if path.is_absolute() else f"({path.absolute()}) is missing"
    elif not path.is_dir():
        wrong = "is not a folder"
    elif not os.access(path, os.R_OK | os.X_OK):
        wrong = "may not be read by this user"
    else:
        return path
    hint = f"Set dataset.root to the folder that holds {holds}."
    raise DataError(f"dataset.root: {str(path)!r} {wrong}. {hint}")


def leads_out(name: object) -> bool:
    """Whether a name in a data file is anything but a relative name below the folder it joins.

    Backslashes separate as slashes do, whatever system this is: the same data is refused on every
    machine. It does not look at links; those belong to the folder's owner.
    """
    if not isinstance(name, str) or not name or "\0" in name:
        return True
    parts = re.split(r"[/\\]", name)
    return ".." in parts or not parts[0] or bool(os.path.splitdrive(name)[0])
