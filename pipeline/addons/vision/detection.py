"""Boxes: the transform and the collate function that keep them whole, and the objective of
detectors, which have the form of torchvision's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from penstock.errors import ConfigError, DataError, Problem
from penstock.loading.collate import columns, plain, stack
from penstock.training.adapter import Rendered

if TYPE_CHECKING:
    from torchmetrics import Metric

OF_BOXES = ("labels", "crowd", "masks", "keypoints", "visibility")  # have a row for each box
Sample = dict[str, Any]
_SURE = 0.5  # the least score of a box that is drawn


class SanitizeBoxes:
    """Boxes cut at the image's border; those that are smaller then are left out.

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
        name = next(
            (n for n, value in sample.items() if isinstance(value, tv_tensors.BoundingBoxes)), None
        )
        if name is None:
            return sample
        # Cut first: torchvision leaves out each box that reaches over the border.
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
            changed[field] = tv_tensors.wrap(plain(rows)[kept], like=rows)
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


class Detection:
    """Boxes and their classes, by a model of torchvision's form.

    In training the model takes images and targets, `boxes` float32[n, 4] and `labels` int64[n]
    (and `masks`, `keypoints`) for each, and gives losses by name. Else it takes images, and gives
    `boxes`, `labels` and `scores` for each. Groups of objects (`crowd`) are not trained on, and
    count neither way in metrics.

    Args:
        metrics: by name.
        classes: their names, that of the background first.
        image, boxes, labels: names of the fields.
    """

    # torchvision's detectors give losses in training mode only.
    validates_loss = False

    def __init__(
        self,
        metrics: Mapping[str, Metric],
        classes: Sequence[str] | None = None,
        image: str = "image",
        boxes: str = "boxes",
        labels: str = "labels",
    ) -> None:
        self.metrics = metrics
        self.classes = list(classes or [])
        self.inputs = [image]
        self.fields = {"boxes": boxes, "labels": labels}

    def loss(self, model: nn.Module, batch: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """The model's losses by name, a number each for the batch."""
        targets = self.targets(batch)
        # The box of a group covers many objects, and is no example of one.
        if "crowd" in batch:
            targets = [
                {name: values[own["iscrowd"] == 0] for name, values in own.items()}
                for own in targets
            ]
        losses: Mapping[str, Tensor] = model(list(batch[self.inputs[0]]), targets)
        if not isinstance(losses, Mapping):
            reason = (
                f"gives a {type(losses).__name__} for images and targets, not a mapping of "
                "losses; objective=detection takes model=small_detector, torchvision_detector, or "
                "one of your own that is called as they are"
            )
            raise ConfigError(Problem("model", reason))
        return losses

    def outputs(self, model: nn.Module, batch: Mapping[str, Any]) -> list[dict[str, Tensor]]:
        """Boxes, labels and scores of each image."""
        found: list[dict[str, Tensor]] = model(list(batch[self.inputs[0]]))
        return [
            {
                # Masks as bits, as metrics take them; torchvision gives probabilities [n, 1, H, W].
                name: value.squeeze(1) > 0.5 if name == "masks" and value.ndim == 4 else value
                for name, value in own.items()
            }
            for own in found
        ]

    def measured(
        self, outputs: list[dict[str, Tensor]], batch: Mapping[str, Any]
    ) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
        """Predictions and truth as MeanAveragePrecision takes them."""
        return outputs, self.targets(batch)

    def targets(self, batch: Mapping[str, Any]) -> list[dict[str, Tensor]]:
        """The truth, by image."""
        for key, name in self.fields.items():
            # Stacked boxes would mean that all images have the same number, by chance.
            if not isinstance(batch.get(name), list):
                reason = (
                    f"{name!r} has to be a list of tensors, an image each; use collate=boxes. A "
                    f"batch has {', '.join(batch)}"
                )
                raise ConfigError(Problem(f"objective.{key}", reason))
        names = {"iscrowd": "crowd", "masks": "masks", "keypoints": "keypoints", **self.fields}
        there = {key: batch[name] for key, name in names.items() if name in batch}
        rows = [dict(zip(there, row, strict=True)) for row in zip(*there.values(), strict=True)]
        for row, visible in zip(rows, batch.get("visibility", ()), strict=False):
            # torchvision's form: x, y and visibility in one tensor
            points = row["keypoints"]
            row["keypoints"] = torch.cat([points, visible[..., None].to(points.dtype)], -1)
        return rows

    def rows(
        self, outputs: list[dict[str, Tensor]], batch: Mapping[str, Any]
    ) -> list[dict[str, list[Any]]]:
        """`boxes` (x and y of two corners, in pixels of what the model saw), `labels`, `scores`."""
        return [
            {
                "boxes": own["boxes"].tolist(),
                "labels": self._names(own["labels"]),
                "scores": own["scores"].tolist(),
            }
            for own in outputs
        ]

    def rendered(
        self, batch: Mapping[str, Any], outputs: list[dict[str, Tensor]] | None = None
    ) -> list[Rendered]:
        """True boxes, and those that are predicted with a score of 0.5 or more."""
        drawn = []
        for row, target in enumerate(self.targets(batch)):
            names, boxes = self._names(target["labels"]), target["boxes"]
            if outputs is None:
                drawn.append(Rendered(", ".join(names), boxes=boxes, labels=names))
                continue
            sure = outputs[row]["scores"] >= _SURE
            own = {name: values[sure] for name, values in outputs[row].items()}
            scored = zip(self._names(own["labels"]), own["scores"].tolist(), strict=True)
            guesses = [f"{name} {score:.2f}" for name, score in scored]
            words = f"{len(guesses)} found, {len(names)} true"
            drawn.append(
                Rendered(
                    "",
                    words,
                    boxes=boxes,
                    labels=names,
                    predicted_boxes=own["boxes"],
                    predicted_labels=guesses,
                )
            )
        return drawn

    def _names(self, labels: Tensor) -> list[str]:
        """The names of classes; a detector with more of them than the data has none for some."""
        known = dict(enumerate(self.classes))
        return [known.get(label, str(label)) for label in labels.tolist()]
