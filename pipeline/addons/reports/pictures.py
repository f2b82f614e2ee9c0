"""Pictures of a run: learning curves, confused classes, samples with predictions, thumbnails.

The first picture imports matplotlib (0.3 s). Only its object interface is used, without a backend
or global state, so this also works in a notebook.

Thumbnails are for the report: encoded bytes, 1 to 3 ms each, without matplotlib. Photographs and
heat maps are JPEGs, since they would be several times as large otherwise; tiny images and curves
are PNGs.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.addons.reports import figures
from penstock.addons.reports.figures import drawing
from penstock.files.disk import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image

    from penstock.training.rendered import Rendered

TRUE, PREDICTED, INK, FAINT = "#22e08a", "#ff4b1f", "#30343b", "#d9dce1"
PAST = "#8a94a3"  # of a series
STYLES = (":", "--", "-.", (0, (1, 4)), (0, (6, 3, 1, 3, 1, 3)))  # of horizontal lines
TILE = 1.9  # inches
DPI = 120
_LONGEST = 60  # characters of a line
_LETTER = 0.064  # inches, of a letter of 9 points

# The lines that the 68 iBUG landmarks stand for: of a face and its brows and nose, which are open,
# and of its eyes and mouth, which are closed.
IBUG68_LINES = (
    *(list(range(*ends)) for ends in ((0, 17), (17, 22), (22, 27), (27, 31), (31, 36))),
    *([*range(*ends), ends[0]] for ends in ((36, 42), (42, 48), (48, 60), (60, 68))),
)


@drawing()
def learning_curves(
    history: Sequence[Mapping[str, float]],
    path: Path,
    levels: Mapping[str, Mapping[str, float]] | None = None,
) -> Path:
    """Draw losses and metrics over the epochs, a panel each.

    Args:
        history: a record an epoch with "epoch" and any of "train/<name>", "val/<name>" and
            "val/<name>/<class>".
        path: a .png.
        levels: metrics of what the run compares with, such as a constant prediction, by its name;
            drawn as horizontal lines.
    """
    panels: dict[str, dict[str, list[Any]]] = {"loss": {}}  # title -> label -> [epochs, values]
    for record in history:
        for key, value in record.items():
            split, _, name = key.partition("/")
            if split in ("train", "val"):
                title, _, part = name.partition("/")
                label = part or {"train": "training", "val": "validation"}[split]
                if part and split == "train":  # parts of a loss, which validation has too
                    label = f"{part}, training"
                epochs, values = panels.setdefault(title, {}).setdefault(label, [[], []])
                epochs.append(record["epoch"])
                values.append(value)
    columns = min(len(panels), 3)
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(5.2 * columns, 3.1 * rows, layout="constrained")
    for panel, (title, curves) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(rows, columns, panel)
        _draw_curves(axes, title, curves)
        for style, (name, values) in zip(cycle(STYLES), (levels or {}).items(), strict=False):
            level = values.get(title)
            if level is not None and math.isfinite(level):
                axes.axhline(
                    level,
                    color=INK,
                    linewidth=1.2,
                    linestyle=style,
                    label=shortened(name, _LONGEST),
                )
        if len(axes.lines) > 1:  # beside the panel, where no line is
            axes.legend(
                frameon=False,
                fontsize=8,
                loc="upper left",
                bbox_to_anchor=(1.0, 1.03),
                handlelength=3.4 if len(levels or {}) > 1 else 1.2,
                ncols=math.ceil(len(axes.lines) / 16),
            )
    return save(figure, path)


@drawing()
def contact_sheet(
    images: Tensor | Sequence[Tensor],
    path: Path,
    landmarks: Sequence[Tensor] | Tensor | None = None,
    predicted: Sequence[Tensor] | Tensor | None = None,
    captions: Sequence[str] | None = None,
    columns: int = 6,
    tile: float = TILE,
) -> Path:
    """Draw images side by side; true landmarks in green, predicted ones in orange.

    Args:
        images: [B, C, H, W], or [C, H, W] of any sizes; C is 1 or 3; uint8, or float in [0, 1].
        path: a .png.
        landmarks, predicted: for each image float[L, 2], x and y in its pixels. 68 landmarks are
            drawn as the lines of a face, others as points.
        captions: below each image, of one or more lines; long ones are folded once, then cut.
        tile: width of an image in inches.
    """
    columns = min(columns, len(images))
    rows = math.ceil(len(images) / columns)
    per_line = int(tile / _LETTER)
    captions = [
        "\n".join(folded(line, per_line) for line in caption.split("\n"))
        for caption in captions or ()
    ]
    lines = max((caption.count("\n") + 1 for caption in captions), default=0)
    legend = 0.3 if landmarks is not None or predicted is not None else 0.05
    # Pictures that are all wide, as pairs are, leave no gap above and below.
    tall = min(1.0, max(image.shape[-2] / image.shape[-1] for image in images))
    height = rows * (tile * tall + 0.19 * lines + 0.06) + legend
    figure = new_figure(columns * (tile + 0.06) + 0.06, height)
    for number, image in enumerate(images):
        axes = figure.add_subplot(rows, columns, number + 1)
        shown = pixels(image)
        # "auto" smooths images that shrink, and shows the pixels of much enlarged ones.
        axes.imshow(shown, cmap="gray", vmin=0, vmax=255, interpolation="auto")
        axes.set_xlim(-0.5, shown.shape[1] - 0.5)
        axes.set_ylim(shown.shape[0] - 0.5, -0.5)
        axes.set_axis_off()
        if landmarks is not None:
            _draw_points(axes, landmarks[number], TRUE, width=2.3)
        if predicted is not None:
            _draw_points(axes, predicted[number], PREDICTED, width=1.1)
        if captions:
            axes.text(
                0.5,
                -0.025,
                captions[number],
                transform=axes.transAxes,
                ha="center",
                va="top",
                fontsize=9,
                color=INK,
            )
    if legend > 0.1:
        from matplotlib.lines import Line2D

        drawn = [(landmarks, TRUE, "true"), (predicted, PREDICTED, "predicted")]
        handles = [
            Line2D([], [], color=color, linewidth=3, label=label)
            for points, color, label in drawn
            if points is not None
        ]
        figure.legend(
            handles=handles,
            loc="upper center",
            ncols=len(handles),
            frameon=False,
            fontsize=10,
            borderpad=0.1,
        )
    gap = 0.06 / tile
    figure.subplots_adjust(
        left=0.03 / columns,
        right=1 - 0.03 / columns,
        top=1 - legend / height,
        bottom=(0.19 * lines + 0.03) / height,
        wspace=gap,
        hspace=(gap + 0.19 * lines / tile) / tall,
    )
    return save(figure, path)


@drawing()
def confusion_matrix(
    counts: Tensor, names: Sequence[str], path: Path, title: str = "confusion"
) -> Path:
    """Draw how often each class (a row) was taken for each other.

    The colour is the share of the row, so rare classes are visible; the number is the count.

    Args:
        counts: int64[C, C].
        names: of the C classes.
        path: a .png.
    """
    shares = (counts / counts.sum(1, keepdim=True).clamp_min(1)).numpy()
    labels = [shortened(name, 18) for name in names]
    longest = max(map(len, labels))
    side = max(1.6, 0.42 * len(labels))
    figure = new_figure(side + 0.09 * longest + 1.6, side + 0.09 * longest + 1.0, "constrained")
    axes = figure.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(labels)), labels, rotation=90 if longest > 4 else 0, fontsize=8)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_xlabel("predicted", color=INK)
    axes.set_ylabel("true", color=INK)
    title = shortened(title, _LONGEST)
    axes.set_title(title, loc="left", fontsize=11, color=INK, fontweight="bold")
    axes.spines[:].set_visible(False)
    for row in range(len(labels)):
        for column in range(len(labels)):
            if count := int(counts[row, column]):
                axes.text(
                    column,
                    row,
                    str(count),
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if shares[row, column] > 0.5 else INK,
                )
    return save(figure, path)


@drawing()
def signals(
    values: Sequence[Tensor], path: Path, captions: Sequence[str], columns: int = 4
) -> Path:
    """Draw signals side by side, float[T, F] or [F, T] each, with a caption above each.

    Up to 4 channels are drawn as lines over time, more as a heat map.
    """
    columns = min(columns, len(values))
    rows = math.ceil(len(values) / columns)
    figure = new_figure(3.0 * columns, 1.7 * rows, layout="constrained")
    for number, (signal, caption) in enumerate(zip(values, captions, strict=True)):
        axes = figure.add_subplot(rows, columns, number + 1)
        drawn = signal.detach().float().cpu().numpy()
        if min(drawn.shape) <= 4:
            axes.plot(drawn if drawn.shape[1] <= drawn.shape[0] else drawn.T, linewidth=1.0)
            axes.grid(color=FAINT, linewidth=0.6)
        else:
            axes.imshow(drawn, aspect="auto", origin="lower", cmap="magma", interpolation="nearest")
        axes.tick_params(labelsize=7)
        wrong = "not " in caption
        axes.set_title(
            shortened(caption, _LONGEST),
            loc="left",
            fontsize=8.5,
            color=PREDICTED if wrong else INK,
        )
        axes.spines[["top", "right"]].set_visible(False)
    return save(figure, path)


@drawing()
def forecasts(
    rows: Sequence[Rendered], path: Path, captions: Sequence[str], columns: int = 3
) -> Path:
    """Draw series side by side, with a caption above each: the past in grey, how it went on in
    green, and the forecast in orange.
    """
    columns = min(columns, len(rows))
    figure = new_figure(3.6 * columns, 1.9 * math.ceil(len(rows) / columns), layout="constrained")
    for number, (row, caption) in enumerate(zip(rows, captions, strict=True)):
        axes = figure.add_subplot(math.ceil(len(rows) / columns), columns, number + 1)
        for (xs, ys), color in _series_lines(row):
            axes.plot(xs, ys, color=color, linewidth=1.4)
        axes.grid(color=FAINT, linewidth=0.6)
        axes.tick_params(labelsize=7)
        axes.set_title(shortened(caption, _LONGEST), loc="left", fontsize=8.5, color=INK)
        axes.spines[["top", "right"]].set_visible(False)
    return save(figure, path)


def _series_lines(
    row: Rendered,
) -> list[tuple[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]], str]]:
    """The lines of a forecast, (x, y) and colour of each; both futures begin where the past ends.

    A value that is missing, NaN, is a gap.
    """
    past, *futures = (
        None if values is None else values.detach().float().cpu().numpy()
        for values in (row.past, row.future, row.forecast)
    )
    lines = [] if past is None else [((np.arange(len(past)), past), PAST)]
    start = 0 if past is None else len(past)
    for values, color in zip(futures, (TRUE, PREDICTED), strict=True):
        if values is not None:
            joined = values if past is None else np.concatenate([past[-1:], values])
            first = start - (past is not None)
            lines.append(((np.arange(first, first + len(joined)), joined), color))
    return lines


def folded(text: str, most: int) -> str:
    """`text` on at most two lines of at most `most` characters each."""
    line = shortened(text, 2 * most)
    if len(line) <= most:
        return line
    first, *rest = textwrap.wrap(line, most)
    return f"{first}\n{shortened(' '.join(rest), most)}"


def shortened(text: str, most: int) -> str:
    """`text` on one line of at most `most` characters."""
    line = " ".join(text.split())
    line = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in line)
    return line if len(line) <= most else line[: most - 3] + "..."


def _draw_curves(axes: Axes, title: str, curves: Mapping[str, list[Any]]) -> None:
    from matplotlib.ticker import MaxNLocator

    colors = {"training": "#9aa3b2", "validation": PREDICTED}
    for label, (epochs, values) in curves.items():
        axes.plot(
            epochs,
            values,
            label=shortened(label, _LONGEST),
            color=colors.get(label),
            linewidth=2,
            marker="o",
            markersize=4,
        )
    finite = [v for _, values in curves.values() for v in values if v > 0 and math.isfinite(v)]
    if finite and title == "loss" and max(finite) > 20 * min(finite):
        axes.set_yscale("log")
        figures.label_powers(axes.yaxis)
    axes.set_title(
        shortened(title, _LONGEST), loc="left", fontsize=11, color=INK, fontweight="bold"
    )
    axes.set_xlabel("epoch", color=INK)
    shown = [epoch for epochs, _ in curves.values() for epoch in epochs]
    if shown and min(shown) == max(shown):  # a single one, with room on both sides
        axes.set_xlim(shown[0] - 0.6, shown[0] + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(color=FAINT, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_points(axes: Axes, points: Tensor, color: str, width: float) -> None:
    from matplotlib.patheffects import Stroke

    x, y = torch.as_tensor(points).detach().float().cpu().unbind(-1)
    if len(x) != 68:
        axes.scatter(x, y, s=14 * width, color=color, edgecolors="black", linewidths=0.4)
        return
    outline = [Stroke(linewidth=width + 0.9, foreground="#000000", alpha=0.35), Stroke()]
    for line in IBUG68_LINES:
        axes.plot(
            x[line],
            y[line],
            color=color,
            linewidth=width,
            path_effects=outline,
            solid_capstyle="round",
            solid_joinstyle="round",
        )


def pixels(image: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """[C, H, W] as uint8 [H, W, 3], or [H, W] of one channel."""
    image = image.detach().cpu().as_subclass(Tensor)
    if image.is_floating_point():
        image = (image.clamp(0, 1) * 255).round().to(torch.uint8)
    return image.permute(1, 2, 0).squeeze(-1).numpy()


def new_figure(width: float, height: float, layout: Literal["constrained"] | None = None) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = figures.new_figure(width, height, dpi=DPI, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    with warnings.catch_warnings():  # about class names in scripts that the font lacks
        warnings.filterwarnings("ignore", "Glyph .* missing")
        warnings.filterwarnings("ignore", "constrained_layout not applied")  # by long ones
        figure.savefig(drawn, format=path.suffix.removeprefix(".") or "png")
    write_atomically(path, drawn.getvalue())
    return path


SIDE = 160  # pixels of the longer side
_TINY = 48  # pixels of the longer side, up to which an image is kept as it is
_FINER = 3  # lines are drawn so many times as large, and reduced
_HEIGHT = 80  # pixels, of a signal
_COLORS = ("#2f7fd6", "#e0742b", "#2aa876", "#b45fc6")  # legible on white and on black
_HEAT = (8, 6, 40), (182, 54, 121), (252, 240, 180)  # of least, middle and largest
_MOST_LINES = 4


def thumbnail(image: Tensor, points: Sequence[tuple[Tensor, str]] = (), side: int = SIDE) -> bytes:
    """An image [C, H, W] with landmarks.

    Args:
        side: pixels of the longer side, at most.
        points: [L, 2] in pixels of `image`, and a colour.
    """
    from PIL import Image

    drawn = Image.fromarray(pixels(image)).convert("RGB")
    longest = max(drawn.size)
    if longest <= _TINY and not points:
        return _encoded(drawn, "PNG")
    factor = side / longest
    if factor < 1 or points:
        width, height = (max(1, round(side * factor)) for side in drawn.size)
        drawn = drawn.resize((width, height), Image.Resampling.LANCZOS)
    return _encoded(_marked(drawn, points, factor) if points else drawn, "JPEG")


def signal_thumbnail(
    values: npt.NDArray[np.float32], wave: npt.NDArray[np.float32] | None = None
) -> bytes:
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


def forecast_thumbnail(row: Rendered) -> bytes:
    """A series, how it went on and its forecast, in the colours of `forecasts`."""
    from PIL import Image, ImageDraw

    width, height = SIDE * _FINER, _HEIGHT * _FINER
    large = Image.new("RGBA", (width, height), (0, 0, 0, 0))
    lines = _series_lines(row)
    values = np.concatenate([ys[np.isfinite(ys)] for (_, ys), _ in lines])
    least, most = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    end = max((int(xs[-1]) for (xs, _), _ in lines), default=0) or 1
    pen = ImageDraw.Draw(large)
    for (xs, ys), color in lines:
        across = 2 * _FINER + xs / end * (width - 4 * _FINER)
        up = (height - 4 * _FINER) * (1 - (ys - least) / ((most - least) or 1.0)) + 2 * _FINER
        pairs = list(zip(across.tolist(), up.tolist(), strict=True))
        for first, second in pairwise(pairs):
            if math.isfinite(first[1]) and math.isfinite(second[1]):
                pen.line([first, second], fill=color, width=2 * _FINER)
    return _encoded(large.resize((SIDE, _HEIGHT), Image.Resampling.BOX), "PNG")


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
