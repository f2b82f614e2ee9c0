"""Drawn pictures of two shapes, and a table that says what stands where: data without a download.

    path,label,colors,labels,caption,angle
    scene_000000.jpg,circle and square,blue and red,blue|circle|red|square,a small red circle ...

The first use writes them into a folder of `root` that is named by its arguments; later uses, of any
run of this user, read it. Cost: 1 ms and 2 kB a picture of 64 px, once.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.addons.image_tables.image_table import ImageTable
from penstock.datasets.files import generated_data
from penstock.datasets.reading.base import Split
from penstock.datasets.reading.image import Reader
from penstock.files.limits import DEFAULT, Count, Fraction, Limits, Seed
from penstock.order.keys import hash64
from penstock.terminal import watched

if TYPE_CHECKING:
    from PIL.Image import Image

VERSION = 1  # raise it when the drawings change
TABLE = "scenes.csv"
COLORS = {
    "red": (214, 48, 49),
    "green": (46, 160, 67),
    "blue": (38, 98, 214),
    "yellow": (240, 196, 25),
}
CORNERS = {"circle": 48, "square": 4, "triangle": 3, "star": 10}
SIZES = {"small": 0.13, "large": 0.21}  # radii, as shares of the picture's side
_FINER = 4  # pictures are drawn so many times as large, and reduced


class DrawnScenes(ImageTable):
    """Two shapes, each small or large and of one of four colours, one above or beside the other.

    Samples as in `ImageTable`: of the columns `label` (both shapes), `colors` (both colours),
    `labels` (colours and shapes that occur), `caption` and the number `angle` (of the first shape,
    in degrees). Scene `i` is a function of (seed, i, size), so a larger `count` begins with the
    same scenes.

    Args:
        root: folder that the data is written to, in one subfolder for each set of arguments; None:
            in the user's cache (see `penstock.datasets.files.generated_data`).
        count: of scenes of all splits.
        size: height and width in pixels, 32 to 512.
        seed: other scenes for another seed.
        split, label, labels, numbers, caption, val_fraction, split_seed, reader, lazy, limits,
            test_fraction: as in `ImageTable`.

    Raises:
        DataError: the data cannot be written.
    """

    def __init__(
        self,
        root: str | None = None,
        split: Split = "train",
        count: Count = 2000,
        size: Count = 64,
        seed: Seed = 0,
        label: str | None = "label",
        labels: str | None = None,
        numbers: list[str] | None = None,
        caption: str | None = None,
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        reader: Reader = "torchvision",
        lazy: bool = False,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
    ) -> None:
        name = f"{count}x{size}-seed{seed}-v{VERSION}"
        with generated_data(
            root, "drawn_scenes", name, lambda folder: _write(folder, count, size, seed)
        ) as made:
            super().__init__(
                made,
                TABLE,
                split,
                label=label,
                labels=labels,
                numbers=numbers,
                caption=caption,
                reader=reader,
                val_fraction=val_fraction,
                split_seed=split_seed,
                lazy=lazy,
                limits=limits,
                test_fraction=test_fraction,
            )


def _write(folder: Path, count: int, size: int, seed: int) -> None:
    import pandas as pd

    rows = []
    for number in watched(range(count), count, "drawing scenes"):
        # A key for each scene, so that it does not depend on those before it.
        picture, row = scene(size, np.random.default_rng(hash64(seed, "scene", number)))
        rows.append({"path": f"scene_{number:06d}.jpg", **row})
        picture.save(folder / rows[-1]["path"], quality=92)
    pd.DataFrame(rows).to_csv(folder / TABLE, index=False, lineterminator="\n")


def scene(size: int, random: np.random.Generator) -> tuple[Image, dict[str, str]]:
    """A picture, and what the table says of it."""
    from PIL import Image, ImageDraw  # which only drawing needs

    # Reduced at the end, which makes smooth edges; ImageDraw itself draws steps.
    large = size * _FINER
    picture = Image.fromarray(_background(large, random))
    draw = ImageDraw.Draw(picture)
    above = bool(random.integers(2))
    shapes, words, angles = [], [], []
    for place in (0.27, 0.73):
        shape, color, scale = (str(random.choice(list(kind))) for kind in (CORNERS, COLORS, SIZES))
        # Draws stand in one order, whatever comes of them: a larger count begins with the same
        # scenes.
        along, across = place + random.uniform(-0.05, 0.05), random.uniform(0.28, 0.72)
        centre = (across, along) if above else (along, across)
        angle = float(random.uniform(0, 360))
        radius = SIZES[scale] * random.uniform(0.92, 1.08)
        corners = _corners(shape, angle) * radius + centre
        fill = tuple(int(c + random.uniform(-18, 18)) for c in COLORS[color])
        draw.polygon([tuple(corner) for corner in (corners * large).tolist()], fill=fill)
        shapes += [shape, color]
        words.append(f"a {scale} {color} {shape}")
        angles.append(angle)
    between = "above" if above else "left of"
    about = {
        "label": " and ".join(sorted(shapes[::2])),
        "colors": " and ".join(sorted(shapes[1::2])),
        "labels": "|".join(sorted(set(shapes))),
        "caption": f"{words[0]} {between} {words[1]}",
        "angle": f"{angles[0]:.1f}",
    }
    return picture.resize((size, size), Image.Resampling.LANCZOS), about


def _background(size: int, random: np.random.Generator) -> Any:
    """Grey that slowly changes from corner to corner: uint8 [size, size, 3]."""
    ramp = np.linspace(0, 1, size)
    grey = random.uniform(70, 190) + random.uniform(-50, 50) * ramp[:, None]
    grey = grey + random.uniform(-50, 50) * ramp
    pixels = grey[..., None] + random.uniform(-12, 12, 3)
    return pixels.clip(0, 255).astype(np.uint8)


def _corners(shape: str, angle: float) -> Any:
    """The corners of a shape of radius 1, turned by `angle` degrees: float64[n, 2]."""
    count = CORNERS[shape]
    turns = np.arange(count) * (2 * math.pi / count) + math.radians(angle)
    radii = np.where(np.arange(count) % 2, 0.42, 1.0) if shape == "star" else np.ones(count)
    return np.stack([np.cos(turns), np.sin(turns)], axis=1) * radii[:, None]
