"""What datasets of files share: a fingerprint, facts, samples that are a file each, and which rows
train, which validate, and which are kept for a test."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from penstock.datasets.files import DataFile, Root
from penstock.errors import ConfigError, Problem
from penstock.files.limits import Fraction, Limits, Seed
from penstock.order.keys import IntArray, hash64, hash64_array

T = TypeVar("T")
Split = Literal["train", "val", "test"]
Sample = dict[str, Any]  # fields by name
Table = Any  # a pandas DataFrame
Part = int | float | str | bytes | npt.NDArray[np.generic]


class FileDataset:
    """A dataset of files.

    Two datasets with equal fingerprints give equal samples under equal indices, as far as names and
    sizes can tell. Where the data lies and when it was written do not count.
    """

    draws = False  # reading a sample takes no random numbers

    @property
    def facts(self) -> dict[str, int]:
        """Numbers for models and metrics: num_classes and num_outputs if there are classes."""
        count = len(getattr(self, "classes", ()))
        return {"num_classes": count, "num_outputs": count} if count else {}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The parts of the hash: how files are read and divided, their names and, if `sized`, their
        sizes; of a few large files, evenly spread blocks."""
        raise NotImplementedError

    def data_files(self) -> Iterable[DataFile]:
        """The files of this split's samples, in their order."""
        raise NotImplementedError

    @cached_property
    def fingerprint(self) -> str:
        """Hash of how files are read and divided, of their names and sizes."""
        return fingerprint(self.fingerprint_parts(sized=True))

    def names_fingerprint(self) -> str:
        """The same without sizes: no file is opened or looked at."""
        return fingerprint(["names", *self.fingerprint_parts(sized=False)])


class FolderDataset(FileDataset, Dataset[Sample]):
    """A dataset of images or other files; its constructor sets the attributes.

    Attributes:
        folder: the folder of the files.
        names: bytes[N], the file of each sample, relative to `folder`.
        limits: what a file may claim.
    """

    folder: Root
    names: npt.NDArray[np.bytes_]
    limits: Limits

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> str:
        """The path or address of the file of a sample."""
        return self.folder.path(os.fsdecode(self.names[index]))

    @property
    def want(self) -> Callable[[IntArray], float] | None:
        """Samples are read soon: fetch their files ahead; their part of `files.ahead`.

        None for files of this machine.
        """
        return None if self.folder.remote_files is None else self._want

    def _want(self, indices: IntArray) -> float:
        return self.folder.want([*map(os.fsdecode, self.names[indices].tolist())])

    def data_files(self) -> Iterator[DataFile]:
        return map(self.folder.data_file, self._names())

    def _read(self, index: int, function: Callable[[str, str], T]) -> T:
        """`function(path, shown)` for the file of a sample; see `Root.read`."""
        return self.folder.read(os.fsdecode(self.names[index]), function)

    def _names(self) -> list[str]:
        return [os.fsdecode(name) for name in self.names.tolist()]

    def _paths(self) -> list[str]:
        return [self.folder.path(name) for name in self._names()]

    def _file_parts(self, sized: bool) -> list[Part]:
        """For the fingerprint: names, and with `sized` their sizes."""
        names = self._names()
        return [*names, self.folder.sizes(names)] if sized else [*names]


def table(columns: Mapping[str, Any], classes: Sequence[str] = ()) -> Table:
    """A table of columns; with `classes` also `class`, the name of each `label`."""
    import pandas as pd  # half a second, which most runs do without

    made = pd.DataFrame(dict(columns))
    if classes:
        # Codes and names once: a column of texts takes 60 bytes a row.
        made["class"] = pd.Categorical.from_codes(made["label"], pd.Index(classes))
    return made


