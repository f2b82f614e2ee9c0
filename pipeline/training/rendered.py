"""How a sample and its prediction are shown to a person: what `Objective.rendered` gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

FEW = 4  # numbers of a target that are written out


@dataclass(frozen=True)
class Rendered:
    """A sample for a person to look at, and what was predicted for it.

    Attributes:
        truth, predicted: in words; "" where they are drawn, or too many.
        wrong: whether the prediction is another class than the truth; None if that is no question.
        points, predicted_points: float[L, 2], x and y in pixels of the first input, an image, to be
            drawn on it.
        past, future, forecast: float[P], float[H], float[H]: a series, how it continues, and how it
            was predicted to; drawn as lines.
        boxes, predicted_boxes: float[n, 4], x and y of two corners in pixels of the first input.
        labels, predicted_labels: what is written at each box; none, or as many as there are boxes.
        mask, predicted_mask: int[H, W], the class of each pixel of the first input, drawn over it;
            0 and below are not.
    """

    truth: str = ""
    predicted: str = ""
    points: Tensor | None = None
    predicted_points: Tensor | None = None
    past: Tensor | None = None
    future: Tensor | None = None
    forecast: Tensor | None = None
    boxes: Tensor | None = None
    predicted_boxes: Tensor | None = None
    labels: Sequence[str] = ()
    predicted_labels: Sequence[str] = ()
    mask: Tensor | None = None
    predicted_mask: Tensor | None = None
    wrong: bool | None = None


def in_words(value: Tensor) -> str:
    """Its numbers, of any shape, separated by commas."""
    return ", ".join(f"{number:.4g}" for number in value.flatten().tolist())


def classes_in_words(shares: Tensor, names: Sequence[str]) -> str:
    """The classes of a sample by their shares, float[C], the largest three; one alone by name."""
    pairs = zip(shares.tolist(), names, strict=True)
    present = sorted((pair for pair in pairs if pair[0] > 0), reverse=True)
    if len(present) == 1:
        return present[0][1]
    return ", ".join(f"{name} {share:.0%}" for share, name in present[:3])
