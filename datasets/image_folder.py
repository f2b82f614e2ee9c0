"""Images in folders: a class a folder.

    root/<class>/.../image.jpg            divided by `val_fraction`, each class alike
    root/train/<class>/..., root/val/...  divided already, when both folders are there

Classes are sorted by name and numbered from 0; hidden files and folders are passed over. Cost: one
walk over the folders (about 2 us a file) or one listing of the address, no image opened; and one
image read a sample.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch.utils.data import Dataset

from pipeline.datasets.files import Files
from pipeline.datasets.reading.damage import image_damage
from pipeline.datasets.reading.data_file import DataFile
from pipeline.datasets.reading.fingerprint import Fingerprinted, Part
from pipeline.datasets.reading.folder import Folder
from pipeline.datasets.reading.image import Reader, check_reader, encoded_image, read_image
from pipeline.datasets.reading.labels import check_classes
from pipeline.datasets.reading.root import open_root
from pipeline.datasets.reading.split import Split, check_split, split_rows
from pipeline.errors import ConfigError, DataError, Problem
from pipeline.files.limits import DEFAULT, Limits

if TYPE_CHECKING:
    import pandas as pd

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp")

_log = logging.getLogger(__name__)


class ImageFolder(Fingerprinted, Dataset[dict[str, Any]]):
    """One sample: `image` (uint8 [3, H, W], or as `lazy` says) and `label` (int).

    Samples are in the order of their class and path.

    Args:
        root: folder of the classes, or of "train" and "val"; a path or an address.
        split: "train" or "val".
        reader: "torchvision", "pillow" or "skimage".
        extensions: which files are images, in small letters; others are passed over with one
            warning.
        val_fraction: share of each class that validates; without effect when `root` is divided
            already.
        split_seed: another seed, another split.
        files: how to get at what lies at an address.
        lazy: give `image` as an EncodedImage, undecoded, for a transform of
            `pipeline.transforms.image_decoding`; the build sets it for those.
        limits: what a file, the folder and the classes may claim.

    Raises:
        DataError: the folder is missing, there is no class in it, a class has no images, or only
            one of "train" and "val" has a class.
        ConfigError: the reader, an extension, the split or its share is none.
    """

    columns: ClassVar[tuple[str, ...]] = ("path", "label", "class")
    draws = False  # reading a sample takes no random numbers

    def __init__(
        self,
        root: str,
        split: Split = "train",
        reader: Reader = "torchvision",
        extensions: Sequence[str] = EXTENSIONS,
        val_fraction: float = 0.2,
        split_seed: int = 0,
        files: Files | None = None,
        lazy: bool = False,
        limits: Limits = DEFAULT,
    ) -> None:
        check_reader(reader)
        check_split(split, val_fraction)
        _check_extensions(extensions)
        self.reader = reader
        self.lazy = lazy
        self.limits = limits
        folder = open_root(root, "a folder of images for each class", files, limits)
        divided = _is_divided(folder)
        self.folder = folder.below(split) if divided else folder
        self.classes = _classes(folder.below("train") if divided else folder)
        check_classes(len(self.classes), str(folder), limits)
        found = _Images(self.folder, self.classes, tuple(extensions))
        if divided or split == "train":  # both splits of an undivided folder pass over the same
            found.warn()
        names, labels = np.array(found.names), np.array(found.labels, dtype=np.int64)
        if not divided:
            rows = split_rows(names, split, val_fraction, split_seed, labels)
            names, labels = names[rows], labels[rows]
        self.names, self.labels = names, labels

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> dict[str, Any]:
        name = os.fsdecode(self.names[index])
        read = encoded_image if self.lazy else read_image
        image = self.folder.read(
            name, lambda path: read(path, self.reader, self.folder.path(name), self.limits)
        )
        return {"image": image, "label": int(self.labels[index])}

    def check(self, index: int) -> str | None:
        """What is wrong with the image of a sample although it can be read; None: nothing."""
        damage = partial(image_damage, limits=self.limits)
        return self.folder.read(os.fsdecode(self.names[index]), damage)

    def path(self, index: int) -> str:
        """Where the image of a sample lies: a path or an address."""
        return self.folder.path(os.fsdecode(self.names[index]))

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: path, label, class (its name)."""
        import pandas as pd

        paths = [self.folder.path(os.fsdecode(name)) for name in self.names.tolist()]
        names = pd.Categorical.from_codes(self.labels, categories=pd.Index(self.classes))
        return pd.DataFrame({"path": paths, "label": self.labels, "class": names})

    @property
    def facts(self) -> dict[str, int]:
        """What a model must know: num_classes, num_outputs."""
        return {"num_classes": len(self.classes), "num_outputs": len(self.classes)}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The reader, the classes, and this split's names, file sizes and labels."""
        names = [os.fsdecode(name) for name in self.names.tolist()]
        sizes = [self.folder.sizes(names)] if sized else []
        parts = ["image_folder", self.reader, len(self.classes), *self.classes, *names]
        return [*parts, *sizes, self.labels]

    def data_files(self) -> Iterator[DataFile]:
        return (self.folder.data_file(os.fsdecode(name)) for name in self.names)


