"""Pictures and COCO's JSON: boxes, and where asked for masks and keypoints.

    root/annotations.json        one file, divided by `val_fraction`; or with `val_annotations` two
    root/images/000001.jpg

Cost: one read of the JSON; 40 bytes of memory an object, and its outline where masks are read.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torchvision import tv_tensors

from penstock.addons.vision.turns import PlacesInImages
from penstock.datasets.files import Files, FolderFile, Root, open_root
from penstock.datasets.reading.base import Part, Sample, Split, split_rows
from penstock.datasets.reading.image import Orientation, Reader, check_reader, read_image
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Fraction, Limits, Seed

if TYPE_CHECKING:
    import pandas as pd
from collections.abc import Mapping, Sequence
from typing import Any
from unicodedata import normalize
from urllib.parse import unquote

import numpy.typing as npt

from penstock.datasets.arrays import check_classes
from penstock.files.data import read_file
from penstock.order.keys import IntArray

_log = logging.getLogger(__name__)
_ROUNDED = 1.0  # pixels that a tool's rounding may lead out of a picture


class CocoFile:
    """The content of a file.

    What tools write in their own ways and has one meaning is read: numbers and ids as text, whole
    numbers as 60.0, paths of another machine that end in the name of a picture. What cannot be is
    refused together, ten records of each kind by name.

    Attributes:
        names: of the pictures, by row, in the folder `images`.
        sizes: int64[N, 2], width and height of each.
        categories: names, in the order of the ids.
        parents: those without objects that are the supercategory of others.
        starts: int64[N + 1]; objects `starts[i]:starts[i + 1]` are those of row i.
        boxes: float32[M, 4], corners in pixels.
        kinds: int64[M], positions in `categories`.
        crowd: int64[M], 1 for a group of objects.
        outlines: M polygons or RLEs, if they are kept.
        keypoints: float32[M, K, 3], x, y and whether it is visible (0 to 2).
        notes: what a person may not expect, with counts.

    Args:
        images: the folder of the pictures; None: none of them is looked for.
        outlines, keypoints: whether they are kept.

    Raises:
        DataError: the file is missing, is no JSON of COCO's, or says what cannot be.
    """

    def __init__(
        self,
        file: FolderFile,
        images: Root | None,
        outlines: bool,
        keypoints: bool,
        limits: Limits,
    ) -> None:
        self._file, self._limits = file, limits
        self._wrong: dict[tuple[str, str], list[str]] = {}
        self.notes: list[str] = []
        content = _parsed(file, limits)
        pictures, categories, annotations = records = [
            self._records(content, name) for name in ("images", "categories", "annotations")
        ]
        kinds_of = self._named(categories, keypoints)
        rows_of = self._pictures(pictures, images)
        shape = (len(annotations), self._points_of if keypoints else 0, 3)
        boxes, points = np.zeros((shape[0], 4), np.float32), np.zeros(shape, np.float32)
        owners, kinds, crowd = np.zeros((3, shape[0]), np.int64)
        kept: list[Any] = []
        beyond = 0
        for number, record in enumerate(annotations):
            where = f"annotations[{number}], id {str(record.get('id'))[:40]}"
            row = rows_of.get(_id(record.get("image_id")))
            kind = kinds_of.get(_id(record.get("category_id")))
            flag = _whole(record.get("iscrowd") or 0)
            for known, key, of in ((row, "image_id", "image"), (kind, "category_id", "category")):
                if known is None:
                    self._refuse("annotations", where, f"no {of} has the id", record.get(key))
            if flag not in (0, 1):
                what = "neither 0 nor 1: iscrowd is"
                self._refuse("annotations", where, what, record.get("iscrowd"))
            if row is None or kind is None or not self.sizes[row].all():
                continue
            owners[number], kinds[number], crowd[number] = row, kind, flag == 1
            width, height = self.sizes[row].tolist()
            corners = self._corners(record.get("bbox"), where, width, height)
            left, top, right, bottom = corners
            beyond += min(left, top, width - right, height - bottom) < -_ROUNDED
            boxes[number] = max(left, 0), max(top, 0), min(right, width), min(bottom, height)
            if outlines:
                kept.append(self._outline(record.get("segmentation"), where, width, height))
            if keypoints and record.get("keypoints") is not None:
                own = self._points(record["keypoints"], where)
                points[number, : len(own)] = own
        if self._wrong:
            counts = dict(
                zip(("images", "categories", "annotations"), map(len, records), strict=True)
            )
            raise DataError(
                f"{str(file)!r}: "
                + "; ".join(
                    f"{len(own)} of {counts[part]} {part}: {what} {_some(own)}"
                    for (part, what), own in self._wrong.items()
                )
                + ". Correct the file."
            )
        if boxes.size and boxes.max() <= 1:
            raise DataError(f"{str(file)!r}: all boxes lie between 0 and 1; pixels are needed.")
        order = np.argsort(owners, kind="stable")
        self.starts: IntArray = np.searchsorted(owners[order], np.arange(len(self.names) + 1))
        self.boxes, self.kinds, self.crowd = boxes[order], kinds[order], crowd[order]
        self.keypoints = points[order]
        self.outlines = [kept[number] for number in order] if outlines else []
        empty = sorted(set(range(len(self.categories))) - set(kinds.tolist()))
        above = {
            own.get("supercategory")
            for own in categories
            if own.get("supercategory") != own["name"]
        }
        self.parents = [self.categories[kind] for kind in empty if self.categories[kind] in above]
        others = [
            repr(self.categories[kind]) for kind in empty if self.categories[kind] not in above
        ]
        flat = int((boxes[:, 2:] <= boxes[:, :2]).any(1).sum())
        bare = len(pictures) - len(set(owners.tolist()))
        of = f"of {len(annotations)} objects"
        for count, note in (
            (
                self.parents,
                f"no class is made of {_some([repr(name) for name in self.parents])}, which have "
                "no object and are above other categories",
            ),
            (others, f"no object has a category of {_some(others)}"),
            (flat, f"{flat} {of} have a box without width or height and are left out"),
            (beyond, f"{beyond} {of} have a box that is cut at the border of its image"),
            (bare, f"{bare} of {len(pictures)} images have no object"),
            (crowd.size and crowd.all(), "all objects are crowds (iscrowd=1), which do not train"),
        ):
            self.notes += [note] if count else []

    def _refuse(self, part: str, where: str, what: str, value: Any) -> None:
        self._wrong.setdefault((part, what), []).append(f"{_short(value)} ({where})")

    def _records(self, content: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
        records = content.get(name)
        wrong = None
        if not isinstance(records, list) or not all(isinstance(own, dict) for own in records):
            has = ", ".join(sorted(map(str, content))[:8])
            wrong = f"is missing or no list of mappings; the file has {has}"
        elif not records and name != "annotations":
            wrong = "there are none"
        if wrong:
            raise DataError(f"{str(self._file)!r}, {name}: {wrong}. Correct the file.")
        return records  # type: ignore[return-value]

    def _named(self, records: list[dict[str, Any]], keypoints: bool) -> dict[Any, int]:
        """The position of each category by its id."""
        check_classes(len(records), str(self._file), self._limits)
        names: dict[Any, str] = {}
        counts = [0]
        for number, record in enumerate(records):
            where, key, name = f"categories[{number}]", _id(record.get("id")), record.get("name")
            if key is None or key in names:
                wrong = "no id:" if key is None else "occurs twice: the id"
                self._refuse("categories", where, wrong, record.get("id"))
            if not isinstance(name, str) or not name:
                self._refuse("categories", where, "a name is needed: its name is", name)
            if name in names.values():
                self._refuse("categories", where, "occurs twice: the name", name)
            names[key] = str(name)
            points = record.get("keypoints")
            counts.append(len(points) if isinstance(points, list) else 0)
        self._points_of = max(counts)
        if keypoints and not self._points_of:
            raise DataError(
                f"{str(self._file)!r}, categories: none has keypoints; set dataset.keypoints=false."
            )
        ids = sorted(names, key=lambda key: (isinstance(key, str), key))
        self.categories = [names[key] for key in ids]
        return {key: position for position, key in enumerate(ids)}

    def _pictures(self, records: list[dict[str, Any]], images: Root | None) -> dict[Any, int]:
        """The row of each picture by its id."""
        self.names = [str(record.get("file_name") or "") for record in records]
        self.sizes: IntArray = np.zeros((len(records), 2), np.int64)
        if images is not None:
            self._find(images)
        rows: dict[Any, int] = {}
        names: set[str] = set()
        for number, (record, name) in enumerate(zip(records, self.names, strict=True)):
            where, key = f"images[{number}]", _id(record.get("id"))
            if key is None or key in rows:
                wrong = "no id:" if key is None else "occurs twice: the id"
                self._refuse("images", where, wrong, record.get("id"))
            if name in names:
                self._refuse("images", where, "occurs twice: the file", name)
            rows[key] = number
            names.add(name)
            width, height = size = [_whole(record.get(side)) or 0 for side in ("width", "height")]
            for side, value in zip(("width", "height"), size, strict=True):
                if value < 1:
                    what = f"a whole number of pixels is needed: {side} is"
                    self._refuse("images", where, what, record.get(side))
            if width * height > self._limits.pixels:
                claim = self._limits.refusal("pixels", "a size")
                self._refuse("images", where, f"claims {claim}:", f"{width} x {height}")
            self.sizes[number] = size
        return rows

    def _find(self, images: Root) -> None:
        """Replace names that are no files of `images` by those that they end in."""
        if images.first_missing(self.names) is None:
            return
        files = images.files() if images.exists() else []
        there = {normalize("NFC", name): name for name in files}
        changed = []
        for number, name in enumerate(self.names):
            known = [end for end in _ends(name) if end in there]
            if not known:
                what = (
                    f"is missing in {str(images)!r}. Put it there, or set dataset.images to the "
                    "folder of the images; file_name is"
                )
                self._refuse("images", f"images[{number}]", what, name)
            elif there[known[0]] != name:
                changed.append(f"{name!r}")
                self.names[number] = there[known[0]]
        if changed:
            count = f"{len(changed)} of {len(self.names)}"
            self.notes.append(f"{count} names of files are read from their end, as {changed[0]}")

    def _corners(self, value: Any, where: str, width: int, height: int) -> Sequence[float]:
        numbers = _numbers(value)
        if numbers is None or len(numbers) != 4 or min(numbers[2:]) < 0:
            what = "[x, y, width, height] is needed: bbox is"
            self._refuse("annotations", where, what, value)
            return 0, 0, 0, 0
        left, top = numbers[:2]
        right, bottom = left + numbers[2], top + numbers[3]
        if max(left - width, top - height, -right, -bottom) > _ROUNDED:
            where += f" of {width} x {height} pixels"
            self._refuse("annotations", where, "is outside of its image: bbox", value)
        return left, top, right, bottom

    def _outline(self, value: Any, where: str, width: int, height: int) -> Any:
        """An outline whose parts can be read; its numbers are looked at with the picture."""
        if isinstance(value, Mapping):
            if value.get("size") != [height, width]:
                what = "RLE of another size than its image: size is"
                self._refuse("annotations", where, what, value.get("size"))
        elif not isinstance(value, list) or not any(value):
            what = "no outline, set dataset.masks=false: segmentation is"
            self._refuse("annotations", where, what, value)
        else:
            value = value if isinstance(value[0], list) else [value]
            for polygon in value:
                if not isinstance(polygon, list) or len(polygon) % 2 or len(polygon) < 6:
                    what = "x and y of 3 points or more are needed: a polygon is"
                    self._refuse("annotations", where, what, polygon)
        return value

    def _points(self, value: Any, where: str) -> npt.NDArray[np.float32]:
        numbers = _numbers(value)
        if numbers is None or len(numbers) % 3 or len(numbers) > 3 * self._points_of:
            what = (
                f"x, y and visibility of up to {self._points_of} points are needed: keypoints are"
            )
            self._refuse("annotations", where, what, value)
            numbers = []
        return np.array(numbers, np.float32).reshape(-1, 3)


def outline_mask(outline: Any, width: int, height: int, where: str) -> npt.NDArray[np.bool_]:
    """The pixels of an object: polygons, or runs of pixels by columns (RLE); bool[height, width].

    Raises:
        DataError: it is none of these, or does not fit the picture.
    """
    from faster_coco_eval.core import mask as coco_mask

    try:
        if isinstance(outline, Mapping):
            counts = outline.get("counts")
            runs: Any = outline
            if not isinstance(counts, str):
                runs = coco_mask.frPyObjects(outline, height, width)
        else:
            # It fills what a line runs along, so no line may be longer than the picture.
            points = (np.array(polygon, np.float64).reshape(-1, 2) for polygon in outline)
            polygons = [own.clip(0, (width, height)).ravel().tolist() for own in points]
            # As runs, so that many polygons of a large picture cost its pixels once.
            runs = coco_mask.merge(coco_mask.frPyObjects(polygons, height, width))
        mask: npt.NDArray[np.bool_] = coco_mask.decode(runs).astype(np.bool_)
        return mask
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where}: segmentation is {_short(outline)}: {error}") from error


def _parsed(file: FolderFile, limits: Limits) -> dict[str, Any]:
    try:
        content = json.loads(file.read(lambda path: read_file(path, limits)))
    except OSError as error:
        hint = "Put it there or set dataset.annotations"
        raise DataError(f"{str(file)!r} cannot be read: {error.strerror}. {hint}.") from error
    except (DataError, ValueError) as error:
        raise DataError(f"{str(file)!r} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise DataError(f"{str(file)!r} holds a {type(content).__name__}, not COCO's mapping.")
    return content


def _number(value: Any) -> float | None:
    """A finite number, also where it is written as text."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < 1e9 else None


