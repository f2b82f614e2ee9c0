"""Boxes and masks, drawn onto pictures by torchvision."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from penstock.addons.reports.pictures import PREDICTED, TRUE
from penstock.loading.collate import plain
from penstock.training.rendered import Rendered

_SIDE = 256  # pixels that the longer side of a picture with marks has at least
_MOST = 100  # boxes of a picture that are drawn
# Of classes in turn; the background, 0, is not coloured.
_COLORS = (
    "#e6194b",
    "#3cb44b",
    "#4363d8",
    "#ffe119",
    "#f58231",
    "#911eb4",
    "#46f0f0",
    "#f032e6",
    "#bcf60c",
    "#fabebe",
)


def marked(
    images: Sequence[Tensor], seen: Tensor, rendered: Sequence[Rendered]
) -> Sequence[Tensor]:
    """Pictures with their boxes and masks, uint8 [3, H, W]; as they are where none has any.

    True boxes are green, predicted ones orange. A mask lies over a grey picture of its own, the
    true one left of the predicted one.

    Args:
        images: [C, H, W] each; uint8, or float in [0, 1].
        seen: [B, C, H, W], in whose pixels boxes and masks are.
    """
    if all(row.boxes is None and row.mask is None for row in rendered):
        return images
    pairs = zip(images, rendered, strict=True)
    return [_marked(image, seen.shape[-2:], row) for image, row in pairs]


def _marked(image: Tensor, seen: Sequence[int], row: Rendered) -> Tensor:
    from torchvision.transforms.v2 import functional as F

    shown = plain(image).detach().cpu()
    if shown.is_floating_point():
        shown = (shown.clamp(0, 1) * 255).round().to(torch.uint8)
    shown = shown.expand(3, -1, -1)
    factor = max(1.0, _SIDE / max(shown.shape[-2:]))
    size = [max(1, round(side * factor)) for side in shown.shape[-2:]]
    shown = F.resize(shown, size, antialias=True)
    for boxes, labels, color in (
        (row.boxes, row.labels if row.predicted_boxes is None else (), TRUE),
        (row.predicted_boxes, row.predicted_labels, PREDICTED),
    ):
        if boxes is not None:
            scale = [size[1] / seen[1], size[0] / seen[0]] * 2
            shown = _with_boxes(shown, boxes.detach().cpu() * torch.tensor(scale), labels, color)
    masks = [mask for mask in (row.mask, row.predicted_mask) if mask is not None]
    return torch.cat([_with_mask(shown, mask) for mask in masks], -1) if masks else shown


def _with_boxes(image: Tensor, boxes: Tensor, labels: Sequence[str], color: str) -> Tensor:
    from torchvision.utils import draw_bounding_boxes

    height, width = image.shape[-2:]
    boxes = boxes[:_MOST].clamp_min(0).minimum(boxes.new_tensor([width, height, width, height]) - 1)
    kept = ((boxes[:, 2:] - boxes[:, :2]) > 0).all(1)
    if not kept.any():
        return image
    names = [labels[number] for number in kept.nonzero().flatten().tolist()] if labels else None
    return draw_bounding_boxes(
        image,
        boxes[kept],
        names,
        colors=color,
        width=2,
        label_colors="black" if names else None,
        font=_font() if names else None,
        font_size=max(12, max(height, width) // 17) if names else None,
        fill_labels=names is not None,
    )


@cache
def _font() -> str:
    """Letters that grow with the picture; those of Pillow itself have one small size."""
    import matplotlib

    return str(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"))


def _with_mask(image: Tensor, mask: Tensor) -> Tensor:
    from torchvision.transforms.v2 import functional as F
    from torchvision.utils import draw_segmentation_masks

    large = F.resize(
        mask.detach().cpu()[None].long(),
        list(image.shape[-2:]),
        interpolation=F.InterpolationMode.NEAREST,
    )[0]
    # On colours, that of a class would depend on what it covers.
    image = image.float().mean(0).round().to(torch.uint8).expand(3, -1, -1)
    classes = [value for value in large.unique().tolist() if value > 0]
    if not classes:
        return image
    layers = torch.stack([large == value for value in classes])
    colors = [_COLORS[(value - 1) % len(_COLORS)] for value in classes]
    return draw_segmentation_masks(image, layers, alpha=0.7, colors=colors)