def fingerprint(parts: Iterable[Part]) -> str:
    """Hash `parts` in order: 32 hex digits; about 1 GB/s for arrays.

    The hash includes each part's kind and length, so different lists of parts cannot collide by
    concatenation.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        # `dtype.str` includes the byte order, so machines of the other kind hash differently.
        if isinstance(part, np.ndarray):
            kind, content = f"array{part.dtype.str}{part.shape}", part.tobytes()
        else:
            text = str(part).encode("utf-8", "surrogateescape")
            kind, content = type(part).__name__, part if isinstance(part, bytes) else text
        digest.update(f"{kind}:{len(content)};".encode())
        digest.update(content)
    return digest.hexdigest()


@dataclass(frozen=True)
class Shares:
    """How many rows of a dataset validate and how many are kept for a test; the others train.

    The build hands `data.split` to each dataset that takes `shares`. Rows are ranked by a keyed
    hash of their names (`ranked`). The lowest ranks validate and the highest are kept for a test:

    - the order of rows in a CSV or of files in a folder changes nothing;
    - a share is exact (to the nearest sample), overall and, within one sample, in every class;
    - a larger share adds rows to a split and keeps those there were;
    - a test split is taken from the rows that train, and changes none that validates.

    Attributes:
        val, test: shares of the rows, in [0, 1]. Between the ends and with two rows or more,
            neither training nor validation is empty.
        seed: another seed, other rows.

    Raises:
        ConfigError: a share is out of range, or both together are.
    """

    val: Fraction = 0.2
    test: Fraction = 0.0
    seed: Seed = 0

    def __post_init__(self) -> None:
        if not (self.val >= 0.0 <= self.test and self.val + self.test <= 1.0):
            raise ConfigError(
                Problem(
                    "data.split",
                    f"val is {self.val} and test {self.test}; allowed: 0 to 1, and both together",
                )
            )

    def without(self, *splits: str) -> Shares:
        """These, without shares of splits whose rows are told by files."""
        return replace(
            self,
            val=0.0 if "val" in splits else self.val,
            test=0.0 if "test" in splits else self.test,
        )

    def rows(
        self, split: str, names: npt.NDArray[Any] | int, labels: IntArray | None = None
    ) -> IntArray:
        """Rows of one split, ascending: int64[n].

        Args:
            split: "train", "val" or "test".
            names: bytes[N], unique; or N for rows without names, which are ranked by row number.
            labels: int64[N]; each label then gives its shares.

        Raises:
            ConfigError: there is no such split.
        """
        check_split(split)
        order = ranked(names, self.seed, labels)
        vals, tests = (rows_of_share(len(order), share) for share in (self.val, self.test))
        parts = np.split(order, [vals, max(len(order) - tests, vals)])
        return np.sort(parts[("val", "train", "test").index(split)]).astype(np.int64)


def check_split(split: str, *others: str) -> None:
    """Refuse what is no split, and `others`, which a dataset does not have; by a ConfigError."""
    if split in others or split not in ("train", "val", "test"):
        raise ConfigError(
            Problem(
                "data.split",
                f"this dataset has no split {split!r} of its own; data.split={{val: 0.1, test: "
                "0.1} divides the rows of any dataset",
            )
        )


def ranked(names: npt.NDArray[Any] | int, seed: int, labels: IntArray | None = None) -> IntArray:
    """Rows by a keyed hash of their names: int64[N]; about 1 us a name.

    Args:
        names: bytes or anything with a text, unique; or N, for rows that are named by their number.
        labels: int64[N]; any first part of the rows then has about that part of each label.
    """
    if isinstance(names, int):
        numbers = np.arange(names, dtype=np.uint64)
    else:
        texts = (one if isinstance(one, bytes) else str(one).encode() for one in names.tolist())
        digests = (hashlib.blake2b(text, digest_size=8).digest() for text in texts)
        # Little-endian everywhere, so that every machine divides alike.
        numbers = np.frombuffer(b"".join(digests), dtype="<u8")
    keys = hash64_array(hash64(seed, "split"), numbers)
    if labels is None:
        return np.argsort(keys, kind="stable")
    # By a row's rank within its label over the size of that label, ties by key.
    by_label = np.lexsort((keys, labels))
    _, starts, sizes = np.unique(labels[by_label], return_index=True, return_counts=True)
    ranks = np.arange(len(keys)) - np.repeat(starts, sizes)
    places = np.empty(len(keys), dtype=np.float64)
    places[by_label] = (ranks + 0.5) / np.repeat(sizes, sizes)
    return np.lexsort((keys, places))


def rows_of_share(total: int, share: float) -> int:
    """How many rows a share of `total` is: to the nearest; of two or more neither all nor none."""
    count = math.floor(total * share + 0.5)
    return min(max(count, 1), total - 1) if 0.0 < share < 1.0 and total >= 2 else count
