"""Batch transforms that move pictures, masks, boxes and landmarks together.

Coordinates move as in torchvision v2: boxes count from edge to edge and are cut at the picture's
border, landmarks are not cut.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.ops import box_convert

from penstock.errors import ConfigError, DataError, Problem
from penstock.loading.batch import Batch
from penstock.order.keys import KeyedRandom
from penstock.transforms.batch import (
    Pair,
    Range,
    around,
    by_row,
    images_of,
    interval,
    positive,
    probability,
    some,
)
from penstock.transforms.crops import side_lengths
from penstock.transforms.image import LandmarkFlip
from penstock.transforms.warping import affine, crop_nearest, crop_resize

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Move:
    """A transform of each kind of field, with the parameters drawn for a batch.

    Its functions do not change their arguments.

    Attributes:
        height, width: of the pictures afterwards.
        image, mask: of [B, C, H, W].
        points: of places in the picture, float[B, N, 2], x and y.
        keypoints: of landmarks, float[B, N, 2]; None: as points.
    """

    height: int
    width: int
    image: Change
    mask: Change
    points: Change
    keypoints: Change | None = None


class Geometric(ABC):
    """A transform that moves pictures and everything in them."""

    @abstractmethod
    def move(self, random: KeyedRandom, height: int, width: int) -> Move:
        """The move of each row, for pictures of this size."""

    def __call__(self, batch: Batch, random: KeyedRandom) -> Batch:
        height, width = next(iter(images_of(batch, self).values())).shape[-2:]
        move = self.move(random, height, width)
        for name, kind in batch.kinds.items():
            batch[name] = _moved(batch, name, kind, move)
        return batch


def _moved(batch: Batch, name: str, kind: str, move: Move) -> object:
    value = batch[name]
    if kind == "image":
        return move.image(value)
    if kind == "mask":
        stacked = value if value.ndim == 4 else value[:, None]
        return move.mask(stacked).reshape(*value.shape[:-2], move.height, move.width)
    if isinstance(value, list):  # samples have different numbers of them
        whole = torch.nn.utils.rnn.pad_sequence(value, batch_first=True)
        moved = _coordinates(whole, kind, move)
        return [rows[: len(points)] for rows, points in zip(moved, value, strict=True)]
    moved = _coordinates(value, kind, move)
    lengths = batch.get(f"{name}_lengths")
    if lengths is None:
        return moved
    padding = torch.arange(value.shape[1], device=value.device) >= lengths[:, None]
    return torch.where(padding.reshape(*padding.shape, *[1] * (value.ndim - 2)), value, moved)


def _coordinates(value: Tensor, kind: str, move: Move) -> Tensor:
    numbers = value if value.is_floating_point() else value.to(torch.float32)
    if kind == "keypoints":
        moved = (move.keypoints or move.points)(numbers.flatten(1, -2))
    else:
        moved = _boxes(numbers.flatten(1, -2), kind.removeprefix("boxes/"), move)
    return moved.reshape(value.shape).to(value.dtype)


def _boxes(boxes: Tensor, form: str, move: Move) -> Tensor:
    """The box around each moved box, cut at the border; float[B, N, 4]."""
    if form not in ("xyxy", "xywh", "cxcywh"):
        raise DataError(f"boxes of the format {form!r} cannot be moved; use xyxy, xywh or cxcywh")
    left, top, right, bottom = box_convert(boxes, form, "xyxy").unbind(-1)
    places = ((left, top), (right, top), (right, bottom), (left, bottom))
    corners = torch.stack([move.points(torch.stack(corner, -1)) for corner in places])
    low, high = (
        torch.stack(
            [extreme[..., 0].clamp(0, move.width), extreme[..., 1].clamp(0, move.height)], -1
        )
        for extreme in (corners.amin(0), corners.amax(0))
    )
    return box_convert(torch.cat([low, high], -1), "xyxy", form)


class HorizontalFlip(Geometric):
    """Mirror each sample with probability `p`.

    Args:
        p: probability.
        pairs: numbers of landmarks that are swapped, so that a left eye stays a left eye:
            "ibug68", or a list of pairs; None for landmarks without sides.
    """

    def __init__(self, p: float = 0.5, pairs: str | Sequence[Sequence[int]] | None = None) -> None:
        self.p = probability(p, "p")
        self.pairs = [] if pairs is None else LandmarkFlip(pairs=pairs).pairs

    def move(self, random: KeyedRandom, height: int, width: int) -> Move:
        flipped = random.bernoulli(self.p)

        def image(images: Tensor) -> Tensor:
            return some(images, flipped, lambda rows: rows.flip(-1))

        def mirrored(points: Tensor, last: int) -> Tensor:
            moved = torch.stack([last - points[..., 0], points[..., 1]], dim=-1)
            return torch.where(by_row(flipped, points), moved, points)

        def keypoints(points: Tensor) -> Tensor:
            # A landmark counts pixels and not edges: the last of them is width - 1.
            moved = mirrored(points, width - 1)
            order = torch.arange(points.shape[1])
            for left, right in self.pairs:
                order[left], order[right] = right, left
            swapped = moved[:, order.to(points.device)]
            return torch.where(by_row(flipped, points), swapped, moved)

        return Move(height, width, image, image, lambda points: mirrored(points, width), keypoints)


def random_sides(random: KeyedRandom, scale: Pair, ratio: Pair, area: int) -> Tensor:
    """Ten sides by sqrt(area * ratio), sqrt(area / ratio) for each row: int64[B, 10, 2].

    Args:
        scale: least and largest share of `area`, in pixels.
        ratio: least and largest ratio; its logarithm is drawn evenly.
    """
    areas = random.uniform(*scale, (10,)) * area
    low, high = (math.log(bound) for bound in ratio)
    ratios = random.uniform(low, high, (10,)).exp()
    return torch.stack([(areas * ratios).sqrt(), (areas / ratios).sqrt()], -1).round().long()


class RandomResizedCrop(Geometric):
    """A part of each picture, resized to one size with antialiasing.

    The boxes are drawn as torchvision draws them: up to ten tries, then the largest that fits.

    Args:
        size: height and width of the result; one number for a square.
        scale: least and largest share of the area.
        ratio: least and largest width per height.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Range = (0.08, 1.0),
        ratio: Range = (3 / 4, 4 / 3),
    ) -> None:
        self.size = side_lengths(size)
        self.scale = interval(scale, "scale", 0.0, 1.0)
        self.ratio = positive(ratio, "ratio")

    def move(self, random: KeyedRandom, height: int, width: int) -> Move:
        boxes, size = self.boxes(random, height, width), self.size

        def points(points: Tensor) -> Tensor:
            top, left, high, wide = boxes.double().unbind(1)
            corner = torch.stack([left, top], -1)[:, None].to(points.device, points.dtype)
            scale = torch.stack([size[1] / wide, size[0] / high], -1)[:, None]
            return (points - corner) * scale.to(points.device, points.dtype)

        return Move(
            *size,
            lambda images: crop_resize(images, boxes, size),
            lambda masks: crop_nearest(masks, boxes, size),
            points,
        )

    def boxes(self, random: KeyedRandom, height: int, width: int) -> Tensor:
        """int64[B, 4]: top, left, height, width."""
        sides = random_sides(random, self.scale, self.ratio, height * width).flip(-1)
        room = torch.tensor([height, width]) - sides
        fits = ((sides > 0) & (room >= 0)).all(-1)
        first = fits.int().argmax(1, keepdim=True)  # the first of the largest, as documented
        chosen = torch.take_along_dim(sides, first[..., None], 1)[:, 0]
        corner = (random.uniform(size=(2,)) * (torch.tensor([height, width]) - chosen + 1)).long()
        boxes = torch.cat([corner, chosen], 1)
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        high, wide = min(height, round(width / ratio)), min(width, round(height * ratio))
        largest = torch.tensor([(height - high) // 2, (width - wide) // 2, high, wide])
        return torch.where(fits.any(1, keepdim=True), boxes, largest)


class Affine(Geometric):
    """Turn, scale, shear and shift each picture about its centre.

    Args:
        degrees: largest angle to either side, or [least, largest].
        translate: largest shift to either side, [x, y] as shares of width and height.
        scale: least and largest factor.
        shear: largest angle of shearing along x to either side in degrees, or [least, largest].
        p: probability of doing anything.
        fill: value outside of the picture, in the pixels' units.
        ignored: the number outside of masks of whole numbers; the build puts in the objective's.
    """

    def __init__(
        self,
        degrees: float | Range = 0.0,
        translate: Range = (0.0, 0.0),
        scale: Range = (1.0, 1.0),
        shear: float | Range = 0.0,
        p: float = 1.0,
        fill: float = 0.0,
        ignored: int = 0,
    ) -> None:
        if len(translate) != 2 or not all(0 <= share <= 1 for share in translate):
            raise ConfigError(
                Problem(
                    "translate",
                    f"got {translate!r}, expected two shares of width and height, from 0 to 1",
                )
            )
        self.degrees = around(degrees, "degrees")
        self.translate = tuple(translate)
        self.scale = positive(scale, "scale")
        self.shear = around(shear, "shear", least=-89.0, most=89.0)
        self.p = probability(p, "p")
        self.fill, self.ignored = fill, ignored

    def move(self, random: KeyedRandom, height: int, width: int) -> Move:
        matrices = self.matrices(random, height, width)
        return affine_move(matrices, height, width, self.fill, self.ignored)

    def matrices(self, random: KeyedRandom, height: int, width: int) -> Tensor:
        """float64[B, 2, 3], as `forward` gives them."""
        angle, shear = random.uniform(*self.degrees), random.uniform(*self.shear)
        scale = random.uniform(*self.scale)
        room = torch.tensor([self.translate[0] * width, self.translate[1] * height])
        shift = (random.uniform(-1, 1, (2,)) * room).round()
        still = ~random.bernoulli(self.p)
        angle, shear = angle.masked_fill(still, 0), shear.masked_fill(still, 0)
        scale, shift = scale.masked_fill(still, 1), shift.masked_fill(still[:, None], 0)
        return forward(angle, scale, shear, shift)


def forward(angle: Tensor, scale: Tensor, shear: Tensor, shift: Tensor) -> Tensor:
    """float64[B, 2, 3] from a point about the centre to where it goes: shear, scale, turn, shift.

    Args:
        angle, shear: degrees, [B]. y points down, so a positive angle turns clockwise.
        scale: [B].
        shift: pixels, x and y, [B, 2].
    """
    turn, lean = torch.deg2rad(angle.double()), torch.tan(torch.deg2rad(shear.double()))
    cos, sin = turn.cos() * scale, turn.sin() * scale
    x = torch.stack([cos, -cos * lean - sin, shift[:, 0].double()], -1)
    y = torch.stack([sin, -sin * lean + cos, shift[:, 1].double()], -1)
    return torch.stack([x, y], 1)


def affine_move(matrices: Tensor, height: int, width: int, fill: float, ignored: int = 0) -> Move:
    (a, b, c), (d, e, f) = (row.unbind(1) for row in matrices.unbind(1))
    area = a * e - b * d
    x = torch.stack([e / area, -b / area, (b * f - e * c) / area], -1)
    y = torch.stack([-d / area, a / area, (d * c - a * f) / area], -1)
    inverse = torch.stack([x, y], 1)

    def points(points: Tensor) -> Tensor:
        rows = matrices.flatten(1)[:, :, None].to(points.device, points.dtype)
        a, b, c, d, e, f = rows.unbind(1)
        x, y = points[..., 0] - width / 2, points[..., 1] - height / 2
        moved = [x * a + y * b + c + width / 2, x * d + y * e + f + height / 2]
        return torch.stack(moved, dim=-1)

    def mask(masks: Tensor) -> Tensor:
        numbers = masks.dtype != torch.bool and not masks.is_floating_point()
        return affine(masks, inverse, ignored if numbers else 0.0, nearest=True)

    return Move(
        height,
        width,
        lambda images: affine(images, inverse, fill),
        mask,
        points,
    )
