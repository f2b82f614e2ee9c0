"""Images of a few coloured shapes, with their boxes and masks: drawn as they are read, no files.

Cost: 0.5 ms an image of 96 px.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field as Range
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.ops import masks_to_boxes

from penstock.datasets.files import DataFile
from penstock.datasets.reading.base import FileDataset, Part, Sample, Shares, Split
from penstock.files.limits import Count, Seed
from penstock.order.keys import hash64

VERSION = 1  # raise it when the drawings change
SIDES = {"circle": 0, "square": 4, "triangle": 3}  # of the shapes, which are the classes
COLORS = {
    "red": (214, 48, 49),
    "green": (46, 160, 67),
    "blue": (38, 98, 214),
    "yellow": (240, 196, 25),
}

Shape = tuple[str, str, float, float, float, float]  # kind, colour, x, y, radius, angle


def mask_of(shape: Shape, size: int) -> npt.NDArray[np.bool_]:
    """The pixels whose centres lie in a shape: bool[size, size]."""
    kind, _, x, y, radius, angle = shape
    across, down = np.arange(size) + 0.5 - x, np.arange(size)[:, None] + 0.5 - y
    sides = SIDES[kind]
    inside = np.ones((size, size), np.bool_) if sides else across**2 + down**2 <= radius**2
    for turn in angle + np.arange(sides) * (2 * np.pi / max(sides, 1)):
        facing = across * np.cos(turn) + down * np.sin(turn)
        inside &= facing <= radius * np.cos(np.pi / sides)
    return inside


def shapes_of(seed: int, row: int, size: int, most: int) -> list[Shape]:
    """The shapes of an image, which do not overlap: 1 to `most`, fewer where there is no room."""
    # By the row alone: an image is the same for any worker and any `count`.
    random = np.random.default_rng(hash64(seed, "shapes", row))
    shapes: list[Shape] = []
    for _ in range(int(random.integers(1, most + 1))):
        # What finds no room is left out, so that this ends.
        for _ in range(20):
            radius = float(random.uniform(0.1, 0.22)) * size
            x, y = random.uniform(radius, size - radius, 2).tolist()
            gaps = [np.hypot(x - s[2], y - s[3]) - radius - s[4] for s in shapes]
            if min(gaps, default=1) > 0:
                kind, color = (str(random.choice(list(names))) for names in (SIDES, COLORS))
                shapes.append((kind, color, x, y, radius, float(random.uniform(0, 2 * np.pi))))
                break
    return shapes


class DrawnShapes(FileDataset, Dataset[Sample]):
    """One sample: `image` (uint8 [3, size, size]) and what of it `fields` names.

        boxes     BoundingBoxes float32[n, 4], x and y of two corners, in pixels
        labels    int64[n]: 1 circle, 2 square, 3 triangle; 0 is the background's
        masks     Mask bool[n, size, size], of each shape
        mask      Mask uint8[size, size], the class of each pixel

    Image `i` is a function of (seed, i, size, most), so a larger `count` begins with the same
    images.

    Args:
        fields: what a sample has beside `image`.
        split: "train", "val" or "test".
        count: number of images of both splits.
        size: height and width in pixels, 32 to 512.
        most: shapes in an image, 1 to 8.
        seed: other images for another seed.
        shares: of the images that validate and test.
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
        shares: Shares = Shares(),
    ) -> None:
        self.fields, self.size, self.most, self.seed = tuple(fields), size, most, seed
        self.rows = shares.rows(split, count)
        self.classes = ["background", *SIDES]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        row, size = int(self.rows[index]), self.size
        shapes = shapes_of(self.seed, row, size, self.most)
        random = np.random.default_rng(hash64(self.seed, "pixels", row))
        # Grey with the noise of a camera.
        # The order of draws is part of VERSION: the ground, then each shape.
        pixels = random.uniform(60, 190) + random.normal(0, 8, (3, size, size))
        whole, masks = np.zeros((size, size), np.uint8), []
        labels = [self.classes.index(kind) for kind, *_ in shapes]
        for shape, label in zip(shapes, labels, strict=True):
            mask = mask_of(shape, size)
            noise = random.normal(0, 8, (3, int(mask.sum())))
            pixels[:, mask] = np.array(COLORS[shape[1]])[:, None] + noise
            whole[mask] = label
            masks.append(torch.from_numpy(mask))
        stacked = torch.stack(masks)
        # torchvision gives the last pixel of a mask, and a box ends behind it.
        corners = masks_to_boxes(stacked) + torch.tensor([0.0, 0, 1, 1])
        sample: Sample = {
            "image": tv_tensors.Image(pixels.round().clip(0, 255).astype(np.uint8)),
            "boxes": tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=(size, size)),
            "labels": torch.tensor(labels),
            "masks": tv_tensors.Mask(stacked),
            "mask": tv_tensors.Mask(whole),
        }
        return {name: value for name, value in sample.items() if name in ("image", *self.fields)}

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """All that the drawings depend on."""
        return [
            *("drawn_shapes", VERSION, self.size, self.most, self.seed),
            *(*self.fields, self.rows),
        ]

    def data_files(self) -> Iterable[DataFile]:
        return []
