"""Map-style datasets with one file a sample, all in one folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from penstock.datasets.files import Remote
from penstock.datasets.reading.fingerprint import DataFile, FileDataset, Part, Sample
from penstock.datasets.reading.folder import Folder
from penstock.errors import DataError
from penstock.files.limits import Limits
from penstock.order.keys import IntArray

T = TypeVar("T")

_LOOKED_AT = 2000  # headers of images on this machine: 0.2 s

_log = logging.getLogger(__name__)


class FolderDataset(FileDataset, Dataset[Sample]):
    """A dataset of images or other files; its constructor sets the attributes.

    Attributes:
        folder: the folder of the files.
        names: bytes[N], the file of each sample, relative to `folder`.
        limits: what a file may claim.
    """

    draws = False  # reading a sample takes no random numbers
    folder: Folder
    names: npt.NDArray[np.bytes_]
    limits: Limits

    def __len__(self) -> int:
        return len(self.names)

    def check(self, index: int) -> str | None:
        """Damage in the file of a sample that reading it does not show; None if there is none."""
        from penstock.datasets.reading.image import image_damage  # imports torchvision

        return self._read(index, lambda path, _: image_damage(path, self.limits))

    def path(self, index: int) -> str:
        """The path or address of the file of a sample."""
        return self.folder.path(os.fsdecode(self.names[index]))

    @property
    def remote_files(self) -> Remote | None:
        """The fetcher of the files, if they are at an address."""
        return self.folder.remote_files

    def files_of(self, indices: Sequence[int] | IntArray) -> list[list[str]]:
        """The addresses of the files of samples."""
        return [[self.path(index)] for index in indices]

    def locality(self, indices: IntArray) -> IntArray:
        """A file a row."""
        return indices

    def data_files(self) -> Iterator[DataFile]:
        return map(self.folder.data_file, self._names())

    def _read(self, index: int, function: Callable[[str, str], T]) -> T:
        """`function(path, shown)` for the file of a sample; see `Folder.read`."""
        return self.folder.read(os.fsdecode(self.names[index]), function)

    def check_turns(
        self,
        names: Sequence[str],
        what: str,
        orientation: str | None,
        size_of: Callable[[int], tuple[int, ...] | None] | None = None,
    ) -> None:
        """Look before training at images that EXIF turns, with `what` is known of places in them.

        Args:
            names: of the images, in `folder`.
            orientation: "apply", "ignore", or None for "apply" and a line where nothing tells.
            size_of: width and height that belong to `what` is known, by the place in `names`.

        Raises:
            DataError: sizes belong to the other choice of `orientation`.
        """
        from penstock.datasets.reading.image import sizes_of  # imports torchvision

        in_a_store = self.folder.remote_files is not None  # which gives files as they are needed
        if in_a_store and orientation is None:
            _log.warning(
                "%s: in a store nobody looks first at images that EXIF turns. If %s were made for "
                "images as they are stored, set dataset.orientation=ignore; =apply ends this line",
                *(self.folder, what),
            )
        if in_a_store or (size_of is None and orientation is not None):
            return
        looked_at = min(_LOOKED_AT, len(names))
        places = np.unique(np.linspace(0, len(names) - 1, looked_at).astype(int))
        turned, unknown, wrong = 0, [], []
        for place in places.tolist():
            turns, *sizes = self.folder.read(names[place], lambda path, _: sizes_of(path)) or [
                False
            ]
            if turns:
                turned += 1
                other, taken = sizes if orientation != "ignore" else sizes[::-1]
                size = taken if size_of is None else size_of(place)
                if size == taken == other or size_of is None:
                    unknown.append(names[place])
                elif size == other:
                    wrong.append(names[place])
        total = "" if len(places) == len(names) else f" looked at (of {len(names)})"
        said = f"EXIF's orientation turns {turned} of {len(places)} images{total}"
        if wrong:
            made, key = (
                ("turned", "apply") if orientation == "ignore" else ("as they are stored", "ignore")
            )
            raise DataError(
                f"{str(self.folder)!r}: {said}, and {what} of {len(wrong)} have the size of the "
                f"images {made}: {', '.join(wrong[:10])}. Set dataset.orientation={key}."
            )
        if unknown and orientation is None:
            _log.warning(
                "%s: %s, and for %d no size tells whether their %s were made for the turned images "
                "(as they are taken) or for the stored ones: %s. If these lie beside their objects "
                "in the report, set dataset.orientation=ignore; =apply ends this line",
                *(self.folder, said, len(unknown), what, ", ".join(unknown[:10])),
            )

    def _names(self) -> list[str]:
        return [os.fsdecode(name) for name in self.names.tolist()]

    def _paths(self) -> list[str]:
        return [self.folder.path(name) for name in self._names()]

    def _file_parts(self, sized: bool) -> list[Part]:
        """For the fingerprint: names, and with `sized` their sizes."""
        names = self._names()
        return [*names, self.folder.sizes(names)] if sized else [*names]
