"""The loss and the metrics of detectors; torchvision's detectors take the same form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from penstock.errors import ConfigError, Problem
from penstock.training.adapter import Rendered

if TYPE_CHECKING:
    from torchmetrics import Metric

_SURE = 0.5  # the least score of a box that is drawn


class Detection:
    """Boxes and their classes, by a model of torchvision's form.

    In training the model takes pictures and targets, `boxes` float32[n, 4] and `labels` int64[n]
    (and `masks`, `keypoints`) for each, and gives losses by name. Else it takes pictures, and gives
    `boxes`, `labels` and `scores` for each. Groups of objects (`crowd`) are not trained on, and
    count neither way in metrics.

    Args:
        metrics: by name.
        classes: their names, that of the background first.
        image, boxes, labels: names of the fields.
    """

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
        targets = []
        for target in self.targets(batch):
            crowd = target.pop("iscrowd", None)
            own: dict[str, Tensor] = {
                "boxes": target["boxes"],
                "labels": target["labels"],
                **{name: target[name] for name in ("masks", "keypoints") if name in target},
            }
            if crowd is not None:
                own = {name: value[crowd == 0] for name, value in own.items()}
            targets.append(own)
        losses: Mapping[str, Tensor] = model(list(batch[self.inputs[0]]), targets)
        if not isinstance(losses, Mapping):
            reason = (
                f"gives a {type(losses).__name__} for pictures and targets, not a mapping of "
                "losses; objective=detection takes model=small_detector, torchvision_detector, or "
                "one of your own that is called as they are"
            )
            raise ConfigError(Problem("model", reason))
        return losses

    def outputs(self, model: nn.Module, batch: Mapping[str, Any]) -> list[dict[str, Tensor]]:
        """Boxes, labels and scores of each picture."""
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
        """The truth, by picture."""
        for key, name in self.fields.items():
            if not isinstance(batch.get(name), list):
                reason = (
                    f"{name!r} has to be a list of tensors, a picture each; use collate=boxes. A "
                    f"batch has {', '.join(batch)}"
                )
                raise ConfigError(Problem(f"objective.{key}", reason))
        names = {"iscrowd": "crowd", "masks": "masks", "keypoints": "keypoints", **self.fields}
        there = {key: batch[name] for key, name in names.items() if name in batch}
        rows = [dict(zip(there, row, strict=True)) for row in zip(*there.values(), strict=True)]
        for row, visible in zip(rows, batch.get("visibility", [None] * len(rows)), strict=True):
            if "keypoints" in row and visible is not None:  # torchvision's form
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
                "labels": [self._name(label) for label in own["labels"].tolist()],
                "scores": own["scores"].tolist(),
            }
            for own in outputs
        ]

    def rendered(
        self, batch: Mapping[str, Any], outputs: list[dict[str, Tensor]] | None = None
    ) -> list[Rendered]:
        """True boxes, and those that are predicted with a score of 0.5 or more."""
        views = []
        for row, target in enumerate(self.targets(batch)):
            names = [self._name(label) for label in target["labels"].tolist()]
            if outputs is None:
                views.append(Rendered(", ".join(names), boxes=target["boxes"], labels=names))
                continue
            sure = outputs[row]["scores"] >= _SURE
            boxes, labels, scores = (outputs[row][name][sure] for name in _PREDICTED)
            guesses = [
                f"{self._name(label)} {score:.2f}"
                for label, score in zip(labels.tolist(), scores.tolist(), strict=True)
            ]
            words = f"{len(guesses)} found, {len(names)} true"
            views.append(
                Rendered(
                    "",
                    words,
                    boxes=target["boxes"],
                    labels=names,
                    predicted_boxes=boxes,
                    predicted_labels=guesses,
                )
            )
        return views

    def _name(self, label: int) -> str:
        return self.classes[label] if 0 <= label < len(self.classes) else str(label)


_PREDICTED = ("boxes", "labels", "scores")
