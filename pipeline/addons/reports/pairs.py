"""Pairs as a matrix: how like every picture is to every caption, drawn at the end of a run.

An objective that has `matrix(outputs, batch)`, likeness float[B, B] and a text a row, gets one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor, nn

from penstock.addons.reports.figures import drawing
from penstock.addons.reports.pictures import INK, new_figure, pixels, save, shortened
from penstock.addons.reports.predictions import as_the_model_saw, is_pictures, predict
from penstock.build.data import Split
from penstock.order.streams import StreamPlan
from penstock.training.objective_base import Objective

_PAIRS = 10


def draw(split: Split, model: nn.Module, objective: Objective, path: Path) -> Path | None:
    """Draw the matrix of a few rows spread evenly over the split; None where there is none."""
    matrix = getattr(getattr(objective, "own", objective), "matrix", None)
    if matrix is None or isinstance(split.plan, StreamPlan):
        return None
    rows = len(split.dataset)
    indices = np.unique(np.linspace(0, rows - 1, min(_PAIRS, rows)).round().astype(np.int64))
    batch, _, outputs = predict(split, model, objective, indices)
    likeness, texts = matrix(outputs, batch)
    name = objective.shown_field(batch)
    if not is_pictures(batch.get(name)):
        return None
    return _drawn(as_the_model_saw(split, name, batch), texts, likeness.float().cpu(), path)


@drawing()
def _drawn(images: list[Tensor], texts: list[str], likeness: Tensor, path: Path) -> Path:
    count = len(texts)
    labels = [shortened(text, 60) for text in texts]
    side, longest = 0.62 * count, 0.075 * max(map(len, labels))
    figure = new_figure(side + 1.0 + 0.62, side + longest + 0.5, "constrained")
    axes = figure.add_subplot()
    axes.imshow(likeness.numpy(), cmap="Blues", vmin=-1, vmax=1)
    axes.set_xticks(range(count), labels, rotation=90, fontsize=7)
    axes.set_yticks([])
    axes.set_title("likeness", loc="left", fontsize=11, color=INK, fontweight="bold")
    axes.spines[:].set_visible(False)
    for row in range(count):
        beside = axes.inset_axes((-1.0 / count, 1 - (row + 0.95) / count, 0.9 / count, 0.9 / count))
        beside.imshow(pixels(images[row]), cmap="gray", vmin=0, vmax=255)
        beside.set_axis_off()
        for column in range(count):
            value = float(likeness[row, column])
            color = "white" if value > 0.4 else INK
            weight = "bold" if row == column else "normal"
            axes.text(
                column,
                row,
                f"{value:.2f}",
                ha="center",
                va="center",
                fontsize=7,
                color=color,
                fontweight=weight,
            )
    return save(figure, path)
