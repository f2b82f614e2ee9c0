"""Predictions for a few samples of a split, to look at.

    pictures                 a sheet of them: landmarks drawn, classes below
    clips                    the same, of frames side by side
    series                   a sheet of lines: the past, how it went on, and the forecast
    sound, sequences         a sheet of curves, or of heat maps for many channels
    text, tables, all else   predictions.md, a line a sample

Pictures have the dataset's size if that shows what the model saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from penstock.addons.reports.marks import marked
from penstock.addons.reports.pictures import TILE, contact_sheet, forecasts, shortened, signals
from penstock.build.data import Split
from penstock.files.disk import write_atomically
from penstock.files.table_cells import markdown_cell
from penstock.loading.batch import Batch
from penstock.loading.collate import plain
from penstock.loading.compose import further_views
from penstock.order.randomness import IntArray, scope
from penstock.order.streams import StreamPlan
from penstock.training.objective_base import Objective
from penstock.training.rendered import Rendered, in_words
from penstock.transforms.batch import BatchCompose
from penstock.transforms.image import Compose, Normalize

MOST_PIXELS = 512  # of a picture's longer side
SHEET = 64  # images of a batch on a contact sheet
STRIP = 8  # frames of a clip, spread evenly over it


def draw(
    split: Split, model: nn.Module, objective: Objective, path: Path, count: int = 12
) -> Path | None:
    """Show predictions for samples spread evenly over the split, as the objective renders them.

    Landmarks are drawn onto the image, with the error below; below others stands the prediction,
    and the true class if it differs. An objective that has `shown(outputs, batch)` gives pictures
    [B, C, H, W] to show instead.

    Args:
        path: a .png; a table goes beside it, as .md.

    Returns:
        The written file; None for streams, in which samples cannot be chosen.
    """
    if isinstance(split.plan, StreamPlan):
        return None
    examples = objective.examples(model, split.dataset, split.transform, count)
    if examples is not None:
        return _listed(examples, path.with_suffix(".md"), 200) if examples else None
    rows = len(split.dataset)
    indices = np.unique(np.linspace(0, rows - 1, min(count, rows)).round().astype(np.int64))
    batch, _, outputs = predict(split, model, objective, indices)
    made = made_by_the_model(objective, outputs, batch)
    if made is not None:
        return contact_sheet(made, path)
    rendered, name = objective.rendered(batch, outputs), objective.shown_field(batch)
    if any(row.past is not None for row in rendered):
        return forecasts(rendered, path, [_caption(row) for row in rendered])
    if is_pictures(batch.get(name)) or is_clips(batch.get(name)):
        images = large_pictures(split, name, batch)
        captions = [_caption(row, between="\n") for row in rendered]
        true = _scaled_all([row.points for row in rendered], batch[name], images)
        predicted = _scaled_all([row.predicted_points for row in rendered], batch[name], images)
        images = marked(images, batch[name], rendered)
        if is_clips(batch[name]):
            return contact_sheet(images, path, captions=captions, columns=2, tile=2 * TILE)
        return contact_sheet(images, path, true, predicted, captions)
    if is_signals(batch.get(name)):
        return signals(unpadded(batch, name)[0], path, [_caption(row) for row in rendered])
    table: list[Sequence[str]] = [("row", "sample", "true", "predicted")]
    for number, row in enumerate(rendered):
        sample = words_of(batch, objective, number)
        table.append((str(int(batch.indices[number])), sample, row.truth, row.predicted))
    return _listed(table, path.with_suffix(".md"), 100)


def made_by_the_model(objective: Objective, outputs: Tensor, batch: Batch) -> list[Tensor] | None:
    """Pictures [C, H, W] to show instead of the batch's; None of an objective that has none."""
    shown = getattr(getattr(objective, "own", objective), "shown", None)
    return None if shown is None else list(shown(outputs, batch))


