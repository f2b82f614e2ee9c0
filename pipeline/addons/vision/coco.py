"""Pictures and COCO's JSON: boxes, and where asked for masks and keypoints.

    root/annotations.json        one file, divided by `val_fraction`; or with `val_annotations` two
    root/images/000001.jpg

Cost: one read of the JSON; 40 bytes of memory an object, and its outline where masks are read.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torchvision import tv_tensors

from penstock.datasets.files import Files
from penstock.datasets.reading.fingerprint import Part, Sample
from penstock.datasets.reading.folder import FolderFile, leads_out, open_root
from penstock.datasets.reading.folder_dataset import FolderDataset
from penstock.datasets.reading.image import Reader, check_reader, read_image
from penstock.datasets.reading.split import Split, check_split, split_rows
from penstock.errors import ConfigError, DataError, Problem
from penstock.files.limits import DEFAULT, Limits
from penstock.ranges import Fraction, Seed

if TYPE_CHECKING:
    import pandas as pd
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from penstock.datasets.reading.labels import check_classes
from penstock.files import plain_json
from penstock.files.plain_json import JsonError
from penstock.files.regular_file import read_regular
from penstock.order.randomness import IntArray

_POINTS = 1000  # keypoints of an object
_NUMBERS = 100_000  # of an outline


class CocoFile:
    """The content of a file.

    Attributes:
        names: of the pictures, by row.
        sizes: int64[N, 2], width and height of each.
        categories: names by id, in the order of the ids.
        starts: int64[N + 1]; objects `starts[i]:starts[i + 1]` are those of row i.
        boxes: float32[M, 4], corners in pixels.
        categories_of: int64[M], ids.
        crowd: int64[M], 1 for a group of objects.
        outlines: M polygons or RLEs, as they stand in the file; None where there is none.
        keypoints: float32[M, K, 3], x, y and whether it is visible (0 to 2).

    Args:
        outlines, keypoints: whether they are kept.

    Raises:
        DataError: the file is missing, is no JSON of COCO's, or says what cannot be; names the
            annotation.
    """

    def __init__(self, file: FolderFile, outlines: bool, keypoints: bool, limits: Limits) -> None:
        self._file, self._limits = file, limits
        content = _parsed(file, limits)
        images, categories, annotations = (
            self._records(content, name) for name in ("images", "categories", "annotations")
        )
        self.categories, counts = self._named(categories)
        self.names, self.sizes, rows = self._pictures(images)
        self._keypoints = max(counts, default=0) if keypoints else 0
        if keypoints and not self._keypoints:
            raise self._error("categories", "none has keypoints; set dataset.keypoints=false")
        boxes = np.zeros((len(annotations), 4), np.float32)
        owners = np.zeros(len(annotations), np.int64)
        classes, crowd = np.zeros_like(owners), np.zeros_like(owners)
        points = np.zeros((len(annotations), self._keypoints, 3), np.float32)
        known = set(self.categories)
        kept: list[Any] = []
        for number, record in enumerate(annotations):
            where = f"annotations[{number}] (id {str(record.get('id'))[:40]})"
            row = rows.get(_id(record.get("image_id")))
            if row is None:
                raise self._error(where, f"no image has the id {_short(record.get('image_id'))}")
            owners[number] = row
            classes[number] = self._id_of(record, "category_id", where)
            if int(classes[number]) not in known:
                raise self._error(where, f"no category has the id {classes[number]}")
            width, height = self.sizes[row]
            boxes[number] = self._box(record.get("bbox"), where, width, height)
            flag = record.get("iscrowd", 0)
            if flag not in (0, 1):
                raise self._error(where, f"iscrowd is {_short(flag)}, neither 0 nor 1")
            crowd[number] = int(flag)
            if outlines:
                kept.append(record.get("segmentation"))
            if keypoints and record.get("keypoints") is not None:
                points[number] = self._points(record["keypoints"], where)
        order = np.argsort(owners, kind="stable")
        self.starts: IntArray = np.searchsorted(owners[order], np.arange(len(self.names) + 1))
        self.boxes, self.categories_of, self.crowd = boxes[order], classes[order], crowd[order]
        self.keypoints = points[order]
        self.outlines = [kept[number] for number in order] if outlines else []

    def _error(self, where: str, wrong: str) -> DataError:
        return DataError(f"{str(self._file)!r}, {where}: {wrong}. Correct the file.")

    def _records(self, content: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
        records = content.get(name)
        if not isinstance(records, list) or not all(isinstance(own, dict) for own in records):
            has = ", ".join(sorted(map(str, content))[:8])
            raise self._error(name, f"is missing or no list of mappings; the file has {has}")
        if len(records) > self._limits.files:
            raise self._error(name, self._limits.refusal("files", f"{len(records)} of them"))
        if not records and name != "annotations":
            raise self._error(name, "there are none")
        return records

    def _named(self, records: list[dict[str, Any]]) -> tuple[dict[int, str], list[int]]:
        check_classes(len(records), str(self._file), self._limits)
        names: dict[int, str] = {}
        counts = []
        for number, record in enumerate(records):
            where = f"categories[{number}]"
            key, name = self._id_of(record, "id", where), record.get("name")
            if key in names:
                raise self._error(where, f"the id {key} occurs twice")
            if not isinstance(name, str) or not name:
                raise self._error(where, f"its name is {_short(name)}")
            names[key] = name
            points = record.get("keypoints", [])
            if not isinstance(points, list) or len(points) > _POINTS:
                raise self._error(where, f"its keypoints are no list of up to {_POINTS} names")
            counts.append(len(points))
        return dict(sorted(names.items())), counts

    def _pictures(
        self, records: list[dict[str, Any]]
    ) -> tuple[list[str], IntArray, dict[Any, int]]:
        names: list[str] = []
        sizes = np.zeros((len(records), 2), np.int64)
        rows: dict[Any, int] = {}
        for number, record in enumerate(records):
            where, name = f"images[{number}]", record.get("file_name")
            if leads_out(name):
                wrong = f"file_name is {_short(name)}; a path below the folder of images is needed"
                raise self._error(where, wrong)
            assert isinstance(name, str)
            key = _id(record.get("id"))
            if key is None or key in rows:
                wrong = "is no id" if key is None else "occurs twice"
                raise self._error(where, f"its id {_short(record.get('id'))} {wrong}")
            rows[key] = number
            for place, side in enumerate(("width", "height")):
                value = record.get(side)
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise self._error(where, f"{side} is {_short(value)}")
                sizes[number, place] = min(value, self._limits.pixels + 1)
            if int(sizes[number, 0]) * int(sizes[number, 1]) > self._limits.pixels:
                claim = f"{sizes[number, 0]} x {sizes[number, 1]} pixels"
                raise self._error(where, f"claims {self._limits.refusal('pixels', claim)}")
            names.append(name)
        name, count = Counter(names).most_common(1)[0]
        if count > 1:
            raise self._error("images", f"{name!r} occurs twice")
        return names, sizes, rows

    def _id_of(self, record: dict[str, Any], name: str, where: str) -> int:
        value = record.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
            raise self._error(where, f"{name} is {_short(value)}; a whole number is needed")
        return value

    def _box(self, value: Any, where: str, width: int, height: int) -> tuple[float, ...]:
        numbers = _numbers(value, 4)
        if numbers is None or numbers[2] < 0 or numbers[3] < 0:
            raise self._error(where, f"bbox is {_short(value)}; [x, y, width, height] is needed")
        left, top = numbers[0], numbers[1]
        right, bottom = left + numbers[2], top + numbers[3]
        if left >= width or top >= height or right < 0 or bottom < 0:
            wrong = f"bbox {_short(value)} is outside of its image of {width} x {height}"
            raise self._error(where, wrong)
        return max(left, 0), max(top, 0), min(right, width), min(bottom, height)

    def _points(self, value: Any, where: str) -> npt.NDArray[np.float32]:
        numbers = _numbers(value, None)
        if numbers is None or len(numbers) % 3 or len(numbers) > 3 * self._keypoints:
            most = f"x, y and visibility of up to {self._keypoints} points are needed"
            raise self._error(where, f"keypoints are {_short(value)}; {most}")
        points = np.zeros((self._keypoints, 3), np.float32)
        points[: len(numbers) // 3] = np.array(numbers, np.float32).reshape(-1, 3)
        return points


def outline_mask(outline: Any, width: int, height: int, where: str) -> npt.NDArray[np.bool_]:
    """The pixels of an object: polygons, or runs of pixels by columns (RLE); bool[height, width].

    Raises:
        DataError: it is none of these, or does not fit the picture.
    """
    if isinstance(outline, Mapping):
        return _runs(outline, width, height, where)
    if not isinstance(outline, list) or not outline:
        raise DataError(f"{where}: segmentation is {_short(outline)}; polygons or RLE are needed")
    from faster_coco_eval.core import mask as coco_mask

    polygons = []
    for polygon in outline:
        numbers = _numbers(polygon, None)
        if numbers is None or len(numbers) % 2 or len(numbers) < 6 or len(numbers) > _NUMBERS:
            raise DataError(f"{where}: a polygon is {_short(polygon)}; x and y of 3 points or more")
        # It fills what a line runs along, so no line may be longer than the picture.
        flat = np.array(numbers).reshape(-1, 2).clip(0, (width, height))
        polygons.append(flat.ravel().tolist())
    # Put together as runs, so that many polygons of a large picture cost its pixels once.
    runs = coco_mask.merge(coco_mask.frPyObjects(polygons, height, width))
    mask: npt.NDArray[np.bool_] = coco_mask.decode(runs).astype(np.bool_)
    return mask


def _runs(outline: Mapping[str, Any], width: int, height: int, where: str) -> npt.NDArray[np.bool_]:
    """The mask of an RLE; decoded by numpy, as the C of COCO's tools trusts the lengths."""
    size, counts = outline.get("size"), outline.get("counts")
    if size != [height, width]:
        raise DataError(f"{where}: RLE of size {_short(size)} for a picture [{height}, {width}]")
    runs: Any = _unpacked(counts) if isinstance(counts, str) else counts
    total = width * height
    valid = isinstance(runs, list) and len(runs) <= total + 1
    if not valid or not all(type(run) is int and 0 <= run <= total for run in runs):
        raise DataError(f"{where}: RLE counts are {_short(counts)}, which are no lengths of runs")
    if sum(runs) != total:
        raise DataError(f"{where}: RLE counts add up to {sum(runs)}, not {total} pixels")
    bits = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return bits.reshape(width, height).T


