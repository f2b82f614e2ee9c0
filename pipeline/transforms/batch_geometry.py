"""Batch transforms that move pictures, masks, boxes and landmarks together.

Coordinates move as in torchvision v2: boxes count from edge to edge and are cut at the picture's
border, landmarks are not cut. Pixels are float32 or uint8 [B, C, H, W]; parameters are float64 or
int64 on the CPU. A row depends on its own pixels and parameters alone, to the last bit: sums whose
order could depend on the batch (matrix products, `add` with a factor) are written out. Between a
CPU and a GPU, uint8 pixels differ by at most 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from torchvision.ops import box_convert

from penstock.errors import DataError
from penstock.files.limits import Fraction
from penstock.loading.batch import Batch
from penstock.order.keys import KeyedRandom
from penstock.transforms.batch import around, by_row, images_of
from penstock.transforms.crops import (
    Crops,
    Distance,
    RandomAreaCrop,
    Range,
    Ratios,
    Shares,
    Size,
    side_lengths,
)
from penstock.transforms.image import Pairs, mirror_order
from penstock.transforms.native_images import resized

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Move:
    """A transform of each kind of field, with the parameters drawn for a batch.

    Its functions do not change their arguments.

    Attributes:
        height, width: of the pictures afterwards.
        image, mask: of [B, C, H, W].
        points: of places in the picture, float[B, N, 2], x and y.
        keypoints: of landmarks, float[B, ..., N, 2], of which the first `fewest` of each sample
            are no padding; None: as points.
    """

    height: int
    width: int
    image: Change
    mask: Change
    points: Change
    keypoints: Callable[[Tensor, int], Tensor] | None = None


class Geometric(ABC):
    """A transform that moves pictures and everything in them."""

    @abstractmethod
    def move(self, random: KeyedRandom, height: int, width: int) -> Move:
        """The move of each row, for pictures of this size."""

    def __call__(self, batch: Batch, random: KeyedRandom) -> Batch:
        height, width = next(iter(images_of(batch, self).values())).shape[-2:]
        move = self.move(random, height, width)
        for name, kind in batch.kinds.items():
            value = batch[name]
            if kind != "mask":
                batch[name] = move.image(value) if kind == "image" else _moved(batch, name, move)
            elif not isinstance(value, Tensor) or value.shape[-2:] != (height, width):
                raise DataError(
                    f"{type(self).__name__} moves masks of the size of the picture, stacked to "
                    f"[B, ..., {height}, {width}], and {name!r} is not"
                )
            else:
                # Masks of objects, [B, N, H, W], move as channels do.
                masks = move.mask(value.flatten(1, -3) if value.ndim > 3 else value[:, None])
                batch[name] = masks.reshape(*value.shape[:-2], move.height, move.width)
        return batch


def _moved(batch: Batch, name: str, move: Move) -> object:
    """A field of landmarks or boxes, float or int [B, ..., N, 2 or 4], or a list of such."""
    value, kind = batch[name], batch.kinds[name]
    if isinstance(value, list):  # samples have different numbers of them
        whole = torch.nn.utils.rnn.pad_sequence(value, batch_first=True)
        moved = _coordinates(whole, kind, move, torch.tensor([len(points) for points in value]))
        return [rows[: len(points)] for rows, points in zip(moved, value, strict=True)]
    lengths = batch.get(f"{name}_lengths")
    moved = _coordinates(value, kind, move, lengths)
    if lengths is None:
        return moved
    # Padding keeps its value: it is no place in the picture.
    padding = torch.arange(value.shape[1], device=value.device) >= lengths[:, None]
    return torch.where(padding.reshape(*padding.shape, *[1] * (value.ndim - 2)), value, moved)


def _coordinates(value: Tensor, kind: str, move: Move, lengths: Tensor | None) -> Tensor:
    numbers = value if value.is_floating_point() else value.to(torch.float32)
    if kind == "keypoints" and move.keypoints is not None:
        # [B, N, 2] is padded in N; with more dimensions it is objects that are padded.
        padded = lengths if value.ndim == 3 and len(value) else None
        moved = move.keypoints(numbers, value.shape[-2] if padded is None else int(padded.min()))
    elif kind == "keypoints":
        moved = move.points(numbers.flatten(1, -2))
    else:
        moved = _boxes(numbers.flatten(1, -2), kind.removeprefix("boxes/"), move)
    return moved.reshape(value.shape).to(value.dtype)


def _boxes(boxes: Tensor, form: str, move: Move) -> Tensor:
    """The box around each moved box, cut at the border; float[B, N, 4]."""
    left, top, right, bottom = box_convert(boxes, form, "xyxy").unbind(-1)
    # A turned box is no box: all four corners move, and the box around them is taken.
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

    def __init__(self, p: Fraction = 0.5, pairs: Pairs | None = None) -> None:
        self.p, self.pairs = p, pairs or []

    def move(self, random: KeyedRandom, height: int, width: int) -> Move:
        flipped = random.bernoulli(self.p)

        def image(images: Tensor) -> Tensor:
            return torch.where(by_row(flipped, images), images.flip(-1), images)

        def mirrored(points: Tensor, last: int) -> Tensor:
            moved = torch.stack([last - points[..., 0], points[..., 1]], dim=-1)
            return torch.where(by_row(flipped, points), moved, points)

        def keypoints(points: Tensor, fewest: int) -> Tensor:
            # A landmark counts pixels and not edges: the last of them is width - 1.
            moved = mirrored(points, width - 1)
            order = mirror_order(self.pairs, points.shape[-2], fewest)
            swapped = moved[..., order.to(points.device), :]
            return torch.where(by_row(flipped, points), swapped, moved)

        return Move(height, width, image, image, lambda points: mirrored(points, width), keypoints)


class RandomResizedCrop(Geometric):
    """A part of each picture, resized to one size with antialiasing.

    The parts are drawn as by `RandomAreaCrop`.

    Args:
        size: height and width of the result; one number for a square.
        scale: least and largest share of the area.
        ratio: least and largest width per height.
    """

    def __init__(
        self,
        size: Size,
        scale: Shares = (0.08, 1.0),
        ratio: Ratios = (3 / 4, 4 / 3),
    ) -> None:
        self.size = side_lengths(size)
        self.crop = RandomAreaCrop(scale, ratio, flip=0.0)

    def move(self, random: KeyedRandom, height: int, width: int) -> Move:
        sizes = (np.full(len(random.keys), side) for side in (width, height))
        crops, size = self.crop(random.child("crop").keys, *sizes), self.size

        def points(points: Tensor) -> Tensor:
            regions = torch.from_numpy(crops.regions)[:, None].to(points.device, points.dtype)
            corner, extent = regions[..., :2], regions[..., 2:] - regions[..., :2]
            return (points - corner) * (points.new_tensor(size[::-1]) / extent)

        return Move(
            *size,
            lambda images: crop_resize(images, crops, size),
            lambda masks: crop_nearest(masks, crops, size),
            points,
        )


class Affine(Geometric):
    """Turn, scale, shear and shift each picture about its centre.

    Args:
        degrees: largest angle to either side, or [least, largest]; clockwise.
        translate: largest shift to either side, [x, y] as shares of width and height.
        scale: least and largest factor.
        shear: largest angle of shearing along x to either side in degrees, or [least, largest].
        p: probability of doing anything.
        fill: value outside of the picture, in the pixels' units.
        ignored: the number outside of masks of whole numbers; the build puts in the objective's.
    """

    def __init__(
        self,
        degrees: Distance | Range = 0.0,
        translate: Annotated[Sequence[Fraction], Field(min_length=2, max_length=2)] = (0.0, 0.0),
        scale: Ratios = (1.0, 1.0),
        shear: Distance | Range = 0.0,
        p: Fraction = 1.0,
        fill: float = 0.0,
        ignored: int = 0,
    ) -> None:
        self.degrees, self.shear = around(degrees), around(shear, least=-89.0, most=89.0)
        self.translate, self.scale, self.p = translate, around(scale), p
        self.fill, self.ignored = fill, ignored

    def move(self, random: KeyedRandom, height: int, width: int) -> Move:
        angle, shear = random.uniform(*self.degrees), random.uniform(*self.shear)
        scale = random.uniform(*self.scale)
        room = torch.tensor([self.translate[0] * width, self.translate[1] * height])
        shift = (random.uniform(-1, 1, (2,)) * room).round()  # whole pixels, as torchvision's
        still = ~random.bernoulli(self.p)
        # From a point about the centre to where it goes: shear, scale, turn, shift.
        turn = torch.deg2rad(angle.masked_fill(still, 0))
        lean = torch.tan(torch.deg2rad(shear.masked_fill(still, 0)))
        scale, (c, f) = scale.masked_fill(still, 1), shift.masked_fill(still[:, None], 0).unbind(1)
        a, d = turn.cos() * scale, turn.sin() * scale
        b, e = -a * lean - d, -d * lean + a
        area = a * e - b * d  # the determinant; pixels are fetched by the inverse map
        back = [e, -b, b * f - e * c, -d, a, d * c - a * f]
        inverse = torch.stack([number / area for number in back], -1).reshape(-1, 2, 3)

        def points(points: Tensor) -> Tensor:
            rows = torch.stack([a, b, c, d, e, f])[:, :, None].to(points.device, points.dtype)
            x, y = points[..., 0] - width / 2, points[..., 1] - height / 2
            (a_, b_, c_), (d_, e_, f_) = rows[:3], rows[3:]
            moved = [x * a_ + y * b_ + c_ + width / 2, x * d_ + y * e_ + f_ + height / 2]
            return torch.stack(moved, dim=-1)

        def mask(masks: Tensor) -> Tensor:
            numbers = masks.dtype != torch.bool and not masks.is_floating_point()
            return affine(masks, inverse, self.ignored if numbers else 0.0, nearest=True)

        return Move(height, width, lambda images: affine(images, inverse, self.fill), mask, points)


def crop_resize(images: Tensor, crops: Crops, size: tuple[int, int]) -> Tensor:
    """Regions of the pictures, resized with antialiasing; uint8 on a CPU by `native_images`.

    Others by two matrix products a row: B * C * H * W' * (W + H') products.

    Args:
        images: [B, C, H, W].
        crops: at whole pixels.
        size: height and width of the result.
    """
    if images.device.type == "cpu" and images.dtype == torch.uint8:
        return resized(images, crops, size)
    rows, channels, height, width = images.shape
    left, top, right, bottom = torch.from_numpy(crops.regions).unbind(1)
    down = _resize_weights(top, bottom - top, height, size[0], images.device)
    across = _resize_weights(left, right - left, width, size[1], images.device)
    pixels = images.to(torch.float32).reshape(rows, channels * height, width)
    pixels = torch.bmm(pixels, across.transpose(1, 2)).reshape(rows, channels, height, size[1])
    return _rounded(torch.matmul(down[:, None], pixels), images.dtype)


def _resize_weights(
    start: Tensor, extent: Tensor, length: int, size: int, device: torch.device
) -> Tensor:
    """Weights of each of `length` pixels for each of `size`: float32[B, size, length].

    A triangle as wide as the output's pixel, but not narrower than the input's, as in Pillow.

    Args:
        start, extent: [B], the part of the line that is resized; pixels outside have no weight.
    """
    first, span = (t.to(device, torch.float64)[:, None, None] for t in (start, extent))
    scale = span / size
    centres = first + (torch.arange(size, device=device)[:, None] + 0.5) * scale
    pixels = torch.arange(length, device=device) + 0.5
    weights = (1 - (pixels - centres).abs() / scale.clamp(min=1.0)).clamp(min=0)
    weights = weights * ((pixels > first) & (pixels < first + span))
    return (weights / weights.sum(-1, keepdim=True)).to(torch.float32)


def crop_nearest(masks: Tensor, crops: Crops, size: tuple[int, int]) -> Tensor:
    """Regions of masks [B, C, H, W], resized by nearest neighbours."""
    regions = torch.from_numpy(crops.regions).to(masks.device, torch.int64)
    left, top, right, bottom = regions[:, :, None].unbind(1)
    # In whole numbers, so that a GPU picks the same pixels.
    down = top + torch.arange(size[0], device=masks.device) * (bottom - top) // size[0]
    across = left + torch.arange(size[1], device=masks.device) * (right - left) // size[1]
    rows = torch.arange(len(masks), device=masks.device)[:, None, None]
    picked = masks.movedim(1, -1)[rows, down[:, :, None], across[:, None, :]]
    return picked.movedim(-1, 1).contiguous()


def affine(images: Tensor, inverse: Tensor, fill: float = 0.0, nearest: bool = False) -> Tensor:
    """Each row under an affine map, as in torchvision.

    Args:
        images: [B, C, H, W].
        inverse: float64[B, 2, 3], from an output's pixel to the input's, both counted from the
            picture's centre.
        fill: value outside of the picture, in the pixels' units.
        nearest: take the nearest pixel instead of a mean of four; for masks, of any whole numbers.
    """
    height, width = images.shape[-2:]
    x = torch.arange(width, device=images.device) - (width - 1) / 2
    y = (torch.arange(height, device=images.device) - (height - 1) / 2)[:, None]
    matrix = inverse.to(images.device, torch.float32)
    a, b, c, d, e, f = matrix.flatten(1)[:, :, None, None].unbind(1)
    # Where each pixel comes from, -1 to 1 from edge to edge. Products and sums one by one: torch's
    # affine_grid is a matrix product, which orders them by the size of the batch.
    grid = torch.stack(
        [(x * a + y * b + c) * (2 / width), (x * d + y * e + f) * (2 / height)], dim=-1
    )
    # grid_sample puts zeros outside: shifted by `fill`, they are that value.
    pixels = images.to(torch.float32) - fill
    mode = "nearest" if nearest else "bilinear"
    warped = F.grid_sample(pixels, grid, mode, padding_mode="zeros", align_corners=False) + fill
    return warped.round_().to(images.dtype) if nearest else _rounded(warped, images.dtype)


def _rounded(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    return pixels.to(dtype) if dtype.is_floating_point else pixels.round_().clamp_(0, 255).to(dtype)
