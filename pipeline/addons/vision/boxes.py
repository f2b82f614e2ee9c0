"""Boxes of pictures: left out where a transform has cut them away, and put together as lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from penstock.errors import DataError
from penstock.loading.collate import columns, plain, stack

OF_BOXES = ("labels", "crowd", "masks", "keypoints", "visibility")
Sample = dict[str, Any]


class SanitizeBoxes:
    """Boxes cut at the picture's border; those that are smaller then are left out.

    All fields of a box go with it, which torchvision's SanitizeBoundingBoxes does for
    labels and masks alone.

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
        changed = dict(sample)
        for name, value in sample.items():
            if not isinstance(value, tv_tensors.BoundingBoxes):
                continue
            boxes = F.clamp_bounding_boxes(value)
            _, kept = F.sanitize_bounding_boxes(
                plain(boxes),
                format=value.format,
                canvas_size=value.canvas_size,
                min_size=self.min_size,
                min_area=self.min_area,
            )
            changed[name] = tv_tensors.wrap(plain(boxes)[kept], like=value)
            for field in self.fields:
                if field in sample:
                    rows = sample[field]
                    if len(rows) != len(kept):
                        raise DataError(
                            f"{field!r} has {len(rows)} rows for {len(kept)} boxes; name the "
                            "fields with a row for each box in `fields` of SanitizeBoxes"
                        )
                    marked = isinstance(rows, tv_tensors.TVTensor)
                    chosen = plain(rows)[kept]
                    changed[field] = tv_tensors.wrap(chosen, like=rows) if marked else chosen
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
