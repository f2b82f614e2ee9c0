"""What only the process of a run knows of its data, for the report: RUN/report/facts.json.

It holds the splits, the first batches of training and predictions of validation, with small images.
Batches are made again from their addresses, as `task=replay` does. The run has made its last step
by then, and generators are put back. Cost: two batches of training and 12 rows of validation.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock.addons.reports import tiles
from penstock.addons.reports.run_page import FACTS, Sample
from penstock.build.data import DataParts, Split
from penstock.files.disk import prepare, write_atomically
from penstock.loading.bad_samples import path_of
from penstock.loading.batch import Batch
from penstock.loading.facts import own_row, unfiltered
from penstock.loading.fetch import Compose
from penstock.order.plan import End, StreamPlan, length_of
from penstock.order.seeding import scope
from penstock.runs.only_shown import only_shown
from penstock.training.adapter import Objective, Rendered
from penstock.transforms.batch import BatchCompose
from penstock.transforms.image import Normalize

_BATCHES, _ROWS = 2, 6
_SPREAD = 12  # predictions, where no loss of each sample chooses them
_SHEET = 64  # images of a batch on a sheet
_STRIP = 8  # frames of a clip, spread evenly over it


def write(
    folder: Path, data: DataParts, objective: Objective | None = None, **predictions: Any
) -> None:
    """Write the facts of a run; without an objective, those that are cheap, of one that failed.

    Args:
        predictions: `predictions`, `losses` and `examples`, for the report.
    """
    facts: dict[str, Any] = {"notes": [], "batches": [], "predictions": [], **predictions}
    # Each part fails by itself: data that cannot be read leaves the predictions to look at.
    with only_shown("a part of the report (the data)"):
        facts["splits"] = [
            {
                "name": split.name,
                "dataset": type(unfiltered(split.dataset)).__name__,
                "rows": length_of(split.dataset),
                "fingerprint": split.fingerprint["dataset"],
            }
            for split in data.splits
        ]
    if objective is None:
        # A run often fails by its data, and reading it again would fail, or hang, again.
        facts["notes"].append("No samples are shown, since the run was not done.")
    else:
        with only_shown("a part of the report (the first batches)") as failed, _generators():
            facts["batches"] += _batches(data.train, objective)
        facts["notes"] += [f"The first batches are missing: {reason}" for reason in failed]
    # Images are inlined as texts, so the report can be made again from this file alone.
    prepare((folder / FACTS).parent)
    write_atomically(folder / FACTS, json.dumps(facts, indent=1).encode())


def predictions(
    split: Split,
    model: nn.Module,
    objective: Objective,
    groups: Mapping[str, Mapping[int, float | None]] | None,
) -> list[Sample]:
    """Samples with what the model predicts for them; none of a stream, which has no rows.

    Args:
        groups: rows of the dataset by group, in their order, with their losses in the validation;
            None: spread evenly over the split.
    """
    if isinstance(split.plan, StreamPlan):
        return []
    # Spread evenly: the first rows of a sorted folder are all of one class.
    last = len(split.dataset) - 1
    rows = np.unique(np.linspace(0, last, min(last + 1, _SPREAD)).round().astype(np.int64))
    groups = groups or {"spread over the split": dict.fromkeys(rows.tolist())}
    # A loss over pairs depends on the other rows of its batch, so the loss of these few is another.
    by_row = {
        row: {"group": name, "loss": loss}
        for name, losses in groups.items()
        for row, loss in losses.items()
    }
    # The whole measurement again for a few rows, as the loop keeps losses and no outputs.
    device = next(model.parameters()).device
    with _generators(), torch.no_grad():
        # Where rows are packed, each is the beginning of a block of its own.
        request = split.plan.rows(np.array([*by_row], np.int64))
        batch = split.fetch()(request).to(device)
        _, outputs = objective.to(device).measure(model.eval(), batch)
    samples = _samples(split, objective, batch, outputs)
    return [sample | by_row[sample["row"]] for sample in samples]


def draw_batch(split: Split, batch: Batch, folder: Path) -> Path | None:
    """A sheet of a batch of images with their landmarks, or of clips, as batch.png; else None."""
    name = next((name for name in batch if is_images(batch[name]) or is_clips(batch[name])), None)
    if name is None:
        return None
    labels, points = batch.get("label"), batch.get("landmarks")
    sheet = []
    for row, image in enumerate(_as_the_model_saw(split, name, batch)[:_SHEET]):
        view = Rendered(points=None if points is None else points[row])
        # A class is a number a row; boxes or landmarks in words would fill the sheet.
        label = f": {labels[row].item()}" if isinstance(labels, Tensor) and labels.ndim == 1 else ""
        tile = tiles.tile(image, view, strip=is_clips(batch[name]))
        sheet.append((tile, [f"{int(batch.indices[row])}{label}"], False))
    return tiles.sheet(sheet, folder / "batch.png")


@contextmanager
def _generators() -> Iterator[None]:
    """Put back the generators of this process and of its GPU."""
    # Asking for the state of a GPU would start CUDA in runs on CPUs, which takes seconds.
    is_there = torch.cuda.is_initialized()
    devices = [torch.cuda.current_device()] if is_there else []
    with scope(), torch.random.fork_rng(devices):
        yield


def _batches(split: Split, objective: Objective) -> Iterator[dict[str, Any]]:
    """The first batches of epoch 0 as the model got them, a few rows of each."""
    fetch, plan = split.fetch(), split.plan
    steps = plan.limit(0)
    for step in range(_BATCHES if steps is None else min(_BATCHES, steps)):
        # All rows are made, though few are shown: a batch transform may mix any two of them.
        batch = fetch(plan.request(0, step))
        if isinstance(batch, End):
            return
        yield {
            "epoch": 0,
            "step": step,
            "rows": len(batch.request),
            "kind": _kind(batch, objective)[0],
            "samples": _samples(split, objective, batch, most=_ROWS),
        }


def _samples(
    split: Split, objective: Objective, batch: Batch, outputs: Any = None, most: int | None = None
) -> list[Sample]:
    """The first rows of a batch that are not padding, as they can be shown."""
    kind, field = _kind(batch, objective)
    # Rows of tables have names and units for people, which their tensors have lost.
    rendered, about = objective.rendered(batch, outputs), getattr(split.dataset, "about", None)
    images = _as_the_model_saw(split, field, batch) if kind in ("images", "views", "clips") else []
    signals = _unpadded(batch, field) if kind == "signals" else []
    samples = list[Sample]()
    rows = range(len(batch.indices)) if batch.valid is None else batch.valid.nonzero().flatten()
    for row in map(int, rows[:most]):
        index, view, picture, words = int(batch.indices[row]), rendered[row], None, ""
        if view.past is not None:
            picture = tiles.forecast(view)
        elif signals:
            picture, words = tiles.signal(signals[row]), f"{len(signals[row])} steps"
        elif images:
            image, seen = images[row], batch[field]
            marks = view if field == objective.shown_field(batch) else Rendered()
            scale = (image.shape[-1] / seen.shape[-1], image.shape[-2] / seen.shape[-2])
            picture = tiles.tile(image, marks, scale, kind == "clips")
        elif about is not None:
            cells = about(index).items()
            words = ", ".join(f"{name} {cell}" for name, cell in cells if cell is not None)
        else:
            words = _words(batch, objective, row)
        # Behind a filter the plan counts other rows than the file does.
        own = own_row(split.dataset, index)
        samples.append(
            {
                "row": index,
                "path": path_of(split.dataset, index) or ("" if own is None else f"row {own}"),
                "truth": _shortened(view.truth, 200),
                "predicted": _shortened(view.predicted, 200),
                "wrong": view.wrong,
                "drawn": "masks"
                if view.mask is not None
                else "boxes"
                if view.boxes is not None
                else "marks"
                if view.points is not None or view.past is not None
                else "",
                "words": _shortened(words, 600),
                **({"uri": _uri(picture)} if picture else {}),
            }
        )
    return samples


def _kind(batch: Batch, objective: Objective) -> tuple[str, str]:
    """How a batch is shown, and the field that is."""
    target = getattr(objective, "target", None)
    names = [name for name in (*objective.inputs, *batch) if name in batch and name != target]
    for kind, fits in (("images", is_images), ("clips", is_clips), ("signals", _is_signals)):
        field = next((name for name in names if fits(batch[name])), None)
        if field is not None:
            return "views" if kind == "images" and _views(batch, field) else kind, field
    return "words", objective.shown_field(batch)


def is_images(value: object) -> bool:
    """Whether a field of a batch is [B, C, H, W] with colours or shades of grey."""
    return isinstance(value, Tensor) and value.ndim == 4 and value.shape[1] in (1, 3)


def is_clips(value: object) -> bool:
    """Whether a field of a batch is [B, T, C, H, W] with colours or shades of grey."""
    return isinstance(value, Tensor) and value.ndim == 5 and value.shape[2] in (1, 3)


def _is_signals(value: object) -> bool:
    """Whether a field of a batch is [B, T, F] or [B, F, T]."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 3


