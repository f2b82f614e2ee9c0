"""A batch transform that puts four pictures with boxes together, and what goes with boxes.

Rows 4k to 4k + 3 of the global batch belong together, and always lie on one rank (`together`), so
what a row gets follows from its address alone. Which picture lies where is drawn by each row's own
key. A row whose group is not whole, or has padding, stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from penstock.errors import DataError
from penstock.files.limits import Fraction
from penstock.loading.batch import Batch
from penstock.loading.collate import columns, plain, stack
from penstock.order.keys import KeyedRandom
from penstock.transforms.batch import around, images_of
from penstock.transforms.crops import Shares

OF_BOXES = ("labels", "crowd", "masks", "keypoints", "visibility")
Sample = dict[str, Any]


class SanitizeBoxes:
    """Boxes cut at the picture's border; those that are smaller then are left out.

    All fields of a box go with it. (torchvision's SanitizeBoundingBoxes makes plain tensors of
    keypoints, so that no later transform moves them.)

    Args:
        min_size: of width and height in pixels.
        min_area: in square pixels.
        fields: those with a row for each box, where a sample has them.
    """

    def __init__(
        self, min_size: float = 1.0, min_area: float = 1.0, fields: Sequence[str] = OF_BOXES
    ) -> None:
        self.min_size, self.min_area, self.fields = min_size, min_area, tuple(fields)

    def __call__(self, sample: Sample) -> Sample:
        kinds = {name: type(value) for name, value in sample.items()}
        name = next((n for n, kind in kinds.items() if kind is tv_tensors.BoundingBoxes), None)
        if name is None:
            return sample
        boxes, kept = F.sanitize_bounding_boxes(
            F.clamp_bounding_boxes(sample[name]), min_size=self.min_size, min_area=self.min_area
        )
        changed = {**sample, name: boxes}
        for field in sample.keys() & {*self.fields}:
            rows = sample[field]
            if len(rows) != len(kept):
                raise DataError(
                    f"{field!r} has {len(rows)} rows for {len(kept)} boxes; name the "
                    "fields with a row for each box in `fields` of SanitizeBoxes"
                )
            marked = isinstance(rows, tv_tensors.TVTensor)
            changed[field] = plain(rows)[kept]
            if marked:
                changed[field] = tv_tensors.wrap(changed[field], like=rows)
        return changed


class ListSome:
    """Fields with a row for each box become lists of tensors, one a sample; others are stacked.

    Args:
        fields: those that become lists, where samples have them.
    """

    def __init__(self, fields: Sequence[str] = ("boxes", *OF_BOXES)) -> None:
        self.fields = frozenset(fields)

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            name: [plain(value) for value in values] if name in self.fields else stack(name, values)
            for name, values in columns(samples).items()
        }


Middle = Annotated[float, Field(ge=0.05, le=0.95)]  # a quarter has pixels
Objects = dict[str, Tensor]  # what a picture has a row of for each box
_BOXES = "boxes"


def groups(batch: Batch, size: int) -> Tensor:
    """The rows of the group of each row, int64[B, size], in one order; -1 where it is not whole."""
    places = np.asarray(batch.places)
    row_of = {int(place): row for row, place in enumerate(places)}
    firsts = places - places % size
    rows = [[row_of.get(int(first) + n, -1) for n in range(size)] for first in firsts]
    table = torch.from_numpy(np.array(rows, np.int64).reshape(len(places), size))
    whole = (table >= 0).all(1)
    if batch.valid is not None:
        whole &= batch.valid[table.clamp_min(0)].all(1)
    return torch.where(whole[:, None], table, -1)


class Mosaic:
    """Four pictures around a point, each reduced and cut to its quarter (Bochkovskiy et al.:
    "YOLOv4", 2020); boxes and masks go with them.

    Args:
        scale: by which pictures are reduced, [least, largest] of at most 1; none is smaller than
            its quarter.
        centre: where the quarters meet, as a share of width and of height, [least, largest].
        visible: boxes of which a smaller share of the area is left are left out.
        p: probability that a row is changed.
        epochs: epochs in which it works, from the first; null: all. The last are often trained
            without.
        fields: those with a row for each box, where a batch has them.
    """

    together = 4

    def __init__(
        self,
        scale: Shares = (0.5, 1.0),
        centre: Annotated[Sequence[Middle], Field(min_length=2, max_length=2)] = (0.3, 0.7),
        visible: Fraction = 0.3,
        p: Fraction = 0.5,
        epochs: int | None = None,
        fields: Sequence[str] = OF_BOXES,
    ) -> None:
        self.p, self.epochs, self.fields = p, epochs, tuple(fields)
        self.scale, self.centre, self.visible = around(scale), around(centre), visible

    def __call__(self, batch: Batch, random: KeyedRandom) -> Batch:
        images = images_of(batch, self)
        field, name = next(iter(images)), type(self).__name__
        if len(images) > 1:
            raise DataError(f"{name} takes one picture a sample, and there are {', '.join(images)}")
        for other, kind in batch.kinds.items():
            if kind == "keypoints" or (kind == "mask" and not isinstance(batch[other], list)):
                raise DataError(
                    f"{name} puts pictures with boxes together, and cannot do so with {kind} "
                    f"(field {other!r})"
                )
        if not isinstance(batch.get(_BOXES), list) or batch.kinds.get(_BOXES) != "boxes/xyxy":
            raise DataError(
                f"{name} needs a field {_BOXES!r} of BoundingBoxes XYXY in a list, a picture each: "
                "choose collate=boxes"
            )
        names = [own for own in (_BOXES, *self.fields) if own in batch]
        table = groups(batch, self.together)
        chosen = random.bernoulli(self.p) & (table[:, 0] >= 0)
        if self.epochs is not None and batch.request.epoch >= self.epochs:
            chosen = torch.zeros_like(chosen)
        before = batch[field]
        objects = [{own: batch[own][row] for own in names} for row in range(len(before))]
        draws = {
            "order": random.permutation(4),
            "centre": random.uniform(*self.centre, size=(2,)),
            "scale": random.uniform(*self.scale, size=(4,)),
        }
        pixels, made = before.clone(), list(objects)
        for row in chosen.nonzero().flatten().tolist():
            own = {key: values[row].tolist() for key, values in draws.items()}
            rows = table[row].tolist()
            pixels[row], made[row] = self._put(before, objects, row, rows, own)
        batch[field] = pixels
        for name_of_rows in names:
            batch[name_of_rows] = [row[name_of_rows] for row in made]
        return batch

    def _put(
        self,
        images: Tensor,
        objects: Sequence[Objects],
        row: int,
        rows: Sequence[int],
        draws: Mapping[str, Any],
    ) -> tuple[Tensor, Objects]:
        """The picture of a row, [C, H, W], and its objects, of those of its group."""
        height, width = images.shape[-2:]
        x, y = round(draws["centre"][0] * width), round(draws["centre"][1] * height)
        made, parts = torch.empty_like(images[row]), []
        quarters = ((0, 0, x, y), (x, 0, width, y), (0, y, x, height), (x, y, width, height))
        for quarter, member, scale in zip(quarters, draws["order"], draws["scale"], strict=True):
            left, top, right, bottom = quarter
            factor = max(scale, (right - left) / width, (bottom - top) / height)
            size = [
                max(round(height * factor), bottom - top),
                max(round(width * factor), right - left),
            ]
            # The corner of a picture that is nearest to the point lies at it.
            across = x - size[1] if left == 0 else x
            down = y - size[0] if top == 0 else y
            whole = F.resize(images[rows[member]], size, antialias=True)
            made[:, top:bottom, left:right] = whole[
                :, top - down : bottom - down, left - across : right - across
            ]
            shift = (across, down, size[1] / width, size[0] / height)
            parts.append(self._moved(objects[rows[member]], quarter, shift, (height, width)))
        joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return made, joined

    def _moved(
        self,
        objects: Objects,
        quarter: tuple[int, int, int, int],
        shift: tuple[float, float, float, float],
        canvas: tuple[int, int],
    ) -> Objects:
        """Objects where their picture lies, cut to the quarter."""
        across, down, wide, high = shift
        boxes = objects[_BOXES]
        whole = boxes * boxes.new_tensor([wide, high, wide, high])
        whole = whole + boxes.new_tensor([across, down, across, down])
        left, top, right, bottom = quarter
        cut = whole.maximum(boxes.new_tensor([left, top, left, top]))
        cut = cut.minimum(boxes.new_tensor([right, bottom, right, bottom]))
        sides, before = cut[:, 2:] - cut[:, :2], whole[:, 2:] - whole[:, :2]
        kept = (sides >= 1).all(1) & (sides.prod(1) >= self.visible * before.prod(1))
        moved = {name: values[kept] for name, values in objects.items()}
        moved[_BOXES] = cut[kept]
        if "masks" in moved:
            moved["masks"] = _placed(moved["masks"], quarter, shift, canvas)
        return moved


def _placed(
    masks: Tensor,
    quarter: tuple[int, int, int, int],
    shift: tuple[float, float, float, float],
    canvas: tuple[int, int],
) -> Tensor:
    """Masks bool[n, H, W] reduced, moved and cut as their picture was."""
    across, down, wide, high = shift
    left, top, right, bottom = quarter
    size = [round(masks.shape[-2] * high), round(masks.shape[-1] * wide)]
    small = F.resize(
        masks.to(torch.uint8), size, interpolation=F.InterpolationMode.NEAREST_EXACT
    ).to(masks.dtype)
    placed = masks.new_zeros((len(masks), *canvas))
    placed[:, top:bottom, left:right] = small[
        :, top - int(down) : bottom - int(down), left - int(across) : right - int(across)
    ]
    return placed
