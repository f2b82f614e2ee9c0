"""The loss and the metrics of networks that classify pixels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import Conv2dNormActivation

from penstock.errors import DataError
from penstock.loading.batch import Batch
from penstock.training.adapter import Rendered, field, in_shape, require
from penstock.training.objective import Classification

if TYPE_CHECKING:
    from torchmetrics import Metric


def run_lengths(mask: Tensor) -> dict[str, list[int]]:
    """A mask bool[H, W] as COCO's JSON has it: lengths of runs down its columns, zeros first."""
    pixels = F.pad(mask.T.flatten(), (1, 0))  # the first run may be empty, and is of zeros
    ends = pixels.diff().nonzero().flatten().tolist()
    return {"size": [*mask.shape], "counts": np.diff([0, *ends, mask.numel()]).tolist()}


class Segmentation(Classification):
    """The model gives logits [B, C, H, W], targets are classes [B, H, W] in whole numbers.

    The loss of an image is the cross entropy of its pixels, on average; metrics get the likeliest
    class of each pixel. Pixels of `ignored` count in neither.

    Args:
        metrics: by name.
        inputs: fields of a batch that the model takes, in order.
        target: the field of masks.
        ignored: the number of pixels that nobody has said anything of.
        num_classes: how many there are; a fact of the dataset.
        classes: their names, for metrics that have a value a class.
    """

    def __init__(
        self,
        metrics: Mapping[str, Metric],
        inputs: Sequence[str],
        target: str,
        num_classes: int,
        ignored: int = 255,
        classes: Sequence[str] | None = None,
    ) -> None:
        # A loss a pixel, as each image is averaged over those of its pixels that count.
        criterion = nn.CrossEntropyLoss(ignore_index=ignored, reduction="none")
        super().__init__(criterion, metrics, inputs, target, num_classes, classes)
        self.ignored = ignored

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = super().outputs(model, batch)
        if logits.ndim > 2:
            return logits
        size = self.targets(batch).shape[1:]  # of `Constant`, a logit a class stands for all pixels
        return logits[:, :, None, None].expand(-1, -1, *size)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        target = self.targets(batch)
        expected = (len(target), self.num_classes, *target.shape[1:])
        require(
            tuple(outputs.shape) == expected,
            "model",
            f"gives {in_shape(outputs)} for masks {list(target.shape)} of {self.num_classes} "
            f"classes; it has to give logits {list(expected)}, as model=small_unet does",
        )
        # An image of ignored pixels alone has a loss of 0, and not 0 / 0.
        counted = (target != self.ignored).flatten(1).sum(1).clamp_min(1)
        return self.criterion(outputs, target).flatten(1).sum(1) / counted

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The likeliest class of each pixel, int64[B, H, W]."""
        return outputs.argmax(1)

    def constant(self, batches: Iterable[Batch]) -> Tensor:
        """The logits of how frequent each class is among the pixels, float32[C]."""
        counts = torch.zeros(self.num_classes, dtype=torch.int64)
        for target in map(self.targets, batches):
            known = target[target != self.ignored]
            counts += torch.bincount(known, minlength=self.num_classes).cpu()
        # Else a class without a pixel is -inf, and the loss inf where validation has it.
        return (counts / counts.sum().clamp_min(1)).clamp_min(1e-6).log()

    def rows(self, outputs: Tensor, batch: Batch) -> list[dict[str, Any]]:
        """`share/NAME` of the pixels, and `mask/NAME` as COCO's run lengths, of each class.

        Masks are of the image that the model saw.
        """
        made = list[dict[str, Any]]()
        for pixels in outputs.argmax(1).cpu():
            masks = {name: pixels == number for number, name in enumerate(self.names)}
            made.append(
                {f"share/{name}": mask.float().mean().item() for name, mask in masks.items()}
                | {f"mask/{name}": run_lengths(mask) for name, mask in masks.items()}
            )
        return made

    def rendered(self, batch: Batch, outputs: Tensor | None = None) -> list[Rendered]:
        """The true and the predicted mask, and the share of pixels that are right."""
        drawn = []
        for row, target in enumerate(self.targets(batch)):
            known = target != self.ignored
            # The background is in nearly all images: it is named where nothing else is.
            names = [self.names[value] for value in target[known].unique().tolist() if value]
            shown = Rendered(", ".join(names or self.names[:1]), mask=target.where(known, -1))
            if outputs is not None:
                guess = outputs[row].argmax(0)
                words = f"accuracy {(guess == target)[known].double().mean():.3f}"
                shown = replace(shown, predicted=words, predicted_mask=guess)
            drawn.append(shown)
        return drawn

    def targets(self, batch: Batch) -> Tensor:
        """The masks of a batch, int64[B, H, W]."""
        target = field(self, batch, self.target)
        target = target.squeeze(1) if target.ndim == 4 else target
        if target.ndim != 3 or target.is_floating_point():
            raise self._unfit(target, "masks are whole numbers [B, H, W]")
        target = target.long()
        if target.device.type == "cpu":  # on a GPU the look would wait for it in every step
            wrong = target[(target != self.ignored) & ((target < 0) | (target >= self.num_classes))]
            if len(wrong):
                raise DataError(
                    f"a mask has the class {int(wrong[0])}; there are {self.num_classes}, from 0, "
                    f"and objective.ignored={self.ignored}"
                )
        return target


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
        made, levels = image, list[Tensor]()
        for number, step in enumerate(self.down):
            # Rounded up, so that sides need not be multiples of 8.
            made = step(F.max_pool2d(made, 2, ceil_mode=True) if number else made)
            levels.append(made)
        for step, level in zip(self.up[::-1], levels[-2::-1], strict=True):
            larger = F.interpolate(made, size=level.shape[-2:], mode="nearest")
            made = step(torch.cat([larger, level], 1))
        logits: Tensor = self.out(made)
        return logits


def _twice(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(Conv2dNormActivation(channels, out), Conv2dNormActivation(out, out))
