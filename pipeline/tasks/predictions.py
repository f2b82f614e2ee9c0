"""A picture of what a model predicts for a few samples of a split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.batch_transforms import BatchCompose
from pipeline.build import Parts
from pipeline.fetch import Batch
from pipeline.objective import Classification, LandmarkRegression, Objective
from pipeline.pictures import contact_sheet
from pipeline.plan import Request
from pipeline.randomness import scope
from pipeline.streams import StreamPlan
from pipeline.transforms import Compose, Normalize


def draw(
    parts: Parts, model: nn.Module, objective: Objective, path: Path, split: str = "val",
    count: int = 12,
) -> Path | None:  # fmt: skip
    """Draw predictions for samples spread evenly over the split.

    Landmarks are drawn onto the image, with each one's error below; of classes, the predicted one
    stands below, and the true one where it is another. Returns None for samples without images,
    and for streams, in which samples cannot be picked.
    """
    if isinstance(parts.plan(split), StreamPlan):
        return None
    device = next(model.parameters()).device
    batch = _spread(parts, split, count).to(device)
    images = batch.get(objective.inputs[0])
    if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1] not in (1, 3):
        return None
    with torch.no_grad():
        _, outputs = objective.to(device)(model.eval(), batch)
    shown = denormalized(images, parts.transform(split), parts.batch_transform(split))
    if isinstance(objective, LandmarkRegression):
        return contact_sheet(
            shown, path, objective.targets(batch), objective.predictions(outputs, batch),
            _errors(objective, outputs, batch),
        )  # fmt: skip
    if isinstance(objective, Classification):
        return contact_sheet(shown, path, captions=_classes(objective, outputs, batch))
    return None


def denormalized(images: Tensor, *transforms: Compose | BatchCompose) -> Tensor:
    """Images as they were before `Normalize`, to be looked at."""
    for transform in transforms:
        for step in transform.steps.values():
            if isinstance(step, Normalize):
                return step.inverse(images)
    return images


def _spread(parts: Parts, split: str, count: int) -> Batch:
    rows = len(parts.dataset(split))
    indices = np.unique(np.linspace(0, rows - 1, min(count, rows)).round().astype(np.int64))
    with scope():
        # Positions that validation, which reads rows in order, has them at too.
        return parts.fetch(split)(Request(0, 0, indices, indices, len(indices)))


def _errors(objective: Objective, outputs: Tensor, batch: Batch) -> list[str]:
    """The objective's first metric of each sample by itself."""
    name, metric = next(iter(objective.metrics.items()), ("", None))
    if metric is None:
        return [""] * len(outputs)
    predicted, target = objective.predictions(outputs, batch), objective.targets(batch)
    captions = []
    for row in range(len(outputs)):
        metric.reset()
        metric.update(predicted[row : row + 1], target[row : row + 1])
        captions.append(f"{name} {float(metric.compute()):.3f}")
    metric.reset()
    return captions


def _classes(objective: Classification, outputs: Tensor, batch: Batch) -> list[str]:
    names = objective.classes or [str(number) for number in range(objective.num_classes)]
    shares, chosen = outputs.softmax(-1).max(-1)
    return [
        f"{names[guess]} {share:.0%}" + ("" if guess == true else f"\nnot {names[true]}")
        for guess, true, share in zip(
            chosen.tolist(), objective.targets(batch).tolist(), shares.tolist(), strict=True
        )
    ]
