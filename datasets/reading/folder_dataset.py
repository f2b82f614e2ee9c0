"""Map-style datasets with one file a sample, all in one folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from penstock.datasets.reading.fingerprint import DataFile, FileDataset, Part, Sample
from penstock.datasets.reading.root import Root
from penstock.files.limits import Limits
from penstock.order.keys import IntArray

if TYPE_CHECKING:
    from penstock.addons.stores.remote_files import RemoteFiles

T = TypeVar("T")


class FolderDataset(FileDataset, Dataset[Sample]):
    """A dataset of images or other files; its constructor sets the attributes.

    Attributes:
        folder: the folder of the files.
        names: bytes[N], the file of each sample, relative to `folder`.
        limits: what a file may claim.
    """

    draws = False  # reading a sample takes no random numbers
    folder: Root
    names: npt.NDArray[np.bytes_]
    limits: Limits

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> str:
        """The path or address of the file of a sample."""
        return self.folder.path(os.fsdecode(self.names[index]))

    @property
    def remote_files(self) -> RemoteFiles | None:
        """The fetcher of the files, if they are at an address."""
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
