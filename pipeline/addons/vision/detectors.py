"""Detectors: torchvision's by name, and a small one that learns in a minute on a CPU.

Both are called as torchvision's are: with images and targets in training, for losses by name;
with images else, for boxes (float32[n, 4], corners in pixels), labels and scores of each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision import models
from torchvision.ops import (
    Conv2dNormActivation,
    batched_nms,
    clip_boxes_to_image,
    sigmoid_focal_loss,
)

STRIDE = 4  # pixels between two cells
_CANDIDATES = 100  # of an image
_OVERLAP = 0.5  # from which the less certain of two boxes is left out
_LEAST = 0.01  # score of a box
Target = dict[str, Tensor]


class TorchvisionDetector(nn.Module):
    """A detector of torchvision's with random weights, or those of its backbone.

    Args:
        name: of `torchvision.models.detection`, such as ssdlite320_mobilenet_v3_large.
        num_classes: the background included; a fact of the dataset.
        weights_backbone: null, or the name of weights, which are downloaded.
        arguments: further ones of torchvision's builder, such as min_size.

    Raises:
        ValueError, TypeError: there is no such detector, or it does not take the arguments.
    """

    def __init__(
        self,
        num_classes: int,
        name: str = "ssdlite320_mobilenet_v3_large",
        weights_backbone: str | None = None,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.detector = models.get_model(
            name,
            weights=None,
            weights_backbone=weights_backbone,
            num_classes=num_classes,
            **(arguments or {}),
        )

    def forward(self, images: list[Tensor], targets: list[Target] | None = None) -> Any:
        return self.detector(images, targets)


class SmallDetector(nn.Module):
    """An own network without anchors: each cell of 4 pixels says which class has its centre there,
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
        values, places = peaks.flatten().topk(min(_CANDIDATES, peaks.numel()))
        labels, rows, columns = torch.unravel_index(places, peaks.shape)
        at, far = torch.stack([columns, rows], 1) + 0.5, reach[:, rows, columns].T
        corners = torch.cat([at - far[:, :2], at + far[:, 2:]], 1) * STRIDE
        boxes = clip_boxes_to_image(corners, size)
        kept = batched_nms(boxes, values, labels, _OVERLAP)
        kept = kept[values[kept] > _LEAST]
        return {"boxes": boxes[kept], "labels": labels[kept] + 1, "scores": values[kept]}
