"""Damaged and hostile folders for the readers of boxes, masks, tables of pictures, rows and series;
for `fuzz_readers`, as `fuzz_folders` has them for the others.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from penstock.addons.forecasting.windows import Windows
from penstock.addons.image_tables.image_table import ImageTable
from penstock.addons.tabular.table import Table
from penstock.addons.video.clips import VideoClips
from penstock.addons.vision.boxes import ListSome, SanitizeBoxes
from penstock.addons.vision.coco import Coco
from penstock.addons.vision.image_masks import ImageMasks
from penstock.loading.collate import List, Stack
from tests import fuzz_folders, fuzz_formats
from tests.fuzz_folders import LIMITS, ROWS, Files, Reader, Sparse, Way, small_image

GIVEN: dict[str, Any] = {"val_fraction": 0.0, "limits": LIMITS}


def _damaged_text(draw: random.Random, content: bytes) -> bytes | Sparse:
    if draw.random() < 0.3:
        return content
    mutate = draw.choice((fuzz_formats.mutate_text, fuzz_formats.number_in_text))
    return fuzz_folders.sized(draw, mutate(draw, content))


def _csv(header: str, rows: list[str]) -> bytes:
    return "\n".join([header, *rows]).encode() + b"\n"


def _parquet(draw: random.Random, content: bytes) -> bytes:
    """The table of a CSV as Parquet, damaged."""
    import pandas as pd

    sink = io.BytesIO()
    pd.read_csv(io.BytesIO(content), encoding="latin-1").to_parquet(sink)
    return fuzz_formats.mutate_parquet(draw, sink.getvalue(), [sink.getvalue()])


def _rows(draw: random.Random, content: bytes) -> Files:
    """A table as text or Parquet."""
    if draw.random() < 0.7:
        return {"table.csv": _damaged_text(draw, content)}
    return {"table.parquet": fuzz_folders.sized(draw, _parquet(draw, content))}


# Rows and series


def _table(draw: random.Random) -> Files:
    rows = [
        f"{row / 7:.3f},{'red' if row % 3 else ''},2024-01-{1 + row % 28:02},{row % 5},x{row % 2}"
        for row in range(ROWS)
    ]
    if draw.random() < 0.1:  # categories without number
        rows = [f"1,{'c' * (1 << draw.randrange(18))}{row},,2,x" for row in range(ROWS)]
    return _rows(draw, _csv("width,colour,day,count,kind", rows))


def _table_ways(root: Path) -> Iterator[Way]:
    file = next(path.name for path in root.iterdir())
    yield Way(partial(Table, str(root), target="kind", file=file, **GIVEN), Stack())
    more: dict[str, Any] = {
        "file": file,
        "dates": ["day"],
        "categories": ["count"],
        "without_target": "skip",
    }
    yield Way(partial(Table, str(root), target="width", **more, **GIVEN), Stack())


def _series(draw: random.Random) -> Files:
    rows = [f"2024-01-{1 + row % 30:02},s{row // 30},{row % 9},{row / 3:.2f}" for row in range(90)]
    return _rows(draw, _csv("day,shop,price,sold", rows))


def _series_ways(root: Path) -> Iterator[Way]:
    file = next(path.name for path in root.iterdir())
    made = partial(Windows, str(root), time="day", values="sold", file=file, past=8, **GIVEN)
    yield Way(partial(made, series="shop", known=["price"], horizon=2), Stack())
    yield Way(partial(made, fill="carry", scale="global", horizon=1), Stack())


# Pictures


def _pictures(draw: random.Random) -> list[bytes | Sparse]:
    """Mostly sound ones, as the readers' own files are what is tried here."""
    if draw.random() < 0.8:
        return [fuzz_formats.picture(row) for row in range(3)]
    return [fuzz_folders.picture(draw) for _ in range(3)]


def _image_table(draw: random.Random) -> Files:
    files = _pictures(draw)
    names = [f"{row:03}.jpg" for row in range(ROWS)]
    rows = [
        f"{name},{'ab'[row % 2]},{'a|b' if row % 3 else 'a'},{row / 8},a caption of it"
        for row, name in enumerate(names)
    ]
    content = _csv("path,kind,kinds,share,caption", rows)
    if draw.random() < 0.1:
        content = content.replace(b"000.jpg", draw.choice((b"../x.jpg", b"/etc/passwd", b"\xff")))
    images: Files = {name: files[row % 3] for row, name in enumerate(names)}
    return images | _rows(draw, content)


def _image_table_ways(root: Path) -> Iterator[Way]:
    table = next(path.name for path in root.iterdir() if path.name.startswith("table"))
    made = partial(ImageTable, str(root), table, **GIVEN)
    yield Way(partial(made, label="kind", numbers=["share"]), Stack(), (small_image,))
    yield Way(partial(made, labels="kinds", caption="caption", repeated=True), List())


