"""Where the samples of tar archives lie, so that any of them can be read alone.

    python -m penstock.addons.tars.index FOLDER    writes NAME.tar.index beside each archive

An index is numpy's `.npz`, for n samples of m files:

    keys     bytes[n]      names of the samples
    counts   int64[n]      their files
    endings  bytes[m]      of the files
    spans    int64[m, 2]   first and one past last byte of each file in the archive
    size     int64[1]      bytes of the archive

Cost: 60 us a sample of two files, to write, and 80 bytes to keep.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.addons.storage import index
from penstock.addons.storage.files import RecordFiles, Spans
from penstock.addons.tars.archive import HEADER, PLAIN, Dots, Sample, read_samples
from penstock.datasets.files import open_root
from penstock.errors import DataError
from penstock.files.disk import write_atomically
from penstock.order.keys import IntArray
from penstock.terminal import watched

SUFFIX = ".index"
Index = Mapping[str, npt.NDArray[Any]]


def make(files: RecordFiles, number: int, dots: Dots = "first") -> Index:
    """The index of one of the archives, by reading its headers; DataError if it is damaged."""
    with files.open(number) as file:
        samples = [*read_samples(files.addresses[number], file, dots)]
    parts = [part for sample in samples for part in sample.parts.items()]
    return {
        "keys": np.array(
            [sample.key.encode("utf-8", "surrogateescape") for sample in samples], "S"
        ),
        "counts": np.array([len(sample.parts) for sample in samples], np.int64),
        "endings": np.array([ending.encode("utf-8", "replace") for ending, _ in parts], "S"),
        "spans": np.array([span for _, span in parts], np.int64).reshape(-1, 2),
        "size": files.sizes[[number]],
    }


def read(content: bytes, archive: str, size: int) -> Index:
    """The index of an archive of `size` bytes that lies beside it; DataError if it is another."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as opened:
            made = dict(opened)
        bounds = made["spans"].reshape(-1)
        is_sound = (np.diff(bounds, prepend=0, append=made["size"]) >= 0).all()
        is_sound &= made["size"] == [size] and made["counts"].sum() == len(made["endings"])
    except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile):
        is_sound = False
    if not is_sound:
        raise DataError(
            f"{archive + SUFFIX!r} is not the index of that archive, which has {size} bytes. Write "
            "it again (python -m penstock.addons.tars.index FOLDER), or delete it."
        )
    return made


class Places:
    """Where the samples of several archives lie, by the index of each."""

    def __init__(self, indexes: Sequence[Index]) -> None:
        self.shards = np.cumsum([0, *(len(one["keys"]) for one in indexes)])
        self._keys, counts, self._endings, self._spans = (
            np.concatenate([one[name] for one in indexes])
            for name in ("keys", "counts", "endings", "spans")
        )
        self._parts = np.cumsum([0, *counts])

    def __len__(self) -> int:
        return len(self._keys)

    def names(self) -> list[str]:
        """The names of all samples."""
        return [key.decode("utf-8", "surrogateescape") for key in self._keys.tolist()]

    def sample(self, row: int) -> tuple[int, Sample]:
        """The archive of a sample, and the sample."""
        shard = int(np.searchsorted(self.shards, row, side="right")) - 1
        parts = slice(self._parts[row], self._parts[row + 1])
        endings = [ending.decode("utf-8", "replace") for ending in self._endings[parts].tolist()]
        key = self._keys[row].decode("utf-8", "surrogateescape")
        spans = dict(zip(endings, self._spans[parts].tolist(), strict=True))
        return shard, Sample(row - int(self.shards[shard]), key, spans)

    def spans(self, rows: IntArray) -> Spans:
        """What samples are read from, the headers of their files included."""
        shards = np.searchsorted(self.shards, rows, side="right") - 1
        last = self._parts[rows + 1] - 1
        return Spans(shards, self._spans[self._parts[rows], 0] - HEADER, self._spans[last, 1])

    def fingerprint_parts(self) -> list[IntArray]:
        """Where they lie, for a fingerprint."""
        return [self._parts, self._spans]


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
        np.savez(content, **make(files, number))  # type: ignore[arg-type]
        write_atomically(Path(address + SUFFIX), content.getvalue())
    return len(files)


if __name__ == "__main__":
    index.main(write, "archives are indexed")
