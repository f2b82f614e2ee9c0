"""Writes RUN/report/facts.json, for the report: what only the process of a run knows.

Nothing of it is needed for the run: an error costs a note on stderr, and neither the run nor its
exit code. Cost: 0.1 to 0.6 s of one core for the recipes, of which pandas' import is the most; up
to 2 % of the run's time where samples are slow to make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from torch import nn

from penstock.addons.reports.data_facts import data_facts
from penstock.addons.reports.facts import (
    FOLDER,
    MOST_PICTURES,
    NAME,
    VERSION,
    Facts,
    ShownSample,
    read_facts,
    written,
)
from penstock.addons.reports.recording import ValidationLosses
from penstock.addons.reports.sample_facts import (
    MOST_BATCHES,
    MOST_ROWS,
    shown_batches,
    shown_predictions,
)
from penstock.build.data import DataParts
from penstock.distributed.preemption import held
from penstock.files.disk import prepare, write_atomically
from penstock.order.streams import StreamPlan
from penstock.runs.only_shown import only_shown
from penstock.training.objective import Objective
from penstock.training.observer import Record

_SECONDS, _SHARE = 0.5, 0.02  # that a table, and the batches, may take: at least, and of the run

_FEWEST = 4  # rows of a batch that are made whatever they cost

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
    may = max(_SECONDS, _SHARE * sum(one["seconds"] for one in history))
    spent = (value for name, value in history[-1].items() if name.startswith("ms/"))
    rows = int(1000 * may / MOST_BATCHES / max(sum(spent), 0.001))
    rows = min(max(rows, _FEWEST), MOST_ROWS)
    facts = Facts(VERSION)
    for found in _each(notes, "the data", lambda: [data_facts(data, may)]):
        facts = replace(facts, data=found)
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
            found = _each(notes, "the data", lambda: [data_facts(data, 0)])
            _write(folder, Facts(VERSION, found[0] if found else None, notes=tuple(notes)))


def _each(notes: list[str], what: str, make: Callable[[], Iterable[Found]]) -> list[Found]:
    """What `make` gives, until it fails."""
    found: list[Found] = []
    with only_shown(f"a part of the report ({what})") as failed:  # anybody's dataset and transforms
        found.extend(make())
    notes += [f"A part is missing ({what}): {reason}" for reason in failed]
    return found


def _write(folder: Path, facts: Facts) -> None:
    with only_shown("what the report shows of samples and data"):
        prepare(folder / FOLDER)
        write_atomically(folder / FOLDER / NAME, written(_bounded(facts)))


def _bounded(facts: Facts) -> Facts:
    """The facts without the pictures that would be too much."""
    left = MOST_PICTURES

    def kept(samples: Iterable[ShownSample]) -> Iterator[ShownSample]:
        nonlocal left
        for one in samples:
            size = len(one.picture or b"")
            left -= size
            yield one if left >= 0 or not size else replace(one, picture=None)

    predictions = tuple(kept(facts.predictions))
    batches = tuple(replace(one, samples=tuple(kept(one.samples))) for one in facts.batches)
    return replace(facts, batches=batches, predictions=predictions)
