"""Observers that write files: metrics, and the samples trained on."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from pipeline.files.disk import append
from pipeline.loading.bad_samples import LeftOut
from pipeline.loading.batch import Batch
from pipeline.loading.budget import Budget
from pipeline.runs.quarantine import QuarantineFile, entries, notes
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.trackers.guarded import Trackers
from pipeline.runs.trackers.tracker import points
from pipeline.training.epoch_metrics import Step
from pipeline.training.objective import Objective
from pipeline.training.observer import Observer, Record

_log = logging.getLogger(__name__)


class Metrics(Observer):
    """Sends every record to the run's metrics.jsonl and to the trackers."""

    def __init__(self, folder: RunFolder, trackers: Trackers) -> None:
        self.folder = folder
        self.trackers = trackers

    def on_log(self, record: Record) -> None:
        self._write("log", record)

    def on_epoch_end(self, record: Record) -> None:
        self._write("epoch", record)

    def _write(self, event: str, record: Record) -> None:
        self.folder.log({"event": event, **record})
        self.trackers.log(points(event, record), int(record["step"]))


class Confusions(Observer):
    """Keeps `Classification.confusion` of each validation, by epoch."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.by_epoch: dict[int, Tensor] = {}

    def on_epoch_end(self, record: Record) -> None:
        found = getattr(self.objective, "confusion", None)
        if found is not None and "val/loss" in record:
            self.by_epoch[int(record["epoch"])] = found

    def best(self, epoch: int | None) -> tuple[int, Tensor] | None:
        """An epoch and its counts: the given one, or the last one of this process."""
        if not self.by_epoch:
            return None
        epoch = epoch if epoch in self.by_epoch else max(self.by_epoch)
        return epoch, self.by_epoch[epoch]


class Digests(Observer):
    """A line of {epoch, step, hash} for every batch, as in `task=digest`; the loader must hash."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_steps(self, steps: Sequence[Step]) -> None:
        lines = [{"epoch": step.epoch, "step": step.step, "hash": step.digest} for step in steps]
        append(self.path, map(json.dumps, lines))


class Quarantine(Observer):
    """Writes unreadable samples to a quarantine.csv, and warns on stderr.

    Args:
        datasets: their fingerprints, by split.
        budget: of training; checked here for all ranks together.
    """

    def __init__(self, path: Path, datasets: Mapping[str, str], budget: Budget) -> None:
        self.file = QuarantineFile(path)
        self.datasets = datasets
        self.budget = budget
        self._count = 0  # in the epoch

    def on_batch(self, batch: Batch) -> None:
        self._add("train", batch.left_out)

    def on_epoch_start(self, epoch: int, steps: int | None, done: int) -> None:
        self.budget.begin(epoch)

    def on_steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._add("train", step.left_out)
            self._count += len(step.left_out)
            self.budget.add(step.samples, step.left_out)

    def on_validated(self, left_out: Sequence[LeftOut]) -> None:
        self._add("val", left_out)

    def on_epoch_end(self, record: Record) -> None:
        if self._count:
            _log.warning("epoch %d: %d samples left out; %s has %d", record["epoch"], self._count,
                         self.file.path, len(self.file))  # fmt: skip
        self._count = 0

    def _add(self, split: str, left_out: Sequence[LeftOut]) -> None:
        if left_out:
            before = len(self.file)
            new = self.file.add(entries(left_out, split, self.datasets[split]))
            for note in notes(new, before):
                _log.warning(note)


class Ledger(Observer):
    """A line of {epoch, step, samples, order, loss} for every batch, for `task=verify`.

    `order` hashes rows and positions of all ranks; `loss` is their mean as a hexadecimal float.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_steps(self, steps: Sequence[Step]) -> None:
        append(self.path, (json.dumps(
            {"epoch": step.epoch, "step": step.step, "samples": step.samples,
             "order": f"{step.order:016x}", "loss": float(step.loss).hex()}
        ) for step in steps))  # fmt: skip
