"""Small pictures of samples for the report: encoded bytes, 1 to 3 ms each, without matplotlib.

Photographs and heat maps are JPEGs, since they would be several times as large otherwise; tiny
images and curves are PNGs.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from torch import Tensor

from penstock.addons.reports.pictures import IBUG68_LINES, pixels

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 160  # pixels of the longer side
_TINY = 48  # pixels of the longer side, up to which an image is kept as it is
_FINER = 3  # lines are drawn so many times as large, and reduced
_HEIGHT = 80  # pixels, of a signal
_COLORS = ("#2f7fd6", "#e0742b", "#2aa876", "#b45fc6")  # legible on white and on black
_HEAT = (8, 6, 40), (182, 54, 121), (252, 240, 180)  # of least, middle and largest
_MOST_LINES = 4


def picture(image: Tensor, points: Sequence[tuple[Tensor, str]] = ()) -> bytes:
    """An image [C, H, W] with landmarks.

    Args:
        points: [L, 2] in pixels of `image`, and a colour.
    """
    from PIL import Image

    drawn = Image.fromarray(pixels(image)).convert("RGB")
    longest = max(drawn.size)
    if longest <= _TINY and not points:
        return _encoded(drawn, "PNG")
    factor = SIDE / longest
    if factor < 1 or points:
        width, height = (max(1, round(side * factor)) for side in drawn.size)
        drawn = drawn.resize((width, height), Image.Resampling.LANCZOS)
    return _encoded(_marked(drawn, points, factor) if points else drawn, "JPEG")


def signal(values: npt.NDArray[np.float32], wave: npt.NDArray[np.float32] | None = None) -> bytes:
    """A signal [T, F] over time: lines for up to 4 channels, else a heat map.

    Args:
        wave: [T], drawn above it.
    """
    from PIL import Image

    values = np.nan_to_num(values)
    lines = values.shape[1] <= _MOST_LINES
    parts = [] if wave is None else [_wave(wave)]
    if lines:
        parts.append(_lines(values))
    else:
        heat = Image.fromarray(_heat(values)).convert("RGBA")
        parts.append(heat.resize((SIDE, _HEIGHT), Image.Resampling.BILINEAR))
    # Lines are seen on light and on dark pages; beside a heat map, on its darkest colour.
    whole = Image.new(
        "RGBA", (SIDE, sum(part.height for part in parts)), (0, 0, 0, 0) if lines else _HEAT[0]
    )
    top = 0
    for part in parts:
        whole.alpha_composite(part, (0, top))
        top += part.height
    return _encoded(whole, "PNG") if lines else _encoded(whole.convert("RGB"), "JPEG")


def _marked(image: Image, points: Sequence[tuple[Tensor, str]], factor: float) -> Image:
    from PIL import Image, ImageDraw

    large = Image.new("RGBA", (image.width * _FINER, image.height * _FINER))
    pen = ImageDraw.Draw(large)
    for landmarks, color in points:
        drawn_at = (landmarks.detach().float().cpu().numpy() * factor * _FINER).clip(-1e4, 1e4)
        if len(drawn_at) == 68:
            for line in IBUG68_LINES:
                path = [tuple(drawn_at[number]) for number in line]
                pen.line(path, fill=color, width=2 * _FINER, joint="curve")
        else:
            for x, y in drawn_at:
                pen.circle((x, y), 2.5 * _FINER, fill=color, outline="black")
    marks = large.resize(image.size, Image.Resampling.BOX)
    return Image.alpha_composite(image.convert("RGBA"), marks).convert("RGB")


def _wave(wave: npt.NDArray[np.float32]) -> Image:
    """The least and the largest value in each column of pixels."""
    from PIL import Image, ImageDraw

    height = _HEIGHT // 2
    drawn = Image.new("RGBA", (SIDE, height))
    if not wave.size:
        return drawn
    starts = np.linspace(0, len(wave), SIDE, endpoint=False).astype(int)
    tops, bottoms = np.maximum.reduceat(wave, starts), np.minimum.reduceat(wave, starts)
    largest = float(np.abs(wave).max()) or 1.0
    pen = ImageDraw.Draw(drawn)
    for x, (top, bottom) in enumerate(zip(tops / largest, bottoms / largest, strict=True)):
        y = sorted((height / 2 * (1 - top), height / 2 * (1 - bottom)))
        pen.line([(x, y[0]), (x, max(y[1], y[0] + 1))], fill=_COLORS[0])
    return drawn


def _lines(values: npt.NDArray[np.float32]) -> Image:
    from PIL import Image, ImageDraw

    width, height = SIDE * _FINER, _HEIGHT * _FINER
    large = Image.new("RGBA", (width, height))
    pen = ImageDraw.Draw(large)
    least, most = float(values.min()), float(values.max())
    scaled = (values - least) / ((most - least) or 1.0)
    xs = np.linspace(2 * _FINER, width - 2 * _FINER, len(values))
    for channel in range(values.shape[1]):
        ys = (height - 4 * _FINER) * (1 - scaled[:, channel]) + 2 * _FINER
        path = list(zip(xs.tolist(), ys.tolist(), strict=True))
        pen.line(
            path * 2 if len(path) == 1 else path,
            fill=_COLORS[channel],
            width=2 * _FINER,
            joint="curve",
        )
    return large.resize((SIDE, _HEIGHT), Image.Resampling.BOX)


def _heat(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """[T, F] as colours [F, T, 3], the lowest band at the bottom."""
    least, most = np.percentile(values, [1, 99])
    shares = ((values - least) / ((most - least) or 1.0)).clip(0, 1)
    dark, middle, light = (np.array(color, float) for color in _HEAT)
    first, second = (2 * shares).clip(0, 1)[..., None], (2 * shares - 1).clip(0, 1)[..., None]
    colors = dark + (middle - dark) * first + (light - middle) * second
    return np.ascontiguousarray(colors.round().astype(np.uint8).transpose(1, 0, 2)[::-1])


def _encoded(image: Image, kind: str) -> bytes:
    made = io.BytesIO()
    image.save(made, kind, **({"quality": 82} if kind == "JPEG" else {"optimize": True}))
    return made.getvalue()
