"""Samples of a run for its report: of its first batches, and its best and worst predictions.

Batches are made again from their addresses, as `task=replay` does, and only their first rows: a
sample depends on its own key alone. The run has made its last step by then, and generators are put
back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock.addons.reports import thumbnails
from penstock.addons.reports.facts import LONGEST, ShownBatch, ShownSample
from penstock.addons.reports.pictures import PREDICTED, TRUE, shortened
from penstock.addons.reports.predictions import (
    FEW,
    denormalized,
    is_pictures,
    is_signals,
    large_pictures,
    numbers,
    outcomes,
    predict,
    scaled,
    words_of,
)
from penstock.addons.reports.recording import ValidationLosses
from penstock.addons.tokens.language_model import LanguageModeling
from penstock.build.data import Split
from penstock.loading.bad_samples import path_of
from penstock.loading.batch import Batch
from penstock.loading.wrapped import own_row
from penstock.order.plan import Plan
from penstock.order.randomness import scope
from penstock.order.streams import End, StreamPlan
from penstock.training.objective import Classification, LandmarkRegression, Objective

MOST_BATCHES = 2
MOST_ROWS = 16  # of a batch


def shown_batches(split: Split, objective: Objective, most: int) -> Iterator[ShownBatch]:
    """The first batches of epoch 0 as the model got them, up to `most` rows of each."""
    fetch, plan = split.fetch(), split.plan
    steps = plan.limit(0)
    with _generators():
        for step in range(MOST_BATCHES if steps is None else min(MOST_BATCHES, steps)):
            batch = _made(fetch, plan, step, most)
            if batch is None:
                return
            kind, field = _kind(batch, objective)
            shown = _samples(split, objective, batch, kind, field)
            first = int(batch.indices[0])
            heard = kind == "signals" and _recording(split, batch, first) is not None
            total = batch.request.total or len(batch.request)
            kind = "recordings" if heard else kind
            yield ShownBatch(0, step, total, kind, tuple(shown))


def shown_predictions(
    split: Split, model: nn.Module, objective: Objective, losses: ValidationLosses
) -> Iterator[ShownSample]:
    """The samples of validation with the least, the median and the largest loss."""
    groups = {int(row): name for name, rows in losses.groups.items() for row in rows}
    with _generators():
        batch, found, outputs = predict(split, model, objective, np.array(list(groups), np.int64))
    kind, field = _kind(batch, objective)
    told = [(true, guess) for true, guess in outcomes(objective, outputs, batch)]
    samples = {
        one.index: replace(
            one,
            truth=shortened(true, 200),
            predicted=shortened(guess, 200),
            loss=_finite(float(loss)),
            group=groups[one.index],
            position=None,
        )
        for one, (true, guess), loss in zip(
            _samples(split, objective, batch, kind, field, outputs), told, found, strict=True
        )
    }
    for row in groups:  # in the order of their losses
        if row in samples:
            yield samples[row]


@contextmanager
def _generators() -> Iterator[None]:
    """Put back the generators of this process and of its GPU."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with scope(), torch.random.fork_rng(devices):
        yield


