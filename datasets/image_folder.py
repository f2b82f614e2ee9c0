"""Images in folders: one folder per class.

    root/<class>/.../image.jpg            divided by `data.split`, each class alike
    root/train/<class>/..., root/val/...  divided already, when both folders exist; and root/test

Cost: one walk over the folders (about 2 us a file) or one listing of the address, no image opened;
and one image read a sample.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from penstock.datasets.arrays import check_classes
from penstock.datasets.files import Files, Root, open_root, with_endings
from penstock.datasets.reading.base import (
    FolderDataset,
    Part,
    Sample,
    Shares,
    Split,
    Table,
    table,
)
from penstock.datasets.reading.image import Reader, encoded_image, read_image
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Limits

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp")
# A list of endings in small letters.
Extensions = Annotated[
    Sequence[Annotated[str, Field(pattern=r"^\.[^./A-Z]+$")]], Field(min_length=1)
]


class ImageFolder(FolderDataset):
    """One sample: `image` (uint8 [3, H, W], or as `lazy` says) and `label` (int).

    Classes are sorted by name and numbered from 0; samples are in the order of class and path.

    Args:
        root: folder of the classes, or of "train" and "val"; a path or an address.
        split: "train", "val" or "test".
        reader: "torchvision", "pillow" or "skimage".
        extensions: of images, in small letters; other files are skipped with one warning, hidden
            ones without.
        shares: of each class that validate and test; without effect when `root` is divided
            already.
        files: access to addresses.
        lazy: give `image` as an EncodedImage, undecoded, for a transform of
            `penstock.transforms.image_decoding`; the build sets it for those.
        limits: what a file, the folder and the classes may claim.
        class_names: of all classes in the order of their numbers, where some may have no folder;
            the build sets those of training, or of the run whose weights are tried.

    Raises:
        DataError: the folder is missing or has no class, a class has no images, or only one of
            "train" and "val" has a class.
        ConfigError: the split or its share is invalid.
    """

    columns: ClassVar[tuple[str, ...]] = ("path", "label", "class")

    def __init__(
        self,
        root: str,
        split: Split = "train",
        reader: Reader = "torchvision",
        extensions: Extensions = EXTENSIONS,
        shares: Shares = Shares(),
        files: Files | None = None,
        lazy: bool = False,
        limits: Limits = DEFAULT,
        class_names: Sequence[str] | None = None,
    ) -> None:
        self.reader, self.lazy, self.limits = reader, lazy, limits
        whole = open_root(root, "a folder of files for each class", files)
        divided = _is_divided(whole, split)
        self.folder = whole.below(split) if divided else whole
        classes = whole.below("train") if divided else whole
        self.classes = [*(class_names or classes.folders())]
        if not self.classes:
            raise DataError(
                f"{str(classes)!r} has no folders in it: {type(self).__name__} needs one for each "
                "class. Set dataset.root to the folder that contains them; files without "
                "classes are one class: name the folder above."
            )
        check_classes(len(self.classes), str(whole), limits)
        # Files beside the folders of classes, such as a README, are of no class.
        every = [name for name in self.folder.files() if "/" in name]
        # Both splits of an undivided folder skip the same files: one of them warns.
        warns = divided or split == "train"
        images = with_endings(every, tuple(extensions), str(self.folder) if warns else None)
        images.sort(key=lambda name: name.partition("/"))  # by class, and then by path
        of_class = [name.partition("/")[0] for name in images]
        allowed = f"Read are files that end in {', '.join(extensions)} (dataset.extensions)."
        there, numbers = {*of_class}, {name: n for n, name in enumerate(self.classes)}
        for name in self.folder.folders():
            if name not in numbers:
                raise DataError(
                    f"{self.folder.path(name)!r}: the training split has no class {name!r} (it has "
                    f"{', '.join(self.classes[:8])}). Add it there or remove the folder."
                )
            # A class may have no file to validate; without one to train on it could not be learnt.
            if name not in there and split == "train":
                raise DataError(
                    f"class {name!r}: {self.folder.path(name)!r} has no such files. Put some "
                    f"there or remove the folder. {allowed}"
                )
        if not images:
            raise DataError(f"{str(self.folder)!r} has no such files. {allowed}")
        self.names = np.array([*map(os.fsencode, images)])
        self.labels = np.array([numbers[name] for name in of_class], np.int64)
        if not divided:
            rows = shares.rows(split, self.names, self.labels)
            self.names, self.labels = self.names[rows], self.labels[rows]

    def __getitem__(self, index: int) -> Sample:
        read = encoded_image if self.lazy else read_image
        image = self._read(index, lambda path, shown: read(path, self.reader, shown, self.limits))
        return {"image": image, "label": int(self.labels[index])}

    @property
    def metadata(self) -> Table:
        """A row per sample: path, label, class (its name)."""
        return table({"path": self._paths(), "label": self.labels}, self.classes)

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The reader, the classes, and this split's names, file sizes and labels."""
        parts = ["image_folder", self.reader, len(self.classes), *self.classes]
        return [*parts, *self._file_parts(sized), self.labels]


def _is_divided(root: Root, split: str) -> bool:
    """Whether there are folders "train" and "val", and then one of this split."""
    there = [name for name in ("train", "val") if root.below(name).exists()]
    if len(there) == 1 and root.below(there[0]).folders():
        other = "val" if there == ["train"] else "train"
        raise DataError(
            f"{str(root)!r} has a folder {there[0]!r} of classes and none named {other!r}. Add it, "
            f"or set dataset.root={root.path(there[0])} to divide that one by data.split.val."
        )
    if len(there) == 2 and not root.below(split).exists():
        reason = f"{str(root)!r} is divided and has no folder {split!r}; add it"
        raise ConfigError(Problem("dataset.root", reason))
    return len(there) == 2
