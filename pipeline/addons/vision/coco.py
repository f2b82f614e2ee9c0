"""Pictures and COCO's JSON: boxes, and where wanted masks and keypoints.

    root/annotations.json        one file, divided by `val_fraction`; or with `val_annotations` two
    root/images/000001.jpg

Cost: one read of the JSON; 40 bytes of memory an object, and its outline where masks are read.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar
from unicodedata import normalize
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from penstock.datasets.files import Files, Root, open_root
from penstock.datasets.reading.base import FolderDataset, Part, Sample, Split, split_rows
from penstock.datasets.reading.image import Orientation, Reader, check_reader, read_image
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Fraction, Limits, Seed
from penstock.order.keys import IntArray

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger(__name__)
_ROUNDED = 1.0  # pixels that a tool's rounding may lead out of a picture
Record = dict[str, Any]


class Coco(FolderDataset):
    """One sample: `image` and a row for each object in it.

        boxes         BoundingBoxes float32[n, 4], x and y of two corners, cut at the border
        labels        int64[n], from 1 in the order of the categories' ids; 0 is the background's
        crowd         int64[n], 1 for a group of objects
        masks         Mask bool[n, H, W], with `masks`
        keypoints     KeyPoints float32[n, K, 2] and `visibility` int64[n, K], with `keypoints`

    Boxes of no width or height are left out. Classes are numbered by the names of `annotations`,
    whatever ids validation gives them; a category without objects that others have as their
    supercategory is no class.

    Args:
        root: folder of the data; a path or an address.
        split: "train", "val" or "test".
        annotations: the JSON, relative to `root`.
        val_annotations: that of validation; null: `annotations` is divided by `val_fraction`.
        images: folder that the names in the JSON start from, relative to `root`. A name that is no
            file of it, as a path of another machine, means the file of it with that base name.
        val_images: that of validation, with `val_annotations`; null: `images`.
        masks, keypoints: whether samples have them.
        reader: "torchvision", "pillow" or "skimage".
        val_fraction, split_seed: share of the pictures that validate, and the seed of the split.
        files: access to addresses.
        limits: what a picture may claim.
        test_fraction: share of the pictures of `annotations` to keep for a test.
        orientation: "apply" (also null) turns pictures as their EXIF says; "ignore" takes them as
            they are stored, as the boxes of some tools do.

    Raises:
        DataError: the JSON or a picture is missing, or the JSON says what cannot be.
        ConfigError: an argument is invalid, or masks need faster-coco-eval.
    """

    columns: ClassVar[tuple[str, ...]] = ("path", "objects")

    def __init__(
        self,
        root: str,
        split: Split = "train",
        annotations: str = "annotations.json",
        val_annotations: str | None = None,
        images: str = "images",
        val_images: str | None = None,
        masks: bool = False,
        keypoints: bool = False,
        reader: Reader = "torchvision",
        val_fraction: Fraction = 0.2,
        split_seed: Seed = 0,
        files: Files | None = None,
        limits: Limits = DEFAULT,
        test_fraction: Fraction = 0.0,
        orientation: Orientation | None = None,
    ) -> None:
        self.reader = check_reader(reader, orientation)
        if masks and importlib.util.find_spec("faster_coco_eval") is None:
            reason = "masks need faster-coco-eval: pip install 'penstock-loader[detection]'"
            raise ConfigError(Problem("dataset.masks", reason))
        self.limits, self.masks, self.points = limits, masks, keypoints
        root_folder = open_root(root, f"{annotations!r} and its images", files)
        own = _CocoFile(root_folder, annotations, masks, keypoints)
        self.classes = ["background", *own.classes]
        validates, file = split == "val" and val_annotations is not None, annotations
        self.folder = root_folder.below((val_images if validates else None) or images)
        if validates:
            file = str(val_annotations)
            own = _CocoFile(root_folder, file, masks, keypoints)
        own.find(self.folder)
        numbers = {name: number for number, name in enumerate(self.classes)}
        names_of = [own.categories[kind] for kind in np.unique(own.kinds)]
        if unknown := [name for name in names_of if name not in numbers]:
            raise DataError(
                f"{root_folder.path(file)!r} has objects of {unknown}, and {annotations!r} has no "
                f"object of such a category: its classes are {', '.join(self.classes[1:])}. Give a "
                "category the same name in both files."
            )
        self._labels = np.array([numbers.get(n, 0) for n in own.categories], np.int64)[own.kinds]
        if own.notes and (split == "train" or validates):
            _log.warning("%s: %s", root_folder.path(file), "; ".join(own.notes))
        names = np.array([os.fsencode(name) for name in own.names])
        rows = np.argsort(names, kind="stable")
        if not validates:
            share = val_fraction if val_annotations is None else 0.0
            by_name = split_rows(names[rows], split, share, split_seed, None, test_fraction)
            rows = rows[by_name]
        self.names, self.rows, self._file = names[rows], rows, own

    def __getitem__(self, index: int) -> Sample:
        image = self._read(
            index, lambda path, shown: read_image(path, self.reader, shown, self.limits)
        )
        own, row = self._file, int(self.rows[index])
        width, height = own.sizes[row].tolist()
        if tuple(image.shape[-2:]) != (height, width):
            raise DataError(
                f"image {self.path(index)!r} has {image.shape[-1]} x {image.shape[-2]} pixels, and "
                f"{width} x {height} in its annotations. Correct either; if EXIF turns it, set "
                "dataset.orientation=ignore (pixels as they are stored) or apply."
            )
        objects = np.arange(own.starts[row], own.starts[row + 1])
        boxes = own.boxes[objects]
        objects = objects[(boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])]
        canvas, corners = (height, width), torch.from_numpy(own.boxes[objects])
        sample: Sample = {
            "image": image,
            "boxes": tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=canvas),
            "labels": torch.from_numpy(self._labels[objects]),
            "crowd": torch.from_numpy(own.crowd[objects]),
        }
        if self.masks:
            masks = np.zeros((len(objects), height, width), np.bool_)
            for number, place in enumerate(objects.tolist()):
                try:
                    masks[number] = _mask(own.outlines[place], width, height)
                except Exception as error:  # COCO's tools raise any, for what is no outline
                    raise DataError(
                        f"annotation {number} of {self.path(index)!r}: segmentation is "
                        f"{str(own.outlines[place])[:60]}: {error}"
                    ) from error
            sample["masks"] = tv_tensors.Mask(torch.from_numpy(masks))
        if self.points:
            points = torch.from_numpy(own.keypoints[objects])
            sample["keypoints"] = tv_tensors.KeyPoints(points[..., :2], canvas_size=canvas)
            sample["visibility"] = points[..., 2].long()
        return sample

    @property
    def metadata(self) -> pd.DataFrame:
        """A row per sample: path, and the number of objects."""
        import pandas as pd

        counts = np.diff(self._file.starts)[self.rows]
        return pd.DataFrame({"path": self._paths(), "objects": counts})

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The reader, the classes, and this split's names, file sizes and objects."""
        own = self._file
        parts: list[Part] = ["coco", self.reader, *self.classes, *self._file_parts(sized)]
        parts += [self.rows, own.sizes, own.starts, own.boxes, self._labels, own.crowd]
        return [*parts, own.keypoints, repr(own.outlines)]


