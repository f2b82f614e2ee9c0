"""Faces with landmarks: a folder of images and a CSV with a row per image.

The layout is that of PyTorch's data loading tutorial. The CSV is read strictly:

    image_name,part_0_x,part_0_y,part_1_x,part_1_y,...
    0805.jpg,27,83,27,98,...

Columns may have any order, with others between them. Cost: about 25 us a row of 68 landmarks to
construct, and 550 bytes of memory; and one image read a sample.
"""

from __future__ import annotations

import csv
import math
import os
import re
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from penstock.datasets.files import Files
from penstock.datasets.reading.fingerprint import Part, Sample
from penstock.datasets.reading.folder_dataset import FolderDataset
from penstock.datasets.reading.image import Orientation, Reader, check_reader, read_image
from penstock.datasets.reading.root import FolderFile, open_root
from penstock.datasets.reading.split import Split, split_rows
from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Fraction, Limits, Seed

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
        split: "train", "val" or "test".
        csv: the table, relative to `root`.
        images: the folder that the names in the table start from, relative to `root`.
        reader: "torchvision", "pillow" or "skimage".
        val_fraction, split_seed: share of the images that validate, and the seed of the split.
        files: access to addresses.
        limits: what a file may claim.
        test_fraction: share of the images that are kept for a test.
        orientation: "apply" turns images as their EXIF says; "ignore" takes them as they are
            stored, as the tool may have done in which they were marked; None: "apply".

    Raises:
        DataError: the folder, the CSV or an image named in it is missing, or the CSV has a mistake.
            No image is opened; a damaged one is refused when it is read.
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
        files: Files | None = None,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
        orientation: Orientation | None = None,
    ) -> None:
        self.reader = check_reader(reader, orientation)
        folder = open_root(root, f"the images and {csv!r}", files, limits)
        file = FolderFile(folder, csv)
        read, landmarks = file.read(lambda path: _read_table(path, str(file)))
        self.limits = limits
        self.folder = folder.below(images)
        encoded = np.array([os.fsencode(name) for name in read])
        order = np.argsort(encoded)
        encoded, lines = encoded[order], np.array(list(read.values()), np.int64)[order]
        names = [os.fsdecode(name) for name in encoded.tolist()]
        row = self.folder.first_missing(names)
        if row is not None:
            raise DataError(
                f"{str(file)!r}, line {lines[row]}: its image "
                f"{self.folder.path(names[row])!r} is missing. Put it there or remove the row (or "
                "set dataset.images to their folder)."
            )
        rows = split_rows(encoded, split, val_fraction, split_seed, None, test_fraction)
        self.names, self.lines = encoded[rows], lines[rows]
        self.landmarks = landmarks[order][rows]

    def __getitem__(self, index: int) -> Sample:
        image = self._read(
            index, lambda path, shown: read_image(path, self.reader, shown, self.limits)
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

        table = pd.DataFrame({"path": self._paths(), "name": self._names(), "line": self.lines})
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
    along = ((nose - start) * jaw).sum(axis=1) / length
    return np.where(along < _MIDDLE[0], 1, np.where(along > _MIDDLE[1], 2, 0)).astype(np.int64)


NAME = "image_name"
_COORDINATE = re.compile(r"part_(\d{1,9})_[xy]")


def _read_table(path: str, shown: str) -> tuple[dict[str, int], npt.NDArray[np.float32]]:
    """The line of each image by its name, from 1 (the header), and float32[N, L, 2] in pixels.

    Args:
        shown: the path or address of the table, for messages.

    Raises:
        DataError: a column or value is missing, duplicate, empty, not a number or not finite; names
            the file, line, column and value.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"cannot read the landmarks {shown!r}: {getattr(error, 'strerror', None) or error}. "
            "Save them as CSV in UTF-8, and set dataset.csv to their name in dataset.root."
        ) from error
    if not rows:
        wrong = "has a header and no rows" if header else "is empty: it needs a header"
        raise DataError(f"{shown!r} {wrong} ({NAME},part_0_x,part_0_y,...)")
    found = map(_COORDINATE.fullmatch, header)
    parts = range(max((int(part[1]) for part in found if part), default=0) + 1)
    places = []
    for name in chain([NAME], (f"part_{part}_{axis}" for part in parts for axis in "xy")):
        if (count := header.count(name)) != 1:
            wrong = "appears twice. Remove one" if count else "is missing. Add it"
            raise DataError(f"{shown!r}, line 1: column {name!r} {wrong}.")
        places.append(header.index(name))
    lines: dict[str, int] = {}
    landmarks = np.empty((len(rows), len(places) - 1), np.float32)
    for number, (line, row) in enumerate(rows):
        where = f"{shown!r}, line {line}"
        if len(row) != len(header):
            raise DataError(
                f"{where}: {len(row)} values, but the header has {len(header)} columns. "
                "Complete the row or remove it."
            )
        name = row[places[0]].strip()
        if not name or name in lines:
            wrong = f"{name!r} is already in line {lines[name]}" if name else "the value is empty"
            raise DataError(f"{where}, column {NAME!r}: {wrong}. Correct the row.")
        lines[name] = line
        for column, place in enumerate(places[1:]):
            value = _number(row[place])
            if not abs(value) < 3.4e38:  # of float32
                raise DataError(
                    f"{where}, column {header[place]!r}: {row[place]!r} is not a finite number. "
                    "Put a number in pixels there or remove the row."
                )
            landmarks[number, column] = value
    return lines, landmarks.reshape(len(rows), -1, 2)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