def _as_the_model_saw(split: Split, field: str, batch: Batch) -> list[Tensor]:
    """The images of a field before they were normalised; of clips, strips of frames.

    Further views stand beside the first, unless points or boxes are drawn on that.
    """
    stacks = []
    for name in [field, *_views(batch, field)]:
        stack = batch[name]
        if is_clips(stack):
            # Neighbouring frames are nearly the same image.
            frames = np.linspace(0, stack.shape[1] - 1, min(stack.shape[1], _STRIP)).round()
            stack = torch.cat([stack[:, int(frame)] for frame in frames], dim=-1)
        stacks.append(denormalized(stack, split.transform, split.batch_transform))
    return list(torch.cat([one for one in stacks if one.shape[:3] == stacks[0].shape[:3]], dim=3))


def _views(batch: Batch, field: str) -> list[str]:
    """The second view of a field, where nothing is drawn on the first."""
    # The points of one view would lie at wrong places of the other.
    is_plain = set(batch.kinds.values()) <= {"image"}
    return [f"{field}_2"] if f"{field}_2" in batch and is_plain else []


def denormalized(images: Tensor, *transforms: Compose | BatchCompose) -> Tensor:
    """Images before `Normalize`, to look at."""
    for transform in transforms:
        for step in transform.steps.values():
            if isinstance(step, Normalize):
                return step.inverse(images)
            if isinstance(step, Compose):  # views
                return denormalized(images, step)
    return images