class _Images:
    """The images below `folder`, class by class: names (relative, bytes) and labels."""

    def __init__(self, folder: Folder, classes: list[str], extensions: tuple[str, ...]) -> None:
        self._folder, self._extensions = folder, extensions
        self._skipped: list[str] = []
        self.names: list[bytes] = []
        self.labels: list[int] = []
        strangers = sorted(set(folder.folders()) - set(classes))
        if strangers:
            raise DataError(
                f"{folder.path(strangers[0])!r}: the training split has no class "
                f"{strangers[0]!r} (it has {', '.join(classes[:8])}). Add it there or take the "
                "folder out."
            )
        for label, name in enumerate(classes):
            self._add(label, name)
        if not self.names:
            raise DataError(f"{str(folder)!r} holds no images. {self._allowed()}")

    def _add(self, label: int, name: str) -> None:
        before = len(self.names)
        folder = self._folder.below(name)
        for path in folder.files():
            if path.lower().endswith(self._extensions):
                self.names.append(os.fsencode(f"{name}/{path}"))
            else:
                self._skipped.append(f"{name}/{path}")
        self.labels += [label] * (len(self.names) - before)
        if len(self.names) == before and folder.exists():
            raise DataError(
                f"class {name!r}: {str(folder)!r} holds no images. "
                f"Put some there or take the folder out. {self._allowed()}"
            )

    def _allowed(self) -> str:
        return f"Images are files that end in {', '.join(self._extensions)} (dataset.extensions)."

    def warn(self) -> None:
        """Say once how many files were passed over."""
        if self._skipped:
            _log.warning(
                "%s: passed over %d file(s), the first %s. %s",
                self._folder,
                len(self._skipped),
                self._skipped[0],
                self._allowed(),
            )


def _check_extensions(extensions: Sequence[str]) -> None:
    wrong = [name for name in extensions if not re.fullmatch(r"\.[^./A-Z]+", name)]
    if isinstance(extensions, str) or wrong or not extensions:
        raise ConfigError(
            Problem(
                "dataset.extensions",
                f"{extensions!r}; allowed: a list of endings in small letters, as [.jpg, .png]",
            )
        )


def _is_divided(root: Folder) -> bool:
    there = [name for name in ("train", "val") if root.below(name).exists()]
    if len(there) == 1 and root.below(there[0]).folders():
        other = "val" if there == ["train"] else "train"
        raise DataError(
            f"{str(root)!r} has a folder {there[0]!r} of classes and none named {other!r}. Add it, "
            f"or set dataset.root={root.path(there[0])} to divide that one by dataset.val_fraction."
        )
    return len(there) == 2


def _classes(folder: Folder) -> list[str]:
    classes = folder.folders()
    if not classes:
        raise DataError(
            f"{str(folder)!r} has no folders in it: ImageFolder needs one for each class. "
            "Set dataset.root to the folder that holds them."
        )
    return classes
