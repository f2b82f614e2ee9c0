"""Where the samples of tar archives lie, so that any of them can be read alone.

    python -m penstock.addons.tars.index FOLDER    writes NAME.tar.index beside each archive

An index is int64[n + 1, 2] in the form of a `.npy` file: start and stop of each sample, headers and
all, in order; last the bytes of the archive, twice. Cost: 10 us a sample of two files, to write.
"""

from __future__ import annotations

import io
import sys
from functools import partial
from pathlib import Path

import numpy as np

from penstock.addons.storage.files import RecordFiles
from penstock.addons.tars.archive import PLAIN, Dots, read_samples
from penstock.datasets.files import open_root
from penstock.errors import DataError, PenstockError
from penstock.files.disk import write_atomically
from penstock.order.keys import IntArray
from penstock.terminal import put, watched

SUFFIX = ".index"


def make(files: RecordFiles, number: int, dots: Dots = "first") -> IntArray:
    """The index of one of the archives, by reading its headers; DataError if it is damaged."""
    size, read = int(files.sizes[number]), partial(files.at, number)
    samples = read_samples(files.addresses[number], read, size, dots)
    places = [(sample.start, sample.stop) for sample in samples]
    return np.array([*places, (size, size)], np.int64)


def is_sound(index: IntArray, size: int) -> bool:
    """Whether an array can be the index of an archive of so many bytes."""
    if index.dtype != np.int64 or index.ndim != 2 or index.shape[1] != 2 or not len(index):
        return False
    flat = index.reshape(-1)
    rises = bool((np.diff(flat) >= 0).all() and (index[:-1, 0] < index[:-1, 1]).all())
    return rises and flat[0] >= 0 and index[-1].tolist() == [size, size]


def read(content: bytes, archive: str, size: int) -> IntArray:
    """The index of an archive of `size` bytes that lies beside it; DataError if it is another."""
    try:
        index = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except (OSError, ValueError, EOFError):
        index = np.empty(0, np.int64)
    if not is_sound(index, size):
        raise DataError(
            f"{archive + SUFFIX!r} is not the index of that archive, which has {size} bytes. Write "
            "it again (python -m penstock.addons.tars.index FOLDER), or delete it."
        )
    return index


def write(folder: str) -> int:
    """Write the index of each archive below a folder of this machine; the number of them.

    Raises:
        DataError: there are none, one is damaged, or an index cannot be written.
    """
    root = open_root(folder, "the archives")
    files = RecordFiles.named(root, [n for n in root.files() if n.lower().endswith(PLAIN)])
    if not len(files):
        raise DataError(f"{folder!r} is not a folder with .tar files")
    for number, address in enumerate(watched(files.addresses, len(files), f"indexing {folder}")):
        content = io.BytesIO()
        np.save(content, make(files, number))
        write_atomically(Path(address + SUFFIX), content.getvalue())
    return len(files)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m penstock.addons.tars.index FOLDER")
    try:
        count = write(sys.argv[1])
    except PenstockError as error:
        sys.exit(str(error))
    put(f"{count} archives are indexed in {sys.argv[1]}")
