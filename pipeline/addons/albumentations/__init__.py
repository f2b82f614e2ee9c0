"""Transforms of Albumentations in a sample: the picture, and masks, landmarks and boxes with it.

Its generators are seeded for each sample, as those of any transform. Cost: two copies of the
picture, beside the library's own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from penstock.errors import DataError

_KINDS: dict[str, type[Any]] = {
    "image": tv_tensors.Image,
    "keypoints": tv_tensors.KeyPoints,
    "bboxes": tv_tensors.BoundingBoxes,
}


class Albumentations:
    """Transforms of Albumentations (or of a fork that has its names), applied in order.

    Points outside of the picture are kept; boxes outside are removed, with their rows of
    `with_boxes`.

    Args:
        transforms: instances of its classes.
        with_boxes: fields with a row for each box, such as labels.
    """

    thread_safe = False  # its generators are shared

    def __init__(self, transforms: Sequence[Any], with_boxes: Sequence[str] = ()) -> None:
        self.transforms, self.with_boxes = list(transforms), list(with_boxes)
        self._made: dict[tuple[str, ...], Any] = {}
        self._generators = np.random.default_rng(), random.Random()  # of all that is made

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        done, old = dict(sample), dict[str, Any]()
        # Plane by plane: the library stacks masks, and fields differ in their number of planes.
        masks = {
            name: value.reshape(-1, *value.shape[-2:]).numpy()
            for name, value in sample.items()
            if isinstance(value, tv_tensors.Mask)
        }
        arguments: dict[str, Any] = {
            "masks": [plane.copy() for field in masks.values() for plane in field]
        }
        for argument, kind in _KINDS.items():
            names = [name for name, value in sample.items() if isinstance(value, kind)]
            if len(names) > 1 or (argument == "image" and not names):
                raise DataError(
                    f"Albumentations takes one field of {kind.__name__}, and the sample has "
                    f"{', '.join(names) or 'none'}"
                )
            old |= {argument: (names[0], sample[names[0]])} if names else {}
        name, picture = old.pop("image")
        # Copies, which the transforms may write into.
        arguments["image"] = np.array(np.moveaxis(picture.numpy(), 0, -1), order="C")
        if "keypoints" in old:
            arguments["keypoints"] = old["keypoints"][1].reshape(-1, 2).numpy()
        if "bboxes" in old:
            corners = F.convert_bounding_box_format(old["bboxes"][1], new_format="XYXY")
            arguments |= {"bboxes": corners.float().numpy(), "rows": np.arange(len(corners))}
        made = self._compose(tuple(old))(**arguments)
        done[name] = F.to_image(made["image"])
        size = tuple(done[name].shape[-2:])
        left = torch.as_tensor(np.array(made.get("masks", ())))
        for name, field in masks.items():
            cut, left = left[: len(field)].to(sample[name].dtype), left[len(field) :]
            done[name] = tv_tensors.Mask(cut.reshape(*sample[name].shape[:-2], *size))
        if "keypoints" in old:
            name, points = old["keypoints"]
            moved = np.asarray(made["keypoints"]).reshape(points.shape)
            done[name] = tv_tensors.KeyPoints(moved, dtype=points.dtype, canvas_size=size)
        if "bboxes" in old:
            name, boxes = old["bboxes"]
            corners = torch.as_tensor(np.asarray(made["bboxes"], np.float32)).reshape(-1, 4)
            left = tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=size)
            moved = F.convert_bounding_box_format(left, new_format=boxes.format).to(boxes.dtype)
            done[name] = tv_tensors.wrap(moved, like=left, format=boxes.format)
            rows = [int(row) for row in made["rows"]]
            for name in self.with_boxes:
                value = sample.get(name, ())
                if len(value) != len(boxes):
                    raise DataError(
                        f"with_boxes: the sample has no field {name!r} with a row for each of its "
                        f"{len(boxes)} boxes"
                    )
                is_array = isinstance(value, (torch.Tensor, np.ndarray))
                done[name] = value[rows] if is_array else [value[row] for row in rows]
        return done

    def _compose(self, kinds: tuple[str, ...]) -> Any:
        """The transforms for samples with these; with others the library would warn."""
        if kinds not in self._made:
            library = import_module("albumentations")
            options = {
                "keypoints": (
                    "keypoint_params",
                    library.KeypointParams("xy", remove_invisible=False),
                ),
                "bboxes": ("bbox_params", library.BboxParams("pascal_voc", label_fields=["rows"])),
            }
            self._made[kinds] = library.Compose(
                self.transforms, **dict(options[kind] for kind in kinds)
            )
            self._made[kinds].set_random_state(*self._generators)
        return self._made[kinds]
