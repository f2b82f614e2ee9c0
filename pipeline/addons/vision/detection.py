"""Boxes: the transform and the collate function that keep them whole, the objective of detectors,
and a small detector that learns in a minute on a CPU.

Detectors are called as torchvision's are: with images and targets in training, for losses by name;
with images else, for boxes (float32[n, 4], corners in pixels), labels and scores of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision import tv_tensors
from torchvision.ops import (
    Conv2dNormActivation,
    batched_nms,
    clip_boxes_to_image,
    sigmoid_focal_loss,
)
from torchvision.transforms.v2.functional import clamp_bounding_boxes, sanitize_bounding_boxes

from penstock.loading.collate import columns, plain, stack
from penstock.training.adapter import Rendered, require

if TYPE_CHECKING:
    from torchmetrics import Metric

OF_BOXES = ("labels", "crowd", "masks", "keypoints", "visibility")  # have a row for each box
Sample = dict[str, Any]
_SURE = 0.5  # the least score of a box that is drawn
STRIDE = 4  # pixels between two cells of SmallDetector
Target = dict[str, Tensor]


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
        boxes, kept = sanitize_bounding_boxes(
            clamp_bounding_boxes(sample[name]), min_size=self.min_size, min_area=self.min_area
        )
        fields = [field for field in self.fields if field in sample]
        rows = {n: tv_tensors.wrap(plain(sample[n])[kept], like=sample[n]) for n in fields}
        return {**sample, **rows, name: boxes}


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
    """

    # torchvision's detectors give losses in training mode only.
    validates_loss = False

    inputs = ("image",)

    def __init__(self, metrics: Mapping[str, Metric], classes: Sequence[str] | None = None) -> None:
        self.metrics = metrics
        self.classes = dict(enumerate(classes or ()))

    def loss(self, model: nn.Module, batch: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """The model's losses by name, a number each for the batch."""
        targets = self.targets(batch)
        # The box of a group covers many objects, and is no example of one.
        if "crowd" in batch:
            targets = [
                {name: values[own["iscrowd"] == 0] for name, values in own.items()}
                for own in targets
            ]
        losses: Mapping[str, Tensor] = model(list(batch["image"]), targets)
        require(
            isinstance(losses, Mapping),
            "model",
            f"gives a {type(losses).__name__} for images and targets, not a mapping of losses; "
            "objective=detection takes model=small_detector, torchvision_detector, or one of your "
            "own that is called as they are",
        )
        return losses

    def outputs(self, model: nn.Module, batch: Mapping[str, Any]) -> list[dict[str, Tensor]]:
        """Boxes, labels and scores of each image."""
        found: list[dict[str, Tensor]] = model(list(batch["image"]))
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
        # Stacked boxes would mean that all images have the same number, by chance.
        require(
            isinstance(batch.get("boxes"), list) and isinstance(batch.get("labels"), list),
            "collate",
            "'boxes' and 'labels' have to be lists of tensors, an image each; use collate=boxes. A "
            f"batch has {', '.join(batch)}",
        )
        # By torchmetrics' names.
        there = {
            "iscrowd" if name == "crowd" else name: batch[name]
            for name in ("boxes", "labels", "crowd", "masks", "keypoints")
            if name in batch
        }
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
        truths = [
            Rendered(boxes=own["boxes"], labels=self._names(own["labels"]))
            for own in self.targets(batch)
        ]
        if outputs is None:
            return truths
        drawn = []
        for true, own in zip(truths, outputs, strict=True):
            boxes, labels, scores = (
                own[name][own["scores"] >= _SURE] for name in ("boxes", "labels", "scores")
            )
            named = zip(self._names(labels), scores.tolist(), strict=True)
            guesses = [f"{name} {score:.2f}" for name, score in named]
            words = f"{len(guesses)} found, {len(true.labels)} true"
            drawn.append(
                replace(true, predicted=words, predicted_boxes=boxes, predicted_labels=guesses)
            )
        return drawn

    def _names(self, labels: Tensor) -> list[str]:
        """The names of classes; a detector with more of them than the data has none for some."""
        return [self.classes.get(label, str(label)) for label in labels.tolist()]


class SmallDetector(nn.Module):
    """A small network without anchors: each cell of 4 pixels says which class has its centre there,
    and how far the box reaches from it (CenterNet's form: Zhou et al., "Objects as Points", 2019).

    Images of a batch have one size.

    Args:
        num_classes: the background included; a fact of the dataset.
        width: channels of the first convolution.
    """

    def __init__(self, num_classes: int, width: int = 24) -> None:
        super().__init__()
        wide, wider = 2 * width, 4 * width
        self.stem = nn.Sequential(
            Conv2dNormActivation(3, width, stride=2),
            Conv2dNormActivation(width, wide, stride=2),
            Conv2dNormActivation(wide, wide),
            Conv2dNormActivation(wide, wide),
        )
        self.context = nn.Sequential(
            Conv2dNormActivation(wide, wider, stride=2),
            Conv2dNormActivation(wider, wider, dilation=2),
            nn.Conv2d(wider, wide, 1),
        )
        hidden, last = nn.Conv2d(wide, wide, 3, 1, 1), nn.Conv2d(wide, num_classes - 1 + 4, 1)
        # Few cells have a centre: scores that begin at 0.5 would cost the first hundred steps.
        last.bias = nn.Parameter(torch.tensor([-4.0] * (num_classes - 1) + [0.0] * 4))
        self.heads = nn.Sequential(hidden, nn.ReLU(), last)

    def forward(self, images: list[Tensor], targets: list[Target] | None = None) -> Any:
        batch = torch.stack(list(images))
        # Images come in [0, 1]: torchvision's detectors, too, normalize by themselves.
        fine = self.stem(batch - 0.5)
        coarse = F.interpolate(self.context(fine), size=fine.shape[-2:], mode="nearest")
        # In 32 bits, also under autocast: a focal loss sums thousands of small numbers.
        maps = self.heads(fine + coarse).float()
        logits, reach = maps[:, :-4], F.softplus(maps[:, -4:])  # in cells
        if targets is not None and self.training:
            return self._losses(logits, reach, targets)
        height, width = batch.shape[-2:]
        return [
            self._boxes(own, far, (height, width)) for own, far in zip(logits, reach, strict=True)
        ]

    def _losses(self, logits: Tensor, reach: Tensor, targets: list[Target]) -> dict[str, Tensor]:
        truth, weights = torch.zeros_like(logits), torch.ones_like(logits)
        # With a zero in front, so that a batch without boxes has a loss, too.
        distances = [logits.new_zeros(())]
        rows, columns = logits.shape[-2:]
        ys = torch.arange(rows, device=logits.device)[:, None] + 0.5
        xs = torch.arange(columns, device=logits.device) + 0.5
        for number, target in enumerate(targets):
            boxes = target["boxes"].float() / STRIDE
            for box, label in zip(boxes, target["labels"].tolist(), strict=True):
                centre, side = (box[:2] + box[2:]) / 2, (box[2:] - box[:2]).clamp_min(1e-3)
                column = int(centre[0].clamp(0, columns - 1))
                row = int(centre[1].clamp(0, rows - 1))
                near = ((xs - centre[0]) / side[0]) ** 2 + ((ys - centre[1]) / side[1]) ** 2
                # Cells close to a centre are no mistakes; the closer, the less they count.
                weights[number, label - 1] *= 1 - torch.exp(-near / (2 * 0.12**2))
                truth[number, label - 1, row, column] = 1.0
                # All cells in the middle of a box learn how far it reaches.
                middle = near < 0.2**2
                middle[row, column] = True
                far = torch.broadcast_tensors(xs - box[0], ys - box[1], box[2] - xs, box[3] - ys)
                gaps = (reach[number] - torch.stack(far).clamp_min(0)).abs()
                distances.append((gaps[:, middle] / side.repeat(2)[:, None]).mean())
        # A centre counts in full, also where it lies close to another one.
        weights = torch.where(truth > 0, torch.ones_like(weights), weights)
        focal = sigmoid_focal_loss(logits, truth, alpha=0.5, gamma=2.0)
        count = max(len(distances) - 1, 1)
        return {
            "classes": 4 * (focal * weights).sum() / count,
            "boxes": 4 * torch.stack(distances).sum() / count,
        }

    def _boxes(self, logits: Tensor, reach: Tensor, size: tuple[int, int]) -> Target:
        scores = logits.sigmoid()
        # A cell with a likelier neighbour is another view of the same object.
        peaks = scores * (F.max_pool2d(scores, 3, 1, 1) == scores)
        values, places = peaks.flatten().topk(min(100, peaks.numel()))
        labels, rows, columns = torch.unravel_index(places, peaks.shape)
        at, far = torch.stack([columns, rows], 1) + 0.5, reach[:, rows, columns].T
        corners = torch.cat([at - far[:, :2], at + far[:, 2:]], 1) * STRIDE
        boxes = clip_boxes_to_image(corners, size)
        # Of two boxes of a class that overlap by a half, the less certain one is left out.
        kept = batched_nms(boxes, values, labels, 0.5)
        kept = kept[values[kept] > 0.01]
        return {"boxes": boxes[kept], "labels": labels[kept] + 1, "scores": values[kept]}