def _made(fetch: Any, plan: Plan | StreamPlan, step: int, rows: int) -> Batch | None:
    """The first rows of a batch, or a few more where a transform needs groups of them."""
    if isinstance(plan, StreamPlan):
        shares = -(-plan.batch_size // rows)
        made = fetch(plan.request(0, step, 0, shares))
        return None if isinstance(made, End) else made
    whole = plan.request(0, step)
    count = min(-(-rows // plan.together) * plan.together, len(whole))
    return fetch(
        replace(
            whole,
            positions=whole.positions[:count],
            indices=whole.indices[:count],
            valid=min(whole.valid, count),
            total=len(whole),
            parts=None if whole.parts is None else whole.parts[:count],
        )
    )


def _kind(batch: Batch, objective: Objective) -> tuple[str, str]:
    """How a batch is shown, and the field that is."""
    names = [*(name for name in objective.inputs if name in batch), *batch]
    for kind, fits in (("pictures", is_pictures), ("signals", is_signals)):
        found = next((name for name in names if fits(batch[name])), None)
        if found is not None:
            return kind, found
    texts = any(
        isinstance(value, list) and value and isinstance(value[0], str) for value in batch.values()
    )
    return "texts" if texts else "numbers", objective.inputs[0]


def _samples(
    split: Split,
    objective: Objective,
    batch: Batch,
    kind: str,
    field: str,
    outputs: Tensor | None = None,
) -> list[ShownSample]:
    """The rows of a batch that are not padding; with `outputs`, as large as they can be shown."""
    drawn: list[bytes | None] = [None] * len(batch.indices)
    words = [""] * len(batch.indices)
    if kind == "pictures":
        drawn[:] = _pictures(split, objective, batch, field, outputs)
    elif kind == "signals":
        drawn[:], words = _signals(split, batch, field)
    else:
        words = [words_of(batch, objective, place) for place in range(len(words))]
    truths, found = _truths(objective, batch), []
    for place, (index, position) in enumerate(
        zip(batch.indices.tolist(), batch.positions.tolist(), strict=True)
    ):
        if batch.valid is None or batch.valid[place]:
            own = own_row(split.dataset, index)
            path = path_of(split.dataset, index) or ("" if own is None else f"row {own}")
            path = shortened(path, LONGEST)
            found.append(
                ShownSample(
                    index,
                    path,
                    shortened(truths[place], 200),
                    "",
                    shortened(words[place], 600),
                    drawn[place],
                    position,
                )
            )
    return found


def _truths(objective: Objective, batch: Batch) -> list[str]:
    """The targets in words; "" where they are drawn, or too many."""
    if isinstance(objective, LanguageModeling):
        return [""] * len(batch.positions)
    targets = objective.targets(batch)
    if isinstance(objective, Classification):
        soft = batch.get(f"{objective.target}_soft")
        if isinstance(soft, Tensor):  # of pictures that were mixed
            return [_mixed(one, objective.names) for one in soft.cpu()]
        return [objective.names[one] for one in targets.tolist()]
    if isinstance(objective, LandmarkRegression) or targets[0].numel() > FEW:
        return [""] * len(targets)
    return [numbers(one) for one in targets]


def _mixed(shares: Tensor, names: list[str]) -> str:
    found = [(float(share), name) for share, name in zip(shares, names, strict=True) if share > 0]
    found.sort(reverse=True)
    if len(found) == 1:
        return found[0][1]
    return ", ".join(f"{name} {share:.0%}" for share, name in found[:3])


def _pictures(
    split: Split, objective: Objective, batch: Batch, field: str, outputs: Tensor | None
) -> list[bytes]:
    shown: Any = denormalized(batch[field], split.transform, split.batch_transform)
    if outputs is not None:
        shown = large_pictures(split, field, batch)
    points: list[list[tuple[Tensor, str]]] = [[] for _ in shown]
    if isinstance(objective, LandmarkRegression) and field == objective.inputs[0]:
        drawn = [(objective.targets(batch), TRUE)]
        if outputs is not None:
            drawn.append((objective.predictions(outputs, batch), PREDICTED))
        for values, color in drawn:
            for row, one in enumerate(scaled(values, batch[field], shown)):
                points[row].append((one, color))
    return [thumbnails.picture(one, marks) for one, marks in zip(shown, points, strict=True)]


def _signals(split: Split, batch: Batch, field: str) -> tuple[list[bytes], list[str]]:
    """Each signal without its padding, below its recording if there is one; and its length."""
    values, lengths = batch[field].detach().float().cpu(), batch.get(f"{field}_lengths")
    times, first = [max(values.shape[1:])] * len(values), values.shape[1] >= values.shape[2]
    if isinstance(lengths, Tensor):
        times = [max(one, 1) for one in lengths.tolist()]
        first = values.shape[1] == max(times)  # whether time comes before the channels
    drawn = []
    for row, index in enumerate(batch.indices.tolist()):
        one = values[row] if first else values[row].T
        recording = _recording(split, batch, index)
        drawn.append(thumbnails.signal(one[: times[row]].numpy(), recording))
    return drawn, [f"{one} steps" for one in times]


def _recording(split: Split, batch: Batch, index: int) -> Any:
    """The waveform [T] in the dataset, of a sample whose batch has only features of it."""
    if isinstance(split.plan, StreamPlan) or "audio" in batch:
        return None
    audio = split.data.fields.named(split.dataset[index]).get("audio")
    if not isinstance(audio, Tensor) or audio.ndim != 2 or not audio.is_floating_point():
        return None
    return np.nan_to_num(audio.mean(0).numpy())


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
