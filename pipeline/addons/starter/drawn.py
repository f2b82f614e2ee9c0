"""The data of new projects: small files of each kind, drawn from a fixed seed.

Each function gives the content of files by path. Cost: 0.1 s or less each.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from types import MappingProxyType
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

Files = dict[str, bytes]

_SIZE = 64  # of pictures, in pixels
_SHAPES = ("circle", "square", "triangle")
_COLORS = ("crimson", "darkgreen", "mediumblue", "goldenrod")
_PALETTE = (0, 0, 0, 220, 60, 60, 60, 160, 80, 60, 100, 220)  # of masks: nothing, then the shapes
_POINTS = ("left_eye", "right_eye", "nose", "mouth_left", "mouth_right")


def images() -> Files:
    """A folder for each of three shapes, 60 pictures each."""
    random = np.random.default_rng(0)
    files = {}
    for shape in _SHAPES:
        for number in range(60):
            picture = _ground(random)
            draw = ImageDraw.Draw(picture)
            room = _room(random, [], 0.25, 0.4)
            _draw_shape(draw, shape, *room, str(random.choice(_COLORS)))
            files[f"{shape}/{number:03}.png"] = _png(picture)
    return files


def masks() -> Files:
    """60 pictures of up to three shapes, and the class of each pixel as an entry of a palette."""
    files = {}
    for name, picture, shapes in _scenes(60):
        mask = Image.new("P", picture.size)
        mask.putpalette(_PALETTE)
        draw = ImageDraw.Draw(mask)
        for shape, x, y, radius in shapes:
            _draw_shape(draw, shape, x, y, radius, 1 + _SHAPES.index(shape))
        files[f"images/{name}"] = _png(picture)
        files[f"masks/{name}"] = _png(mask)
    return files


def boxes() -> Files:
    """60 pictures of up to three shapes, and where these are as COCO's JSON."""
    files: Files = {}
    pictures: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    for name, picture, shapes in _scenes(60):
        files[f"images/{name}"] = _png(picture)
        pictures.append(
            {"id": len(pictures) + 1, "file_name": name, "width": _SIZE, "height": _SIZE}
        )
        for shape, x, y, radius in shapes:
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": len(pictures),
                    "category_id": 1 + _SHAPES.index(shape),
                    "bbox": [x - radius, y - radius, 2 * radius, 2 * radius],
                    "area": 4 * radius * radius,
                    "iscrowd": 0,
                }
            )
    categories = [{"id": number, "name": name} for number, name in enumerate(_SHAPES, 1)]
    whole = {"images": pictures, "annotations": annotations, "categories": categories}
    return {**files, "annotations.json": json.dumps(whole).encode()}


def text() -> Files:
    """400 short opinions on meals, good and bad, as a TSV."""
    random = np.random.default_rng(0)
    dishes = ("soup", "bread", "fish", "curry", "salad", "cake", "coffee", "pasta")
    said = {
        "good": ("was wonderful", "came hot and fresh", "was worth the wait", "made my day"),
        "bad": ("was cold", "came late and burnt", "was not worth the money", "spoiled my day"),
    }
    ends = ("", "", " and the waiter smiled", " but the chairs are hard", " on a busy evening")
    rows = []
    for _ in range(400):
        label = str(random.choice(list(said)))
        words = (str(random.choice(choices)) for choices in (dishes, said[label], ends))
        rows.append((label, "the {} {}{}".format(*words)))
    return {"texts.tsv": _table(("label", "text"), rows, "\t")}


def table() -> Files:
    """600 customers with missing incomes, and whether they left, as a CSV."""
    random = np.random.default_rng(0)
    rows: list[Sequence[object]] = []
    for number in range(600):
        age, since = int(random.integers(18, 80)), int(random.integers(0, 2000))
        plan = str(random.choice(("basic", "plus", "family")))
        income = round(float(random.normal(2500 + 20 * age, 500)), 2)
        likely = 1.5 - since / 600 - age / 60 + 2 * (plan == "basic")
        left = "yes" if random.random() < 1 / (1 + math.exp(-2 * likely)) else "no"
        known = income if random.random() < 0.9 else ""
        rows.append((number, age, known, plan, date(2019, 1, 1) + timedelta(2000 - since), left))
    return {"customers.csv": _table(("id", "age", "income", "plan", "since", "left"), rows)}


