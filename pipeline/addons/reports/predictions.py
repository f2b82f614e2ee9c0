"""Predictions for a few samples of a split, to look at.

    pictures                 a sheet of them: landmarks drawn, classes below
    sound, sequences         a sheet of curves, or of heat maps for many channels
    text, tables, all else   predictions.md, a line a sample

Pictures have the dataset's size if that shows what the model saw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock.addons.reports.pictures import contact_sheet, shortened, signals
from penstock.addons.tokens.continuations import write_continuations
from penstock.addons.tokens.language_model import LanguageModeling
from penstock.addons.tokens.sequence_packing import SequencePacking
from penstock.addons.tokens.token_losses import document_losses
from penstock.build.data import Split
from penstock.files.disk import write_atomically
from penstock.files.table_cells import markdown_cell
from penstock.loading.batch import Batch
from penstock.loading.collate import plain
from penstock.order.plan import Request
from penstock.order.randomness import IntArray, scope
from penstock.order.streams import StreamPlan
from penstock.training.objective import Classification, LandmarkRegression, Objective
from penstock.transforms.batch import BatchCompose
from penstock.transforms.image import Compose, Normalize

MOST_PIXELS = 512  # of a picture's longer side
FEW = 4  # numbers of a target that are written out


def draw(
    split: Split, model: nn.Module, objective: Objective, path: Path, count: int = 12
) -> Path | None:
    """Show predictions for samples spread evenly over the split.

    Landmarks are drawn onto the image, with the error below; below others stands the prediction,
    and the true class if it differs.

    Args:
        path: a .png; a table goes beside it, as .md.

    Returns:
        The written file; None for streams, in which samples cannot be chosen.
    """
    if isinstance(split.plan, StreamPlan):
        return None
    if isinstance(objective, LanguageModeling):
        return write_continuations(split, model, objective, path.with_suffix(".md"), count)
    rows = len(split.dataset)
    indices = np.unique(np.linspace(0, rows - 1, min(count, rows)).round().astype(np.int64))
    batch, _, outputs = predict(split, model, objective, indices)
    shown, name = batch.get(objective.inputs[0]), objective.inputs[0]
    if is_pictures(shown):
        return _sheet(split, objective, outputs, batch, path)
    found = outcomes(objective, outputs, batch)
    if is_signals(shown):
        captions = [_caption(true, guess) for true, guess in found]
        return signals(unpadded(batch, name), path, captions)
    return _listed(batch, objective, found, path.with_suffix(".md"))


def predict(
    split: Split, model: nn.Module, objective: Objective, indices: IntArray
) -> tuple[Batch, Tensor, Tensor]:
    """A batch of rows of the split, in one piece; their losses, and the model's outputs.

    Where rows are packed, each is the beginning of a block of its own.
    """
    device = next(model.parameters()).device
    count, parts = len(indices), None
    if isinstance(split.plan.sampler, SequencePacking):
        parts = np.array([[0, split.plan.sampler.tokens, -1, block] for block in range(count)])
    with scope():  # at the positions of validation, which reads rows in order
        made: Batch = split.fetch()(Request(0, 0, indices, indices, count, parts=parts))
    batch = made.to(device)
    with torch.no_grad():
        losses, outputs = objective.to(device)(model.eval(), batch)
    if len(losses) != count and parts is not None:  # a loss a token
        rows, means = document_losses(losses, batch)
        losses = means.new_full((count,), torch.nan).index_copy(0, rows, means)
    return batch, losses, outputs


def is_pictures(value: Any) -> bool:
    """Whether a field of a batch is [B, C, H, W] with colours or shades of grey."""
    return isinstance(value, Tensor) and value.ndim == 4 and value.shape[1] in (1, 3)


def is_signals(value: Any) -> bool:
    """Whether a field of a batch is [B, T, F] or [B, F, T]."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 3


def _sheet(split: Split, objective: Objective, outputs: Tensor, batch: Batch, path: Path) -> Path:
    images, shown = batch[objective.inputs[0]], large_pictures(split, objective.inputs[0], batch)
    if isinstance(objective, LandmarkRegression):
        true = scaled(objective.targets(batch), images, shown)
        predicted = scaled(objective.predictions(outputs, batch), images, shown)
        captions = _errors(objective, outputs, batch)
        return contact_sheet(shown, path, true, predicted, captions)
    found = outcomes(objective, outputs, batch)
    captions = [_caption(true, guess, between="\n") for true, guess in found]
    return contact_sheet(shown, path, captions=captions)


def large_pictures(split: Split, field: str, batch: Batch) -> Sequence[Tensor]:
    """The pictures of a batch, as large as shows what the model saw."""
    large = _large(split, field, batch)
    if large is not None:
        return large
    return list(denormalized(batch[field], split.transform, split.batch_transform))


def scaled(points: Tensor, seen: Tensor, shown: Sequence[Tensor]) -> list[Tensor]:
    """Points in pixels of the images `seen`, converted to those of `shown`: [L, 2] each."""
    height, width = seen.shape[-2:]
    sizes = [points.new_tensor([one.shape[-1] / width, one.shape[-2] / height]) for one in shown]
    return [one * size for one, size in zip(points, sizes, strict=True)]


