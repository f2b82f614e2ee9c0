"""`task=predict run=RUN dataset.root=NEW out=FILE`: a row a sample, for data without labels.

Rows are kept in FILE.part, batch by batch (`journal.py`), so that a run that was killed continues
where it stopped. When all are there, FILE is written in one piece: .jsonl, .csv or .parquet. Rows
whose file is damaged have the reason in the column `error`. The run's folder has the facts of the
training data that the model needs (`learned.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.addons.predicting.journal import Journal, Row
from penstock.addons.predicting.new_data import NewData
from penstock.addons.predicting.tables import ENDINGS, write
from penstock.addons.predicting.trained import Trained, trained
from penstock.build.data import Split
from penstock.config.hydra import overrides
from penstock.config.schema import Config
from penstock.distributed.group import Group, join
from penstock.distributed.parallel import together
from penstock.distributed.stop import Preempted, Stop
from penstock.errors import ConfigError, Problem
from penstock.loading.bad_samples import SampleError, path_of
from penstock.loading.batch import Batch
from penstock.runs.record import RunRecord
from penstock.runs.resumption import key_of, run_of
from penstock.terminal import put, say, watched
from penstock.training.train_step import autocast

ROOT = "dataset.root"
_NAMED = 5  # damaged rows that are named


def run(config: Config) -> None:
    """Predict what is at `dataset.root`, and write it to `config.out`."""
    out = _out(config)
    if ROOT not in map(key_of, overrides()):
        raise ConfigError(Problem(ROOT, "is missing: a folder or file to predict for"))
    root = str(config.dataset["root"])
    folder = Path(str(config.run))
    known: Any = RunRecord.read(run_of(folder) or folder, "run").config["dataset"]
    dataset = {**config.dataset, "root": known.get("root")}  # that of the training
    ready = trained(config.model_copy(update={"dataset": dataset}), elsewhere=True)
    wanted = ready.parts.config.distributed
    with join(ready.parts.world, wanted.backend, wanted.timeout) as group, ExitStack() as stack:
        journal = Journal(out, ready.path)
        if group.is_first:
            stack.enter_context(journal.held())
        journal.read(repairs=group.is_first)
        data = data_of(ready, root, journal)
        _ = data.left
        if group.is_first:
            journal.begin(data)
        try:
            for rows in predicted(ready, data, group):
                if group.is_first:
                    journal.add(rows)
        except SampleError as error:
            raise data.refusal(f"fails where there are no labels: {error}") from error
        except Stop as stop:
            kept = f"{len(journal.rows)} rows are kept; the same command continues"
            if stop.name != "SIGINT":
                raise Preempted(f"{stop.name}: {kept}") from None
            if group.is_first:
                say(kept)
            raise
        if not group.is_first:
            return
        made = journal.in_order()
        columns = sorted({name: None for row in made for name in row}, key=lambda n: n == "error")
        write(out, columns, lambda: made)
        damaged = [str(row.get("path")) for row in made if row.get("error")]
        put(f"{'predicted':<10} {len(made) - len(damaged)} rows: {out}")
        if damaged:
            more = f" and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
            named = ", ".join(damaged[:_NAMED])
            put(f"{'damaged':<10} {len(damaged)}: {named}{more}; column error says why")


def _out(config: Config) -> Path:
    named = config.model_dump()["out"]
    if named is None:
        raise ConfigError(Problem("out", f"is missing: a file that ends in {', '.join(ENDINGS)}"))
    out = Path(named)
    if out.suffix not in ENDINGS:
        reason = f"{named!r} ends in none of {', '.join(ENDINGS)}"
        raise ConfigError(Problem("out", reason))
    if out.exists() or not out.absolute().parent.is_dir():
        wrong = "exists already" if out.exists() else "is in a folder that is missing"
        raise ConfigError(Problem("out", f"{named!r} {wrong}; name another file"))
    return out


def data_of(ready: Trained, root: str | Sequence[str], journal: Journal | None = None) -> NewData:
    """The rows to predict, without those that are done."""
    config, data = ready.parts.config, ready.parts.data
    skipping = config.bad_samples.model_copy(
        update={"on_error": "skip", "budget": 1.0, "quarantine": None}
    )
    made = NewData(data, root, np.arange if journal is None else journal.left, ready.learned)
    made.config = config.model_copy(update={"bad_samples": skipping})
    return made


def predicted(
    ready: Trained,
    data: Split,
    group: Group | None = None,
    truth: Callable[[Batch], Sequence[Row]] | None = None,
) -> Iterator[list[Row]]:
    """The rows of each batch, those of all ranks; a dataset may say more of each, `about(row)`.

    Args:
        truth: gives what is known of each sample of a batch, in columns before the predictions.

    Raises:
        ConfigError: the objective does not say how a prediction becomes a row.
    """
    group, dataset, parts = group or Group(), data.dataset, ready.parts
    if isinstance(data, NewData) and not len(data.left):
        return
    about: Callable[[int], Row] = getattr(dataset, "about", lambda number: {})
    device, precision = torch.device(parts.world.device), parts.config.trainer.precision
    with torch.no_grad(), data.loader() as loader:
        batches: Iterator[Batch] = loader.epoch(0)
        if group.is_first:
            batches = watched(batches, data.plan.steps(0), "predicting")
        for batch in batches:
            with autocast(device, precision), together(group, batch.request):
                outputs = ready.objective.answer(ready.model, batch)
            made: Sequence[Mapping[str, Any]] = []
            if batch.request.valid:
                made = ready.objective.rows(outputs, batch)
                if truth is not None:
                    known = truth(batch)
                    made = [{**of, **row} for of, row in zip(known, made, strict=True)]
            valid = np.ones(len(batch.indices), bool) if batch.valid is None else batch.valid
            numbers = batch.indices[np.asarray(valid)].tolist()
            if len(made) != len(numbers) and batch.request.valid:
                reason = f"rows(outputs, batch) gives {len(made)} rows for {len(numbers)} samples"
                raise ConfigError(Problem("objective", reason))
            rows = [
                {"row": number, "path": path_of(dataset, number), **about(number), **row}
                for number, row in zip(numbers, made, strict=True)
            ]
            rows += [
                {"row": bad.index, "path": bad.path, **about(bad.index), "error": bad.cause}
                for bad in batch.left_out
            ]
            yield [row for share in group.gather(rows) for row in share]
