"""Transforms of libraries that work on arrays [H, W, C]: Albumentations, scikit-image, imgaug.

Generators that Albumentations has are seeded for each sample (order/private_generators.py). Cost:
two copies of the picture, beside the library's own.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from penstock.errors import ConfigError, DataError, Problem
from penstock.order.keys import hash64, key_at_hand

Sample = dict[str, Any]
Array = npt.NDArray[Any]
Size = tuple[int, int]

_MOVED = (tv_tensors.Mask, tv_tensors.KeyPoints, tv_tensors.BoundingBoxes)


class Albumentations:
    """Transforms of Albumentations (or of a fork that has its names), applied in order.

    Masks, landmarks and boxes follow the picture. Points outside of the picture are kept; boxes
    outside are removed, with their rows of `with_boxes`.

    Args:
        transforms: instances of its classes.
        with_boxes: fields with a row for each box, such as labels.
        picture: the field of the picture; None takes the only one.
    """

    thread_safe = False  # its generators are shared

    def __init__(
        self, transforms: Sequence[Any], with_boxes: Sequence[str] = (), picture: str | None = None
    ) -> None:
        try:
            library = import_module("albumentations")
        except ImportError as error:
            reason = f"needs Albumentations ({error}): pip install albumentations"
            raise ConfigError(Problem("_target_", reason)) from error
        self._library = library
        self.transforms = list(transforms)
        self.with_boxes = list(with_boxes)
        self.picture = picture
        self._made: dict[tuple[str, ...], Any] = {}
        self._generators = np.random.default_rng(), random.Random()  # of all that is made
        self._compose(())  # wrong arguments are errors now

    def __call__(self, sample: Sample) -> Sample:
        name = _picture(sample, self.picture)
        arguments: dict[str, Any] = {"image": _array(sample[name])}
        masks = [field for field, value in sample.items() if isinstance(value, tv_tensors.Mask)]
        points = _only(sample, tv_tensors.KeyPoints)
        boxes = _only(sample, tv_tensors.BoundingBoxes)
        if masks:
            arguments["masks"] = [_array(sample[field]) for field in masks]
        if points:
            arguments["keypoints"] = sample[points].reshape(-1, 2).numpy()
        if boxes:
            corners = F.convert_bounding_box_format(
                sample[boxes], new_format=tv_tensors.BoundingBoxFormat.XYXY
            )
            arguments["bboxes"] = corners.as_subclass(torch.Tensor).to(torch.float32).numpy()
            arguments["rows"] = np.arange(len(arguments["bboxes"]))
        kinds = tuple(kind for kind in ("masks", "keypoints", "bboxes") if kind in arguments)
        made = self._compose(kinds)(**arguments)
        done = sample | {name: tv_tensors.Image(_tensor(made["image"]))}
        size: Size = (int(done[name].shape[-2]), int(done[name].shape[-1]))
        for field, mask in zip(masks, made.get("masks", ()), strict=True):
            done[field] = tv_tensors.Mask(_like(sample[field], _tensor(mask)))
        if points:
            moved = torch.as_tensor(np.asarray(made["keypoints"], np.float32))
            moved = moved.reshape(sample[points].shape).to(sample[points].dtype)
            done[points] = tv_tensors.KeyPoints(moved, canvas_size=size)
        return done | self._boxes(sample, boxes, made, size) if boxes else done

    def _boxes(self, sample: Sample, name: str, made: Mapping[str, Any], size: Size) -> Sample:
        """The boxes that are left, and the rows that go with them."""
        old, rows = sample[name], torch.as_tensor(np.asarray(made["rows"], np.int64))
        corners = torch.as_tensor(np.asarray(made["bboxes"], np.float32)).reshape(-1, 4)
        left = tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=size)
        moved = F.convert_bounding_box_format(left, new_format=old.format).to(old.dtype)
        fields: Sample = {name: tv_tensors.wrap(moved, like=left, format=old.format)}
        for field in self.with_boxes:
            if field not in sample or len(sample[field]) != len(old):
                raise DataError(
                    f"with_boxes: the sample has no field {field!r} with a row for "
                    f"each of its {len(old)} boxes"
                )
            value = sample[field]
            array = isinstance(value, (torch.Tensor, np.ndarray))
            fields[field] = value[rows] if array else [value[row] for row in rows.tolist()]
        return fields

    def _compose(self, kinds: tuple[str, ...]) -> Any:
        """The transforms for samples with these; with others the library would warn."""
        if kinds not in self._made:
            library, extra = self._library, {}
            if "keypoints" in kinds:
                extra["keypoint_params"] = library.KeypointParams("xy", remove_invisible=False)
            if "bboxes" in kinds:
                extra["bbox_params"] = library.BboxParams("pascal_voc", label_fields=["rows"])
            made = library.Compose(self.transforms, **extra)
            if hasattr(made, "set_random_state"):  # the first version draws from the global ones
                made.set_random_state(*self._generators)
            self._made[kinds] = made
        return self._made[kinds]


class OnPicture:
    """A function of a picture: `function(array)`, uint8 or float [H, W, C] in, the same out.

    Where the function takes `channel_axis` or `rng` and neither is given, it gets -1, and a
    generator with the sample's key. If bytes become floats, these are in [0, 1], as in
    scikit-image, or [0, 255] with `preserve_range=True`, and are converted back.

    Args:
        function: a node with `_partial_: true`, or a callable object.
        keyword: call it as `function(keyword=array)`; imgaug's need "image".
        picture: the field of the picture; None takes the only one.
    """

    thread_safe = False  # it may draw from anything

    def __init__(
        self, function: Callable[..., Any], keyword: str | None = None, picture: str | None = None
    ) -> None:
        if not callable(function):
            reason = f"got {function!r}; give a node with _target_ and _partial_: true"
            raise ConfigError(Problem("function", reason))
        self.function = function
        self.keyword = keyword
        self.picture = picture
        keywords = function.keywords if isinstance(function, partial) else {}
        self._whole_range = bool(keywords.get("preserve_range", False))
        try:
            free = set(inspect.signature(function).parameters) - set(keywords)
        except (TypeError, ValueError):
            free = set()
        self._extra: dict[str, Any] = {"channel_axis": -1} if "channel_axis" in free else {}
        self._draws = "rng" in free
        inner = function.func if isinstance(function, partial) else function
        self.name = getattr(inner, "__name__", type(inner).__name__)
        self._moves = (getattr(inner, "__module__", "") or "").startswith("skimage.transform")

    def __call__(self, sample: Sample) -> Sample:
        name = _picture(sample, self.picture)
        picture = _array(sample[name])
        extra = dict(self._extra)
        if self._draws:
            extra["rng"] = np.random.default_rng(hash64(key_at_hand(), "array", self.name))
        if self.keyword is None:
            made = self.function(picture, **extra)
        else:
            made = self.function(**{self.keyword: picture}, **extra)
            made = made[self.keyword] if isinstance(made, Mapping) else made
        made = np.asarray(made)
        if made.ndim not in (2, 3):
            raise DataError(f"{self.name} gives an array of shape {made.shape}, not a picture")
        staying = [field for field, value in sample.items() if isinstance(value, _MOVED)]
        if staying and (self._moves or made.shape[:2] != picture.shape[:2]):
            raise DataError(
                f"{self.name} moves the picture, but not {', '.join(staying)}. Use "
                "penstock.transforms.arrays.Rescale, torchvision's v2 (RandomCrop, RandomAffine) "
                "or Albumentations, which move them, too"
            )
        if picture.dtype == np.uint8:
            made = _bytes(made, self._whole_range)
        return sample | {name: tv_tensors.Image(_tensor(made))}


class Rescale:
    """Pictures, with all that is in them, resized by `skimage.transform.resize`, antialiased.

    Args:
        size: [height, width], or the length of the shorter side.
    """

    def __init__(self, size: int | Sequence[int]) -> None:
        sides: list[Any] = list(size) if isinstance(size, (list, tuple)) else [size]
        if len(sides) not in (1, 2) or not all(isinstance(s, int) and s > 0 for s in sides):
            raise ConfigError(Problem("size", f"got {size!r}, expected pixels, or [height, width]"))
        self.size = sides

    def __call__(self, sample: Sample) -> Sample:
        height, width = sample[_picture(sample, None)].shape[-2:]
        if len(self.size) == 2:
            size = (self.size[0], self.size[1])
        else:
            scale = self.size[0] / min(height, width)
            size = (max(1, int(height * scale)), max(1, int(width * scale)))
        return {name: self._one(value, size) for name, value in sample.items()}

    @staticmethod
    def _one(value: Any, size: Size) -> Any:
        if isinstance(value, (tv_tensors.KeyPoints, tv_tensors.BoundingBoxes)):
            return F.resize(value, list(size))
        if not isinstance(value, (tv_tensors.Image, tv_tensors.Mask)):
            return value
        from skimage.transform import resize

        smooth = isinstance(value, tv_tensors.Image)
        picture = _array(value)
        made = resize(picture, size, order=int(smooth), anti_aliasing=smooth, preserve_range=True)
        tensor = _tensor(_bytes(made, whole=True) if picture.dtype == np.uint8 else made)
        return tv_tensors.wrap(_like(value, tensor.to(value.dtype)), like=value)


def _picture(sample: Any, name: str | None) -> str:
    if not isinstance(sample, dict):
        raise DataError(f"the sample is a {type(sample).__name__}, not a dict of fields")
    names = [field for field, value in sample.items() if isinstance(value, tv_tensors.Image)]
    if name is None and len(names) != 1:
        fields = (
            f"{len(names)} pictures ({', '.join(names)}); set picture" if names else "no picture"
        )
        raise DataError(f"the sample has {fields} (tv_tensors.Image)")
    if name is not None and name not in names:
        raise DataError(
            f"picture: the field {name!r} of the sample is not a picture (tv_tensors.Image)"
        )
    return name or names[0]


def _only(sample: Sample, kind: type[Any]) -> str:
    """The field of a kind; "" if there is none."""
    names = [field for field, value in sample.items() if isinstance(value, kind)]
    if len(names) > 1:
        raise DataError(
            f"the sample has {len(names)} fields of {kind.__name__} "
            f"({', '.join(names)}); only one can follow the picture"
        )
    return names[0] if names else ""


def _array(value: torch.Tensor) -> Array:
    """[C, H, W] as [H, W, C]; [H, W] as it is."""
    plain = value.as_subclass(torch.Tensor)
    plain = plain.permute(1, 2, 0) if plain.ndim == 3 else plain
    return np.array(plain.numpy())  # a copy: some functions write into their argument


def _tensor(picture: Any) -> torch.Tensor:
    """[H, W, C] or [H, W] as [C, H, W]; a tensor, as some transforms give it, has that shape."""
    if isinstance(picture, torch.Tensor):
        return picture
    picture = picture[..., None] if picture.ndim == 2 else picture
    return torch.from_numpy(np.ascontiguousarray(picture.transpose(2, 0, 1)))


def _like(value: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """`made` [C, H, W] with as many dimensions as `value` has."""
    return made[0] if value.ndim == 2 and made.ndim == 3 else made


def _bytes(made: Array, whole: bool) -> Array:
    """Booleans, and floats from [0, 1], or [0, 255] if `whole`, as bytes."""
    if made.dtype == np.uint8:
        return made
    if made.dtype == bool or (np.issubdtype(made.dtype, np.floating) and not whole):
        made = made * 255.0
    return np.clip(np.rint(made), 0, 255).astype(np.uint8)
