"""Faces with landmarks: a folder of images and a CSV with a row per image.

The layout is that of PyTorch's data loading tutorial; `reading.landmark_table` has the columns.
Cost: about 25 us a row to construct, and one image read a sample.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from penstock.datasets.files import Files
from penstock.datasets.reading.fingerprint import Part
from penstock.datasets.reading.folder import FolderFile, open_root
from penstock.datasets.reading.folder_dataset import FolderDataset
from penstock.datasets.reading.image import Reader, check_reader, read_image
from penstock.datasets.reading.landmark_table import read_landmark_table
from penstock.datasets.reading.split import Split, check_split, split_rows
from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Limits
from penstock.ranges import Count, Fraction, Seed

if TYPE_CHECKING:
    import pandas as pd

POSES = ("ahead", "left", "right")  # as seen in the image
_JAW_LEFT, _JAW_RIGHT, _NOSE_TIP = 0, 16, 30  # of 68 landmarks
_MIDDLE = (0.4, 0.6)


class FaceLandmarks(FolderDataset):
    """One sample: `image` (uint8 [3, H, W]) and `landmarks` (`KeyPoints`, float32 [L, 2], pixels).

    Coordinates have the centre of the first pixel at (0, 0), as for torchvision's `KeyPoints`.
    Samples are in the order of their names, whatever the order of rows in the CSV.

    Args:
        root: folder of the data; a path or an address.
        split: "train" or "val".
        csv: the table, relative to `root`.
        images: the folder that the names in the table start from, relative to `root`.
        reader: "torchvision", "pillow" or "skimage".
        val_fraction, split_seed: share of the images that validate, and the seed of the split.
        num_landmarks: how many the table must have; None takes what it has.
        files: access to addresses.
        limits: what a file and the table may claim.

    Raises:
        DataError: the folder, the CSV or an image named in it is missing, or the CSV has a mistake,
            as a name that leads out of the folder. No image is opened; a damaged one is refused
            when it is read.
        ConfigError: the reader, the split or its share is invalid.
    """

    columns: ClassVar[tuple[str, ...]] = ("path", "name", "line", "pose", "label")

    def __init__(
        self,
        root: str,
        split: Split = "train",
        csv: str = "face_landmarks.csv",
        images: str = ".",
        reader: Reader = "torchvision",
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        num_landmarks: Count | None = None,
        files: Files | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        check_reader(reader)
        check_split(split, val_fraction)
        folder = open_root(root, f"the images and {csv!r}", files, limits)
        file = FolderFile(folder, csv)
        table = file.read(
            lambda path: read_landmark_table(Path(path), num_landmarks, str(file), limits)
        )
        self.limits = limits
        self.reader = reader
        self.folder = folder.below(images)
        names = [os.fsdecode(name) for name in table.names.tolist()]
        row = self.folder.first_missing(names)
        if row is not None:
            raise DataError(
                f"{str(file)!r}, line {table.lines[row]}: its image "
                f"{self.folder.path(names[row])!r} is missing. Put it there or remove the row (or "
                "set dataset.images to their folder)."
            )
        rows = split_rows(table.names, split, val_fraction, split_seed)
        self.names, self.lines = table.names[rows], table.lines[rows]
        self.landmarks = table.landmarks[rows]

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = self.folder.read(
            os.fsdecode(self.names[index]),
            lambda path, shown: read_image(path, self.reader, shown, self.limits),
        )
        points = torch.from_numpy(self.landmarks[index].copy())
        height, width = image.shape[-2:]
        landmarks = tv_tensors.KeyPoints(points, canvas_size=(height, width))
        return {"image": image, "landmarks": landmarks}

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: path, name, line (of the CSV, from 1).

        With 68 landmarks also `pose` (ahead, left or right) and its number as `label`, by which a
        sampler can balance.
        """
        import pandas as pd

        columns = {"path": self._paths(), "name": self._names(), "line": self.lines}
        table = pd.DataFrame(columns)
        if self.landmarks.shape[1] == 68:
            label = head_poses(self.landmarks)
            table["pose"], table["label"] = np.array(POSES)[label], label
        return table

    @property
    def facts(self) -> dict[str, int]:
        """Numbers for models and metrics: num_landmarks, num_outputs."""
        count = self.landmarks.shape[1]
        return {"num_landmarks": count, "num_outputs": 2 * count}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The reader, and this split's names, file sizes and landmarks."""
        return ["face_landmarks", self.reader, *self._file_parts(sized), self.landmarks]


def head_poses(landmarks: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Pose of each face as a number in POSES: int64[N], from float[N, 68, 2].

    The tip of the nose is projected onto the line between the ends of the jaw: in the middle of it,
    the head looks ahead. Coarse, but good enough to balance a sampler by.
    """
    start, nose = landmarks[:, _JAW_LEFT], landmarks[:, _NOSE_TIP]
    jaw = landmarks[:, _JAW_RIGHT] - start
    length = np.maximum((jaw**2).sum(axis=1), 1e-9)
    place = ((nose - start) * jaw).sum(axis=1) / length
    return np.where(place < _MIDDLE[0], 1, np.where(place > _MIDDLE[1], 2, 0)).astype(np.int64)
