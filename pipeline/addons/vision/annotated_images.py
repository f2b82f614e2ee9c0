"""Images with what people drew on them: boxes of COCO's JSON, or a class for every pixel.

    root/annotations.json        `Coco`: one file, divided by `data.split`; or two, with
    root/images/000001.jpg       `val_annotations`

    root/images/a.jpg            `ImageMasks`: divided by `data.split`, or already, when both
    root/masks/a.png             folders have "train" and "val"

Cost: one read of the JSON, or one walk over both folders, no image opened; 40 bytes of memory an
object, and its outline where masks are read (by faster-coco-eval).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar
from unicodedata import normalize
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, FiniteFloat, PositiveInt, TypeAdapter, ValidationError
from torchvision import tv_tensors

from penstock.datasets.files import DataFile, Files, Root, open_root, with_endings
from penstock.datasets.image_folder import EXTENSIONS
from penstock.datasets.reading.base import (
    FolderDataset,
    Part,
    Sample,
    Shares,
    Split,
    Table,
    table,
)
from penstock.datasets.reading.image import (
    Orientation,
    Reader,
    check_reader,
    encoded_image,
    loaded,
    opened_image,
    read_image,
)
from penstock.errors import DataError
from penstock.files.limits import DEFAULT, Limits
from penstock.order.keys import IntArray
from penstock.training.adapter import require

_log = logging.getLogger(__name__)
_ROUNDED = 1.0  # pixels that a tool's rounding may lead out of an image
_MASKS = (".png", ".bmp", ".gif", ".tif", ".tiff")  # which lose nothing; a JPEG changes numbers
_LOOKED_AT = 100  # masks of training, where a class is in none: half a second
Side = Annotated[FiniteFloat, Field(ge=0)]
Byte = Annotated[int, Field(ge=0, le=255)]
Color = Annotated[Sequence[Byte], Field(min_length=3, max_length=3)]  # red, green, blue
Names = Annotated[Sequence[str], Field(min_length=1, max_length=255)]
Mask = npt.NDArray[np.uint8]


class AnnotatedImages(FolderDataset):
    """Images and the places in them that are known, which have to be of the same pixels."""

    reader: str

    def _image(self, index: int, size: tuple[int, ...], where: str) -> tv_tensors.Image:
        image = self._read(
            index, lambda path, shown: read_image(path, self.reader, shown, self.limits)
        )
        if tuple(image.shape[-2:]) != size:
            raise DataError(
                f"image {self.path(index)!r} has {image.shape[-1]} x {image.shape[-2]} pixels, and "
                f"{size[1]} x {size[0]} in {where}. Correct either; if EXIF turns one, set "
                "dataset.orientation=ignore (pixels as they are stored) or apply."
            )
        return image


class Coco(AnnotatedImages):
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
        val_annotations: that of validation; null: `annotations` is divided by `shares`.
        images: folder that the names in the JSON start from, relative to `root`. A name that is no
            file of it, as a path of another machine, means the file of it with that base name.
        val_images: that of validation, with `val_annotations`; null: `images`.
        masks, keypoints: whether samples have them.
        reader: "torchvision", "pillow" or "skimage".
        shares: of the images that validate and test.
        files: access to addresses.
        limits: what an image may claim.
        orientation: "apply" (also null) turns images as their EXIF says; "ignore" takes them as
            they are stored, as the boxes of some tools do.

    Raises:
        DataError: the JSON or an image is missing, or the JSON says what cannot be.
        ConfigError: an argument is invalid.
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
        shares: Shares = Shares(),
        files: Files | None = None,
        limits: Limits = DEFAULT,
        orientation: Orientation | None = None,
    ) -> None:
        self.reader = check_reader(reader, orientation)
        self.limits, self.masks, self.points = limits, masks, keypoints
        root_folder = open_root(root, f"{annotations!r} and its images", files)
        # Also for validation with a file of its own: its classes are numbered by those of training.
        own = _CocoFile(root_folder, annotations, masks, keypoints)
        self.classes, file = ["background", *own.classes], annotations
        if validates := split == "val" and val_annotations is not None:
            file, images = str(val_annotations), val_images or images
            own = _CocoFile(root_folder, file, masks, keypoints)
        self.folder = root_folder.below(images)
        own.find(self.folder)
        # By names: tools number the same categories otherwise in each file that they export.
        numbers = {name: number for number, name in enumerate(self.classes)}
        if unknown := {own.categories[kind] for kind in own.kinds.tolist()} - numbers.keys():
            raise DataError(
                f"{root_folder.path(file)!r} has objects of {sorted(unknown)}, and {annotations!r} "
                f"has no object of such a category: its classes are {', '.join(self.classes[1:])}. "
                "Give a category the same name in both files."
            )
        self._labels = np.array([numbers.get(n, 0) for n in own.categories], np.int64)[own.kinds]
        if own.notes and (split == "train" or validates):  # one file warns once
            _log.warning("%s: %s", root_folder.path(file), "; ".join(own.notes))
        names = np.array([os.fsencode(name) for name in own.names])
        # By names, as the order of records changes with each export of a tool.
        rows = np.argsort(names, kind="stable")
        if not validates:
            # A file of its own for validation leaves all of this one to training.
            left = shares if val_annotations is None else shares.without("val")
            rows = rows[left.rows(split, names[rows])]
        self.names, self.rows, self._file = names[rows], rows, own

    def __getitem__(self, index: int) -> Sample:
        own, row = self._file, int(self.rows[index])
        canvas = (int(own.sizes[row, 1]), int(own.sizes[row, 0]))
        image = self._image(index, canvas, "its annotations")
        objects = np.arange(own.starts[row], own.starts[row + 1])
        # torchvision's detectors refuse boxes without width or height.
        objects = objects[(own.boxes[objects, 2:] > own.boxes[objects, :2]).all(1)]
        corners = torch.from_numpy(own.boxes[objects])
        sample: Sample = {
            "image": image,
            "boxes": tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=canvas),
            "labels": torch.from_numpy(self._labels[objects]),
            "crowd": torch.from_numpy(own.crowd[objects]),
        }
        if self.masks:
            masks = [self._mask(index, own.outlines[n], *canvas) for n in objects.tolist()]
            # Of an image without objects, too: [0, H, W].
            sample["masks"] = tv_tensors.Mask(np.array(masks, np.bool_).reshape(-1, *canvas))
        if self.points:
            points = torch.from_numpy(own.keypoints[objects])
            sample["keypoints"] = tv_tensors.KeyPoints(points[..., :2], canvas_size=canvas)
            sample["visibility"] = points[..., 2].long()
        return sample

    def _mask(self, index: int, outline: Any, height: int, width: int) -> Mask:
        """The pixels of polygons, or of runs of pixels by columns (RLE): uint8[H, W], 0 or 1."""
        from faster_coco_eval.core import mask as coco  # which boxes do without

        try:
            if isinstance(outline, list):
                polygons = outline if isinstance(outline[0], list) else [outline]
                # COCO's tools fill what a line runs along, so none may be longer than the image.
                flat = [np.clip(p, 0, [width, height] * (len(p) // 2)).tolist() for p in polygons]
                # As runs, so that many polygons of a large image cost its pixels once.
                runs = coco.merge(coco.frPyObjects(flat, height, width))
            else:
                packed = isinstance(outline["counts"], str)
                runs = outline if packed else coco.frPyObjects(outline, height, width)
            return coco.decode(runs).reshape(height, width)
        except Exception as error:  # COCO's tools raise any, for what is no outline
            raise DataError(
                f"{self.path(index)!r}: a segmentation is {str(outline)[:60]}: {error}"
            ) from error

    @property
    def metadata(self) -> Table:
        """A row per sample: path, and the number of objects."""
        return table({"path": self._paths(), "objects": np.diff(self._file.starts)[self.rows]})

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The reader, the classes, and this split's names, file sizes and objects."""
        own = self._file
        parts: list[Part] = ["coco", self.reader, *self.classes, *self._file_parts(sized)]
        parts += [self.rows, own.sizes, own.starts, own.boxes, self._labels, own.crowd]
        return [*parts, own.keypoints, repr(own.outlines)]