def predict(
    split: Split, model: nn.Module, objective: Objective, indices: IntArray
) -> tuple[Batch, Tensor, Tensor]:
    """A batch of rows of the split, in one piece; their losses, and the model's outputs.

    Where rows are packed, each is the beginning of a block of its own.
    """
    assert not isinstance(split.plan, StreamPlan)
    device = next(model.parameters()).device
    with scope():
        made: Batch = split.fetch()(split.plan.rows(indices))
    batch = made.to(device)
    with torch.no_grad():
        losses, outputs = objective.to(device).measure(model.eval(), batch)
    by_row = torch.full((len(indices),), torch.nan, device=device)
    if losses is not None:
        places, of_rows = objective.by_sample(losses, batch)
        by_row = of_rows.new_full((len(indices),), torch.nan).index_copy(0, places, of_rows)
    return batch, by_row, outputs


def is_pictures(value: object) -> bool:
    """Whether a field of a batch is [B, C, H, W] with colours or shades of grey."""
    return isinstance(value, Tensor) and value.ndim == 4 and value.shape[1] in (1, 3)


def is_clips(value: object) -> bool:
    """Whether a field of a batch is [B, T, C, H, W] with colours or shades of grey."""
    return isinstance(value, Tensor) and value.ndim == 5 and value.shape[2] in (1, 3)


def strips(clips: Tensor) -> Tensor:
    """Clips [B, T, C, H, W] as pictures of up to `STRIP` frames side by side, [B, C, H, n * W]."""
    chosen = np.linspace(0, clips.shape[1] - 1, min(clips.shape[1], STRIP)).round().astype(np.int64)
    return torch.cat([clips[:, frame] for frame in chosen.tolist()], dim=-1)


