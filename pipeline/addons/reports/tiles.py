"""Small pictures of samples, drawn by Pillow: images, clips, signals and series, with what was
predicted for them; and sheets of them.

True points and boxes are green, predicted ones orange. Photographs and heat maps become JPEGs,
which are a fraction of the size, tiny images and lines PNGs. Cost: 1 to 3 ms a tile.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from penstock.files.disk import write_atomically
from penstock.training.adapter import Rendered

Array = npt.NDArray[np.float32]

SIDE = 128  # pixels of a tile's longer side
_MARKED = 320  # the same with boxes or masks
_STRIP = 640  # the same of a clip's frames
_TINY = 48  # pixels of the longer side, up to which an image is kept as it is
_FINER = 3  # lines are drawn so many times as large, and reduced
_HEIGHT = 80  # pixels of a signal
_MOST_BOXES = 100
TRUE, PREDICTED, PAST = "#22e08a", "#ff4b1f", "#8a94a3"
_COLORS = ("#2f7fd6", "#e0742b", "#2aa876", "#b45fc6")  # legible on white and on black
_CLASSES = (  # of a mask; the background, 0, is not coloured
    *((230, 25, 75), (60, 180, 75), (67, 99, 216), (255, 225, 25), (245, 130, 49)),
    *((145, 30, 180), (70, 240, 240), (240, 50, 230), (188, 246, 12), (250, 190, 190)),
)


def tile(
    image: Tensor, view: Rendered, scale: Sequence[float] = (1, 1), strip: bool = False
) -> bytes:
    """An image [C, H, W] with its points, boxes and masks; the true mask stands on the left.

    Args:
        scale: pixels of `image` for one of the coordinates of points and boxes, in x and y.
        strip: the image is of frames side by side.
    """
    drawn = Image.fromarray(pixels(image)).convert("RGB")
    has_marks = view.boxes is not None or view.mask is not None
    plain = not has_marks and view.points is None and view.predicted_points is None
    # Resized and as a JPEG, an image of 28 by 28 pixels is a blur; the browser enlarges its pixels.
    if plain and max(drawn.size) <= _TINY:
        return _encoded(drawn, "PNG")
    factor = (_STRIP if strip else _MARKED if has_marks else SIDE) / max(drawn.size)
    if factor < 1 or not plain:
        size = [max(1, round(side * factor)) for side in drawn.size]
        drawn = drawn.resize((size[0], size[1]), Image.Resampling.LANCZOS)
    # A model may have seen the image at another size than the one that is drawn.
    at = np.array(scale, np.float32) * factor
    # Side by side: two masks over one image hide each other where they agree.
    masks = [mask for mask in (view.mask, view.predicted_mask) if mask is not None]
    if masks:
        colored = [np.asarray(_masked(drawn, mask)) for mask in masks]
        drawn = Image.fromarray(np.concatenate(colored, axis=1))
    if not plain:
        drawn = _marked(drawn, view, at)
    return _encoded(drawn, "JPEG")


def pixels(image: Tensor) -> npt.NDArray[np.uint8]:
    """[C, H, W] as uint8 [H, W, 3], or [H, W] of one channel."""
    # Datasets may give subclasses of tensors, whose operations keep what they attach.
    image = image.detach().cpu().as_subclass(Tensor)
    if image.is_floating_point():
        image = (image.clamp(0, 1) * 255).round().to(torch.uint8)
    return image.permute(1, 2, 0).squeeze(-1).numpy()


def _marked(image: Image.Image, view: Rendered, at: Array) -> Image.Image:
    """The image with points and boxes, whose lines are smooth."""
    # Pillow has no smooth lines; reduced from three times the size, they are.
    large = Image.new("RGBA", (image.width * _FINER, image.height * _FINER))
    pen = ImageDraw.Draw(large)
    for points, color in ((view.points, TRUE), (view.predicted_points, PREDICTED)):
        places = [] if points is None else _scaled(points, at).tolist()
        for x, y in places:
            pen.circle((x, y), 2 * _FINER, fill=color)
    # Two labels at nearly the same place are unreadable, so only the predicted ones are drawn.
    labels = view.labels if view.predicted_boxes is None else ()
    for boxes, names, color in (
        (view.boxes, labels, TRUE),
        (view.predicted_boxes, view.predicted_labels, PREDICTED),
    ):
        corners = [] if boxes is None else _scaled(boxes.reshape(-1, 2, 2), at).tolist()
        for number, ((left, top), (right, bottom)) in enumerate(corners[:_MOST_BOXES]):
            # An untrained detector predicts boxes with swapped corners, at which Pillow raises.
            if right > left and bottom > top:
                pen.rectangle((left, top, right, bottom), outline=color, width=2 * _FINER)
                if names:
                    font, spot = (
                        ImageFont.load_default(14 * _FINER),
                        (left + 3 * _FINER, max(top, 0)),
                    )
                    pen.rectangle(pen.textbbox(spot, names[number], font), fill=color)
                    pen.text(spot, names[number], "black", font)
    marks = large.resize(image.size, Image.Resampling.BOX)
    return Image.alpha_composite(image.convert("RGBA"), marks).convert("RGB")


def _scaled(places: Tensor, at: Array) -> Array:
    # A model that diverges predicts places far outside, and infinite ones.
    drawn_at: Array = places.detach().float().cpu().numpy() * at * _FINER
    return drawn_at.clip(-1e4, 1e4)


def _masked(image: Image.Image, mask: Tensor) -> Image.Image:
    """Classes in colours over a grey picture, as colours below would change them."""
    classes = mask.detach().cpu().numpy().astype(np.int32)
    # Nearest, since the mean of classes 1 and 3 is not class 2.
    large = np.asarray(Image.fromarray(classes).resize(image.size, Image.Resampling.NEAREST))
    grey = np.asarray(image.convert("L").convert("RGB"), np.float32)
    colors = np.array(_CLASSES, np.float32)[(large - 1) % len(_CLASSES)]
    mixed = np.where(large[..., None] > 0, 0.3 * grey + 0.7 * colors, grey)
    return Image.fromarray(mixed.round().astype(np.uint8))


def signal(values: Array) -> bytes:
    """A signal [T, F] over time: lines for up to 4 channels, else a heat map."""
    # One missing value would make the range, and so every pixel, not a number.
    values = np.nan_to_num(values)
    if values.shape[1] <= len(_COLORS):
        return _encoded(_lines([*zip(values.T, _COLORS, strict=False)]), "PNG")
    # A single click in a spectrogram would leave everything else black.
    least, most = np.percentile(values, [1, 99])
    shares = ((values - least) / ((most - least) or 1.0)).clip(0, 1).T[::-1]  # lowest at the bottom
    heat = Image.fromarray((shares * 255).astype(np.uint8))
    return _encoded(heat.resize((SIDE, _HEIGHT), Image.Resampling.BILINEAR), "JPEG")


def forecast(view: Rendered) -> bytes:
    """A series in grey, how it went on in green, and its forecast in orange."""
    values = (view.past, view.future, view.forecast)
    past, *later = (
        np.zeros(0, np.float32) if one is None else one.detach().float().cpu().numpy()
        for one in values
    )
    before = np.full(max(len(past) - 1, 0), np.nan, np.float32)
    # Both begin at the last value that was known, so that no gap stands between the lines.
    lines = [np.concatenate([before, past[-1:], one]) for one in later if len(one)]
    colors = [color for one, color in zip(later, (TRUE, PREDICTED), strict=True) if len(one)]
    return _encoded(_lines([(past, PAST), *zip(lines, colors, strict=True)]), "PNG")


def _lines(lines: Sequence[tuple[Array, str]]) -> Image.Image:
    """Values side by side as lines in common axes; what is not a number is a gap."""
    large = Image.new("RGBA", (SIDE * _FINER, _HEIGHT * _FINER))
    pen, margin = ImageDraw.Draw(large), 2 * _FINER
    every = np.concatenate([values for values, _ in lines])
    every = every[np.isfinite(every)]
    least, most = (float(every.min()), float(every.max())) if every.size else (0.0, 0.0)
    end = max(*(len(values) - 1 for values, _ in lines), 1)
    for values, color in lines:
        across = margin + np.arange(len(values)) / end * (large.width - 2 * margin)
        down = margin + (large.height - 2 * margin) * (most - values) / ((most - least) or 1.0)
        # Pillow draws a line to a place that is not a number as one to the edge.
        for first, second in pairwise(zip(across.tolist(), down.tolist(), strict=True)):
            if np.isfinite([first[1], second[1]]).all():
                pen.line([first, second], fill=color, width=margin)
    return large.resize((SIDE, _HEIGHT), Image.Resampling.BOX)


def sheet(tiles: Sequence[tuple[bytes, Sequence[str], bool]], path: Path) -> Path:
    """Write a grid of tiles; each has lines below it, red ones if they are wrong."""
    shown = [Image.open(io.BytesIO(data)).convert("RGBA") for data, *_ in tiles]
    width, height = max(SIDE, *(one.width for one in shown)), max(one.height for one in shown)
    below = height + 16 * max(len(lines) for _, lines, _ in tiles) + 12
    columns = min(len(shown), max(1, 1010 // width))
    size = columns * (width + 8) + 8, -(-len(shown) // columns) * below + 8
    whole = Image.new("RGB", size, "white")
    pen, font = ImageDraw.Draw(whole), ImageFont.load_default(13)
    for number, (image, (_, lines, wrong)) in enumerate(zip(shown, tiles, strict=True)):
        left, top = 8 + number % columns * (width + 8), 8 + number // columns * below
        whole.paste(image, (left, top), image)
        for line, words in enumerate(lines):
            # Cut by its width in pixels, as letters differ; the row number is on a line of its own.
            while words and pen.textlength(words, font) > width:
                words = f"{words.rstrip('…')[:-1]}…" if len(words) > 1 else ""
            spot, color = (left, top + height + 2 + 16 * line), "#b3261e" if wrong else "#30343b"
            pen.text(spot, words, color, font)
    kind = "PNG" if path.suffix == ".png" else "JPEG"
    write_atomically(path, _encoded(whole, kind))
    return path


def _encoded(image: Image.Image, kind: str) -> bytes:
    made = io.BytesIO()
    # PNGs take no quality. Half the colours across: a run of 10 steps leaves at most 300 kB.
    image.save(made, kind, quality=60, subsampling=1, optimize=True)
    return made.getvalue()
