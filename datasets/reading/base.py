"""What all datasets of files have: a fingerprint, facts, and samples that are a file each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from penstock.datasets.files import DataFile, Root
from penstock.files.limits import Limits
from penstock.order.keys import IntArray

T = TypeVar("T")
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
    def remote_files(self) -> Any:
        """The fetcher of the files (`RemoteFiles`), if they are at an address; else None."""
        return self.folder.remote_files

    def files_of(self, indices: Sequence[int] | IntArray) -> list[list[str]]:
        """The addresses of the files of samples."""
        return [[self.path(index)] for index in indices]

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
        kind, content = type(part).__name__, part if isinstance(part, bytes) else b""
        if isinstance(part, np.ndarray):
            kind, content = f"array{part.dtype.str}{part.shape}", part.tobytes()
        elif not isinstance(part, bytes):
            content = str(part).encode("utf-8", "surrogateescape")
        digest.update(f"{kind}:{len(content)};".encode())
        digest.update(content)
    return digest.hexdigest()