def series() -> Files:
    """The sales of three shops on each of 300 days, and the days of promotion."""
    random = np.random.default_rng(0)
    days = np.arange(300)
    rows: list[Sequence[object]] = []
    for shop in ("north", "south", "harbour"):
        week = random.normal(0, 8, 7)[days % 7]
        promoted = random.random(len(days)) < 0.1
        trend = random.uniform(40, 80) + random.uniform(-0.05, 0.1) * days
        sold = (trend + week + 15 * promoted + random.normal(0, 3, len(days))).clip(0).round()
        for day, number, known in zip(days.tolist(), sold, promoted, strict=True):
            rows.append((date(2025, 1, 1) + timedelta(day), shop, int(number), int(known)))
    return {"sales.csv": _table(("day", "shop", "sold", "promotion"), rows)}


def points() -> Files:
    """80 faces, and where five points of each are, in pixels; every fifth one validates."""
    random = np.random.default_rng(0)
    files, rows = {}, []
    face = np.array([(-0.4, -0.3), (0.4, -0.3), (0, 0.1), (-0.3, 0.5), (0.3, 0.5)])
    for number in range(80):
        picture = _ground(random)
        x, y, radius = _room(random, [], 0.25, 0.4)
        turn = random.normal(0, 0.3)
        turned = np.array([(math.cos(turn), math.sin(turn)), (-math.sin(turn), math.cos(turn))])
        spots = face * random.uniform(0.85, 1.15, face.shape) @ turned * radius + (x, y)
        draw = ImageDraw.Draw(picture)
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), "peachpuff")
        for eye in spots[:2]:
            draw.circle(tuple(eye), radius / 8, str(random.choice(_COLORS)))
        draw.circle(tuple(spots[2]), radius / 10, "sienna")
        draw.line((*spots[3], *spots[4]), "firebrick", max(1, round(radius / 8)))
        name = f"{number:03}.png"
        files[f"images/{name}"] = _png(picture)
        split = "val" if number % 5 == 0 else "train"
        rows.append((name, split, *spots.round(1).ravel().tolist()))
    columns = ("file", "split", *(f"{name}_{axis}" for name in _POINTS for axis in "xy"))
    return {**files, "points.csv": _table(columns, rows)}


KINDS: Mapping[str, Callable[[], Files]] = MappingProxyType(
    {
        "images": images,
        "masks": masks,
        "boxes": boxes,
        "text": text,
        "table": table,
        "series": series,
        "points": points,
    }
)


def _scenes(count: int) -> Iterable[tuple[str, Image.Image, list[tuple[str, int, int, int]]]]:
    """Pictures of one to three shapes: a name, the picture, and kind, centre and radius of each."""
    random = np.random.default_rng(0)
    for number in range(count):
        picture = _ground(random)
        rooms: list[tuple[int, int, int]] = []
        shapes = []
        for _ in range(int(random.integers(1, 4))):
            rooms.append(_room(random, rooms))
            shapes.append((str(random.choice(_SHAPES)), *rooms[-1]))
            _draw_shape(ImageDraw.Draw(picture), *shapes[-1], str(random.choice(_COLORS)))
        yield f"{number:03}.png", picture, shapes


def _ground(random: np.random.Generator) -> Image.Image:
    grey = random.integers(150, 230)
    noise = random.integers(-8, 9, (_SIZE, _SIZE, 3))
    return Image.fromarray((grey + noise).astype(np.uint8))


def _room(
    random: np.random.Generator,
    taken: Sequence[tuple[int, int, int]],
    smallest: float = 0.12,
    largest: float = 0.22,
) -> tuple[int, int, int]:
    """Centre and radius of a square that meets no other: a few small ones always have room."""
    while True:
        radius = round(_SIZE * random.uniform(smallest, largest))
        x, y = random.integers(radius, _SIZE - radius, 2).tolist()
        if all(max(abs(x - a), abs(y - b)) > radius + other for a, b, other in taken):
            return x, y, radius


def _draw_shape(
    draw: ImageDraw.ImageDraw, shape: str, x: int, y: int, radius: int, color: str | int
) -> None:
    """A shape that fills the box around (x, y)."""
    left, top, right, bottom = x - radius, y - radius, x + radius - 1, y + radius - 1
    if shape == "circle":
        draw.ellipse((left, top, right, bottom), color)
    elif shape == "square":
        draw.rectangle((left, top, right, bottom), color)
    else:
        draw.polygon([(x, top), (right, bottom), (left, bottom)], color)


def _png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]], delimiter: str = ",") -> bytes:
    """Lines of cells, none of which needs quotes."""
    lines = (delimiter.join(map(str, row)) for row in (columns, *rows))
    return "".join(f"{line}\n" for line in lines).encode()
