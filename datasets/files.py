"""Files on this machine and at addresses such as `s3://bucket/folder`, folders of them, and folders
of data that one process makes once and that appear whole or not at all.

A `Root` names its files relative to itself, with forward slashes. The add-on `storage` fetches
files from addresses; it is imported with the first one. Cost: 2 us a file of this machine to list
them.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from platformdirs import user_cache_path
from pydantic import AfterValidator, ByteSize, Field, NonNegativeFloat
from pydantic.dataclasses import dataclass

from penstock import seams
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.data import size_of
from penstock.files.limits import Count, Index, PositiveFloat
from penstock.files.locks import lock, lock_beside
from penstock.files.paths import is_remote, local_path
from penstock.terminal import watched

T = TypeVar("T")

_log = logging.getLogger(__name__)


class DataFile(NamedTuple):
    """A file that samples come from.

    Attributes:
        name: relative to the root, so it stays the same when the root is moved.
        path: or address.
        version: its content's version in its store; empty for a file of this machine.
    """

    name: str
    path: str
    version: str = ""


def _public(name: str) -> str:
    if re.search("secret|password|token|key", name, re.IGNORECASE):
        raise ValueError("a run's folder keeps it: put it into the environment, or the tool's file")
    return name


@dataclass
class Files:
    """Access to files at paths and addresses. Can be pickled, forked and used by many threads.

    Attributes:
        cache_dir: folder of the cache, made when it is needed; several runs may use the same.
        cache_size: of the cache, as "20GB", "500 MB", "4GiB" or a number of bytes.
        retries: further attempts when a store doesn't answer or is busy.
        first_wait: seconds before the first of them; each next wait is twice as long.
        timeout: seconds after which a silent connection counts as broken.
        options: for the store: `endpoint_url`, `anon`, `profile` ... No credentials: these are
            found by the store's own means.
        concurrency: the most requests that a rank has open at once.
        ahead: bytes that are fetched before they are needed, as `cache_size`; 0 fetches nothing.

    Raises:
        ValidationError: a value is out of range, or an option looks like a credential.
    """

    cache_dir: str = "data/cache/files"
    cache_size: Annotated[ByteSize, Field(ge=1)] = ByteSize(20 * 10**9)
    retries: Index = 5
    first_wait: NonNegativeFloat = 1.0
    timeout: PositiveFloat = 60.0
    options: Mapping[Annotated[str, AfterValidator(_public)], object] | None = None
    concurrency: Count = 128
    ahead: ByteSize = ByteSize(256 * 10**6)

    @cached_property
    def remote(self) -> Any:
        """Access to addresses: `Client` of the add-on `storage`.

        Raises:
            ConfigError: what it needs is not installed.
        """
        return seams.function("penstock.addons.storage.client:Client")(self)

    def local(self, address: str) -> Path:
        """A path on this machine with the content of `address`; a local path is not checked.

        All of the file is brought into the cache, whether that has room or not.

        Raises:
            DataError: it is missing in its store, may not be read, or the store didn't answer.
        """
        return self.remote.local(address) if is_remote(address) else local_file(address)

    def read(self, address: str, function: Callable[[str], T]) -> T:
        """`function(path)` for a path on this machine with the content of `address`.

        The path is to be opened by the function: it may be gone afterwards.
        """
        if is_remote(address):
            result: T = self.remote.file(address, lambda path, _: function(path))
            return result
        return function(str(local_file(address)))


def local_file(address: str) -> Path:
    """The path of a file or folder of this machine; `~` is the user's home."""
    return Path(local_path(address)).expanduser()


