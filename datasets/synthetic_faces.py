"""The default: drawn faces with 68 landmarks, made on this machine, without a network.

The first use writes JPEGs and `face_landmarks.csv` into a folder of `root` that is named by its
arguments; later uses, of any run of this user, read it. Cost: 2 ms and 5 kB a face of 128 px, once.
"""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from random import Random

from penstock.datasets.face_landmarks import FaceLandmarks
from penstock.datasets.reading.generated import generated_data
from penstock.datasets.reading.image import Reader
from penstock.datasets.reading.split import Split
from penstock.errors import ConfigError, Problem
from penstock.files.limits import Count, Fraction, Seed
from penstock.order.keys import hash64
from penstock.terminal import watched

VERSION = 2  # raise it when the drawings change
_CSV = "face_landmarks.csv"

_log = logging.getLogger(__name__)


class SyntheticFaces(FaceLandmarks):
    """Drawn faces; samples as in `FaceLandmarks`: `image` [3, size, size] and `landmarks` [68, 2].

    Face `i` is a function of (seed, i, size), so equal arguments give equal bytes and a larger
    `count` begins with the same faces.

    Args:
        root: folder that the data is written to, in one subfolder for each set of arguments; None:
            in the user's cache (see `penstock.datasets.reading.generated`).
        split: "train", "val" or "test".
        count: number of faces of all splits.
        size: height and width in pixels, 32 to 1024.
        seed: other faces for another seed.
        val_fraction, split_seed, reader, test_fraction: as in `FaceLandmarks`.

    Raises:
        ConfigError: `count` or `size` is out of range.
        DataError: the data cannot be written.
    """

    def __init__(
        self,
        root: str | None = None,
        split: Split = "train",
        count: Count = 1000,
        size: Count = 128,
        seed: Seed = 0,
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        reader: Reader = "torchvision",
        test_fraction: Fraction = 0.0,
    ) -> None:
        if count < 1:
            raise ConfigError(Problem("dataset.count", f"{count} faces; allowed: 1 or more"))
        if not 32 <= size <= 1024:
            raise ConfigError(Problem("dataset.size", f"{size} pixels; allowed: 32 to 1024"))
        name = f"{count}x{size}-seed{seed}-v{VERSION}"
        with generated_data(
            root, "synthetic_faces", name, lambda folder: _write(folder, name, count, size, seed)
        ) as made:
            super().__init__(
                made,
                split,
                _CSV,
                ".",
                reader,
                val_fraction,
                split_seed,
                test_fraction=test_fraction,
                orientation="apply",  # nothing turns drawn images
            )


def _write(folder: Path, name: str, count: int, size: int, seed: int) -> None:
    from penstock.datasets.drawn_faces import draw_face  # only drawing needs Pillow

    message = "drawing %d synthetic faces into %s, once; later runs read them"
    _log.info(message, count, folder.parent / name)
    with (folder / _CSV).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        parts = [f"part_{part}_{axis}" for part in range(68) for axis in "xy"]
        writer.writerow(["image_name", *parts])
        for number in watched(range(count), count, "drawing faces"):
            name = f"face_{number:06d}.jpg"
            picture, marks = draw_face(Random(hash64(seed, "face", number)), size)
            picture.save(folder / name, quality=90)
            writer.writerow([name, *(f"{value:.2f}" for mark in marks for value in mark)])