# With slots, as COCO has a million annotations.
@dataclass(slots=True)
class Image:
    """An entry of `images`, whose files are below the folder of the images."""

    id: int | str
    file_name: str
    width: PositiveInt
    height: PositiveInt


@dataclass(slots=True)
class Category:
    """An entry of `categories`; `keypoints` are the names of its points."""

    id: int
    name: str
    supercategory: str | None = None
    keypoints: list[str] | None = None


@dataclass(slots=True)
class Annotation:
    """An entry of `annotations`, an object: `bbox` is x and y of a corner, width and height."""

    image_id: int | str
    category_id: int
    bbox: tuple[FiniteFloat, FiniteFloat, Side, Side]
    iscrowd: int | None = 0
    segmentation: Any = None
    keypoints: list[float] | None = None


@dataclass(slots=True)
class Content:
    """A JSON of COCO's."""

    images: Annotated[list[Image], Field(min_length=1)]
    categories: list[Category]
    annotations: list[Annotation]


class _CocoFile:
    """The content of a JSON as arrays.

    Attributes:
        names: of the images, by row.
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
        DataError: the file is missing, is no JSON of COCO's, or says what cannot be.
    """

    def __init__(self, root: Root, name: str, masks: bool, keypoints: bool) -> None:
        self._shown = root.path(name)
        try:
            # Some tools of Windows write a byte order mark.
            content = TypeAdapter(Content).validate_json(
                root.read(name, lambda path, _: Path(path).read_text("utf-8-sig"))
            )
        except (OSError, ValueError) as error:
            # All of them at once: a person exports a file anew, and not once for each mistake.
            wrong = (
                [
                    f"{'.'.join(map(str, own['loc']))}: {own['msg']}, not {own['input']!r:.60}"
                    for own in error.errors()
                ]
                if isinstance(error, ValidationError)
                else [str(error)]
            )
            raise DataError(
                f"{self._shown!r} is no JSON of COCO's: {len(wrong)} records are wrong: "
                f"{'; '.join(wrong[:10])}. Correct it, or set dataset.annotations."
            ) from error
        images, categories, objects = content.images, content.categories, content.annotations
        # In the order of ids, as COCO's own tools number classes.
        categories.sort(key=lambda own: own.id)
        self.names = [own.file_name for own in images]
        self.categories = [own.name for own in categories]
        rows = {own.id: row for row, own in enumerate(images)}
        kinds = {own.id: kind for kind, own in enumerate(categories)}
        named = {"images": (len(rows), self.names), "categories": (len(kinds), self.categories)}
        for part, (ids, names) in named.items():
            if not ids == len({*names}) == len(names):
                raise DataError(f"{self._shown!r}, {part}: an id or a name occurs twice.")
        self.sizes: IntArray = np.array([[own.width, own.height] for own in images], np.int64)
        count = max((len(own.keypoints or ()) for own in categories), default=0) * keypoints
        require(count or not keypoints, "dataset.keypoints", "no category of the file has any")
        # Unknown ids are -1, which picks the last image below, and is refused before that counts.
        owners = np.array([rows.get(own.image_id, -1) for own in objects], np.int64)
        of_kinds = np.array([kinds.get(own.category_id, -1) for own in objects], np.int64)
        boxes = np.array([own.bbox for own in objects], np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        ends, lengths = self.sizes[owners], range(0, 3 * count + 1, 3)
        # Some tools leave keypoints out where an object has none.
        points = [own.keypoints or [] if keypoints else [] for own in objects]
        for what, is_wrong in {
            "the image_id of no image": owners < 0,
            "the category_id of no category": of_kinds < 0,
            "a bbox outside of their image": (
                (boxes[:, :2] - ends > _ROUNDED) | (boxes[:, 2:] < -_ROUNDED)
            ).any(1),
            "no segmentation": [masks and not own.segmentation for own in objects],
            "other keypoints than their category": [len(own) not in lengths for own in points],
        }.items():
            if np.any(is_wrong):
                first, total = int(np.argmax(is_wrong)), f"{np.sum(is_wrong)} of {len(objects)}"
                raise DataError(
                    f"{self._shown!r}: {total} annotations have {what}, the first annotations"
                    f"[{first}], {str(objects[first])[:150]}. Correct the file."
                )
        # Converters from YOLO's files write shares of the sides.
        if boxes.size and boxes.max() <= 1:
            raise DataError(f"{self._shown!r}: all boxes lie between 0 and 1; pixels are needed.")
        cut = boxes.clip(0, np.tile(ends, 2))
        # The objects of an image stand together then, in the order of the file.
        order = np.argsort(owners, kind="stable")
        self.starts: IntArray = np.searchsorted(owners[order], np.arange(len(images) + 1))
        self.boxes, self.kinds = cut.astype(np.float32)[order], of_kinds[order]
        self.crowd = np.array([own.iscrowd == 1 for own in objects], np.int64)[order]
        self.keypoints = np.array(
            [own + [0.0] * (3 * count - len(own)) for own in points], np.float32
        ).reshape(len(objects), count, 3)[order]
        self.outlines = [objects[number].segmentation for number in order] if masks else []
        # COCO's person is its own supercategory, and a class.
        parents = {own.supercategory for own in categories} - {
            own.name for own in categories if own.supercategory == own.name
        }
        used = {self.categories[kind] for kind in of_kinds.tolist()}
        self.classes = [own for own in self.categories if own in used or own not in parents]
        notes = {
            f"of {len(objects)} objects have a box without width or height and are left out": (
                (self.boxes[:, 2:] <= self.boxes[:, :2]).any(1).sum()
            ),
            f"of {len(objects)} objects have a box that is cut at the border of its image": (
                (np.abs(boxes - cut) > _ROUNDED).any(1).sum()
            ),
            f"of {len(images)} images have no object": (np.diff(self.starts) == 0).sum(),
            "categories have no object": len(self.categories) - len(used),
        }
        self.notes = [f"{number} {note}" for note, number in notes.items() if number]

    def find(self, images: Root) -> None:
        """Replace names that are no files of a folder by those of the same base name."""
        if images.first_missing(self.names) is None:
            return
        # Listed only where a name is missing: a store with a million images takes minutes.
        files = images.files() if images.exists() else []
        known = {_base(name): name for name in files} | {name: name for name in files}
        found = [
            known.get(name) or known.get(_base(name)) or known.get(_base(unquote(name)), "")
            for name in self.names
        ]
        lacking = [name for name, file in zip(self.names, found, strict=True) if not file]
        if lacking or len({*found}) < len(found):
            raise DataError(
                f"{self._shown!r}: {len(lacking)} of {len(found)} images are missing in "
                f"{str(images)!r}, the first {lacking[:1]}, or two are one file. Put them there, "
                "or set dataset.images to their folder."
            )
        count = len({*found} - {*self.names})
        self.notes.append(f"{count} of {len(found)} files are found by their base name")
        self.names = found


def _base(name: str) -> str:
    """The last part of a path of any system, or of an address as Label Studio writes it."""
    return re.split(r"[/\\=]", normalize("NFC", name))[-1]


class ImageMasks(AnnotatedImages):
    """One sample: `image` (uint8 [3, H, W]) and `mask` (Mask uint8[H, W], a class each pixel).

    Args:
        root: folder of the data; a path or an address.
        split: "train", "val" or "test".
        classes: their names, in the order of their numbers from 0; or a mapping of names to
            colours, [red, green, blue], for masks of colours.
        images, masks: folders of the images and of the masks, relative to `root`; an image and
            its mask have the same name up to the ending.
        ignored: the number in masks of pixels that nobody has said anything of.
        ignored_color: their colour, for masks of colours; null: every colour is a class's.
        suffix: what the names of masks have more, before the ending: "_mask" for a_mask.png.
        reader: "torchvision", "pillow" or "skimage", of the images; Pillow reads masks.
        shares: of the images that validate and test; without effect where both folders have
            "train" and "val" (and "test").
        files: access to addresses.
        limits: what a file and an image may claim.
        orientation: "apply" (also null) turns images and masks as their own EXIF says; "ignore"
            takes both as they are stored.

    Raises:
        DataError: a folder or a mask is missing. A mask of another size, or with a number or colour
            that is no class's, is refused when it is read.
        ConfigError: classes or another argument are invalid.
    """

    columns: ClassVar[tuple[str, ...]] = ("path", "mask")

    def __init__(
        self,
        root: str,
        classes: Names | Mapping[str, Color],
        split: Split = "train",
        images: str = "images",
        masks: str = "masks",
        ignored: Byte = 255,
        ignored_color: Color | None = None,
        suffix: str = "",
        reader: Reader = "torchvision",
        shares: Shares = Shares(),
        files: Files | None = None,
        limits: Limits = DEFAULT,
        orientation: Orientation | None = None,
    ) -> None:
        self.reader, self._turns = check_reader(reader, orientation), orientation != "ignore"
        self.limits, self.ignored, self.classes = limits, ignored, [*map(str, classes)]
        # Pixels of that class would be left out of the loss without a word.
        require(
            ignored >= len(classes),
            "dataset.ignored",
            f"{ignored} is a class's number; allowed: {len(classes)} to 255",
        )
        pairs = [*enumerate(classes.values())] if isinstance(classes, Mapping) else []
        pairs += [] if ignored_color is None or not pairs else [(ignored, ignored_color)]
        # As one number a colour, which NumPy finds faster than three; none for masks of numbers.
        self._colors = {red << 16 | green << 8 | blue: n for n, (red, green, blue) in pairs}
        require(len(self._colors) == len(pairs), "dataset.classes", "a colour occurs twice")
        folders = open_root(root, f"folders {images!r} and {masks!r}", files)
        # Who has divided the folders has decided: a share of them would mix both again.
        divided = all(folders.below(images).below(name).exists() for name in ("train", "val"))
        below = split if divided else "."
        self._masks = FolderDataset()
        self._masks.folder = folders.below(masks).below(below)
        self.folder = folders.below(images).below(below)
        warns = divided or split == "train"  # of two splits of a folder, one
        found, others = (
            with_endings(folder.files(), endings, str(folder) if warns else None)
            for folder, endings in ((self.folder, EXTENSIONS), (self._masks.folder, _MASKS))
        )
        by_stem = {name.rpartition(".")[0]: name for name in others}
        stems = [name.rpartition(".")[0] + suffix for name in found]
        lacking = [stem for stem in stems if stem not in by_stem]
        if lacking or not found:
            raise DataError(
                f"{str(self.folder)!r}: {len(lacking)} of {len(found)} images have no mask, the "
                f"first {self._masks.folder.path((lacking or [''])[0])}. Images end in "
                f"{', '.join(EXTENSIONS)}, and masks in {', '.join(_MASKS)}. Put them there, or "
                "set dataset.images and dataset.masks to their folders; dataset.suffix is what "
                "names of masks have more than names of images."
            )
        names = np.array([os.fsencode(name) for name in found])
        rows = np.arange(len(names)) if divided else shares.rows(split, names)
        self.names, self._masks.names = (
            names[rows],
            np.array([os.fsencode(by_stem[stem]) for stem in stems])[rows],
        )
        if split == "train":
            self._warn_of_absent()

    def _warn_of_absent(self) -> None:
        """Look before training whether each class has a pixel, and warn of those without."""
        counts = np.zeros(256, np.int64)
        # Evenly spaced, as masks of one scene often stand together.
        for index in range(0, len(self), -(-len(self) // _LOOKED_AT) or 1):
            with suppress(DataError):  # reading it says so, or leaves it out
                counts += np.bincount(self._masks._read(index, self._mask).ravel(), minlength=256)
            if counts[: len(self.classes)].all():
                return
        # Most tools write masks of one thing as 0 and 255, of which 255 would be ignored.
        colors = zip(self.classes, (0, 255), strict=False)
        _log.warning(
            "%s: in the masks of training that were looked at, no pixel is of the classes %s, and "
            "%.0f%% of the pixels have the ignored number %d. No run can learn them. For masks of "
            '0 and 255 set "dataset.classes={%s}".',
            self._masks.folder,
            ", ".join(np.array(self.classes)[counts[: len(self.classes)] == 0][:10]),
            *(100 * counts[self.ignored] / max(counts.sum(), 1), self.ignored),
            ", ".join(f"{name}: [{n},{n},{n}]" for name, n in colors),
        )

    def __getitem__(self, index: int) -> Sample:
        mask = self._masks._read(index, self._mask)
        return {
            "image": self._image(index, mask.shape, f"its mask {self._masks.path(index)!r}"),
            "mask": tv_tensors.Mask(torch.from_numpy(mask)),
        }

    @property
    def metadata(self) -> Table:
        """A row per sample: the paths of the image and of its mask."""
        return table({"path": self._paths(), "mask": self._masks._paths()})

    def data_files(self) -> Iterator[DataFile]:
        yield from super().data_files()
        yield from self._masks.data_files()

    def _want(self, indices: IntArray) -> float:
        return super()._want(indices) + self._masks._want(indices)

    def fingerprint_parts(self, sized: bool) -> list[Part]:
        """The reader, the classes, and names and file sizes of this split's images and masks."""
        colors = repr(sorted(self._colors.items())) if self._colors else "numbers"
        parts: list[Part] = ["image_masks", self.reader, self.ignored, *self.classes, colors]
        return [*parts, *self._file_parts(sized), *self._masks._file_parts(sized)]

    def _mask(self, path: str, shown: str) -> Mask:
        """The classes of the pixels of a file: uint8[H, W]."""
        file = encoded_image(path, "pillow", shown, self.limits)
        try:
            with opened_image(file.content, shown, self.limits) as image:
                # Asked before the pixels are loaded: Pillow counts pages by reading on in the file.
                pages = getattr(image, "n_frames", 1)
                picture = loaded(image, self._turns)
                stored = np.array(picture.convert("RGB") if self._colors else picture)
        except (MemoryError, DataError):
            raise
        except Exception as error:  # decoders raise any error for a damaged file
            raise DataError(
                f"mask {shown!r} is no image, truncated or damaged ({error}). Replace it or remove "
                "it from the data."
            ) from error
        if pages > 1 or stored.dtype.kind == "f" or (stored.ndim > 2 and not self._colors):
            raise DataError(
                f"mask {shown!r} has the colours of mode {picture.mode}, or several pages, and "
                "not one of numbers; for colours write dataset.classes as a mapping of names "
                "to colours"
            )
        if self._colors:
            # In 64 bits: shifted, a red of 255 does not fit into its byte.
            codes = stored.astype(np.int64) @ [1 << 16, 1 << 8, 1]
            colors, numbers = np.array(sorted(self._colors.items())).T
            places = np.searchsorted(colors, codes).clip(max=len(colors) - 1)
            mask, known = numbers[places], colors[places] == codes
        else:
            mask, inside = stored, (stored >= 0) & (stored < len(self.classes))
            known = inside | (stored == self.ignored)
        if not known.all():
            raise DataError(
                f"mask {shown!r} has {'colours' if self._colors else 'numbers'} such as "
                f"{stored[~known][0].tolist()}, which is none of {len(self.classes)} classes "
                "(dataset.classes), nor ignored. Correct it or remove it from the data."
            )
        return mask.astype(np.uint8, copy=False)
