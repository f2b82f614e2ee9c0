"""What a fit writes down while it runs: metrics, and which samples were trained on."""

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
from pipeline.runs.tracker import Tracker
from pipeline.training.epoch_metrics import Step
from pipeline.training.objective import Objective
from pipeline.training.observer import Observer, Record

_log = logging.getLogger(__name__)


class Metrics(Observer):
    """Sends every record to the run's metrics.jsonl and to the tracker."""

    def __init__(self, folder: RunFolder, tracker: Tracker) -> None:
        self.folder = folder
        self.tracker = tracker

    def on_log(self, record: Record) -> None:
        self._write("log", record)

    def on_epoch_end(self, record: Record) -> None:
        self._write("epoch", record)

    def _write(self, event: str, record: Record) -> None:
        self.folder.log({"event": event, **record})
        metrics = {name: value for name, value in record.items() if name != "step"}
        if event == "epoch":  # so that its mean is no second curve's point at the same step
            metrics["epoch/train/loss"] = metrics.pop("train/loss")
        self.tracker.log(metrics, int(record["step"]))


class Confusions(Observer):
    """Keeps which classes were taken for which in each validation.

    Attributes:
        by_epoch: int64[C, C] as `Classification.confusion` has it; empty for other objectives.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.by_epoch: dict[int, Tensor] = {}

    def on_epoch_end(self, record: Record) -> None:
        found = getattr(self.objective, "confusion", None)
        if found is not None and "val/loss" in record:
            self.by_epoch[int(record["epoch"])] = found

    def best(self, epoch: int | None) -> tuple[int, Tensor] | None:
        """An epoch and its counts: the wanted one, or the last that this process validated."""
        if not self.by_epoch:
            return None
        epoch = epoch if epoch in self.by_epoch else max(self.by_epoch)
        return epoch, self.by_epoch[epoch]


class Digests(Observer):
    """A line of {epoch, step, hash} for every batch trained on, as `task=digest` hashes them.

    The loader has to hash; `path` is a .jsonl.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_steps(self, steps: Sequence[Step]) -> None:
        lines = [{"epoch": step.epoch, "step": step.step, "hash": step.digest} for step in steps]
        append(self.path, map(json.dumps, lines))


class Quarantine(Observer):
    """Writes what was left out to a quarantine.csv, and tells of it on stderr.

    Args:
        path: of the file, made when there is something to write.
        datasets: their fingerprints, by split.
        budget: of training; here it is held against what all ranks left out, where each loader
            knows of its own rank's.
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
    """A line of {epoch, step, samples, order, loss} for every batch trained on.

    `order` is the hash over the rows that the ranks together have trained on, and over their places
    in the epoch; `loss` is their mean loss, as an exact hexadecimal float. `task=verify` compares
    two of them. `path` is a .jsonl.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_steps(self, steps: Sequence[Step]) -> None:
        append(self.path, (json.dumps(
            {"epoch": step.epoch, "step": step.step, "samples": step.samples,
             "order": f"{step.order:016x}", "loss": float(step.loss).hex()}
        ) for step in steps))  # fmt: skip