class Root:
    """A folder of this machine, or of a store (`penstock.addons.storage.client`).

    `str(root)` is its path or address. Of another machine's files it may raise DataError wherever
    it looks at them: they are missing, or could not be fetched.

    Attributes:
        remote_files: the fetcher of its files; None on this machine.
    """

    remote_files: Any = None

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)

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

    def want(self, names: Sequence[str]) -> float:
        """Files are read soon: fetch them ahead; their part of `files.ahead`, 0 on this machine."""
        return 0.0

    def below(self, name: str) -> Root:
        """A folder in this one, whether it exists or not; "." is this one."""
        return Root(Path(self._path, name))

    def exists(self) -> bool:
        """Whether it exists."""
        return Path(self._path).is_dir()

    def folders(self) -> list[str]:
        """Names of the folders in it, sorted; hidden ones left out."""
        with os.scandir(self._path) as entries:
            return sorted(one.name for one in entries if one.name[0] != "." and one.is_dir())

    def files(self) -> list[str]:
        """Names of all files below it, sorted; hidden ones left out."""
        return walk(Path(self._path))

    def sizes(self, names: Sequence[str]) -> npt.NDArray[np.int64]:
        """Sizes of files in bytes, int64[n]; of missing ones -1, and 0 where a store says none."""
        paths = watched(map(self.path, names), len(names), f"looking at files in {self._path}")
        return np.array([*map(size_of, paths)], np.int64)

    def first_missing(self, names: Sequence[str]) -> int | None:
        """The position of the first of `names` that is missing."""
        # Listing folders is faster than asking for each file, by much on a network's disk.
        parts = [name.rpartition("/") for name in names]
        present = {
            folder: {*os.listdir(path)} if (path := Path(self.path(folder))).is_dir() else set()  # noqa: PTH208
            for folder in {part[0] for part in parts}
        }
        return next(
            (n for n, (folder, _, base) in enumerate(parts) if base not in present[folder]), None
        )

    def data_file(self, name: str) -> DataFile:
        """A file, for hashing its content."""
        return DataFile(name, self.path(name))


class FolderFile(NamedTuple):
    """A file in a folder; `str(file)` is its path or address."""

    folder: Root
    name: str

    def __str__(self) -> str:
        return self.folder.path(self.name)

    def read(self, function: Callable[[str], T]) -> T:
        """`function(path)` for a path on this machine with its content."""
        return self.folder.read(self.name, lambda path, _: function(path))


def open_root(root: str, holds: str, files: Files | None = None, key: str = "dataset.root") -> Root:
    """The folder `root`, a path of this machine or an address, which is accessed on first use.

    Args:
        holds: its expected content, for the message: "the images and their CSV".
        files: access to addresses; None takes the defaults.
        key: of the configuration that names it.

    Raises:
        DataError: there is no such folder on this machine, or it may not be read.
        ConfigError: there is no store for such addresses, or it needs something installed.
    """
    if is_remote(root):
        folder: Root = (files or Files()).remote.folder(root)
        return folder
    path = local_file(root)
    try:
        # Opened, not only looked at: a folder may exist and not be readable.
        os.scandir(path).close()
    except OSError as error:
        wrong = {FileNotFoundError: "is missing", NotADirectoryError: "is not a folder"}
        raise DataError(
            f"{key}: {str(path.absolute())!r} {wrong.get(type(error), error.strerror)}. "
            f"Set {key} to the folder that holds {holds}."
        ) from error
    return Root(path)


def walk(folder: Path) -> list[str]:
    """Names of all files below a folder, relative, sorted; hidden ones left out.

    Links are followed, as people link data that they keep elsewhere. A folder that was seen before,
    or contains this one, is skipped, so loops end; one that may not be read, with a warning.
    """
    names: list[str] = []
    # A link to a folder above would otherwise list everything once more.
    seen = {parent.stat()[1:3] for parent in folder.resolve().parents}

    def skipped(error: OSError) -> None:
        _log.warning("%s: skipped (%s)", error.filename, error.strerror)

    for parent, folders, files in watched(
        os.walk(folder, onerror=skipped, followlinks=True), None, f"listing {folder}"
    ):
        below = parent[len(str(folder)) + 1 :]
        # In place: os.walk goes on with what is left in this list.
        folders[:] = sorted(name for name in folders if name[0] != ".")
        if (identity := Path(parent).stat()[1:3]) in seen:  # inode and device
            folders.clear()
            continue
        seen.add(identity)
        names += [os.path.join(below, name) for name in files if name[0] != "."]  # noqa: PTH118
    return sorted(names)