def _large(split: Split, field: str, batch: Batch) -> list[Tensor] | None:
    """The batch's pictures before their resize; None if resizing them gives something else."""
    steps = split.transform.steps
    resize = next((name for name, step in steps.items() if type(step).__name__ == "Resize"), None)
    if resize is None or split.batch_transform:
        return None
    names = list(steps)
    before = Compose({name: steps[name] for name in names[: names.index(resize)]})
    behind = [name for name in names[names.index(resize) :] if isinstance(steps[name], Normalize)]
    rest = Compose({name: steps[name] for name in (resize, *behind)})
    found = []
    with scope():
        for row, index in enumerate(batch.indices.tolist()):
            sample = before(split.data.fields.named(split.dataset[index]))
            again = rest(dict(sample)).get(field)
            seen = batch[field][row].cpu()
            if again is None or again.shape != seen.shape or not torch.equal(plain(again), seen):
                return None
            image = plain(sample[field])
            factor = MOST_PIXELS / max(image.shape[-2:])
            if factor < 1:
                from torchvision.transforms.v2.functional import resize as resized

                size = [max(1, round(side * factor)) for side in image.shape[-2:]]
                image = resized(image, size, antialias=True)
            found.append(image)
    return found


def outcomes(objective: Objective, outputs: Tensor, batch: Batch) -> list[tuple[str, str]]:
    """The truth and the prediction of each sample, in words."""
    if isinstance(objective, LanguageModeling):
        bits = objective.bits_per_byte(outputs, batch).tolist()
        return [("", f"{one:.2f} bits per byte") for one in bits]
    if isinstance(objective, Classification):
        names = objective.names
        shares, chosen = outputs.softmax(-1).max(-1)
        true = objective.targets(batch).tolist()
        guesses = zip(chosen.tolist(), shares.tolist(), strict=True)
        return [
            (names[one], f"{names[guess]} {share:.0%}")
            for one, (guess, share) in zip(true, guesses, strict=True)
        ]
    target, predicted = objective.targets(batch), objective.predictions(outputs, batch)
    if target[0].numel() <= FEW and target.shape == predicted.shape:
        return [
            (numbers(one), numbers(other)) for one, other in zip(target, predicted, strict=True)
        ]
    return [("", error) for error in _errors(objective, outputs, batch)]


def numbers(value: Tensor) -> str:
    return ", ".join(f"{number:.4g}" for number in value.flatten().tolist())


def _caption(true: str, guess: str, between: str = ", ") -> str:
    """A prediction, and the truth if it differs."""
    if not true:
        return guess
    name, _, share = guess.rpartition(" ")
    if share.endswith("%"):
        return guess if name == true else f"{guess}{between}not {true}"
    return f"{guess}{between}true {true}"


def unpadded(batch: Batch, field: str) -> list[Tensor]:
    """Each sample without its padding; time is the dimension that the longest fills."""
    values, lengths = batch[field], batch.get(f"{field}_lengths")
    if not isinstance(lengths, Tensor):
        return list(values)
    time = 1 if values.shape[1] == int(lengths.max()) else 2
    return [
        one.narrow(time - 1, 0, max(int(length), 1))
        for one, length in zip(values, lengths, strict=True)
    ]


def _listed(
    batch: Batch, objective: Objective, found: Sequence[tuple[str, str]], path: Path
) -> Path:
    """Write a table in Markdown: row, sample, truth, prediction."""
    lines = ["| row | sample | true | predicted |", "|---|---|---|---|"]
    for place, (true, guess) in enumerate(found):
        row = [str(int(batch.indices[place])), words_of(batch, objective, place), true, guess]
        lines.append(f"| {' | '.join(markdown_cell(shortened(one, 100)) for one in row)} |")
    write_atomically(path, ("\n".join(lines) + "\n").encode())
    return path


def words_of(batch: Batch, objective: Objective, place: int) -> str:
    """A sample in words: its texts, or else the beginning of the model's input."""
    lists = [value for value in batch.values() if isinstance(value, list) and len(value) > place]
    texts = [value[place] for value in lists if isinstance(value[place], str)]
    if texts:
        return " / ".join(texts)
    value = batch[objective.inputs[0]][place].flatten()
    return numbers(value[:8]) + (" ..." if value.numel() > 8 else "")


def denormalized(images: Tensor, *transforms: Compose | BatchCompose) -> Tensor:
    """Images before `Normalize`, to look at."""
    for transform in transforms:
        for step in transform.steps.values():
            if isinstance(step, Normalize):
                return step.inverse(images)
    return images


def _errors(objective: Objective, outputs: Tensor, batch: Batch) -> list[str]:
    """The objective's first metric of each sample; empty where it needs more than one."""
    name, metric = next(iter(objective.metrics.items()), ("", None))
    if metric is None:
        return [""] * len(outputs)
    predicted, target = objective.predictions(outputs, batch), objective.targets(batch)
    captions = []
    for row in range(len(outputs)):
        metric.reset()
        try:
            objective.add(name, predicted[row : row + 1], target[row : row + 1])
            value = float(metric.compute().double().mean())
        except Exception:  # as of a correlation, or of a person's own metric
            value = math.nan
        captions.append("" if math.isnan(value) else f"{name} {value:.3f}")
    metric.reset()
    return captions
