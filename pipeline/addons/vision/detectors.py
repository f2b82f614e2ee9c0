"""Detectors: torchvision's by name, and a small one that learns in a minute on a CPU.

Both are called as torchvision's are: with pictures and targets in training, for losses by name;
with pictures else, for boxes (float32[n, 4], corners in pixels), labels and scores of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import batched_nms, sigmoid_focal_loss

from penstock.config.messages import nearest
from penstock.errors import ConfigError, Problem

STRIDE = 4  # pixels between two cells
_CANDIDATES = 100  # of a picture
_OVERLAP = 0.5  # from which the less certain of two boxes is left out
Target = dict[str, Tensor]


class TorchvisionDetector(nn.Module):
    """A detector of torchvision's with random weights, or those of its backbone.

    Args:
        name: of `torchvision.models.detection`, such as ssdlite320_mobilenet_v3_large.
        num_classes: the background included; a fact of the dataset.
        weights_backbone: null, or the name of weights, which are downloaded.
        arguments: further ones of torchvision's builder, such as min_size.

    Raises:
        ConfigError: there is no such detector, or it does not take the arguments.
    """

    def __init__(
        self,
        num_classes: int,
        name: str = "ssdlite320_mobilenet_v3_large",
        weights_backbone: str | None = None,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        from torchvision import models

        known = models.list_models(module=models.detection)
        if name not in known:
            reason = f"{name!r} is no detector of torchvision; allowed: {', '.join(known)}"
            raise ConfigError(Problem("model.name", reason))
        _check_arguments(name, arguments or {})
        try:
            self.detector = models.get_model(
                name,
                weights=None,
                weights_backbone=weights_backbone,
                num_classes=num_classes,
                **(arguments or {}),
            )
        except (TypeError, ValueError, KeyError) as error:
            raise ConfigError(Problem("model.arguments", f"{name}: {error}")) from error

    def forward(self, images: list[Tensor], targets: list[Target] | None = None) -> Any:
        return self.detector(images, targets)


def _check_arguments(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse what no part of a detector takes: builders hand on all they do not know, and some of
    torchvision's models swallow it.
    """
    from torchvision import models

    builder = models.get_model_builder(name)
    model = get_type_hints(builder)["return"]
    asked = [builder, *(part.__init__ for part in model.__mro__[:-1] if part is not nn.Module)]
    known = {key for part in asked for key in signature(part).parameters}
    known -= {"self", "kwargs", "args", "weights", "weights_backbone", "num_classes", "progress"}
    for key in arguments:
        if key not in known:
            took = f"it takes {', '.join(sorted(known))}"
            reason = f"{name} takes no {key!r}{nearest(key, known)}; {took}"
            raise ConfigError(Problem(f"model.arguments.{key}", reason))


class SmallDetector(nn.Module):
    """An own network without anchors: each cell of 4 pixels says which class has its centre there,
    and how far the box reaches from it (CenterNet's form: Zhou et al., "Objects as Points", 2019).

    Pictures of a batch have one size.

    Args:
        num_classes: the background included; a fact of the dataset.
        width: channels of the first convolution.
    """

    def __init__(self, num_classes: int, width: int = 24) -> None:
        super().__init__()
        steps: list[nn.Module] = []
        channels = 3
        for out, stride in ((width, 2), (2 * width, 2), (2 * width, 1), (2 * width, 1)):
            steps += [nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)]
            steps.append(nn.ReLU())
            channels = out
        self.stem = nn.Sequential(*steps)
        self.context = nn.Sequential(
            nn.Conv2d(channels, 2 * channels, 3, 2, 1, bias=False),
            nn.BatchNorm2d(2 * channels),
            nn.ReLU(),
            nn.Conv2d(2 * channels, 2 * channels, 3, 1, 2, dilation=2, bias=False),
            nn.BatchNorm2d(2 * channels),
            nn.ReLU(),
            nn.Conv2d(2 * channels, channels, 1),
        )
        self.heads = nn.Sequential(
            nn.Conv2d(channels, channels, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(channels, num_classes - 1 + 4, 1),
        )
        last = self.heads[-1]
        assert isinstance(last, nn.Conv2d)
        assert last.bias is not None
        nn.init.constant_(last.bias, 0.0)
        nn.init.constant_(last.bias[: num_classes - 1], -4.0)  # few cells have a centre

    def forward(self, images: list[Tensor], targets: list[Target] | None = None) -> Any:
        batch = self._stacked(images)
        fine = self.stem(batch - 0.5)
        coarse = F.interpolate(self.context(fine), size=fine.shape[-2:], mode="nearest")
        maps = self.heads(fine + coarse).float()
        logits, reach = maps[:, :-4], F.softplus(maps[:, -4:])  # in cells
        if targets is not None and self.training:
            return self._losses(logits, reach, targets)
        height, width = batch.shape[-2:]
        return [
            self._boxes(own, far, width, height) for own, far in zip(logits, reach, strict=True)
        ]

    def _stacked(self, images: Sequence[Tensor]) -> Tensor:
        shapes = {tuple(image.shape) for image in images}
        if len(shapes) > 1:
            reason = f"pictures of {len(shapes)} sizes in a batch; SmallDetector needs one: Resize"
            raise ConfigError(Problem("transform", reason))
        return torch.stack(list(images))

    def _losses(self, logits: Tensor, reach: Tensor, targets: list[Target]) -> dict[str, Tensor]:
        truth, weights = torch.zeros_like(logits), torch.ones_like(logits)
        distances, count = [logits.new_zeros(())], 0
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
                cells = middle.nonzero()
                at = torch.stack([cells[:, 1], cells[:, 0]], 1) + 0.5
                wanted = torch.cat([at - box[:2], box[2:] - at], 1).clamp_min(0)
                own = reach[number][:, cells[:, 0], cells[:, 1]].T
                scale = side.repeat(2)
                distances.append(((own - wanted).abs() / scale).mean())
                count += 1
        weights = torch.where(truth > 0, torch.ones_like(weights), weights)
        focal = sigmoid_focal_loss(logits, truth, alpha=0.5, gamma=2.0)
        total = max(count, 1)
        return {
            "classes": 4 * (focal * weights).sum() / total,
            "boxes": 4 * torch.stack(distances).sum() / total,
        }

    def _boxes(self, logits: Tensor, reach: Tensor, width: int, height: int) -> Target:
        scores = logits.sigmoid()
        peaks = scores * (F.max_pool2d(scores, 3, 1, 1) == scores)
        values, places = peaks.flatten().topk(min(_CANDIDATES, peaks.numel()))
        cells = logits.shape[-2] * logits.shape[-1]
        labels, cell = places // cells, places % cells
        rows, columns = cell // logits.shape[-1], cell % logits.shape[-1]
        at = torch.stack([columns, rows], 1) + 0.5
        far = reach[:, rows, columns].T
        boxes = torch.cat([at - far[:, :2], at + far[:, 2:]], 1) * STRIDE
        limits = boxes.new_tensor([width, height, width, height])
        boxes = boxes.clamp_min(0).minimum(limits)
        kept = batched_nms(boxes, values, labels, _OVERLAP)
        kept = kept[values[kept] > 0.01]
        return {"boxes": boxes[kept], "labels": labels[kept] + 1, "scores": values[kept]}
