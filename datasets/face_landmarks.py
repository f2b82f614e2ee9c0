"""Faces with landmarks: a folder of images and a CSV with a row per image.

The layout is that of PyTorch's data loading tutorial (`reading.landmark_table` has the columns).
Coordinates are in pixels with the centre of the first pixel at (0, 0), as torchvision's `KeyPoints`
have it. Cost: about 25 us a row to construct, and one image read a sample.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch.utils.data import Dataset
from torchvision import tv_tensors

from pipeline.datasets.files import Files
from pipeline.datasets.reading.damage import image_damage
from pipeline.datasets.reading.data_file import DataFile
from pipeline.datasets.reading.fingerprint import Fingerprinted, Part
from pipeline.datasets.reading.folder import File, Folder
from pipeline.datasets.reading.head_pose import POSES, head_poses
from pipeline.datasets.reading.image import Reader, check_reader, read_image
from pipeline.datasets.reading.landmark_table import LandmarkTable, read_landmark_table
from pipeline.datasets.reading.root import open_root
from pipeline.datasets.reading.split import Split, check_split, split_rows
from pipeline.errors import DataError
from pipeline.files.limits import DEFAULT, Limits

if TYPE_CHECKING:
    import pandas as pd


class FaceLandmarks(Fingerprinted, Dataset[dict[str, Any]]):
    """One sample: `image` (uint8 [3, H, W]) and `landmarks` (`KeyPoints`, float32 [L, 2], pixels).

    Samples are in the order of their names, so the rows of the CSV may stand in any order.

    Args:
        root: folder of the data; a path or an address.
        split: "train" or "val"; `reading.split` says which rows that is.
        csv: the table, relative to `root`.
        images: the folder that the names in the table start from, relative to `root`.
        reader: "torchvision", "pillow" or "skimage".
        val_fraction: share of the images that validate.
        split_seed: another seed, another split.
        num_landmarks: how many the table must have; None takes what it has.
        files: how to get at what lies at an address.
        limits: what a file and the table may claim.

    Raises:
        DataError: the folder, the CSV or an image named in it is missing, or the CSV has a mistake,
            as a name that leads out of the folder.
            No image is opened; one that is damaged is refused when it is read.
        ConfigError: the reader, the split or its share is none.
    """

    draws = False  # reading a sample takes no random numbers
    columns: ClassVar[tuple[str, ...]] = ("path", "name", "line", "pose", "label")

    def __init__(
        self,
        root: str,
        split: Split = "train",
        csv: str = "face_landmarks.csv",
        images: str = ".",
        reader: Reader = "torchvision",
        val_fraction: float = 0.2,
        split_seed: int = 0,
        num_landmarks: int | None = None,
        files: Files | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        check_reader(reader)
        check_split(split, val_fraction)
        folder = open_root(root, f"the images and {csv!r}", files, limits)
        file = File(folder, csv)
        table = file.read(
            lambda path: read_landmark_table(Path(path), num_landmarks, str(file), limits)
        )
        self.limits = limits
        self.reader = reader
        self.images = folder.below(images)
        _check_images(self.images, file, table)
        rows = split_rows(table.names, split, val_fraction, split_seed)
        self.names, self.lines = table.names[rows], table.lines[rows]
        self.landmarks = table.landmarks[rows]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> dict[str, Any]:
        name = os.fsdecode(self.names[index])
        image = self.images.read(
            name, lambda path: read_image(path, self.reader, self.images.path(name), self.limits)
        )
        points = torch.from_numpy(self.landmarks[index].copy())
        height, width = image.shape[-2:]
        return {
            "image": image,
            "landmarks": tv_tensors.KeyPoints(points, canvas_size=(height, width)),
        }

    def check(self, index: int) -> str | None:
        """What is wrong with the image of a sample although it can be read; None: nothing."""
        damage = partial(image_damage, limits=self.limits)
        return self.images.read(os.fsdecode(self.names[index]), damage)

    def path(self, index: int) -> str:
        """Where the image of a sample lies: a path or an address."""
        return self.images.path(os.fsdecode(self.names[index]))

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: path, name, line (of the CSV, from 1).

        With 68 landmarks also `pose` (ahead, left or right) and its number as `label`, by which a
        sampler can balance.
        """
        import pandas as pd

        names = [os.fsdecode(name) for name in self.names.tolist()]
        paths = [self.images.path(name) for name in names]
        table = pd.DataFrame({"path": paths, "name": names, "line": self.lines})
        if self.landmarks.shape[1] == 68:
            label = head_poses(self.landmarks)
            table["pose"], table["label"] = np.array(POSES)[label], label
        return table

    @property
    def facts(self) -> dict[str, int]:
        """What a model must know: num_landmarks, num_outputs."""
        count = self.landmarks.shape[1]
        return {"num_landmarks": count, "num_outputs": 2 * count}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The reader, and this split's names, file sizes and landmarks."""
        names = [os.fsdecode(name) for name in self.names.tolist()]
        sizes = [self.images.sizes(names)] if sized else []
        return ["face_landmarks", self.reader, *names, *sizes, self.landmarks]

    def data_files(self) -> Iterator[DataFile]:
        return (self.images.data_file(os.fsdecode(name)) for name in self.names)


def _check_images(images: Folder, csv: File, table: LandmarkTable) -> None:
    """Refuse the first row whose image is not there; folders are listed, no file is opened."""
    names = [os.fsdecode(name) for name in table.names.tolist()]
    row = images.first_missing(names)
    if row is not None:
        raise DataError(
            f"{str(csv)!r}, line {table.lines[row]}: its image {images.path(names[row])!r} is "
            "missing. Put it there or take the row out (or set dataset.images to their folder)."
        )