def _numbers(value: Any) -> list[float] | None:
    """A list of finite numbers."""
    numbers = list(map(_number, value)) if isinstance(value, list) else [None]
    return None if None in numbers else numbers  # type: ignore[return-value]


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number.is_integer() else None


def _id(value: Any) -> int | str | None:
    """An id, the same as number and as text: 7 for "7" and 7.0."""
    if isinstance(value, (float, str)):
        text = str(value).strip()
        return int(float(text)) if re.fullmatch(r"\d{1,15}(\.0+)?", text) else text
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _ends(name: str) -> list[str]:
    """The ends of a path of any system, also of one in an address; the longest first."""
    ends = []
    for text in (name, unquote(name)):
        parts = [part for part in re.split(r"[/\\]|\?d=", normalize("NFC", text)) if part]
        ends += ["/".join(parts[start:]) for start in range(len(parts))]
    return ends


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, (list, dict)) else repr(value)[:200]
    return text if len(text) <= 60 else f"{text[:57]}..."


def _some(names: list[str]) -> str:
    """The first ten."""
    return ", ".join(names[:10]) + (" ..." if len(names) > 10 else "")


class Coco(PlacesInImages):
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
        images: folder that the names in the JSON start from, relative to `root`.
        val_images: that of validation, with `val_annotations`; null: `images`.
        masks, keypoints: whether samples have them.
        reader: "torchvision", "pillow" or "skimage".
        val_fraction, split_seed: share of the pictures that validate, and the seed of the split.
        files: access to addresses.
        limits: what a file, a picture and the JSON may claim.
        test_fraction: share of the pictures of `annotations` to keep for a test.
        orientation: "apply" turns pictures as their EXIF says; "ignore" takes them as they are
            stored, as the boxes of some tools do; None: "apply", and a line where sizes cannot
            tell what is right.

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
        validates = split == "val" and val_annotations is not None
        self.folder = root_folder.below((val_images if validates else None) or images)
        file = FolderFile(root_folder, annotations)
        own = CocoFile(file, None if validates else self.folder, masks, keypoints, limits)
        self.classes = ["background", *(n for n in own.categories if n not in own.parents)]
        if validates:
            file = FolderFile(root_folder, str(val_annotations))
            own = CocoFile(file, self.folder, masks, keypoints, limits)
        numbers = {name: number for number, name in enumerate(self.classes)}
        unknown = {own.categories[kind] for kind in set(own.kinds.tolist())} - set(numbers)
        if unknown:
            raise DataError(
                f"{str(file)!r} has objects of {_some(sorted(map(repr, unknown)))}, and "
                f"{annotations!r} has no object of such a category: its classes are "
                f"{_some(self.classes[1:])}. Give a category the same name in both files."
            )
        self._labels = np.array([numbers.get(n, 0) for n in own.categories], np.int64)[own.kinds]
        if split == "train" or validates:
            self.check_turns(
                own.names, "boxes", orientation, lambda row: tuple(own.sizes[row].tolist())
            )
            if own.notes:
                _log.warning("%s: %s", file, "; ".join(own.notes))
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
        canvas = (height, width)
        sample: Sample = {
            "image": image,
            "boxes": tv_tensors.BoundingBoxes(
                torch.from_numpy(own.boxes[objects]), format="XYXY", canvas_size=canvas
            ),
            "labels": torch.from_numpy(self._labels[objects]),
            "crowd": torch.from_numpy(own.crowd[objects]),
        }
        if self.masks:
            masks = np.zeros((len(objects), height, width), np.bool_)
            for number, place in enumerate(objects.tolist()):
                where = f"annotation {number} of {self.path(index)!r}"
                masks[number] = outline_mask(own.outlines[place], width, height, where)
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
