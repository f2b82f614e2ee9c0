"""The default: drawn faces with 68 landmarks, made on this machine, without a network.

The first use writes JPEGs and `face_landmarks.csv` into a folder of `root` that is named by its
arguments; later uses, of any run of this user, read it. Cost: 1 ms and 4 kB a face of 128 px, once.

A face is a table of points in three dimensions that random traits stretch, turn and move; plain
polygons, ellipses and lines are drawn through its landmarks, of the iBUG scheme, three times as
large, and averaged down. All numbers come from sums, products and quotients of float64 and are
rounded before they are drawn, so that every processor makes the same bytes: no sine, no matrix
product, no float32. Points are (x, y) in pixels; pixel (0, 0) has its centre at (0, 0).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Annotated

from PIL import Image, ImageDraw
from pydantic import Field

from penstock.datasets.face_landmarks import FaceLandmarks
from penstock.datasets.files import generated_data
from penstock.datasets.reading.base import Shares, Split
from penstock.datasets.reading.image import Reader
from penstock.files.limits import Count, Seed
from penstock.order.keys import hash64
from penstock.terminal import watched

VERSION = 2  # raise it when the drawings change
_CSV = "face_landmarks.csv"


class SyntheticFaces(FaceLandmarks):
    """Drawn faces; samples as in `FaceLandmarks`: `image` [3, size, size] and `landmarks` [68, 2].

    Face `i` is a function of (seed, i, size), so equal arguments give equal bytes and a larger
    `count` begins with the same faces.

    Args:
        root: folder that the data is written to, in one subfolder for each set of arguments; None:
            in the user's cache (see `penstock.datasets.files.generated_data`).
        split: "train", "val" or "test".
        count: number of faces of all splits.
        size: height and width in pixels, 32 to 1024.
        seed: other faces for another seed.
        shares, reader: as in `FaceLandmarks`.

    Raises:
        DataError: the data cannot be written.
    """

    def __init__(
        self,
        root: str | None = None,
        split: Split = "train",
        count: Count = 1000,
        size: Annotated[int, Field(ge=32, le=1024)] = 128,
        seed: Seed = 0,
        shares: Shares = Shares(),
        reader: Reader = "torchvision",
    ) -> None:
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
                shares,
                orientation="apply",  # nothing turns drawn images
            )


def _write(folder: Path, name: str, count: int, size: int, seed: int) -> None:
    with (folder / _CSV).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        parts = [f"part_{part}_{axis}" for part in range(68) for axis in "xy"]
        writer.writerow(["image_name", *parts])
        for number in watched(range(count), count, "drawing faces"):
            name = f"face_{number:06d}.jpg"
            picture, marks = draw_face(Random(hash64(seed, "face", number)), size)
            picture.save(folder / name, quality=90)
            writer.writerow([name, *(f"{value:.2f}" for mark in marks for value in mark)])


Point = tuple[float, float]
Colour = tuple[int, ...]

FINE = 3  # the scale at which shapes are drawn
# The mean face: x to the right, y down, z towards the viewer; half its width is 100. Jaw (0 to 16),
# brows (17 to 26), nose (27 to 35), eyes (36 to 47), outer and inner edge of the lips (48 to 67).
_MEAN = """
-100 -30 -10  -98 2 -8  -96 33 -4  -89 62 2  -77 87 10  -60 107 22  -40 121 36  -20 130 50  0 133 60
20 130 50  40 121 36  60 107 22  77 87 10  89 62 2  96 33 -4  98 2 -8  100 -30 -10
-83 -59 20  -67 -64 45  -51 -66 55  -36 -64 63  -20 -59 70  20 -59 70  36 -64 63  51 -66 55
67 -64 45  83 -59 20  0 -27 66  0 -8 75  0 11 87  0 30 102  -25 40 62  -12 45 80  0 47 86  12 45 80
25 40 62  -66 -27 38  -53 -38 51  -37 -38 53  -24 -25 52  -37 -20 52  -53 -20 50  24 -25 52
37 -38 53  53 -38 51  66 -27 38  53 -20 50  37 -20 52  -37 77 59  -23 70 68  -9 66 73  0 68 74
9 66 73  23 70 68  37 77 59  23 88 68  9 91 73  0 92 74  -9 91 73  -23 88 68  -32 77 63  -11 77 73
0 77 74  11 77 73  32 77 63  11 77 73  0 77 74  -11 77 73
"""
# Points that are drawn and are no landmarks: the top of the head, the hair, the neck.
_FOREHEAD = "98 -60 -10  84 -104 0  50 -130 10  0 -138 14  -50 -130 10  -84 -104 0  -98 -60 -10"
_HAIR = (
    "106 -30 -30  114 -90 -30  70 -160 -20  0 -176 -20  -70 -160 -20  -114 -90 -30  -106 -30 -30"
)
_FRINGE = "-96 -62 20  -60 -96 50  0 -104 60  60 -96 50  96 -62 20"
_BODY = "-60 160 -30  -180 200 -30  -240 500 -30  240 500 -30  180 200 -30  60 160 -30"
_SKIN = ((255, 224, 200), (226, 176, 140), (156, 104, 72), (84, 54, 40))
_HAIRS = ((28, 22, 20), (98, 64, 38), (206, 168, 104), (150, 62, 30), (190, 186, 182))


def draw_face(random: Random, size: int) -> tuple[Image.Image, list[Point]]:
    """A random face: RGB, `size` x `size`, and its 68 landmarks."""
    to_pixels = _pose(random, size)
    marks = to_pixels(_expression(random))
    skin, hair = _blend(random, _SKIN), _blend(random, _HAIRS)
    image = Image.new("RGB", (size * FINE, size * FINE), _any_colour(random))
    draw = ImageDraw.Draw(image)
    for _ in range(int(random.uniform(2, 8))):  # what is behind the person
        x, y = random.uniform(0, size), random.uniform(0, size)
        width, height = random.uniform(0.1, 0.5) * size, random.uniform(0.1, 0.5) * size
        shape = draw.ellipse if random.random() < 0.5 else draw.rectangle
        box = [(x - width / 2, y - height / 2), (x + width / 2, y + height / 2)]
        shape(_enlarged(box), _any_colour(random))
    # All traits take numbers from one sequence: another draw, except behind the last one, changes
    # every face (VERSION).
    long, cloth = random.uniform(-60, 160), _any_colour(random)
    iris, gaze = _any_colour(random), random.uniform(-0.3, 0.3)
    lips = _blend(random, (skin, (176, 44, 58), (176, 44, 58)))
    crown = _points(_HAIR)
    unit = to_pixels([(100, 0, 0)])[0][0] - to_pixels([(0, 0, 0)])[0][0]
    thick = max(1, round(abs(unit) * FINE / 14))
    nose, brow = _shade(skin, 0.85), _shade(hair, 0.6)
    for stroke, points, *how in (  # from the back to the front
        (draw.polygon, to_pixels([*crown, (-112, long, -30), (112, long, -30)]), _shade(hair, 0.7)),
        (draw.polygon, to_pixels(_points(_BODY)), cloth),
        (
            draw.polygon,
            to_pixels(_points("-58 60 -30  -58 180 -30  58 180 -30  58 60 -30")),
            _shade(skin, 0.8),
        ),
        (draw.polygon, [*marks[:17], *to_pixels(_points(_FOREHEAD))], skin),
        (draw.polygon, to_pixels([*crown, *_points(_FRINGE)]), hair),
        (draw.line, marks[27:31], nose, thick),
        (draw.polygon, marks[30:36], _shade(skin, 0.75)),
        (draw.line, marks[17:22], brow, 2 * thick, "curve"),
        (draw.line, marks[22:27], brow, 2 * thick, "curve"),
        (draw.polygon, marks[48:60], lips),
        (draw.polygon, marks[60:68], (70, 20, 24)),
        (draw.line, marks[60:65], _shade(skin, 0.5), thick // 2 or 1),
    ):
        stroke(_enlarged(points), *how)
    _draw_eyes(image, marks, iris, gaze)
    return image.reduce(FINE), marks


def _draw_eyes(image: Image.Image, marks: list[Point], iris: Colour, gaze: float) -> None:
    """Each eye is cut out of a white layer with iris and pupil on it."""
    layer, mask = Image.new("RGB", image.size, (240, 238, 234)), Image.new("1", image.size)
    on_layer, on_mask = ImageDraw.Draw(layer), ImageDraw.Draw(mask)
    for eye in (marks[36:42], marks[42:48]):
        (left, top), (right, low) = eye[0], eye[3]
        half = (abs(right - left) + abs(low - top)) / 2
        x, y = (left + right) / 2 + gaze * half, (top + low) / 2
        for radius, colour in ((0.5 * half, iris), (0.25 * half, (10, 10, 10))):
            on_layer.ellipse(
                _enlarged([(x - radius, y - radius), (x + radius, y + radius)]), colour
            )
        on_mask.polygon(_enlarged(eye), 1)
    image.paste(layer, (0, 0), mask)
    for eye in (marks[36:40], marks[42:46]):
        ImageDraw.Draw(image).line(_enlarged(eye), (30, 20, 20), FINE // 2)


def _expression(random: Random) -> list[tuple[float, float, float]]:
    """The mean face with the proportions and the expression of one person."""
    width, length = random.uniform(0.92, 1.08), random.uniform(0.93, 1.07)
    raised, smile = random.uniform(-8, 13), random.uniform(-0.5, 1)
    opened, eyes = max(0.0, random.uniform(-0.6, 1)), random.uniform(0.4, 1.3)
    points: list[tuple[float, float, float]] = []
    for number, point in enumerate(_points(_MEAN)):
        x, y, z = map(float, point)
        if 17 <= number < 27:
            y -= raised
        elif 36 <= number < 48:
            y = -27 + (y + 27) * eyes
        elif number >= 48:
            y += 10 * smile * (1 - 2 * (x / 37) * (x / 37))
            x *= 1 + 0.2 * smile - 0.1 * opened
            y += 26 * opened if 54 < number < 60 or number > 64 else -4 * opened
        elif number < 17:
            y += 20 * opened * max(0.0, 1 - abs(8 - number) / 6)
        points.append((x * width, y * length, z))
    return points


def _pose(random: Random, size: int) -> Callable[[Iterable[Sequence[float]]], list[Point]]:
    """A random pose: points of the head to pixels, in hundredths."""
    # Cosine and sine of each angle from the tangent of its half: turned by 38 degrees at most,
    # nodding by 18, tilted by 25.
    half = [random.uniform(-most, most) for most in (0.34, 0.16, 0.22)]
    (cy, sy), (cp, sp), (cr, sr) = (((1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)) for t in half)
    scale = random.uniform(0.5, 0.8) * size / 300
    across, down = random.uniform(-0.15, 0.15) * size, random.uniform(-0.15, 0.06) * size

    def to_pixels(points: Iterable[Sequence[float]]) -> list[Point]:
        pixels = []
        for x, y, z in points:
            x, z = cy * x + sy * z, cy * z - sy * x
            y, z = cp * y - sp * z, cp * z + sp * y
            x, y = cr * x - sr * y, cr * y + sr * x
            middle = (size - 1) / 2
            pixels.append(
                (round(x * scale + middle + across, 2), round(y * scale + middle + down, 2))
            )
        return pixels

    return to_pixels


def _points(text: str) -> list[tuple[int, int, int]]:
    numbers = list(map(int, text.split()))
    return list(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))


def _enlarged(points: Iterable[Point]) -> list[Point]:
    """Points on the enlarged picture, at whole pixels of it."""
    return [(round(x * FINE + 1), round(y * FINE + 1)) for x, y in points]


def _blend(random: Random, colours: Sequence[Colour]) -> Colour:
    """A colour between two neighbours of a scale."""
    position = random.uniform(0, len(colours) - 1)
    number = int(position)
    first, second = colours[number], colours[min(number + 1, len(colours) - 1)]
    return tuple(
        round(a + (b - a) * (position - number)) for a, b in zip(first, second, strict=True)
    )


def _shade(colour: Colour, factor: float) -> Colour:
    return tuple(round(part * factor) for part in colour)


def _any_colour(random: Random) -> Colour:
    """Any colour, most often one near grey."""
    grey, share = random.uniform(20, 236), random.uniform(0.1, 0.7)
    return tuple(round(grey + share * (random.uniform(10, 246) - grey)) for _ in range(3))
