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

from penstock.addons.vision.coco_file import CocoFile, outline_mask
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
