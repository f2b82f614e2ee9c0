"""Observers that write files of a run: its metrics, what it was trained on, what was left out."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.files.disk import append
from penstock.loading.bad_samples import Budget, LeftOut
from penstock.loading.batch import Batch
from penstock.order.address import Address
from penstock.order.skipped import Skipped
from penstock.runs.quarantine import QuarantineFile, entries, notes
from penstock.runs.run_folder import RunFolder
from penstock.training.epoch_metrics import Step
from penstock.training.observer import Observer, Record

_log = logging.getLogger(__name__)


class Metrics(Observer):
    """Writes every record to the run's metrics.jsonl."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def on_log(self, record: Record) -> None:
        self.folder.log({"event": "log", **record})

    def on_epoch_end(self, record: Record) -> None:
        self.folder.log({"event": "epoch", **record})


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
            _log.warning(
                "epoch %d: %d samples left out; %s has %d",
                record["epoch"],
                self._count,
                self.file.path,
                len(self.file),
            )
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
    Each range that training leaves out has a line of {epoch, step, skipped_to} in its place.

    Args:
        start: the address at which this session begins.
    """

    def __init__(
        self, path: Path, skipped: Skipped | None = None, start: Address | None = None
    ) -> None:
        self.path = path
        self._skipped, self._next = skipped or Skipped(), start or Address(0, 0)

    def on_steps(self, steps: Sequence[Step]) -> None:
        lines: list[dict[str, object]] = []
        for step in steps:
            lines += self._passed(Address(step.epoch, step.step))
            lines.append(
                {
                    "epoch": step.epoch,
                    "step": step.step,
                    "samples": step.samples,
                    "order": f"{step.order:016x}",
                    "loss": float(step.loss).hex(),
                }
            )
        append(self.path, map(json.dumps, lines))

    def on_epoch_end(self, record: Record) -> None:
        if passed := self._passed(Address(int(record["epoch"]) + 1, 0)):
            append(self.path, map(json.dumps, passed))

    def _passed(self, address: Address) -> list[dict[str, object]]:
        """Lines of the ranges between the last address that was written and `address`."""
        skipped = self._skipped.starting(self._next, address)
        self._next = max(self._next, address)
        return [
            {"epoch": start.epoch, "step": start.step, "skipped_to": stop}
            for start, stop in skipped
        ]
