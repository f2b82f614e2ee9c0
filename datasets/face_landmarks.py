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
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from penstock.datasets.files import Files
from penstock.datasets.reading.fingerprint import Part, Sample
from penstock.datasets.reading.folder import FolderFile, leads_out, open_root
from penstock.datasets.reading.folder_dataset import FolderDataset
from penstock.datasets.reading.image import Reader, check_reader, read_image
from penstock.datasets.reading.split import Split, check_split, split_rows
from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Limits
from penstock.order.randomness import IntArray
from penstock.ranges import Count, Fraction, Seed

if TYPE_CHECKING:
    from _csv import Reader as CsvReader

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
        num_landmarks: how many the table must have; None takes what it has.
        files: access to addresses.
        limits: what a file and the table may claim.
        test_fraction: share of the images that are kept for a test.

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
        test_fraction: Fraction = 0.0,
    ) -> None:
        check_reader(reader)
        check_split(split, val_fraction, test_fraction)
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
        rows = split_rows(table.names, split, val_fraction, split_seed, None, test_fraction)
        self.names, self.lines = table.names[rows], table.lines[rows]
        self.landmarks = table.landmarks[rows]

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
    along = ((nose - start) * jaw).sum(axis=1) / length
    return np.where(along < _MIDDLE[0], 1, np.where(along > _MIDDLE[1], 2, 0)).astype(np.int64)


NAME = "image_name"
_COORDINATE = re.compile(r"part_(\d{1,18})_[xy]")


@dataclass(frozen=True)
class LandmarkTable:
    """Rows sorted by image name, whatever their order in the file.

    Attributes:
        names: bytes[N], paths relative to the folder of images.
        landmarks: float32[N, L, 2], x and y in pixels.
        lines: int64[N], the line of each row in the file, from 1 (the header).
    """

    names: npt.NDArray[np.bytes_]
    landmarks: npt.NDArray[np.float32]
    lines: IntArray


def read_landmark_table(
    path: Path,
    num_landmarks: int | None = None,
    name: str | None = None,
    limits: Limits = DEFAULT,
) -> LandmarkTable:
    """Read the CSV `path`; with `num_landmarks`, it must have the columns of exactly that many.

    Args:
        name: of the file for messages, if not its path.
        limits: `columns`, and `files` for the rows.

    Raises:
        DataError: a column or value is missing, duplicate, empty, not a number or not finite, or a
            name leads out of the folder of images; names the file, line, column and value.
    """
    shown = name or str(path)
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            columns = _columns(shown, next(reader, []), num_landmarks, limits)
            names, values, lines = _read_rows(shown, reader, columns, limits)
    except OSError as error:
        raise DataError(
            f"cannot read the landmarks {shown!r}: {error.strerror}. "
            "Set dataset.root to their folder, or dataset.csv to their name in it."
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{shown!r} is not UTF-8: {error}. Save it as CSV in UTF-8.") from error
    except csv.Error as error:
        raise DataError(f"{shown!r}, line {reader.line_num}: {error}. Save it as CSV.") from error
    encoded = np.array([os.fsencode(name) for name in names])
    order = np.argsort(encoded, kind="stable")
    landmarks = np.frombuffer(b"".join(values), np.float32).reshape(len(names), -1, 2)
    return LandmarkTable(encoded[order], landmarks[order], np.array(lines, np.int64)[order])


class _Columns(NamedTuple):
    header: list[str]
    name: int
    coordinates: list[int]  # places of part_0_x, part_0_y, part_1_x ...


def _columns(path: str, header: list[str], num_landmarks: int | None, limits: Limits) -> _Columns:
    if not header:
        raise DataError(f"{path!r} is empty: it needs a header ({NAME},part_0_x,part_0_y,...)")
    if len(header) > limits.columns:
        refusal = limits.refusal("columns", f"{len(header)} columns")
        raise DataError(f"{path!r}, line 1 has {refusal}.")
    header = [name.strip() for name in header]
    places = {name: column for column, name in enumerate(header)}
    if len(places) < len(header):
        double = Counter(header).most_common(1)[0][0]
        raise DataError(f"{path!r}, line 1: column {double!r} appears twice. Remove one.")
    parts = {int(match[1]) for match in map(_COORDINATE.fullmatch, places) if match}
    count = max(parts, default=0) + 1 if num_landmarks is None else num_landmarks
    # Not a list: a column may claim to be the 10^11th, and the first missing one ends the loop.
    needed = (f"part_{part}_{axis}" for part in range(count) for axis in "xy")
    coordinates = []
    for name in chain([NAME], needed):
        if name not in places:
            differs = num_landmarks is not None and len(parts) != num_landmarks
            hint = f", or set dataset.num_landmarks={len(parts)}" if differs else ""
            raise DataError(
                f"{path!r}, line 1: column {name!r} is missing (it has {len(header)} columns: "
                f"{', '.join(header[:4])} ...). Add it{hint}."
            )
        coordinates.append(places[name])
    return _Columns(header, coordinates[0], coordinates[1:])


def _read_rows(
    path: str, reader: CsvReader, columns: _Columns, limits: Limits
) -> tuple[list[str], list[bytes], list[int]]:
    names: dict[str, int] = {}  # name -> line
    values: list[bytes] = []
    for row in reader:
        if not row:  # a blank line, as editors leave at the end
            continue
        line = reader.line_num
        if len(row) != len(columns.header):
            raise DataError(
                f"{path!r}, line {line}: {len(row)} values, but the header has "
                f"{len(columns.header)} columns. Complete the row or remove it."
            )
        name = row[columns.name].strip()
        if not name:
            raise DataError(f"{path!r}, line {line}, column {NAME!r}: the value is empty.")
        if leads_out(name):
            raise DataError(
                f"{path!r}, line {line}, column {NAME!r}: {name!r} leads out of the folder of "
                "images. Names are relative to it and stay below it; correct or remove the row."
            )
        if name in names:
            raise DataError(
                f"{path!r}, line {line}, column {NAME!r}: {name!r} is already in line "
                f"{names[name]}. Remove one of the rows."
            )
        if len(names) >= limits.files:
            raise DataError(f"{path!r} has {limits.refusal('files', f'{line} lines and more')}.")
        names[name] = line
        try:
            numbers = [float(row[column]) for column in columns.coordinates]
        except ValueError:
            numbers = [math.nan]
        if not math.isfinite(sum(numbers)):
            _refuse_row(path, line, row, columns)
        values.append(np.array(numbers, np.float32).tobytes())
    if not names:
        raise DataError(f"{path!r} has a header and no rows: there is nothing to train on.")
    return list(names), values, list(names.values())


def _refuse_row(path: str, line: int, row: list[str], columns: _Columns) -> None:
    for column in columns.coordinates:
        value = row[column]
        try:
            wrong = "" if math.isfinite(float(value)) else f"{value!r} is not finite"
        except ValueError:
            wrong = f"{value!r} is not a number" if value.strip() else "the value is empty"
        if wrong:
            raise DataError(
                f"{path!r}, line {line}, column {columns.header[column]!r}: {wrong}. "
                "Put a number in pixels there or remove the row."
            )