def _unpacked(text: str) -> list[int] | None:
    """The runs of a compressed RLE: five bits a sign, each run less the one two before."""
    runs: list[int] = []
    value = shift = 0
    for sign in text.encode("utf-8", "replace"):
        bits = sign - 48
        if not 0 <= bits < 64 or shift > 60:
            return None
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            if bits & 16:
                value -= 1 << shift
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value = shift = 0
    return None if shift else runs


def _parsed(file: FolderFile, limits: Limits) -> dict[str, Any]:
    try:
        text = file.read(lambda path: read_regular(path, limits))
        content = plain_json.parse(text)
    except DataError as error:
        raise DataError(f"{str(file)!r}: {error}.") from error
    except OSError as error:
        hint = "Put it there or set dataset.annotations"
        raise DataError(f"{str(file)!r} cannot be read: {error.strerror}. {hint}.") from error
    except JsonError as error:
        raise DataError(f"{str(file)!r} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise DataError(f"{str(file)!r} holds a {type(content).__name__}, not COCO's mapping.")
    return content


def _numbers(value: Any, count: int | None) -> list[float] | None:
    """A list of finite numbers, of that length; else None."""
    if not isinstance(value, list) or count not in (None, len(value)):
        return None
    if not all(type(number) in (int, float) and abs(number) < 1e9 for number in value):
        return None
    return [float(number) for number in value]


def _id(value: Any) -> int | str | None:
    """An id of a picture, which some files have as text."""
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else None


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, (list, dict)) else repr(value)[:200]
    return text if len(text) <= 60 else f"{text[:57]}..."