class _CocoFile:
    """The content of a JSON.

    Attributes:
        names: of the pictures, by row.
        sizes: int64[N, 2], width and height of each.
        categories: names, in the order of the ids; `classes` those that are no mere parents.
        starts: int64[N + 1]; objects `starts[i]:starts[i + 1]` are those of row i.
        boxes: float32[M, 4], corners in pixels.
        kinds: int64[M], positions in `categories`.
        crowd: int64[M], 1 for a group of objects.
        outlines: M polygons or RLEs, if they are kept.
        keypoints: float32[M, K, 3], x, y and whether it is visible (0 to 2).
        notes: what a person may not expect, with counts.

    Raises:
        DataError: the file is missing, is no JSON of COCO's, or says what cannot be: of each kind
            of record the first ten that are wrong.
    """

    def __init__(self, root: Root, name: str, masks: bool, keypoints: bool) -> None:
        self._shown, self.notes = root.path(name), list[str]()
        try:
            with root.read(name, lambda path, _: open(path, encoding="utf-8-sig")) as file:
                content = json.load(file)
            pictures, categories, objects = (
                [*content[part]] for part in ("images", "categories", "annotations")
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            what = getattr(error, "strerror", None) or f"no JSON of COCO's ({error!r})"
            hint = "Put it there or set dataset.annotations."
            raise DataError(f"{self._shown!r} cannot be read: {what}. {hint}") from error
        self.sizes: IntArray = np.zeros((len(pictures), 2), np.int64)
        self.names = [""] * len(pictures)
        self.categories, self._rows, self._kinds = list[str](), dict[Any, int](), dict[Any, int]()
        self._check("images", pictures, self._picture)
        # The sums fail for what is no number and no text.
        self._check("categories", categories, lambda _, own: (own["id"] + 0, own["name"] + ""))
        for record in sorted(categories, key=lambda own: own["id"]):
            self._kinds[record["id"]] = len(self.categories)
            self.categories.append(record["name"])
        for part, known in (("images", {*self.names}), ("categories", {*self.categories})):
            ids = self._rows if part == "images" else self._kinds
            if len(ids) != len(known) or len(ids) != len(content[part]):
                raise DataError(f"{self._shown!r}, {part}: an id or a name occurs twice.")
        points = max((len(own.get("keypoints") or ()) for own in categories), default=0)
        if keypoints and not points:
            raise DataError(f"{self._shown!r}: no category has keypoints; set dataset.keypoints.")
        count = len(objects)
        boxes, shape = np.zeros((count, 4)), (count, points if keypoints else 0, 3)
        marks, (owners, kinds, crowd) = np.zeros(shape, np.float32), np.zeros((3, count), np.int64)

        sizes = self.sizes.tolist()

        def read(number: int, record: Record) -> None:
            row, kind = self._rows.get(record["image_id"]), self._kinds.get(record["category_id"])
            if row is None or kind is None:
                which = "image_id" if row is None else "category_id"
                raise ValueError(f"nothing has the id of its {which}, {record[which]!r}")
            owners[number], kinds[number] = row, kind
            crowd[number] = int(record.get("iscrowd") or 0) == 1
            left, top, wide, high = box = [float(value) for value in record["bbox"]]
            if not (math.isfinite(sum(box)) and min(wide, high) >= 0):
                raise ValueError(f"bbox is {record['bbox']}, not [x, y, width, height]")
            boxes[number] = left, top, right, bottom = left, top, left + wide, top + high
            width, height = sizes[row]
            if max(left - width, top - height, -right, -bottom) > _ROUNDED:
                raise ValueError(f"bbox {record['bbox']} is outside of its image")
            own = record.get("keypoints") if keypoints else None
            if own is not None:
                own = np.array(own, np.float32).reshape(-1, 3)
                marks[number, : len(own)] = own

        self._check("annotations", objects, read)
        if boxes.size and boxes.max() <= 1:
            raise DataError(f"{self._shown!r}: all boxes lie between 0 and 1; pixels are needed.")
        ends = np.tile(self.sizes[owners], 2)
        cut = boxes.clip(0, ends)
        order = np.argsort(owners, kind="stable")
        self.starts: IntArray = np.searchsorted(owners[order], np.arange(len(self.names) + 1))
        self.boxes, self.kinds = cut.astype(np.float32)[order], kinds[order]
        self.crowd, self.keypoints = crowd[order], marks[order]
        self.outlines = [objects[number].get("segmentation") for number in order] if masks else []
        above = {own.get("supercategory") for own in categories} - {
            own["name"] for own in categories if own.get("supercategory") == own["name"]
        }
        used = {self.categories[kind] for kind in kinds.tolist()}
        self.classes = [own for own in self.categories if own in used or own not in above]
        beyond = int((np.abs(boxes - cut) > _ROUNDED).any(1).sum())
        flat = int((self.boxes[:, 2:] <= self.boxes[:, :2]).any(1).sum())
        for number, note in (
            (flat, f"of {count} objects have a box without width or height and are left out"),
            (beyond, f"of {count} objects have a box that is cut at the border of its image"),
            (len(pictures) - len({*owners.tolist()}), f"of {len(pictures)} images have no object"),
            (len(self.categories) - len(used), "categories have no object"),
        ):
            self.notes += [f"{number} {note}"] if number else []

    def find(self, images: Root) -> None:
        """Replace names that are no files of a folder by those of the same base name."""
        if images.first_missing(self.names) is None:
            return
        files = images.files() if images.exists() else []
        there = {*files}
        by_base = {normalize("NFC", name.rpartition("/")[2]): name for name in files}
        found = [
            name if name in there else by_base.get(_base(name)) or by_base.get(_base(unquote(name)))
            for name in self.names
        ]
        lacking = [name for name, own in zip(self.names, found, strict=True) if own is None]
        if lacking or len({*found}) < len(found):
            which = f"{len(lacking)} of {len(found)} images are missing, the first {lacking[:1]}"
            raise DataError(
                f"{self._shown!r}: {which if lacking else 'two images are one file'} in "
                f"{str(images)!r}. Put them there, or set dataset.images to their folder."
            )
        changed = sum(name != own for name, own in zip(self.names, found, strict=True))
        self.notes.append(f"{changed} of {len(found)} files are found by their base name")
        self.names = [str(name) for name in found]

    def _picture(self, number: int, record: Record) -> None:
        self.names[number], self._rows[record["id"]] = record["file_name"] + "", number
        self.sizes[number] = size = [record["width"], record["height"]]
        if min(size) < 1 or size != self.sizes[number].tolist():
            raise ValueError(f"width and height are {size}, not pixels")

    def _check(self, part: str, records: list[Record], read: Callable[[int, Record], Any]) -> None:
        """Read each record; one error names the first ten that are wrong."""
        wrong = []
        for number, record in enumerate(records):
            try:
                read(number, record)
            except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
                reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
                wrong.append(f"{part}[{number}]: {reason[:150]}")
        if wrong:
            some = "; ".join(wrong[:10])
            raise DataError(
                f"{self._shown!r}: {len(wrong)} of {len(records)} {part} are wrong: {some}. "
                "Correct the file."
            )


def _base(name: str) -> str:
    """The last part of a path of any system."""
    return re.split(r"[/\\=]", normalize("NFC", name))[-1]


def _mask(outline: Any, width: int, height: int) -> npt.NDArray[np.bool_]:
    """The pixels of polygons, or of runs of pixels by columns (RLE): bool[height, width]."""
    from faster_coco_eval.core import mask as coco_mask

    runs = outline
    if isinstance(outline, list):
        polygons = outline if isinstance(outline[0], list) else [outline]
        # It fills what a line runs along, so no line may be longer than the picture.
        points = (np.array(polygon, np.float64).reshape(-1, 2) for polygon in polygons)
        flat = [own.clip(0, (width, height)).ravel().tolist() for own in points]
        # As runs, so that many polygons of a large picture cost its pixels once.
        runs = coco_mask.merge(coco_mask.frPyObjects(flat, height, width))
    elif not isinstance(outline["counts"], str):
        runs = coco_mask.frPyObjects(outline, height, width)
    mask: npt.NDArray[np.bool_] = coco_mask.decode(runs).astype(np.bool_)
    if mask.shape != (height, width):
        raise ValueError(f"it is of {mask.shape[1]} x {mask.shape[0]} pixels")
    return mask