def is_signals(value: object) -> bool:
    """Whether a field of a batch is [B, T, F] or [B, F, T]."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 3


def large_pictures(split: Split, field: str, batch: Batch) -> Sequence[Tensor]:
    """The pictures of a batch, as large as shows what the model saw; views side by side."""
    as_seen = as_the_model_saw(split, field, batch)
    steps = split.transform.steps
    resize = next((name for name, step in steps.items() if type(step).__name__ == "Resize"), None)
    if resize is None or split.batch_transform or is_clips(batch[field]):
        return as_seen
    names = list(steps)
    before = Compose({name: steps[name] for name in names[: names.index(resize)]})
    behind = [name for name in names[names.index(resize) :] if isinstance(steps[name], Normalize)]
    rest = Compose({name: steps[name] for name in (resize, *behind)})
    images = []
    with scope():
        for row, index in enumerate(batch.indices.tolist()):
            sample = before(split.data.fields.named(split.dataset[index]))
            again = rest(dict(sample)).get(field)
            seen = batch[field][row].cpu()
            if again is None or again.shape != seen.shape or not torch.equal(plain(again), seen):
                return as_seen  # a step behind the resize changes what is seen
            image = plain(sample[field])
            factor = MOST_PIXELS / max(image.shape[-2:])
            if factor < 1:
                from torchvision.transforms.v2.functional import resize as resized

                size = [max(1, round(side * factor)) for side in image.shape[-2:]]
                image = resized(image, size, antialias=True)
            images.append(image)
    return images


def views_beside(batch: Batch, field: str) -> list[str]:
    """The names of further views that are shown beside the first, where nothing is drawn on it."""
    return further_views(batch, field) if set(batch.kinds.values()) <= {"image"} else []


def as_the_model_saw(split: Split, field: str, batch: Batch) -> list[Tensor]:
    """The pictures of a field before they were normalised, with their further views beside them;
    of clips, strips.

    Views are left out where something else (points, boxes) is drawn at its place in the first one.
    """
    steps = split.transform, split.batch_transform
    views = [field, *views_beside(batch, field)]
    shown = (strips(batch[name]) if is_clips(batch[name]) else batch[name] for name in views)
    stacks = [denormalized(stack, *steps) for stack in shown if is_pictures(stack)]
    fitting = [stack for stack in stacks if stack.shape[:3] == stacks[0].shape[:3]]
    return list(torch.cat(fitting, dim=3))


def scaled(points: Tensor, seen: Tensor, shown: Tensor) -> Tensor:
    """Points in pixels of the images `seen`, converted to those of the image `shown`: [L, 2]."""
    height, width = seen.shape[-2:]
    return points * points.new_tensor([shown.shape[-1] / width, shown.shape[-2] / height])


def _scaled_all(
    points: Sequence[Tensor | None], seen: Tensor, shown: Sequence[Tensor]
) -> list[Tensor] | None:
    pairs = zip(points, shown, strict=True)
    return [scaled(own, seen, image) for own, image in pairs if own is not None] or None


def _caption(rendered: Rendered, between: str = ", ") -> str:
    """A prediction, and the truth if it differs."""
    true, guess = rendered.truth, rendered.predicted
    if not true:
        return guess
    name, _, share = guess.rpartition(" ")
    if share.endswith("%"):
        return guess if name == true else f"{guess}{between}not {true}"
    return f"{guess}{between}true {true}"


def unpadded(batch: Batch, field: str) -> tuple[list[Tensor], bool]:
    """Each sample without its padding, and whether time is their first dimension.

    Time is the dimension that the longest fills; where no lengths are known, the longer one.
    """
    values, lengths = batch[field], batch.get(f"{field}_lengths")
    if not isinstance(lengths, Tensor):
        return list(values), values.shape[1] >= values.shape[2]
    time = 0 if values.shape[1] == int(lengths.max()) else 1
    pairs = zip(values, lengths.tolist(), strict=True)
    return [signal.narrow(time, 0, max(length, 1)) for signal, length in pairs], time == 0


def _listed(table: Sequence[Sequence[str]], path: Path, most: int) -> Path:
    """Write a table with a head in Markdown, with cells of up to `most` characters."""
    head, *rows = table
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        lines.append(f"| {' | '.join(markdown_cell(shortened(cell, most)) for cell in row)} |")
    write_atomically(path, ("\n".join(lines) + "\n").encode())
    return path


def words_of(batch: Batch, objective: Objective, number: int) -> str:
    """A sample in words: its texts, or else the beginning of the model's input."""
    lists = [value for value in batch.values() if isinstance(value, list) and len(value) > number]
    texts = [value[number] for value in lists if isinstance(value[number], str)]
    if texts:
        return " / ".join(texts)
    value = batch[objective.shown_field(batch)][number].flatten()
    return in_words(value[:8]) + (" ..." if value.numel() > 8 else "")


def denormalized(images: Tensor, *transforms: Compose | BatchCompose) -> Tensor:
    """Images before `Normalize`, to look at."""
    for transform in transforms:
        for step in transform.steps.values():
            if isinstance(step, Normalize):
                return step.inverse(images)
            if isinstance(step, Compose):  # views
                return denormalized(images, step)
    return images


def draw_batch(split: Split, batch: Batch, folder: Path) -> Path | None:
    """A contact sheet of a batch of pictures, with their landmarks, or of clips, as batch.png; else
    None.
    """
    images = batch.get("image")
    if is_clips(batch.get("video")):
        images = strips(batch["video"])
    if not isinstance(images, Tensor) or not is_pictures(images):
        return None
    shown = denormalized(images, split.transform, split.batch_transform)[:SHEET]
    labels, points = batch.get("label"), batch.get("landmarks")
    captions = [f"{index}" for index in batch.indices.tolist()]
    if isinstance(labels, Tensor):
        captions = [f"{i}: {label}" for i, label in zip(captions, labels.tolist(), strict=True)]
    points = None if points is None else points[:SHEET]
    path = folder / "batch.png"
    size = (2, 2 * TILE) if is_clips(batch.get("video")) else (8, TILE)
    return contact_sheet(shown, path, points, None, captions[:SHEET], *size)