def _objects(draw: random.Random) -> dict[str, Any]:
    """COCO's annotations of `ROWS` pictures of 8 x 8 pixels."""
    side = draw.choice((8, 8, 8, 1 << draw.randrange(20)))
    masks = (
        [[1, 1, 6, 1, 6, 6]],
        {"size": [8, 8], "counts": [10, 20, 34]},
        {"size": [8, 8], "counts": "2:4"},
        {"size": [side, side], "counts": [0, side * side]},
        [[draw.random() * side for _ in range(2 << draw.randrange(12))]],
    )
    return {
        "images": [
            {"id": row, "file_name": f"{row:03}.png", "width": side, "height": side}
            for row in range(ROWS)
        ],
        "categories": [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}],
        "annotations": [
            {
                "id": 100 + row,
                "image_id": row,
                "category_id": (3, 7)[row % 2],
                "bbox": [1, 1, 5, 5],
                "area": 25,
                "iscrowd": row % 2,
                "segmentation": masks[draw.randrange(len(masks))],
                "keypoints": [1, 1, 2, 3, 3, 0],
            }
            for row in range(ROWS)
        ],
    }


@cache
def _png(side: int) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(np.arange(side * side, dtype=np.uint8).reshape(side, side)).save(sink, "png")
    return sink.getvalue()


def _coco(draw: random.Random) -> Files:
    objects = _objects(draw)
    content = json.dumps(objects).encode()
    kind = draw.randrange(4)
    if kind == 1:
        content = fuzz_formats.number_in_text(draw, content)
    elif kind == 2:
        content = fuzz_folders.json_damage(draw, content)
    elif kind == 3:
        content = fuzz_formats.generic(draw, content, [content])
    side = objects["images"][0]["width"]
    picture = _png(side if side <= 4096 else 8)
    images: Files = {f"images/{row:03}.png": picture for row in range(ROWS)}
    return images | {"annotations.json": fuzz_folders.sized(draw, content)}


def _coco_ways(root: Path) -> Iterator[Way]:
    # A file of annotations may take half of the machine's memory, which is more than 1 GiB here.
    if (root / "annotations.json").stat().st_size > 1 << 26:
        return
    yield Way(partial(Coco, str(root), **GIVEN), ListSome(), (small_image, SanitizeBoxes()))
    yield Way(partial(Coco, str(root), masks=True, keypoints=True, **GIVEN), List())


def _masks(draw: random.Random) -> Files:
    names = [f"{row:03}.png" for row in range(ROWS)]
    side = 8 if draw.random() < 0.8 else 1 << draw.randrange(13)
    masks: list[bytes | Sparse] = [_png(side), _png(side)]
    if draw.random() < 0.7:
        masks[0] = fuzz_folders.picture(draw)
    images = [_png(side)] if draw.random() < 0.7 else _pictures(draw)
    return {
        **{f"images/{name}": images[row % len(images)] for row, name in enumerate(names)},
        **{f"masks/{name}": masks[row % 2] for row, name in enumerate(names)},
    }


def _mask_ways(root: Path) -> Iterator[Way]:
    classes: Any = [f"class {number}" for number in range(255)]
    yield Way(partial(ImageMasks, str(root), classes, **GIVEN), List())
    classes = {"grey": [7, 7, 7], "black": [0, 0, 0]}
    yield Way(partial(ImageMasks, str(root), classes, **GIVEN), List())


# Videos


@cache
def _video_seeds() -> dict[str, bytes]:
    """Small videos with several key frames; by their endings."""
    import av

    found = {}
    kinds = (("mp4", "mpeg4"), ("mkv", "libx264"), ("avi", "mjpeg"), ("webm", "libvpx"))
    for ending, codec in (*kinds, ("ts", "mpeg2video"), ("mov", "libx264")):
        sink = io.BytesIO()
        with av.open(
            sink, "w", format={"mkv": "matroska", "ts": "mpegts"}.get(ending, ending)
        ) as f:
            stream = f.add_stream(codec, rate=24)
            stream.width, stream.height = 48, 32
            stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
            stream.gop_size = 5
            for number in range(14):
                pixels = np.full((32, 48, 3), 17 * number, np.uint8)
                f.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
            f.mux(stream.encode())
        found[ending] = sink.getvalue()
    return found


def _videos(draw: random.Random) -> Files:
    seeds = _video_seeds()
    ending = draw.choice(sorted(seeds))
    mutate = draw.choice((fuzz_formats.generic, fuzz_formats.mutate_head))
    contents = [
        fuzz_folders.sized(draw, mutate(draw, seeds[ending], list(seeds.values())))
        if draw.random() < 0.8
        else seeds[ending]
        for _ in range(draw.choice((1, 4, 16, 64)))
    ]
    return {f"a/{row:03}.{ending}": contents[row % len(contents)] for row in range(ROWS)}


def _video_ways(root: Path) -> Iterator[Way]:
    yield Way(partial(VideoClips, str(root), frames=4, stride=1, **GIVEN), List())
    yield Way(partial(VideoClips, str(root), frames=8, size=16, most_decoded=99, **GIVEN), List())


READERS = fuzz_folders.READERS | {
    "table": Reader(_table, _table_ways),
    "windows": Reader(_series, _series_ways),
    "image-table": Reader(_image_table, _image_table_ways),
    "coco": Reader(_coco, _coco_ways),
    "image-masks": Reader(_masks, _mask_ways),
    "video": Reader(_videos, _video_ways),
}
