"""How a sample and its prediction are shown to a person: what `Objective.rendered` gives."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

FEW = 4  # numbers of a target that are written out


@dataclass(frozen=True)
class Rendered:
    """A sample for a person to look at, and what was predicted for it.

    Attributes:
        truth, predicted: in words; "" where they are drawn, or too many.
        points, predicted_points: float[L, 2], x and y in pixels of the first input, an image, to be
            drawn on it.
    """

    truth: str = ""
    predicted: str = ""
    points: Tensor | None = None
    predicted_points: Tensor | None = None


def in_words(value: Tensor) -> str:
    """Its numbers, of any shape, separated by commas."""
    return ", ".join(f"{number:.4g}" for number in value.flatten().tolist())