def _unpadded(batch: Batch, field: str) -> list[tiles.Array]:
    """Each signal [T, F] without its padding.

    Time is the dimension that the longest fills; where no lengths are known, the longer one.
    """
    values, lengths = batch[field].detach().float().cpu(), batch.get(f"{field}_lengths")
    longest = max(values.shape[1:]) if lengths is None else int(lengths.max())
    # Layouts [T, F] and [F, T] are both usual, and nothing in a batch names them.
    values = values if values.shape[1] == longest else values.mT
    kept = [longest] * len(values) if lengths is None else lengths.tolist()
    return [signal[: max(length, 1)].numpy() for signal, length in zip(values, kept, strict=True)]


def _words(batch: Batch, objective: Objective, number: int) -> str:
    """A sample in words: its texts, or else the beginning of the model's input."""
    lists = [value for value in batch.values() if isinstance(value, list) and len(value) > number]
    if texts := [value[number] for value in lists if isinstance(value[number], str)]:
        return " / ".join(texts)
    value = batch[objective.shown_field(batch)][number].flatten()
    # Of a flattened input of any shape the beginning is enough to see its scale.
    few = ", ".join(f"{number:.4g}" for number in value[:8].tolist())
    return few + (" ..." if value.numel() > 8 else "")


def _shortened(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def _uri(picture: bytes) -> str:
    kind = "png" if picture.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"
