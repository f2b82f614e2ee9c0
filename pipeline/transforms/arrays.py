"""Transforms of libraries that work on arrays: Albumentations, scikit-image, imgaug and its like.

    Albumentations  its transforms, by name; masks, landmarks and boxes follow the picture
    OnPicture       any function of a picture, such as those of `skimage.exposure`
    Rescale         `skimage.transform.resize`, as in PyTorch's data loading tutorial

These libraries take pictures as arrays [H, W, C], where ours are `tv_tensors.Image` [C, H, W]. What
is no picture, mask, landmark or box is left alone. Albumentations holds generators of its own,
which fetch seeds for each sample (order/private_generators.py); a function with an argument `rng`
gets one with the sample's key. Cost: a copy of the picture to and fro, beside the library's own.
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

from pipeline.errors import ConfigError, DataError, Problem
from pipeline.order.randomness import hash64, key_at_hand

Sample = dict[str, Any]
Array = npt.NDArray[Any]
Size = tuple[int, int]

_MOVED = (tv_tensors.Mask, tv_tensors.KeyPoints, tv_tensors.BoundingBoxes)


class Albumentations:
    """Transforms of Albumentations (or of a fork that has its names), applied in order.

    A point keeps its place among the others where it leaves the picture; a box that leaves it goes,
    and with it the rows of `with_boxes`.

    Args:
        transforms: instances of its classes.
        with_boxes: fields with a row for each box, such as labels.
        picture: the field that is the picture; None takes the only one.
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
        self._compose(())  # so that wrong arguments show when they are given

    def __call__(self, sample: Sample) -> Sample:
        name = _picture(sample, self.picture)
        given: dict[str, Any] = {"image": _array(sample[name])}
        masks = [field for field, value in sample.items() if isinstance(value, tv_tensors.Mask)]
        points = _only(sample, tv_tensors.KeyPoints)
        boxes = _only(sample, tv_tensors.BoundingBoxes)
        if masks:
            given["masks"] = [_array(sample[field]) for field in masks]
        if points:
            given["keypoints"] = sample[points].reshape(-1, 2).numpy()
        if boxes:
            given["bboxes"] = _corners(sample[boxes]).numpy()
            given["rows"] = np.arange(len(given["bboxes"]))
        kinds = tuple(kind for kind in ("masks", "keypoints", "bboxes") if kind in given)
        made = self._compose(kinds)(**given)
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
        found: Sample = {name: tv_tensors.wrap(moved, like=left, format=old.format)}
        for field in self.with_boxes:
            if field not in sample or len(sample[field]) != len(old):
                raise DataError(f"with_boxes: the sample has no field {field!r} with a row for "
                                f"each of its {len(old)} boxes")  # fmt: skip
            value = sample[field]
            array = isinstance(value, (torch.Tensor, np.ndarray))
            found[field] = value[rows] if array else [value[row] for row in rows.tolist()]
        return found

    def _compose(self, kinds: tuple[str, ...]) -> Any:
        """The transforms for samples that have these; for others it would warn of what is idle."""
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

    Where the function takes `channel_axis` or `rng` and is given none, it gets -1, and a generator
    with the sample's key. Floats that come of bytes are taken as [0, 1], as scikit-image has it, or
    as [0, 255] where the function is given `preserve_range=True`, and become bytes again.

    Args:
        function: as a node with `_partial_: true`, or an object that can be called.
        keyword: call it as `function(keyword=array)`, as imgaug's are with "image".
        picture: the field that is the picture; None takes the only one.
    """

    thread_safe = False  # nobody knows what it draws from

    def __init__(
        self, function: Callable[..., Any], keyword: str | None = None, picture: str | None = None
    ) -> None:
        if not callable(function):
            reason = f"got {function!r}; give a node with _target_ and _partial_: true"
            raise ConfigError(Problem("function", reason))
        self.function = function
        self.keyword = keyword
        self.picture = picture
        given = function.keywords if isinstance(function, partial) else {}
        self._whole_range = bool(given.get("preserve_range", False))
        free = _parameters(function) - set(given)
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
        if self._moves or made.shape[:2] != picture.shape[:2]:
            _refuse_what_stays(sample, self.name)
        if picture.dtype == np.uint8:
            made = _bytes(made, self._whole_range)
        return sample | {name: tv_tensors.Image(_tensor(made))}


class Rescale:
    """Pictures at another size by `skimage.transform.resize`, antialiased; the rest follows.

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
    """The field that is the picture."""
    if not isinstance(sample, dict):
        raise DataError(
            f"the sample is a {type(sample).__name__}, where a dict of fields is needed"
        )
    names = [field for field, value in sample.items() if isinstance(value, tv_tensors.Image)]
    if name is None and len(names) != 1:
        told = f"{len(names)} pictures ({', '.join(names)}); set picture" if names else "no picture"
        raise DataError(f"the sample has {told} (tv_tensors.Image)")
    if name is not None and name not in names:
        raise DataError(f"picture: the field {name!r} of the sample is no picture "
                        "(tv_tensors.Image)")  # fmt: skip
    return name or names[0]


def _only(sample: Sample, kind: type[Any]) -> str:
    """The field of a kind, or "" where there is none."""
    names = [field for field, value in sample.items() if isinstance(value, kind)]
    if len(names) > 1:
        raise DataError(f"the sample has {len(names)} fields of {kind.__name__} "
                        f"({', '.join(names)}), where one can follow the picture")  # fmt: skip
    return names[0] if names else ""


def _array(value: torch.Tensor) -> Array:
    """[C, H, W] as [H, W, C]; [H, W] as it is."""
    plain = value.as_subclass(torch.Tensor)
    plain = plain.permute(1, 2, 0) if plain.ndim == 3 else plain
    return np.array(plain.numpy())  # of its own: some functions write into what they get


def _tensor(picture: Any) -> torch.Tensor:
    """[H, W, C] or [H, W] as [C, H, W]; a tensor, as some transforms give it, is that already."""
    if isinstance(picture, torch.Tensor):
        return picture
    picture = picture[..., None] if picture.ndim == 2 else picture
    return torch.from_numpy(np.ascontiguousarray(picture.transpose(2, 0, 1)))


def _like(value: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """`made` [C, H, W] with as many dimensions as `value` has."""
    return made[0] if value.ndim == 2 and made.ndim == 3 else made


def _corners(boxes: Any) -> torch.Tensor:
    found = F.convert_bounding_box_format(boxes, new_format=tv_tensors.BoundingBoxFormat.XYXY)
    return found.as_subclass(torch.Tensor).to(torch.float32)


def _bytes(made: Array, whole: bool) -> Array:
    """Floats from [0, 1], or [0, 255] if `whole`, and truth values as bytes."""
    if made.dtype == np.uint8:
        return made
    if made.dtype == bool or (np.issubdtype(made.dtype, np.floating) and not whole):
        made = made * 255.0
    return np.clip(np.rint(made), 0, 255).astype(np.uint8)


def _parameters(function: Any) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def _refuse_what_stays(sample: Sample, name: str) -> None:
    staying = [field for field, value in sample.items() if isinstance(value, _MOVED)]
    if staying:
        raise DataError(
            f"{name} moves the picture, and {', '.join(staying)} would stay where it is. Use "
            "pipeline.transforms.arrays.Rescale, torchvision's v2 (RandomCrop, RandomAffine) or "
            "Albumentations, with which it follows"
        )
