"""Folders of data that are made once, by one process, and appear whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from platformdirs import user_cache_path

from penstock.errors import ConfigError, DataError, Problem
from penstock.files.locks import lock, lock_beside
from penstock.terminal import watched

VARIABLE = "PENSTOCK_CACHE"
NamedArrays = Mapping[str, npt.NDArray[Any]]


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
    if root is not None:
        parent = Path(root).expanduser()
    else:
        named = os.environ.get(VARIABLE)
        cache = Path(named).expanduser().absolute() if named else user_cache_path("penstock", False)
        parent = cache / kind
    folder = generated_folder(parent / name, write)
    try:
        yield str(folder)
    except DataError as error:
        raise DataError(f"{error} Or delete {str(folder)!r}, and it is made again.") from error


def generated_folder(path: Path, write: Callable[[Path], None]) -> Path:
    """Return the folder `path`, which `write(folder)` fills if it is not there yet.

    It is written beside its place and renamed, so nobody sees a part of it, even if the process is
    killed. Of several processes, such as the ranks of a run, one writes and the others wait. Where
    the file system has no locks, all write: `write` must give the same files every time.

    Raises:
        DataError: the folder cannot be written.
        ConfigError: it is an address.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)):
        reason = f"{str(path)!r} is an address; drawn data is written to a folder of this machine"
        raise ConfigError(Problem("dataset.root", reason))
    if not path.is_dir():
        with _explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with lock(lock_beside(path), f"writes {path}"):
                if not path.is_dir():
                    _make(path, write)
                # Whoever still waits for the lock finds the folder there. After an error it stays.
                lock_beside(path).unlink(missing_ok=True)
    return path


class CacheFolder:
    """The part of a cache that belongs to one file.

    Args:
        cache_dir: the cache, as configured; created if missing.
        key: name of the part, which changes with the file and how it is read.
    """

    def __init__(self, cache_dir: str, key: str) -> None:
        self.path = Path(cache_dir).expanduser().absolute() / key

    def text_lengths(
        self, name: str, texts: Iterable[str], count: int, length: Callable[[str], int]
    ) -> npt.NDArray[np.int32]:
        """`length` of each of the `count` texts, int32[count], kept as `name`; errors as `arrays`.

        Args:
            texts: are gone through only where no lengths are kept.
        """

        def counted() -> NamedArrays:
            shown = watched(texts, count, "counting tokens")
            return {"lengths": np.fromiter(map(length, shown), np.int32, count)}

        def is_sound(kept: NamedArrays) -> bool:
            lengths = kept["lengths"]
            fits = lengths.dtype == np.int32 and lengths.shape == (count,)
            return fits and int(lengths.min()) >= 0

        return self.arrays(name, counted, is_sound)["lengths"]

    def arrays(
        self, name: str, make: Callable[[], NamedArrays], is_sound: Callable[[NamedArrays], bool]
    ) -> NamedArrays:
        """The arrays of `make`, kept in the folder `name` and mapped; made again if not `is_sound`.

        Raises:
            DataError: the cache cannot be written.
        """
        folder = self.path / name

        def read() -> NamedArrays | None:
            with suppress(OSError, ValueError, KeyError, EOFError):  # the last: an empty file
                # Plain arrays: every access to a memmap makes an object of that slow class.
                kept = {
                    path.stem: np.load(path, mmap_mode="r").view(np.ndarray)
                    for path in folder.glob("*.npy")
                }
                return kept if is_sound(kept) else None
            return None

        def save(beside: Path) -> None:
            for stem, array in made.items():
                np.save(beside / f"{stem}.npy", array)

        try:
            self.path.mkdir(parents=True, exist_ok=True)
            kept = read()
            if kept is not None:
                return kept
            with lock(lock_beside(folder), f"writes {folder}"):
                kept = read()
                if kept is None:
                    made = make()
                    shutil.rmtree(folder, ignore_errors=True)
                    _make(folder, save)
                    kept = read()
                lock_beside(folder).unlink(missing_ok=True)
        except OSError as error:
            raise DataError(
                f"dataset.cache_dir: {str(self.path)!r} cannot be written: "
                f"{error.strerror or error}. Set it to a folder that can be."
            ) from error
        return made if kept is None else kept


def _make(path: Path, write: Callable[[Path], None]) -> None:
    beside = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        beside.mkdir()
        write(beside)
        try:
            beside.rename(path)
        except OSError:
            if not path.is_dir():  # otherwise another process was first
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write the data {str(path)!r}: {error.strerror or error}. Set dataset.root (or "
            f"{VARIABLE}) to a folder that can be written."
        ) from error