class Coco(FolderDataset):
    """One sample: `image` and a row for each object in it.

        boxes         BoundingBoxes float32[n, 4], x and y of two corners, cut at the border
        labels        int64[n], from 1 in the order of the categories' ids; 0 is the background's
        crowd         int64[n], 1 for a group of objects
        masks         Mask bool[n, H, W], with `masks`
        keypoints     KeyPoints float32[n, K, 2] and `visibility` int64[n, K], with `keypoints`

    Boxes of no width or height are left out.

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
    ) -> None:
        check_reader(reader)
        check_split(split, val_fraction, test_fraction)
        if masks and importlib.util.find_spec("faster_coco_eval") is None:
            reason = "masks need faster-coco-eval: pip install 'penstock-loader[detection]'"
            raise ConfigError(Problem("dataset.masks", reason))
        self.reader, self.limits, self.masks, self.points = reader, limits, masks, keypoints
        root_folder = open_root(root, f"{annotations!r} and its images", files, limits)
        validates = split == "val" and val_annotations is not None
        keys = {"annotations": annotations, "val_annotations": val_annotations}
        for key, name in keys.items():
            if name is not None and leads_out(name):
                raise ConfigError(Problem(f"dataset.{key}", f"{name!r} leads out of dataset.root"))
        file = FolderFile(root_folder, annotations)
        own = CocoFile(file, masks, keypoints, limits)
        ids = list(own.categories)
        self.classes = ["background", *own.categories.values()]
        if validates:
            assert val_annotations is not None
            file = FolderFile(root_folder, val_annotations)
            own = CocoFile(file, masks, keypoints, limits)
            if list(own.categories.items()) != list(zip(ids, self.classes[1:], strict=True)):
                raise DataError(f"{str(file)!r} has other categories than {annotations!r}.")
        self.folder = root_folder.below((val_images if validates else None) or images)
        missing = self.folder.first_missing(own.names)
        if missing is not None:
            raise DataError(
                f"{str(file)!r}, images[{missing}]: {self.folder.path(own.names[missing])!r} is "
                "missing. Put it there, or set dataset.images to the folder of the images."
            )
        names = np.array([os.fsencode(name) for name in own.names])
        rows = np.argsort(names, kind="stable")
        if not validates:
            share = val_fraction if val_annotations is None else 0.0
            by_name = split_rows(names[rows], split, share, split_seed, None, test_fraction)
            rows = rows[by_name]
        self.names, self.rows, self._file = names[rows], rows, own
        numbers = {key: number for number, key in enumerate(ids, start=1)}
        self._labels = np.array([numbers[key] for key in own.categories_of.tolist()], np.int64)

    def __getitem__(self, index: int) -> Sample:
        image = self._read(
            index, lambda path, shown: read_image(path, self.reader, shown, self.limits)
        )
        own, row = self._file, int(self.rows[index])
        width, height = own.sizes[row].tolist()
        if tuple(image.shape[-2:]) != (height, width):
            raise DataError(
                f"image {self.path(index)!r} has {image.shape[-1]} x {image.shape[-2]} pixels, and "
                f"{width} x {height} in its annotations. Correct either."
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
