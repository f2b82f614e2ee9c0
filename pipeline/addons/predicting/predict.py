"""`task=predict run=RUN dataset.root=NEW out=FILE`: a row a sample, for data without labels.

Rows are kept in FILE.part, batch by batch, so that a run that was killed goes on where it stopped.
When all are there, FILE is written in one piece: .jsonl, .csv or .parquet. Rows whose file is
damaged have the reason in the column `error`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.addons.predicting.new_data import NewData
from penstock.addons.predicting.tables import ENDINGS, write
from penstock.addons.predicting.trained import Trained, trained
from penstock.config.own_command import overrides
from penstock.config.schema import Config
from penstock.distributed.gathered import together
from penstock.distributed.group import Group, join
from penstock.errors import ConfigError, PenstockError, Problem
from penstock.files import plain_json
from penstock.files.disk import append
from penstock.loading.bad_samples import path_of
from penstock.loading.batch import Batch
from penstock.order.randomness import IntArray
from penstock.runs.resumption import key_of
from penstock.terminal import put, say, watched
from penstock.training.train_step import autocast

ROOT = "dataset.root"
Row = dict[str, Any]


def run(config: Config) -> None:
    """Predict what is at `dataset.root`, and write it to `config.out`."""
    out = _out(config)
    if ROOT not in map(key_of, overrides()):
        raise ConfigError(Problem(ROOT, "is missing: a folder or file to predict for"))
    root = str(config.dataset["root"])
    ready = trained(config, beside=(ROOT,))
    wanted = ready.parts.config.distributed
    with join(ready.parts.world, wanted.backend, wanted.timeout) as group:
        journal = Journal.of(out, ready.path)
        with group.all_or_none():
            data = data_of(ready, root, journal)
        if group.is_first:
            journal.begin(data)
        for rows in predicted(ready, data, group):
            if group.is_first:
                journal.add(rows)
        if not group.is_first:
            return
        rows = journal.all()
        write(out, rows)
        journal.path.unlink()
        damaged = [row for row in rows if row.get("error")]
        put(f"{'predicted':<10} {len(rows) - len(damaged)} rows: {out}")
        if damaged:
            named = ", ".join(str(row["path"]) for row in damaged[:5])
            more = f" and {len(damaged) - 5} more" if len(damaged) > 5 else ""
            put(f"{'damaged':<10} {len(damaged)}: {named}{more}; column error says why")


def _out(config: Config) -> Path:
    named = config.plain()["out"]
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
    """What is to be predicted, without the rows that are done."""

    def left(rows: int) -> IntArray:
        done = [] if journal is None else [row for row in journal.rows if row < rows]
        return np.setdiff1d(np.arange(rows), np.array(done, np.int64))

    config, data = ready.parts.config, ready.parts.data
    skipping = config.bad_samples.model_copy(
        update={"on_error": "skip", "budget": 1.0, "quarantine": None}
    )
    made = NewData(data, root, left)
    made.config = config.model_copy(update={"bad_samples": skipping})
    return made


def predicted(ready: Trained, data: NewData, group: Group | None = None) -> Iterator[list[Row]]:
    """The rows of each batch, those of all ranks.

    Raises:
        ConfigError: the objective does not say how a prediction becomes a row.
    """
    group, dataset, parts = group or Group(), data.dataset, ready.parts
    if not len(data.plan.sampler):  # all of them are done
        return
    device, precision = torch.device(parts.world.device), parts.config.trainer.precision
    with torch.no_grad(), data.loader() as loader, group.all_or_none():
        batches: Iterator[Batch] = loader.epoch(0)
        if group.is_first:
            batches = watched(batches, data.plan.steps(0), "predicting")
        for batch in batches:
            with autocast(device, precision), together(group, batch.request):
                outputs = ready.objective.answer(ready.model, batch)
            made: Sequence[Mapping[str, Any]] = []
            if batch.request.valid:
                made = ready.objective.rows(outputs, batch)
            valid = np.ones(len(batch.indices), bool) if batch.valid is None else batch.valid
            numbers = batch.indices[np.asarray(valid)].tolist()
            if len(made) != len(numbers) and batch.request.valid:
                reason = f"rows(outputs, batch) gives {len(made)} rows for {len(numbers)} samples"
                raise ConfigError(Problem("objective", reason))
            rows = [
                {"row": number, "path": path_of(dataset, number), **row}
                for number, row in zip(numbers, made, strict=True)
            ]
            rows += [
                {"row": bad.index, "path": bad.path, "error": bad.cause} for bad in batch.left_out
            ]
            yield [row for share in group.gather(rows) for row in share]


@dataclass
class Journal:
    """The rows that are predicted so far, a line of JSON each, below what they belong to."""

    path: Path
    weights: str
    rows: dict[int, Row]
    head: Row | None = None

    @classmethod
    def of(cls, out: Path, weights: Path) -> Journal:
        """What an earlier process has left of it; a line that is cut off is taken away."""
        stat = weights.stat()
        of = f"{weights.absolute()} {stat.st_size} {stat.st_mtime_ns}"
        journal = cls(out.with_name(f"{out.name}.part"), of, {})
        if not journal.path.exists():
            return journal
        try:
            content = journal.path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            lines = [plain_json.mapping(plain_json.parse(line)) for line in whole.splitlines()]
            journal.rows = {plain_json.integer(line, "row"): line for line in lines[1:]}
        except (OSError, plain_json.JsonError) as error:
            reason = f"{journal.path} is no list of predictions: {error}; delete it"
            raise ConfigError(Problem("out", reason)) from error
        journal.head = lines[0] if lines else None
        if len(whole) < len(content):
            os.truncate(journal.path, len(whole))
        return journal

    def begin(self, data: NewData) -> None:
        """Say what the rows are of; refuse those of something else."""
        head = {"weights": self.weights, "data": data.identity.data()}
        if self.head is None:
            append(self.path, [json.dumps(head)])
        elif self.head != head:
            reason = (
                f"{self.path} was begun with other weights or other data; delete it, or name "
                "another file"
            )
            raise ConfigError(Problem("out", reason))
        elif self.rows:
            say(f"{len(self.rows)} rows are there already, in {self.path}")

    def add(self, rows: Sequence[Row]) -> None:
        """Append the rows of a batch."""
        try:
            append(self.path, [json.dumps(row) for row in rows])
        except (TypeError, ValueError) as error:
            reason = f"a row is no plain JSON: {error}; give numbers, texts, lists and mappings"
            raise PenstockError(f"objective: {reason}") from error
        self.rows |= {row["row"]: row for row in rows}

    def all(self) -> list[Row]:
        """All rows in the order of the data."""
        return [self.rows[number] for number in sorted(self.rows)]
