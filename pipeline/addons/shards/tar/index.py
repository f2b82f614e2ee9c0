"""Where the samples of tar archives lie, so that any of them can be read alone.

    python -m penstock.addons.shards.tar.index FOLDER    writes NAME.tar.index beside each archive

An index is int64[n + 1, 2] in the form of a `.npy` file: start and stop of each sample, headers and
all, in order; last the bytes of the archive, twice. Cost: 10 us a sample of two files, to write.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np

from penstock.addons.shards.tar.archive import PLAIN, Dots, PlainTar, read_samples
from penstock.datasets.files import walk
from penstock.errors import DataError, PenstockError
from penstock.files.disk import write_atomically
from penstock.order.keys import IntArray
from penstock.terminal import put, watched

SUFFIX = ".index"


def make(name: str, path: str, dots: Dots = "first") -> IntArray:
    """The index of an archive, by reading its headers.

    Args:
        name: for messages.
        path: of the archive on this machine.
        dots: see `IndexedTars`.

    Raises:
        DataError: it is damaged.
    """
    size = Path(path).stat().st_size
    places = [(sample.start, sample.stop) for sample in read_samples(PlainTar(name, path), dots)]
    return np.array([*places, (size, size)], np.int64)


def is_sound(index: IntArray, size: int) -> bool:
    """Whether an array can be the index of an archive of so many bytes."""
    if index.dtype != np.int64 or index.ndim != 2 or index.shape[1] != 2 or not len(index):
        return False
    flat = index.reshape(-1)
    rises = bool((np.diff(flat) >= 0).all()) and bool((index[:-1, 0] < index[:-1, 1]).all())
    return rises and flat[0] >= 0 and index[-1].tolist() == [size, size]


def read(path: str, archive: str, size: int) -> IntArray:
    """An index that lies beside an archive.

    Args:
        path: of the index on this machine.
        archive: for messages.
        size: bytes of the archive.

    Raises:
        DataError: it is damaged, or of another archive.
    """
    try:
        index = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        index = np.empty(0, np.int64)
    if not is_sound(index, size):
        raise DataError(
            f"{archive + SUFFIX!r} is not the index of that archive, which has {size} bytes. Write "
            "it again (python -m penstock.addons.shards.tar.index FOLDER), or delete it."
        )
    return index


def write(folder: Path) -> int:
    """Write the index of each archive below a folder of this machine; the number of them.

    Raises:
        DataError: there are none, one is damaged, or an index cannot be written.
    """
    names = (
        [name for name in walk(folder) if name.lower().endswith(PLAIN)] if folder.is_dir() else []
    )
    if not names:
        raise DataError(f"{str(folder)!r} is not a folder with .tar files")
    for name in watched(names, len(names), f"indexing the archives of {folder}"):
        content = io.BytesIO()
        np.save(content, make(str(folder / name), str(folder / name)))
        write_atomically(folder / f"{name}{SUFFIX}", content.getvalue())
    return len(names)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m penstock.addons.shards.tar.index FOLDER")
    try:
        count = write(Path(sys.argv[1]).expanduser())
    except PenstockError as error:
        sys.exit(str(error))
    put(f"{count} archives are indexed in {sys.argv[1]}")
