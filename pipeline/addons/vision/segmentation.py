"""The loss and the metrics of networks that classify pixels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from penstock.errors import ConfigError, DataError, Problem
from penstock.loading.batch import Batch
from penstock.training.adapter import Rendered, field, in_shape
from penstock.training.objective import Supervised

if TYPE_CHECKING:
    from torchmetrics import Metric


def run_lengths(mask: Tensor) -> dict[str, list[int]]:
    """A mask bool[H, W] as COCO's JSON has it: lengths of runs down its columns, zeros first."""
    pixels = mask.T.flatten()
    ends = pixels.diff().nonzero().flatten().add(1).tolist()
    counts = [stop - start for start, stop in pairwise([0, *ends, len(pixels)])]
    return {"size": list(mask.shape), "counts": [0, *counts] if pixels[0] else counts}


class Segmentation(Supervised):
    """The model gives logits [B, C, H, W], targets are classes [B, H, W] in whole numbers.

    The loss of a picture is the cross entropy of its pixels, on average; metrics get the likeliest
    class of each pixel. Pixels of `ignored` count in neither.

    Args:
        metrics: by name.
        inputs: fields of a batch that the model takes, in order.
        target: the field of masks.
        ignored: the number of pixels that nobody has said anything of.
        num_classes: how many there are; a fact of the dataset.
        classes: their names, for metrics that have a value a class.
    """

    baseline_name = "class frequencies"

    def __init__(
        self,
        metrics: Mapping[str, Metric],
        inputs: Sequence[str],
        target: str,
        num_classes: int,
        ignored: int = 255,
        classes: Sequence[str] | None = None,
    ) -> None:
        criterion = nn.CrossEntropyLoss(ignore_index=ignored, reduction="none")
        super().__init__(criterion, metrics, inputs, target)
        self.num_classes, self.ignored = num_classes, ignored
        self.names = list(classes) if classes else [str(number) for number in range(num_classes)]

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = super().outputs(model, batch)
        if logits.ndim == 2:  # of `Constant`
            logits = logits[:, :, None, None].expand(-1, -1, *self.targets(batch).shape[1:])
        return logits

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        target = self.targets(batch)
        expected = (len(target), self.num_classes, *target.shape[1:])
        if tuple(outputs.shape) != expected:
            reason = (
                f"gives {in_shape(outputs)} for masks {list(target.shape)} of {self.num_classes} "
                f"classes; it has to give logits {list(expected)}, as model=small_unet does"
            )
            raise ConfigError(Problem("model", reason))
        counted = (target != self.ignored).flatten(1).sum(1).clamp_min(1)
        return self.criterion(outputs, target).flatten(1).sum(1) / counted

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The likeliest class of each pixel, int64[B, H, W]."""
        return outputs.argmax(1)

    def constant(self, batches: Iterable[Batch], monitor: str = "loss") -> Tensor:
        """The logits of how frequent each class is among the pixels, float32[C]."""
        counts = torch.zeros(self.num_classes, dtype=torch.int64)
        for batch in batches:
            target = self.targets(batch)
            counted = target[target != self.ignored]
            counts += torch.bincount(counted, minlength=self.num_classes).cpu()
        return (counts / counts.sum().clamp_min(1)).clamp_min(1e-6).log()

    def rows(self, outputs: Tensor, batch: Batch) -> list[dict[str, Any]]:
        """`share/NAME` of the pixels, and `mask/NAME` as COCO's run lengths, of each class.

        Masks are of the picture that the model saw.
        """
        made = []
        for pixels in outputs.argmax(1).cpu():
            masks = {name: pixels == number for number, name in enumerate(self.names)}
            shares = {f"share/{name}": mask.float().mean().item() for name, mask in masks.items()}
            runs = {f"mask/{name}": run_lengths(mask) for name, mask in masks.items()}
            made.append(shares | runs)
        return made

    def rendered(self, batch: Batch, outputs: Tensor | None = None) -> list[Rendered]:
        """The true and the predicted mask, and the share of pixels that are right."""
        views, predicted = [], None if outputs is None else outputs.argmax(1)
        for row, target in enumerate(self.targets(batch)):
            known = target != self.ignored
            present = target[known].unique().tolist()
            truth = ", ".join(self.names[value] for value in present if value) or self.names[0]
            mask = target.where(known, -1)
            if predicted is None:
                views.append(Rendered(truth, mask=mask))
                continue
            right = float((predicted[row] == target)[known].double().mean()) if known.any() else 1.0
            words = f"accuracy {right:.3f}"
            views.append(Rendered(truth, words, mask=mask, predicted_mask=predicted[row]))
        return views

    def targets(self, batch: Batch) -> Tensor:
        """The masks of a batch, int64[B, H, W]."""
        target = field(self, batch, self.target)
        if target.ndim == 4 and target.shape[1] == 1:
            target = target[:, 0]
        if target.ndim != 3 or target.is_floating_point():
            reason = f"{self.target!r} is {in_shape(target)}; masks are whole numbers [B, H, W]"
            raise ConfigError(Problem("objective.target", reason))
        target = target.long()
        if target.device.type == "cpu":  # on a GPU the look would wait for it in every step
            wrong = target[(target != self.ignored) & ((target < 0) | (target >= self.num_classes))]
            if len(wrong):
                raise DataError(
                    f"a mask has the class {int(wrong[0])}; there are {self.num_classes}, from 0, "
                    f"and objective.ignored={self.ignored}"
                )
        return target


class TorchvisionSegmenter(nn.Module):
    """A network of torchvision's with random weights, or its backbone's own: logits [B, C, H, W].

    Args:
        num_outputs: the number of classes, the background included; a fact of the dataset.
        name: of `torchvision.models.segmentation`, such as lraspp_mobilenet_v3_large.
        weights_backbone: null, or the name of weights, which are downloaded.

    Raises:
        ConfigError: there is no such network.
    """

    def __init__(
        self,
        num_outputs: int,
        name: str = "lraspp_mobilenet_v3_large",
        weights_backbone: str | None = None,
    ) -> None:
        super().__init__()
        from torchvision import models

        known = models.list_models(module=models.segmentation)
        if name not in known:
            reason = f"{name!r} is none of torchvision's; allowed: {', '.join(known)}"
            raise ConfigError(Problem("model.name", reason))
        self.segmenter = models.get_model(
            name, weights=None, weights_backbone=weights_backbone, num_classes=num_outputs
        )

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.segmenter(image)["out"]
        return logits


class SmallUNet(nn.Module):
    """A U-Net of four levels (Ronneberger et al. 2015): image [B, 3, H, W] -> logits [B, C, H, W].

    A pixel sees about 45 pixels to each side, so what it says of a larger thing it says by a part.

    Args:
        num_outputs: the number of classes, the background included; a fact of the dataset.
        width: channels of the first level; the second has twice, the others four times as many.
    """

    def __init__(self, num_outputs: int, width: int = 16) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 4 * width]
        pairs = pairwise([3, *widths])
        self.down = nn.ModuleList(_twice(channels, out) for channels, out in pairs)
        self.up = nn.ModuleList(_twice(deep + out, out) for out, deep in pairwise(widths))
        self.out = nn.Conv2d(width, num_outputs, 1)

    def forward(self, image: Tensor) -> Tensor:
        levels: list[Tensor] = []
        for step in self.down:
            halved = F.max_pool2d(levels[-1], 2, ceil_mode=True) if levels else image
            levels.append(step(halved))
        made = levels.pop()
        for step in reversed(self.up):
            level = levels.pop()
            larger = F.interpolate(made, size=level.shape[-2:], mode="nearest")
            made = step(torch.cat([larger, level], 1))
        logits: Tensor = self.out(made)
        return logits


def _twice(channels: int, out: int) -> nn.Sequential:
    """Two convolutions, each with batch norm."""
    layers: list[nn.Module] = []
    for width in (channels, out):
        layers += [nn.Conv2d(width, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
    return nn.Sequential(*layers)
