"""Folders of files, on this machine or at an address, and the files in them.

A `Root` names its files relative to itself, with forward slashes. Cost: 2 us a file of this machine
to list them; see `penstock.addons.stores` for an address.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from penstock.datasets.files import Files
from penstock.datasets.reading.fingerprint import DataFile
from penstock.errors import DataError
from penstock.files.data import size_of
from penstock.files.limits import DEFAULT, Limits
from penstock.files.paths import is_remote, local_path
from penstock.terminal import watched

if TYPE_CHECKING:
    from penstock.addons.stores.remote_files import RemoteFiles
    from penstock.order.keys import IntArray

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Root:
    """A folder of this machine, or of a store (`penstock.addons.stores.remote_files`).

    `str(root)` is its path or address. Of another machine's files it may raise DataError wherever
    it looks at them: they are missing, or could not be fetched.

    Attributes:
        remote_files: the fetcher of its files; None on this machine.
    """

    remote_files: RemoteFiles | None = None

    def __init__(self, path: str | Path, limits: Limits = DEFAULT) -> None:
        self._path, self._limits = str(path), limits

    def __str__(self) -> str:
        return self._path

    def path(self, name: str) -> str:
        """The path or address of a file."""
        return f"{self._path}/{name}"

    def read(self, name: str, function: Callable[[str, str], T]) -> T:
        """`function(path, shown)` for the file `name`.

        Its content is in `path`, on this machine; `shown` is its path or address, for messages.
        """
        path = f"{self._path}/{name}"
        return function(path, path)

    def below(self, name: str) -> Root:
        """A folder in this one, whether it exists or not; "." is this one."""
        return Root(Path(self._path, name), self._limits)

    def exists(self) -> bool:
        """Whether it exists."""
        return Path(self._path).is_dir()

    def folders(self) -> list[str]:
        """Names of the folders in it, sorted; hidden ones left out."""
        with os.scandir(self._path) as entries:
            return sorted(one.name for one in entries if one.name[0] != "." and one.is_dir())

    def files(self) -> list[str]:
        """Names of all files below it, sorted; hidden ones left out."""
        return walk(Path(self._path), self._limits)

    def sizes(self, names: Sequence[str]) -> IntArray:
        """Sizes of files in bytes, int64[n]; of missing ones -1, and 0 where a store says none."""
        shown = watched(names, len(names), f"looking at files in {self._path}")
        return np.array([size_of(self.path(name)) for name in shown], np.int64)

    def first_missing(self, names: Sequence[str]) -> int | None:
        """The position of the first of `names` that is missing."""
        # Listing folders is faster than asking for each file, by much on a network's disk.
        there: dict[str, set[str]] = {}
        for position, name in enumerate(names):
            folder, _, base = name.rpartition("/")
            if folder not in there:
                parent = Path(self.path(folder))
                there[folder] = {*os.listdir(parent)} if parent.is_dir() else set()  # noqa: PTH208
            if base not in there[folder]:
                return position
        return None

    def data_file(self, name: str) -> DataFile:
        """A file, for hashing its content."""
        return DataFile(name, self.path(name))


@dataclass(frozen=True)
class FolderFile:
    """A file in a folder; `str(file)` is its path or address."""

    folder: Root
    name: str

    def __str__(self) -> str:
        return self.folder.path(self.name)

    def read(self, function: Callable[[str], T]) -> T:
        """`function(path)` for a path on this machine with its content."""
        return self.folder.read(self.name, lambda path, _: function(path))

    def exists(self) -> bool:
        """Whether it exists."""
        return self.folder.first_missing([self.name]) is None


def open_root(root: str, holds: str, files: Files | None = None, limits: Limits = DEFAULT) -> Root:
    """The folder `root`, a path of this machine or an address, which is accessed on first use.

    Args:
        holds: its expected content, for the message: "the images and their CSV".
        files: access to addresses; None takes the defaults.
        limits: `files` of one walk through a folder of this machine.

    Raises:
        DataError: there is no such folder on this machine, or it may not be read.
        ConfigError: there is no store for such addresses, or it needs something installed.
    """
    if is_remote(root):
        return (files or Files()).remote.folder(root)
    path = Path(local_path(root)).expanduser()
    try:
        os.scandir(path).close()
    except OSError as error:
        wrong = {FileNotFoundError: "is missing", NotADirectoryError: "is not a folder"}
        raise DataError(
            f"dataset.root: {str(path.absolute())!r} {wrong.get(type(error), error.strerror)}. "
            f"Set dataset.root to the folder that holds {holds}."
        ) from error
    return Root(path, limits)


def walk(folder: Path, limits: Limits = DEFAULT) -> list[str]:
    """Names of all files below a folder, relative, sorted; hidden ones left out.

    Links are followed, as people link data that they keep elsewhere. A folder that was seen before,
    or contains this one, is skipped, so loops end; one that may not be read, with a warning.

    Raises:
        DataError: there are more than `limits.files`.
    """
    names: list[str] = []
    seen = {parent.stat()[1:3] for parent in folder.resolve().parents}

    def skipped(error: OSError) -> None:
        _log.warning("%s: skipped (%s)", error.filename, error.strerror)

    walked = os.walk(folder, onerror=skipped, followlinks=True)
    for parent, folders, files in watched(walked, None, f"listing {folder}"):
        below = parent[len(str(folder)) + 1 :]
        folders[:] = sorted(name for name in folders if name[0] != ".")
        if (identity := Path(parent).stat()[1:3]) in seen:  # inode and device
            folders.clear()
            continue
        seen.add(identity)
        names += [os.path.join(below, name) for name in files if name[0] != "."]  # noqa: PTH118
        if len(names) > limits.files:
            refusal = limits.refusal("files", f"{len(names)} files and more")
            raise DataError(f"{str(folder)!r} holds {refusal}")
    return sorted(names)


def with_endings(names: Sequence[str], endings: tuple[str, ...], where: str | None) -> list[str]:
    """Those of `names` with one of `endings`, in small or capital letters.

    One warning counts the others by their endings, unless `where`, the name of their folder, is
    None: of two splits of a folder one warns.
    """
    found = [name for name in names if name.lower().endswith(endings)]
    if where is not None and (others := sorted({*names}.difference(found))):
        kinds = Counter(Path(name).suffix.lower() or "without an ending" for name in others)
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(10))
        _log.warning(
            "%s: left out %d file(s): %s, the first '%s'. Read are files that end in %s.",
            *(where, len(others), counts, others[0], ", ".join(endings)),
        )
    return found
