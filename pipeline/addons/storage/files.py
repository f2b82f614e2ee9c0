"""The files of a dataset of many files, here or at an address, and spans of bytes in them.

    data/digits                           the files in it with the right suffixes
    data/digits.parquet                   this file
    s3://digits/train-{000..127}.tar      128 files
    data/{train,val}-{00..07}.tar         16 files

If names begin with `train` and `val` (`train-0.tar`, `validation/0.tar`), they divide the data, and
other files, such as `test-0.tar`, are ignored. Otherwise the dataset divides its rows.

A format says which spans its rows are, and never whether the files are remote. Cost of a span: 2 us
by `pread`, 5 us in the cache of an address.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from penstock.addons.storage.blocks import BLOCK, Object
from penstock.addons.storage.rows import RowSplit
from penstock.datasets.files import DataFile, Files, Root, local_file, open_root
from penstock.datasets.reading.base import Shares
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.paths import is_remote
from penstock.order.keys import IntArray

_SPLITS = {
    name: re.compile(rf"{words}([^a-z]|$)", re.IGNORECASE)
    for name, words in {
        "train": "train(ing)?",
        "val": "val(id|idation)?",
        "test": "test(ing)?",
    }.items()
}
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
_PIECE = 4096  # bytes of one of the pieces that a fingerprint is made of
_PIECES = 64


class Spans(NamedTuple):
    """What rows are read from: bytes start .. stop-1 of a file, int64[n] each."""

    file: IntArray
    start: IntArray
    stop: IntArray


class RecordFiles:
    """Files, each of one version. Can be pickled, forked and used by any number of threads.

    Args:
        addresses: paths, or addresses.
        names: the same, relative to the root, so they stay the same when it is moved.
        files: access to addresses.

    Attributes:
        sizes: bytes, int64[n], when this was made.
        divided: whether names tell training from validation; else the dataset divides its rows.
        tested: whether names tell the files of a test.
        whole: whether the split has all rows of these files.

    Raises:
        DataError: a file is missing or may not be read; when it is read: it has changed.
    """

    divided = tested = whole = False

    def __init__(
        self, addresses: Sequence[str], names: Sequence[str], files: Files | None = None
    ) -> None:
        self.addresses, self.names, self.files = [*addresses], [*names], files or Files()
        self.is_remote = bool(addresses) and is_remote(self.addresses[0])
        self._items: list[Object] = (
            self.files.remote.look(self.addresses)
            if self.is_remote
            else [*map(_local_item, self.addresses)]
        )
        self.sizes = np.array([item.size for item in self._items], np.int64)

    @classmethod
    def of(
        cls, root: str, suffixes: Sequence[str], files: Files | None = None, split: str = "train"
    ) -> RecordFiles:
        """The files of `split` at `root`: a folder, a file or a pattern.

        Raises:
            DataError: the root is missing, or has no file with one of the suffixes.
            ConfigError: a pattern of braces is invalid.
        """
        addresses = _found(root, tuple(suffixes), files or Files())
        if not addresses:
            raise DataError(
                f"dataset.root: {root!r} has no file that ends in {', '.join(suffixes)}. Set it "
                "to a folder that does, or to a file."
            )
        kinds = {name: split_of(name) for name in addresses}
        divided, tested = "val" in kinds.values(), {"train", "test"} <= set(kinds.values())
        if not tested:  # files of a test alone are data like any others
            kinds = {name: None if kind == "test" else kind for name, kind in kinds.items()}
        whole = divided if split == "val" else tested and split == "test"
        kind: str | None = split if whole else "train"
        if not divided and "train" not in kinds.values():
            kind = None
        names = [name for name in addresses if kinds[name] == kind]
        if not names:
            raise DataError(
                f"dataset.root: {root!r} has files for validation ("
                f"{next(name for name in addresses if kinds[name] == 'val')!r}) "
                "and none whose name begins with 'train'. Add or rename them."
            )
        made = cls([addresses[name] for name in names], names, files)
        made.divided, made.tested, made.whole = divided, tested, whole
        return made

    @classmethod
    def named(cls, folder: Root, names: Sequence[str]) -> RecordFiles:
        """These files of a folder."""
        remote = folder.remote_files
        made = cls([*map(folder.path, names)], names, remote and remote.files)
        every = np.arange(len(made))  # what they begin with is read soon, and here by one request
        made.want(Spans(every, 0 * every, np.minimum(made.sizes, _PIECE)))
        return made

    def __len__(self) -> int:
        return len(self.addresses)

    def shares(self, shares: Shares) -> Shares:
        """The shares of the rows that validate and test; 0 where names of files say it."""
        return shares.without(*["val"] * self.divided, *["test"] * self.tested)

    def rows(self, total: int, split: str, shares: Shares) -> RowSplit:
        """The rows of a split, of so many in these files."""
        return RowSplit(total) if self.whole else RowSplit(total, split, self.shares(shares))

    def read(self, spans: Spans) -> list[bytes | memoryview]:
        """The bytes of each span; from a store, all that are missing by one request.

        Raises:
            DataError: they cannot be read or fetched, or a file has changed; names it.
        """
        wanted = zip(*(each.tolist() for each in spans), strict=True)
        if not self.is_remote:
            return [self._read(*each) for each in wanted]
        return [*self.files.remote.read([(self._items[n], *span) for n, *span in wanted])]

    def _read(self, file: int, start: int, stop: int) -> bytes:
        """Bytes start .. stop-1 of a file of this machine."""
        # Opened anew, for 10 us: a kept descriptor would share its position with forks and threads.
        with local_file(self.addresses[file]).open("rb") as opened:
            status = os.fstat(opened.fileno())
            opened.seek(start)
            content = opened.read(stop - start)
        if (status.st_size, str(status.st_mtime_ns)) != (
            self.sizes[file],
            self._items[file].version,
        ):
            raise DataError(
                f"{self.addresses[file]!r} has changed while it was in use. Let nothing write to "
                "the data of a run, and restart the run."
            )
        return content

    def at(self, file: int, start: int, stop: int) -> bytes | memoryview:
        """Bytes start .. stop-1 of a file, fewer only at its end."""
        stop = min(stop, int(self.sizes[file]))
        return self.read(Spans(*(np.array([n]) for n in (file, min(start, stop), stop))))[0]

    def open(self, file: int, ahead: bool = False) -> BinaryIO:
        """A file, open for reading at any position; only what is read of it is fetched.

        Args:
            ahead: it is read forwards: fetch the next `files.ahead` bytes, too.
        """
        return (
            self.path(file).open("rb")
            if not self.is_remote
            # Blocks come whole, and each small piece of one would cost as much to read.
            else io.BufferedReader(_Reader(self, file, ahead), BLOCK)
            if ahead
            else _Reader(self, file, ahead)
        )

    def path(self, file: int) -> Path:
        """A path of this machine with all of a file; from a store, it is fetched into the cache."""
        return self.files.local(self.addresses[file])

    def whole_of(self, files: Sequence[int] | IntArray) -> Spans:
        """Spans of whole files."""
        numbers = np.asarray(files, np.int64)
        return Spans(numbers, np.zeros(len(numbers), np.int64), self.sizes[numbers])

    def want(self, spans: Spans) -> float:
        """Fetch spans that are read soon; returns their share of `files.ahead`, 0 if local."""
        if not self.is_remote:
            return 0.0
        wanted = zip(*(each.tolist() for each in spans), strict=True)
        return float(self.files.remote.want([(self._items[n], *span) for n, *span in wanted]))

    def key(self, file: int) -> str:
        """What changes with the content of a file, for what is made of it and kept."""
        where = self.addresses[file] if self.is_remote else self.path(file).absolute()
        return f"{where}\0{self.sizes[file]}\0{self._items[file].version}"

    def sample(self, files: Sequence[int], pieces: int) -> list[bytes | memoryview]:
        """That many pieces of 4 KiB of each file, evenly spread, for a fingerprint; all of a
        smaller file. From a store they come by one request, so that their reader waits once."""
        spans = []
        for file, size in zip(files, self.sizes[files].tolist(), strict=True):
            starts = np.arange(pieces, dtype=np.int64) * (size - _PIECE) // max(pieces - 1, 1)
            spans.append(
                Spans(np.full(pieces, file), starts, starts + _PIECE)
                if size > _PIECE * pieces
                else self.whole_of([file])
            )
        return self.read(Spans(*map(np.concatenate, zip(*spans, strict=True))))

    def pieces(self) -> list[bytes | memoryview]:
        """64 pieces of 4 KiB, evenly spread over the files and in each, for a fingerprint."""
        chosen = np.linspace(0, len(self) - 1, min(len(self), _PIECES)).astype(np.int64).tolist()
        return self.sample(chosen, _PIECES // len(chosen))

    def companions(self, suffix: str) -> list[bytes | None]:
        """The content of the file beside each that has its name and this suffix; None without."""
        addresses = [address + suffix for address in self.addresses]
        there = (
            [item is not None for item in self.files.remote.find(addresses)]
            if self.is_remote
            else [local_file(address).is_file() for address in addresses]
        )
        present = [address for address, is_there in zip(addresses, there, strict=True) if is_there]
        others = RecordFiles(present, present, self.files)
        contents = iter(others.read(others.whole_of(range(len(others)))))
        return [bytes(next(contents)) if is_there else None for is_there in there]

    def data_files(self) -> list[DataFile]:
        """The files, for hashing their content."""
        return [data_file(*pair, self.files) for pair in zip(self.names, self.addresses)]  # noqa: B905


class _Reader(io.BufferedIOBase, BinaryIO):
    """A file at an address as a file object."""

    def __init__(self, files: RecordFiles, file: int, ahead: bool) -> None:
        self._remote, self._item, self._at = files.files.remote, files._items[file], 0
        self._ahead = files.files.ahead // BLOCK * BLOCK if ahead else 0

    def readable(self) -> bool:
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        # In the order of SEEK_SET, SEEK_CUR and SEEK_END.
        self._at = max(0, (0, self._at, self._item.size)[whence] + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        stop = self._item.size if size is None or size < 0 else self._at + size
        # Forwards, to the end of a block, as they are wanted: a raw read may be short.
        first = self._at // BLOCK * BLOCK if self._ahead else self._at
        last = first + BLOCK if self._ahead else stop
        if 0 < self._ahead < self._item.size - first:
            self._remote.want([(self._item, first + self._ahead, last + self._ahead)])
        (whole,) = self._remote.read([(self._item, first, min(last, self._item.size))])
        self._at += len(content := bytes(whole[self._at - first : stop - first]))
        return content


def _local_item(path: str) -> Object:
    """A file of this machine, whose version is its time."""
    try:
        status = local_file(path).stat()
    except OSError as error:
        raise DataError(f"{path!r} cannot be read: {error.strerror}.") from error
    return Object(path, status.st_size, str(status.st_mtime_ns), "")


def _found(root: str, suffixes: tuple[str, ...], files: Files) -> dict[str, str]:
    """Name, relative to the root -> address."""
    if "{" in root:
        before = root[: root.rfind("/", 0, root.index("{")) + 1]
        return {address[len(before) :]: address for address in expand_braces(root)}
    if root.lower().endswith(suffixes):
        return {root.rpartition("/")[2]: root}
    folder = open_root(root, "the files", files)
    # `datasets` leaves cache-*.arrow beside the files of a folder whose rows somebody has mapped.
    return {
        name: folder.path(name)
        for name in folder.files()
        if name.lower().endswith(suffixes)
        and not name.rpartition("/")[2].startswith(("_", "cache-"))
    }


def data_file(name: str, address: str, files: Files) -> DataFile:
    """The file at a path or an address; DataError if its store gives no checksum or version."""
    if not is_remote(address):
        return DataFile(name, str(local_file(address)))
    return DataFile(*files.remote.data_file(name, address))


def expand_braces(pattern: str) -> list[str]:
    """`x-{00..02}.{a,b}` -> x-00.a, x-00.b, x-01.a ...

    Raises:
        ConfigError: a brace is not closed, or a range goes down.
    """
    match = _BRACES.search(pattern)
    if match is None:
        if {"{", "}"} & {*pattern}:
            raise ConfigError(Problem("dataset.root", f"{pattern!r}: its braces do not match"))
        return [pattern]
    # There is no whole pair before the first one, but there may be half of one, which is refused.
    (before,) = expand_braces(pattern[: match.start()])
    ends, width = expand_braces(pattern[match.end() :]), 0
    values: Sequence[object] = match[1].split(",")
    if bounds := _RANGE.fullmatch(match[1]):
        values, width = range(int(bounds[1]), int(bounds[2]) + 1), len(bounds[1])
    if not values:
        reason = f"the range {match[0]} goes down; write the lower number first"
        raise ConfigError(Problem("dataset.root", f"{pattern!r}: {reason}"))
    return [f"{before}{str(value).zfill(width)}{end}" for value in values for end in ends]


def split_of(name: str) -> str | None:
    """The split that the name of a file, or else of a folder above it, begins with, or None."""
    return next(
        (
            split
            for part in reversed(name.split("/"))
            for split, words in _SPLITS.items()
            if words.match(part)
        ),
        None,
    )