def with_endings(names: Sequence[str], endings: tuple[str, ...], where: str | None) -> list[str]:
    """Those of `names` with one of `endings`, in small or capital letters.

    One warning counts the others by their endings, unless `where`, the name of their folder, is
    None: of two splits of a folder one warns.
    """
    chosen = [name for name in names if name.lower().endswith(endings)]
    if where is not None and (others := sorted({*names}.difference(chosen))):
        kinds = Counter(Path(name).suffix.lower() or "without an ending" for name in others)
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(10))
        _log.warning(
            "%s: left out %d file(s): %s, the first '%s'. Read are files that end in %s.",
            *(where, len(others), counts, others[0], ", ".join(endings)),
        )
    return chosen


def stranger(start: bytes) -> str | None:
    """Describe a file by its first bytes (64 or more) if they are neither of image nor of audio."""
    text = start.lstrip().lower()
    kinds = {
        "it is empty": not start,
        "it begins with zeros only, as files that were never written to the disk": (
            not start.strip(b"\0")
        ),
        "it is a Git LFS pointer (run `git lfs pull`)": start.startswith(
            b"version https://git-lfs"
        ),
        "it is a web page or other markup, as failed downloads leave behind": text.startswith(
            (b"<!doctype", b"<html", b"<?xml")
        ),
        f"it is text that starts with {start[:24].decode('ascii', 'replace')!r}": all(
            byte in b"\t\n\r" or 32 <= byte < 127 for byte in start
        ),
    }
    return next((kind for kind, fits in kinds.items() if fits), None)


@contextmanager
def generated_data(
    root: str | None, kind: str, name: str, write: Callable[[Path], None]
) -> Iterator[str]:
    """The folder `root`/`name`, which `write(folder)` fills if it is not there yet.

    Without a root it lies in `kind` of the user's cache, which all checkouts share: PENSTOCK_CACHE,
    or ~/.cache/penstock on Linux (XDG_CACHE_HOME) and the system's own place elsewhere. A DataError
    inside of the context says that the data can be made again.

    Raises:
        DataError: the folder cannot be written.
        ConfigError: `root` is an address.
    """
    if root and is_remote(root):
        raise ConfigError(
            Problem(
                "dataset.root",
                f"{root!r} is an address; drawn data is written to a folder of this machine",
            )
        )
    cache = Path(os.environ.get("PENSTOCK_CACHE") or user_cache_path("penstock", False))
    parent = Path(root) if root is not None else cache.absolute() / kind
    folder = parent.expanduser() / name
    generated_folder(folder, write, "dataset.root (or PENSTOCK_CACHE)")
    try:
        yield str(folder)
    except DataError as error:
        raise DataError(f"{error} Or delete {str(folder)!r}, and it is made again.") from error


def generated_folder(
    path: Path,
    write: Callable[[Path], None],
    key: str,
    is_there: Callable[[Path], bool] = Path.is_dir,
) -> None:
    """Fill the folder `path` by `write(folder)` if it is not there yet.

    It is written beside its place and renamed, so no process sees a part of it, even if the
    writer is killed. Of several processes, such as the ranks of a run, one writes and the others
    wait. Where the file system has no locks, all write: `write` must give the same files each time.

    Args:
        key: of the configuration, for messages.
        is_there: whether the folder is there, and of use; another is made anew.

    Raises:
        DataError: the folder cannot be written.
    """
    if is_there(path):
        return
    # On the same file system, or the renaming would be a copy that can be seen half done.
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock(lock_beside(path), f"writes {path}"):
            if not is_there(path):
                # What is there is of no use: damaged, or of a version that is gone.
                shutil.rmtree(path, ignore_errors=True)
                temporary.mkdir()
                _log.info("writing %s, once; later runs read it", path)
                write(temporary)
                temporary.rename(path)
            # Whoever still waits for the lock finds the folder there. After an error it stays.
            lock_beside(path).unlink(missing_ok=True)
    except OSError as error:
        if not is_there(path):  # else another process was first
            raise DataError(
                f"cannot write the data {str(path)!r}: {error.strerror or error}. Set {key} to a "
                "folder that can be written."
            ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
