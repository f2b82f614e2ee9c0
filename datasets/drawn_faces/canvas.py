"""A picture that shapes are drawn on, three times as large as it will be; and the shapes.

Points are float64[n, 2] in pixels of the small picture; pixel (0, 0) has its centre at (0, 0).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from pipeline.datasets.drawn_faces.look import Colour
from pipeline.datasets.drawn_faces.shape import Plane, Points

FINE = 3  # shapes are drawn so many times as large


class Canvas:
    """A picture on which shapes are drawn enlarged, and averaged down at the end."""

    def __init__(self, picture: Image.Image, size: int) -> None:
        self.image = picture.resize((size * FINE, size * FINE), Image.Resampling.NEAREST)
        self._draw = ImageDraw.Draw(self.image)

    def fill(self, points: Points, colour: Colour) -> None:
        """A filled polygon; `points` are pixels of the small picture, [n, 2]."""
        self._draw.polygon(enlarged(points), fill=colour)

    def line(self, points: Points, colour: Colour, width: float) -> None:
        """A line of `width` pixels of the small picture."""
        pixels = max(1, round(width * FINE))
        self._draw.line(enlarged(points), fill=colour, width=pixels, joint="curve")

    def within(self, masks: Sequence[Points], layer: Image.Image) -> None:
        """Paste `layer` where the polygons `masks` are."""
        mask = Image.new("1", self.image.size)
        draw = ImageDraw.Draw(mask)
        for points in masks:
            draw.polygon(enlarged(points), fill=1)
        self.image.paste(layer, (0, 0), mask)

    def averaged(self) -> Plane:
        """The small picture, float32[H, W, 3]."""
        return np.asarray(self.image.reduce(FINE), np.float32).copy()


def enlarged(points: Points) -> list[tuple[float, float]]:
    """Points as Pillow wants them, on the large picture."""
    # The centre of small pixel p lies at 3 p + 1 among the fine ones; Pillow cuts off the fractions
    # of corners, so a half is added for them to be rounded.
    fine = points * FINE + (FINE - 1) / 2 + 0.5
    return [(x, y) for x, y in fine.tolist()]


def plain(points: Points) -> list[tuple[float, float]]:
    """Points as Pillow wants them, on a picture of the small size."""
    return [(x, y) for x, y in points.tolist()]


def smooth(points: Points, closed: bool = False, steps: int = 5) -> Points:
    """A Catmull-Rom curve through `points` [n, 2], with `steps` pieces between two of them."""
    if closed:
        before, start, end, after = (np.roll(points, shift, 0) for shift in (1, 0, -1, -2))
    else:
        padded = np.concatenate([points[:1], points, points[-1:]])
        before, start, end, after = padded[:-3], padded[1:-2], padded[2:-1], padded[3:]
    t = (np.arange(steps) / steps)[:, None, None]
    curve = 0.5 * (
        2 * start
        + (end - before) * t
        + (2 * before - 5 * start + 4 * end - after) * t**2
        + (3 * start - before - 3 * end + after) * t**3
    )
    flat = curve.transpose(1, 0, 2).reshape(-1, 2)
    return np.asarray(flat if closed else np.concatenate([flat, points[-1:]]), np.float64)


_TURN = np.linspace(0, 2 * np.pi, 20, endpoint=False)
_CIRCLE = np.stack([np.cos(_TURN), np.sin(_TURN)], axis=1)


def disc(centre: Points, across: float, down: float) -> Points:
    """An ellipse around `centre` [2] with these half axes."""
    return np.asarray(_CIRCLE * (across, down) + centre)
