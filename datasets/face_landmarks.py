"""Faces with landmarks: a folder of images and a CSV with a row per image.

The layout is that of PyTorch's data loading tutorial. The CSV is read strictly:

    image_name,part_0_x,part_0_y,part_1_x,part_1_y,...
    0805.jpg,27,83,27,98,...

Columns may have any order, with others between them. Cost: about 40 us a row of 68 landmarks to
construct, and 550 bytes of memory; and one image read a sample.
"""

from __future__ import annotations

import csv
import math
import os
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from penstock.datasets.files import Files, FolderFile, open_root
from penstock.datasets.reading.base import (
    FolderDataset,
    Part,
    Sample,
    Shares,
    Split,
    Table,
    table,
)
from penstock.datasets.reading.image import Orientation, Reader, check_reader, read_image
from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Limits

POSES = ("ahead", "left", "right")  # as seen in the image


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
        shares: of the images that validate and test.
        files: access to addresses.
        limits: what a file may claim.
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
        shares: Shares = Shares(),
        files: Files | None = None,
        limits: Limits = DEFAULT,
        orientation: Orientation | None = None,
    ) -> None:
        self.reader, self.limits = check_reader(reader, orientation), limits
        folder = open_root(root, f"the images and {csv!r}", files)
        file = FolderFile(folder, csv)
        lines, landmarks = file.read(lambda path: _read_table(path, str(file)))
        self.folder = folder.below(images)
        # Now, and not in the middle of an epoch; one listing tells of all files.
        if (row := self.folder.first_missing([*lines])) is not None:
            name, line = [*lines.items()][row]
            raise DataError(
                f"{str(file)!r}, line {line}: its image {self.folder.path(name)!r} is missing. Put "
                "it there or remove the row (or set dataset.images to their folder)."
            )
        # Bytes: a file's name need not be text of any encoding.
        names = np.array([*map(os.fsencode, lines)])
        order = (rows := shares.rows(split, names))[np.argsort(names[rows])]
        self.names, self.landmarks = names[order], landmarks[order]
        self.lines = np.array([*lines.values()], np.int64)[order]

    def __getitem__(self, index: int) -> Sample:
        image = self._read(
            index, lambda path, shown: read_image(path, self.reader, shown, self.limits)
        )
        # A transform may write into its sample, and this row is read again in the next epoch.
        points = torch.from_numpy(self.landmarks[index].copy())
        # The size as read: EXIF may have turned the picture, which its landmarks then fit.
        landmarks = tv_tensors.KeyPoints(points, canvas_size=(image.shape[-2], image.shape[-1]))
        return {"image": image, "landmarks": landmarks}

    @property
    def metadata(self) -> Table:
        """A row per sample: path, name, line (of the CSV, from 1).

        With 68 landmarks also `pose` (ahead, left or right) and its number as `label`, by which a
        sampler can balance.
        """
        columns = {"path": self._paths(), "name": self._names(), "line": self.lines}
        # The numbers of jaw and nose are those of the usual marking with 68 points.
        if self.landmarks.shape[1] == 68:
            label = head_poses(self.landmarks)
            columns |= {"pose": np.array(POSES)[label], "label": label}
        return table(columns)

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
    start, end, nose = (landmarks[:, point] for point in (0, 16, 30))
    jaw = end - start
    along = ((nose - start) * jaw).sum(axis=1) / np.maximum((jaw**2).sum(axis=1), 1e-9)
    return np.where(along < 0.4, 1, np.where(along > 0.6, 2, 0)).astype(np.int64)


NAME = "image_name"


def _read_table(path: str, shown: str) -> tuple[dict[str, int], npt.NDArray[np.float32]]:
    """The line of each image by its name, from 1 (the header), and float32[N, L, 2] in pixels.

    Args:
        shown: the path or address of the table, for messages.

    Raises:
        DataError: a column or value is missing, duplicate, empty, not a number or not finite; names
            the file, line, column and value.
    """
    try:
        # Excel writes a byte order mark, which would be part of the first column's name.
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"cannot read the landmarks {shown!r}: {getattr(error, 'strerror', None) or error}. "
            "Save them as CSV in UTF-8, and set dataset.csv to their name in dataset.root."
        ) from error
    if len(rows) < 2:
        columns = f"{NAME},part_0_x,part_0_y,..."
        raise DataError(f"{shown!r} needs a header ({columns}) and a row for each image.")
    header = [name.strip() for name in rows[0][1]]
    # From the largest number on, so that a column that is missing in the middle is named.
    most = max(map(int, re.findall(r"\bpart_(\d{1,9})_[xy]\b", " ".join(header))), default=0)
    coordinates = [f"part_{part}_{axis}" for part in range(most + 1) for axis in "xy"]
    for name in [NAME, *coordinates]:
        if (count := header.count(name)) != 1:
            wrong = "appears twice. Remove one" if count else "is missing. Add it"
            raise DataError(f"{shown!r}, line 1: column {name!r} {wrong}.")
    places = [header.index(name) for name in coordinates]
    lines: dict[str, int] = {}
    landmarks = np.empty((len(rows) - 1, len(places)), np.float32)
    for number, (line, row) in enumerate(rows[1:]):
        where = f"{shown!r}, line {line}"
        if len(row) != len(header):
            raise DataError(
                f"{where}: {len(row)} values, but the header has {len(header)} columns. "
                "Complete the row or remove it."
            )
        name = row[header.index(NAME)].strip()
        if not name or name in lines:
            wrong = f"{name!r} is already in line {lines[name]}" if name else "the value is empty"
            raise DataError(f"{where}, column {NAME!r}: {wrong}. Correct the row.")
        lines[name] = line
        for column, place in enumerate(places):
            if not abs(value := _number(row[place])) < 3.4e38:  # of float32
                raise DataError(
                    f"{where}, column {header[place]!r}: {row[place]!r} is not a finite number. "
                    "Put a number in pixels there or remove the row."
                )
            landmarks[number, column] = value
    return lines, landmarks.reshape(len(lines), -1, 2)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
