"""Writes RUN/report/facts.json, for the report: what only the process of a run knows.

Samples are those of the first batches, and validation's best and worst. Batches are made again from
their addresses, as `task=replay` does, and only their first rows: a sample depends on its own key
alone. The run has made its last step by then, and generators are put back.

Nothing of it is needed for the run: an error costs a note on stderr, and neither the run nor its
exit code. Cost: 0.1 to 0.6 s of one core for the recipes, of which pandas' import is the most; up
to 2 % of the run's time where samples are slow to make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from penstock.addons.reports import thumbnails
from penstock.addons.reports.data_facts import data_facts
from penstock.addons.reports.facts import (
    FOLDER,
    LONGEST,
    MOST_PICTURES,
    NAME,
    VERSION,
    Facts,
    ShownBatch,
    ShownSample,
    read_facts,
    written,
)
from penstock.addons.reports.pictures import PREDICTED, TRUE, shortened
from penstock.addons.reports.predictions import (
    denormalized,
    is_pictures,
    is_signals,
    large_pictures,
    predict,
    scaled,
    unpadded,
    words_of,
)
from penstock.addons.reports.recording import ValidationLosses
from penstock.build.data import DataParts, Split
from penstock.distributed.preemption import held
from penstock.files.disk import prepare, write_atomically
from penstock.loading.bad_samples import path_of
from penstock.loading.batch import Batch
from penstock.loading.wrapped import own_row
from penstock.order.plan import Plan
from penstock.order.randomness import scope
from penstock.order.streams import End, StreamPlan
from penstock.runs.only_shown import only_shown
from penstock.training.objective import Objective
from penstock.training.observer import Record

MOST_BATCHES = 2
MOST_ROWS = 16  # of a batch
_FEWEST = 4  # rows of a batch that are made whatever they cost
_SECONDS, _SHARE = 0.5, 0.02  # that a table, and the batches, may take: at least, and of the run

Found = TypeVar("Found")


def write_facts(
    folder: Path,
    data: DataParts,
    objective: Objective,
    model: nn.Module,
    losses: ValidationLosses | None,
    history: Sequence[Record],
) -> None:
    """Collect everything at the end of a run.

    Args:
        folder: of the run.
        model: with its best weights.
        losses: of the validation by which predictions are chosen.
        history: a record an epoch, by which it is known how long a sample takes.
    """
    notes: list[str] = []
    may = max(_SECONDS, _SHARE * sum(record["seconds"] for record in history))
    spent = (value for name, value in history[-1].items() if name.startswith("ms/"))
    rows = int(1000 * may / MOST_BATCHES / max(sum(spent), 0.001))
    rows = min(max(rows, _FEWEST), MOST_ROWS)
    facts = Facts(VERSION)
    for fact in _each(notes, "the data", lambda: [data_facts(data, may)]):
        facts = replace(facts, data=fact)
    batches = _each(notes, "the first batches", lambda: shown_batches(data.train, objective, rows))
    facts = replace(facts, batches=tuple(batches))
    if losses is None:  # nothing was validated in this session
        before = next(iter(_each(notes, "earlier predictions", lambda: [read_facts(folder)])), None)
        if before is not None:
            facts = replace(facts, predictions=before.predictions, losses=before.losses)
        if not facts.predictions:
            notes.append("There are no predictions, since nothing was validated.")
    elif isinstance(data.val.plan, StreamPlan):
        notes.append("There are no predictions, since samples of a stream cannot be chosen.")
    else:
        shown = _each(
            notes, "predictions", lambda: shown_predictions(data.val, model, objective, losses)
        )
        facts = replace(facts, predictions=tuple(shown), losses=losses.facts)
    _write(folder, replace(facts, notes=tuple(notes)))


def write_data_facts(folder: Path, data: DataParts) -> None:
    """Collect what is cheap, of a run that ended early; what an earlier session wrote stays."""
    if not (folder / FOLDER / NAME).exists():
        notes = ["No samples are shown, since the run was not done."]
        with held():  # a request to stop waits for these 30 ms
            facts = _each(notes, "the data", lambda: [data_facts(data, 0)])
            _write(folder, Facts(VERSION, facts[0] if facts else None, notes=tuple(notes)))


def _each(notes: list[str], what: str, make: Callable[[], Iterable[Found]]) -> list[Found]:
    """What `make` gives, until it fails."""
    made: list[Found] = []
    with only_shown(f"a part of the report ({what})") as failed:  # anybody's dataset and transforms
        made.extend(make())
    notes += [f"A part is missing ({what}): {reason}"[:LONGEST] for reason in failed]
    return made


def _write(folder: Path, facts: Facts) -> None:
    with only_shown("what the report shows of samples and data"):
        prepare(folder / FOLDER)
        write_atomically(folder / FOLDER / NAME, written(_bounded(facts)))


def _bounded(facts: Facts) -> Facts:
    """The facts without the pictures that would be too much."""
    left = MOST_PICTURES

    def kept(samples: Iterable[ShownSample]) -> Iterator[ShownSample]:
        nonlocal left
        for sample in samples:
            size = len(sample.picture or b"")
            left -= size
            yield sample if left >= 0 or not size else replace(sample, picture=None)

    predictions = tuple(kept(facts.predictions))
    batches = tuple(replace(batch, samples=tuple(kept(batch.samples))) for batch in facts.batches)
    return replace(facts, batches=batches, predictions=predictions)


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
        batch, values, outputs = predict(split, model, objective, np.array(list(groups), np.int64))
    kind, field = _kind(batch, objective)
    samples = {
        sample.index: replace(
            sample,
            loss=float(value) if np.isfinite(float(value)) else None,
            group=groups[sample.index],
            position=None,
        )
        for sample, value in zip(
            _samples(split, objective, batch, kind, field, outputs), values, strict=True
        )
    }
    yield from (samples[row] for row in groups if row in samples)  # in the order of their losses


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
        field = next((name for name in names if fits(batch[name])), None)
        if field is not None:
            return kind, field
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
    count, rendered = len(batch.indices), objective.rendered(batch, outputs)
    pictures: list[bytes | None] = [None] * count
    words = [""] * count
    if kind == "signals":
        pictures[:], words = _signals(split, batch, field)
    elif kind != "pictures":
        words = [words_of(batch, objective, row) for row in range(count)]
    else:
        shown: Any = denormalized(batch[field], split.transform, split.batch_transform)
        if outputs is not None:
            shown = large_pictures(split, field, batch)
        for row, (image, view) in enumerate(zip(shown, rendered, strict=True)):
            drawn = ((view.points, TRUE), (view.predicted_points, PREDICTED))
            points = [
                (scaled(values, batch[field], image), color)
                for values, color in drawn
                if values is not None and field == objective.inputs[0]
            ]
            pictures[row] = thumbnails.picture(image, points)
    samples = []
    for row in range(count) if batch.valid is None else batch.valid.nonzero().flatten().tolist():
        index = int(batch.indices[row])
        own = own_row(split.dataset, index)
        path = path_of(split.dataset, index) or ("" if own is None else f"row {own}")
        samples.append(
            ShownSample(
                index,
                shortened(path, LONGEST),
                shortened(rendered[row].truth, 200),
                shortened(rendered[row].predicted, 200),
                shortened(words[row], 600),
                pictures[row],
                int(batch.positions[row]),
            )
        )
    return samples


def _signals(split: Split, batch: Batch, field: str) -> tuple[list[bytes], list[str]]:
    """Each signal without its padding, below its recording if there is one; and its length."""
    signals, time_first = unpadded(batch, field)
    drawn, words = [], []
    for signal, index in zip(signals, batch.indices.tolist(), strict=True):
        steps = (signal if time_first else signal.T).detach().float().cpu()
        drawn.append(thumbnails.signal(steps.numpy(), _recording(split, batch, index)))
        words.append(f"{len(steps)} steps")
    return drawn, words


def _recording(split: Split, batch: Batch, index: int) -> Any:
    """The waveform [T] in the dataset, of a sample whose batch has only features of it."""
    if isinstance(split.plan, StreamPlan) or "audio" in batch:
        return None
    audio = split.data.fields.named(split.dataset[index]).get("audio")
    if not isinstance(audio, Tensor) or audio.ndim != 2 or not audio.is_floating_point():
        return None
    return np.nan_to_num(audio.mean(0).numpy())
