"""Writes RUN/report/facts.json, for the report: what only the process of a run knows.

Samples are those of the first batches, and validation's best and worst. Batches are made again from
their addresses, as `task=replay` does, and only their first rows: a sample depends on its own key
alone. The run has made its last step by then, and generators are put back.

Nothing of it is needed for the run: an error costs a note on stderr, and neither the run nor its
exit code. Cost: 0.1 to 0.6 s of one core for the recipes, of which pandas' import is the most; up
to 2 % of the run's time where samples are slow to make. Tables of very many rows are left out, as
their cost is not to be seen beside the training's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from penstock.addons.reports.facts import (
    FOLDER,
    LONGEST,
    MADE,
    MOST_PICTURES,
    MOST_VALUES,
    NAME,
    VERSION,
    ColumnFacts,
    DataFacts,
    Facts,
    LengthFacts,
    ShownBatch,
    ShownSample,
    SplitFacts,
    read_facts,
    written,
)
from penstock.addons.reports.marks import marked
from penstock.addons.reports.observing import ValidationLosses
from penstock.addons.reports.pictures import (
    PREDICTED,
    SIDE,
    TRUE,
    forecast_thumbnail,
    shortened,
    signal_thumbnail,
    thumbnail,
)
from penstock.addons.reports.predictions import (
    as_the_model_saw,
    is_clips,
    is_pictures,
    is_signals,
    large_pictures,
    made_by_the_model,
    predict,
    scaled,
    unpadded,
    views_beside,
    words_of,
)
from penstock.build.data import DataParts, Split
from penstock.config.data_rules import mode_of
from penstock.distributed.preemption import held
from penstock.files.disk import prepare, write_atomically
from penstock.loading.bad_samples import path_of
from penstock.loading.batch import Batch
from penstock.loading.dataset_facts import (
    classes_of,
    columns_of,
    table_of,
    tokenizer_of,
    with_token_lengths,
)
from penstock.loading.wrapped import own_row, unfiltered
from penstock.order.plan import Plan
from penstock.order.randomness import IntArray, scope
from penstock.order.samplers import BatchStrategy
from penstock.order.streams import End, StreamPlan, length_of
from penstock.runs.only_shown import only_shown
from penstock.training.objective_base import Objective
from penstock.training.observer import Record

MOST_BATCHES = 2
MOST_ROWS = 16  # of a batch
_SPREAD = 8  # predictions, where no loss of each sample chooses them
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
    before = None
    if losses is None:  # nothing was validated in this session, or by no loss of each sample
        before = next(iter(_each(notes, "earlier predictions", lambda: [read_facts(folder)])), None)
    if before is not None and before.losses is not None:
        facts = replace(facts, predictions=before.predictions, losses=before.losses)
    elif not data.validates:
        notes.append("There are no predictions, since nothing was validated.")
    elif isinstance(data.val.plan, StreamPlan):
        notes.append("There are no predictions, since samples of a stream cannot be chosen.")
    else:
        groups = losses.groups if losses is not None else spread(data.val)
        shown = _each(
            notes, "predictions", lambda: shown_predictions(data.val, model, objective, groups)
        )
        facts = replace(
            facts, predictions=tuple(shown), losses=losses.facts if losses is not None else None
        )
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
            kind = "views" if kind == "pictures" and views_beside(batch, field) else kind
            rendered = objective.rendered(batch)
            kind = "series" if any(view.past is not None for view in rendered) else kind
            kind = "boxes" if any(view.boxes is not None for view in rendered) else kind
            kind = "masks" if any(view.mask is not None for view in rendered) else kind
            yield ShownBatch(0, step, total, kind, tuple(shown))


def spread(split: Split) -> dict[str, IntArray]:
    """Rows of a split, spread evenly over it."""
    count = len(split.dataset)
    rows = np.linspace(0, count - 1, min(count, _SPREAD)).round().astype(np.int64)
    return {"spread over the split": rows}


def shown_predictions(
    split: Split, model: nn.Module, objective: Objective, by_group: Mapping[str, IntArray]
) -> Iterator[ShownSample]:
    """The samples of rows by group: with the least, the median and the largest loss."""
    groups = {int(row): name for name, rows in by_group.items() for row in rows}
    with _generators():
        batch, values, outputs = predict(split, model, objective, np.array(list(groups), np.int64))
    made = made_by_the_model(objective, outputs, batch)
    if made is not None:
        for row, picture in enumerate(made[:_SPREAD]):
            yield ShownSample(row, picture=thumbnail(picture), group=MADE)
        return
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
    kinds = (("pictures", is_pictures), ("clips", is_clips), ("signals", is_signals))
    for kind, fits in kinds:
        field = next((name for name in names if fits(batch[name])), None)
        if field is not None:
            return kind, field
    texts = any(
        isinstance(value, list) and value and isinstance(value[0], str) for value in batch.values()
    )
    return "texts" if texts else "numbers", objective.shown_field(batch)


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
    if any(view.past is not None for view in rendered):
        pictures = [forecast_thumbnail(view) for view in rendered]
    elif kind == "signals":
        pictures[:], words = _signals(split, batch, field)
    elif kind not in ("pictures", "clips"):
        words = [words_of(batch, objective, row) for row in range(count)]
    else:
        shown: Any = as_the_model_saw(split, field, batch)
        if outputs is not None:
            shown = large_pictures(split, field, batch)
        if field == objective.shown_field(batch):
            shown = marked(shown, batch[field], rendered)
        for row, (image, view) in enumerate(zip(shown, rendered, strict=True)):
            drawn = ((view.points, TRUE), (view.predicted_points, PREDICTED))
            points = [
                (scaled(values, batch[field], image), color)
                for values, color in drawn
                if values is not None and field == objective.shown_field(batch)
            ]
            has_marks = view.boxes is not None or view.mask is not None
            large = 2 * SIDE if has_marks else SIDE
            pictures[row] = thumbnail(image, points, large if kind == "pictures" else 4 * SIDE)
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
        drawn.append(signal_thumbnail(steps.numpy(), _recording(split, batch, index)))
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


MOST_PLACES = 1 << 18  # of epoch 0 whose rows are counted; up to 1 us each
_MOST_COUNTED = 2000  # of a sampler that forms its own batches; up to 0.1 ms each
_ROW_SECONDS = 1e-4  # that a table's row may cost: headers of files are read for it
_BINS = 24

Columns = Mapping[str, npt.NDArray[Any]]


def data_facts(data: DataParts, seconds: float) -> DataFacts:
    """What is known of the splits; `seconds` is what a table may cost."""
    rows, places = _drawn(data.train.plan)
    splits = [
        _split_facts(split, seconds, rows if split is data.train else None) for split in data.splits
    ]
    counted = None if rows is None else len(rows)
    return DataFacts(mode_of(data.config), tuple(splits), counted, places)


def _drawn(plan: Plan | StreamPlan) -> tuple[IntArray | None, int | None]:
    """Rows of the first places of epoch 0, and how many places it has, if that is known."""
    if isinstance(plan, StreamPlan):
        return None, None
    steps = plan.steps(0)
    if isinstance(plan.sampler, BatchStrategy):
        batches = [plan.sampler.batch(0, step)[1] for step in range(min(steps, _MOST_COUNTED))]
        rows = np.concatenate(batches) if batches else np.zeros(0, np.int64)
        return rows[:MOST_PLACES], len(rows) if steps <= _MOST_COUNTED else None
    places = min(plan.sampler.size(0), steps * plan.batch_size)
    return plan.sampler.indices(0, 0, min(places, MOST_PLACES)), places


def _split_facts(split: Split, seconds: float, drawn: IntArray | None) -> SplitFacts:
    dataset, rows = split.dataset, length_of(split.dataset)
    target = str(split.config.objective.get("target", "label"))
    by = split.config.sampler.get("column")
    asked = [target, *([str(by)] if by else [])]  # by the objective, and by the sampler
    columns, unit = _columns(split, rows, seconds, asked)
    counted = [  # columns of few values, and no measurements
        _column_facts(name, columns, classes_of(dataset) if name == target else [], drawn)
        for name in dict.fromkeys([*asked, "label"])
        if name in columns and name != "length" and columns[name].dtype.kind not in "fcmM"
    ]
    lengths = columns.get("length")
    return SplitFacts(
        split.name,
        type(unfiltered(dataset)).__name__,
        rows,
        split.identity.data(),
        tuple(counted),
        None if lengths is None or not len(lengths) else _histogram(unit, lengths),
    )


def _columns(
    split: Split, rows: int | None, seconds: float, asked: Sequence[str]
) -> tuple[Columns, str]:
    """The columns of a split by name, those that are `asked` for among them, and its lengths' unit.

    A table is made only where it is needed: it imports pandas, and may read headers of files.
    """
    dataset, fields = split.dataset, split.data.fields
    if rows is None or isinstance(split.plan, StreamPlan):
        return {}, ""
    at_hand = columns_of(dataset, fields)
    announced = getattr(dataset, "columns", None)
    needed = {*asked, "length"} - set(at_hand)
    offered = needed & set(needed if announced is None else announced)
    if not offered or rows * _ROW_SECONDS > seconds:
        return at_hand, "length"
    table = table_of(dataset, fields)
    if table is None:
        return at_hand, "length"
    steps = split.transform.steps
    counts = tokenizer_of(steps) is not None and "length" in table.columns
    table = with_token_lengths(table, dataset, steps)
    used = {*asked, "label", "length", *_TEXTS}
    made = {name: table[name].to_numpy() for name in table.columns if name in used}
    return at_hand | made, "tokens" if counts else "length"


_TEXTS = ("class", "pose", "name")  # columns that may name the values of another


def _column_facts(
    name: str, columns: Columns, classes: list[str], drawn: IntArray | None
) -> ColumnFacts:
    values, codes, counts = np.unique(
        columns[name].astype(str) if columns[name].dtype == object else columns[name],
        return_inverse=True,
        return_counts=True,
    )
    names = _names(name, columns, values, codes, classes)
    kept = np.sort(np.argsort(-counts, kind="stable")[:MOST_VALUES])
    times = None if drawn is None else np.bincount(codes[drawn], minlength=len(values))
    return ColumnFacts(
        name,
        tuple(shortened(names[code], 100) for code in kept),
        tuple(counts[kept].tolist()),
        () if times is None else tuple(times[kept].tolist()),
        int(counts.sum() - counts[kept].sum()),
    )


def _names(
    name: str, columns: Columns, values: npt.NDArray[Any], codes: IntArray, classes: list[str]
) -> list[str]:
    """Words for the values: names of classes, or another column's that goes with them."""
    numbers = values.dtype.kind in "iu"
    if numbers and classes and int(values[0]) >= 0 and int(values[-1]) < len(classes):
        return [classes[number] for number in values.tolist()]
    for other in _TEXTS if numbers and len(values) <= MOST_VALUES else ():
        if other in columns and other != name:
            texts = columns[other].astype(str)
            words = [texts[np.argmax(codes == code)] for code in range(len(values))]
            if len(set(words)) == len(words) and (np.array(words)[codes] == texts).all():
                return words
    return [str(value) for value in values.tolist()]


def _histogram(unit: str, lengths: npt.NDArray[Any]) -> LengthFacts | None:
    if lengths.dtype.kind not in "iuf":
        return None
    finite = lengths[np.isfinite(lengths)].astype(np.float64)
    if not len(finite):
        return None
    least, median, most = np.quantile(finite, (0, 0.5, 1)).tolist()
    if lengths.dtype.kind in "iu" and most - least < _BINS:
        edges = np.arange(least, most + 2)
    elif least > 0 and most > 20 * median:  # a few are far longer
        edges = np.geomspace(least, most, _BINS + 1)
    else:
        edges = np.linspace(least, most, _BINS + 1)
    edges[-1] = max(edges[-1], most)
    counts, _ = np.histogram(finite, edges)
    return LengthFacts(unit, tuple(edges.tolist()), tuple(counts.tolist()), least, median, most)
