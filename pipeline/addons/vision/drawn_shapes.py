"""Pictures of a few coloured shapes, with their boxes and masks: drawn as they are read, no files.

Cost: 0.5 ms a picture of 96 px.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field as Range
from torch.utils.data import Dataset
from torchvision import tv_tensors

from penstock.datasets.files import DataFile
from penstock.datasets.reading.base import FileDataset, Part, Sample, Split, split_rows
from penstock.files.limits import Count, Fraction, Seed
from penstock.order.keys import hash64

VERSION = 1  # raise it when the drawings change
SHAPES = ("circle", "square", "triangle")
COLORS = {
    "red": (214, 48, 49),
    "green": (46, 160, 67),
    "blue": (38, 98, 214),
    "yellow": (240, 196, 25),
}
_TRIES = 20  # to find room for a shape

Mask = npt.NDArray[np.bool_]
Field = Literal["image", "boxes", "labels", "masks", "mask"]


class Shape(NamedTuple):
    """A shape of a scene: x, y and radius in pixels, the angle in radians."""

    kind: str
    color: str
    x: float
    y: float
    radius: float
    angle: float

    def mask(self, size: int) -> Mask:
        """The pixels whose centres lie in it: bool[size, size]."""
        across = np.arange(size) + 0.5 - self.x
        down = np.arange(size)[:, None] + 0.5 - self.y
        if self.kind == "circle":
            return across**2 + down**2 <= self.radius**2
        sides = {"square": 4, "triangle": 3}[self.kind]
        inner = self.radius * np.cos(np.pi / sides)  # from the centre to each side
        turns = self.angle + np.arange(sides) * (2 * np.pi / sides)
        inside = np.ones((size, size), np.bool_)
        for turn in turns:
            inside &= across * np.cos(turn) + down * np.sin(turn) <= inner
        return inside


def scene(seed: int, row: int, size: int, most: int) -> list[Shape]:
    """The shapes of a picture, which do not overlap: 1 to `most`, fewer where there is no room."""
    random = np.random.default_rng(hash64(seed, "shapes", row))
    shapes: list[Shape] = []
    for _ in range(int(random.integers(1, most + 1))):
        for _ in range(_TRIES):
            radius = float(random.uniform(0.1, 0.22)) * size
            x, y = (float(value) for value in random.uniform(radius, size - radius, 2))
            free = (np.hypot(x - s.x, y - s.y) > radius + s.radius for s in shapes)
            if all(free):
                kind, color = (str(random.choice(list(names))) for names in (SHAPES, COLORS))
                angle = float(random.uniform(0, 2 * np.pi))
                shapes.append(Shape(kind, color, x, y, radius, angle))
                break
    return shapes


def picture(
    seed: int, row: int, size: int, shapes: Sequence[Shape]
) -> tuple[npt.NDArray[np.uint8], list[Mask]]:
    """Shapes on a grey ground with noise: uint8 [3, size, size], and the mask of each."""
    random = np.random.default_rng(hash64(seed, "pixels", row))
    pixels = random.uniform(60, 190) + random.normal(0, 8, (3, size, size))
    masks = [shape.mask(size) for shape in shapes]
    for shape, mask in zip(shapes, masks, strict=True):
        color = np.array(COLORS[shape.color])[:, None] + random.normal(0, 8, (3, int(mask.sum())))
        pixels[:, mask] = color
    return pixels.round().clip(0, 255).astype(np.uint8), masks


class DrawnShapes(FileDataset, Dataset[Sample]):
    """One sample: `image` (uint8 [3, size, size]) and what of it `fields` names.

        boxes     BoundingBoxes float32[n, 4], x and y of two corners, in pixels
        labels    int64[n]: 1 circle, 2 square, 3 triangle; 0 is the background's
        masks     Mask bool[n, size, size], of each shape
        mask      Mask uint8[size, size], the class of each pixel

    Picture `i` is a function of (seed, i, size, most), so a larger `count` begins with the same
    pictures.

    Args:
        fields: what a sample has beside `image`.
        split: "train", "val" or "test".
        count: number of pictures of both splits.
        size: height and width in pixels, 32 to 512.
        most: shapes in a picture, 1 to 8.
        seed: other pictures for another seed.
        val_fraction, split_seed: share of the pictures that validate, and the seed of the split.
        test_fraction: share of the pictures to keep for a test.
    """

    def __init__(
        self,
        fields: Sequence[Literal["image", "boxes", "labels", "masks", "mask"]] = (
            "boxes",
            "labels",
        ),
        split: Split = "train",
        count: Count = 1000,
        size: Annotated[int, Range(ge=32, le=512)] = 96,
        most: Annotated[int, Range(ge=1, le=8)] = 4,
        seed: Seed = 0,
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        test_fraction: Fraction = 0.0,
    ) -> None:
        self.fields, self.size, self.most, self.seed = tuple(fields), size, most, seed
        self.rows = split_rows(count, split, val_fraction, split_seed, None, test_fraction)
        self.classes = ["background", *SHAPES]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        row, size = int(self.rows[index]), self.size
        shapes = scene(self.seed, row, size, self.most)
        pixels, masks = picture(self.seed, row, size, shapes)
        labels = [self.classes.index(shape.kind) for shape in shapes]
        corners = torch.tensor([_box(mask) for mask in masks], dtype=torch.float32)
        whole = np.zeros((size, size), np.uint8)
        for mask, label in zip(masks, labels, strict=True):
            whole[mask] = label
        sample: Sample = {
            "image": tv_tensors.Image(torch.from_numpy(pixels)),
            "boxes": tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=(size, size)),
            "labels": torch.tensor(labels),
            "masks": tv_tensors.Mask(torch.from_numpy(np.stack(masks))),
            "mask": tv_tensors.Mask(torch.from_numpy(whole)),
        }
        return {name: value for name, value in sample.items() if name in ("image", *self.fields)}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """All that the drawings depend on."""
        numbers = (VERSION, self.size, self.most, self.seed)
        return ["drawn_shapes", *numbers, *self.fields, self.rows]

    def data_files(self) -> Iterable[DataFile]:
        return []


def _box(mask: Mask) -> tuple[int, int, int, int]:
    """The corners of the pixels of a mask, x and y."""
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
