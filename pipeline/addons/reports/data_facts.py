"""Facts of a run's data for its report: rows, classes and lengths of the splits, and what is drawn.

Tables of very many rows are left out, as their cost is not to be seen beside the training's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.addons.reports.facts import (
    MOST_VALUES,
    ColumnFacts,
    DataFacts,
    LengthFacts,
    SplitFacts,
)
from penstock.addons.reports.pictures import shortened
from penstock.build.data import DataParts, Split
from penstock.config.data_rules import mode_of
from penstock.loading.dataset_facts import (
    classes_of,
    columns_of,
    table_of,
    tokenizer_of,
    with_token_lengths,
)
from penstock.loading.wrapped import unfiltered
from penstock.order.plan import Plan
from penstock.order.randomness import IntArray
from penstock.order.samplers import BatchStrategy
from penstock.order.streams import StreamPlan, length_of

MOST_PLACES = 1 << 18  # of epoch 0 whose rows are counted; up to 1 us each
MOST_BATCHES = 2000  # of a sampler that forms its own batches; up to 0.1 ms each
_ROW_SECONDS = 1e-4  # that a table's row may cost: headers of files are read for it
_BINS = 24

Columns = Mapping[str, npt.NDArray[Any]]


def data_facts(data: DataParts, seconds: float) -> DataFacts:
    """What is known of the splits; `seconds` is what a table may cost."""
    rows, places = _drawn(data.train.plan)
    splits = [
        _split(split, seconds, rows if split is data.train else None) for split in data.splits
    ]
    counted = None if rows is None else len(rows)
    return DataFacts(mode_of(data.config), tuple(splits), counted, places)


def _drawn(plan: Plan | StreamPlan) -> tuple[IntArray | None, int | None]:
    """Rows of the first places of epoch 0, and how many places it has, if that is known."""
    if isinstance(plan, StreamPlan):
        return None, None
    steps = plan.steps(0)
    if isinstance(plan.sampler, BatchStrategy):
        batches = [plan.sampler.batch(0, step)[1] for step in range(min(steps, MOST_BATCHES))]
        rows = np.concatenate(batches) if batches else np.zeros(0, np.int64)
        return rows[:MOST_PLACES], len(rows) if steps <= MOST_BATCHES else None
    places = min(plan.sampler.size(0), steps * plan.batch_size)
    return plan.sampler.indices(0, 0, min(places, MOST_PLACES)), places


def _split(split: Split, seconds: float, drawn: IntArray | None) -> SplitFacts:
    dataset, rows = split.dataset, length_of(split.dataset)
    target = str(split.config.objective.get("target", "label"))
    by = split.config.sampler.get("column")
    asked = [target, *([str(by)] if by else [])]  # by the objective, and by the sampler
    columns, unit = _columns(split, rows, seconds, asked)
    counted = [  # columns of few values, and no measurements
        _counts(name, columns, classes_of(dataset) if name == target else [], drawn)
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


def _counts(name: str, columns: Columns, classes: list[str], drawn: IntArray | None) -> ColumnFacts:
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
