"""Observers that write files: metrics, and the samples trained on."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.addons.reports.facts import QUANTILES, LossFacts
from penstock.addons.trackers.guarded import Trackers
from penstock.addons.trackers.tracker import points
from penstock.files.disk import append
from penstock.loading.bad_samples import LeftOut
from penstock.loading.batch import Batch
from penstock.loading.budget import Budget
from penstock.loading.loader import Loader
from penstock.order.address import Address
from penstock.order.skipped import Skipped
from penstock.runs.quarantine import QuarantineFile, entries, notes
from penstock.runs.run_folder import RunFolder
from penstock.training.epoch_metrics import Step
from penstock.training.objective import Objective
from penstock.training.observer import Observer, Record

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
        confusion = getattr(self.objective, "confusion", None)
        if confusion is not None and "val/loss" in record:
            self.by_epoch[int(record["epoch"])] = confusion

    def best(self, epoch: int | None) -> tuple[int, Tensor] | None:
        """An epoch and its counts: the given one, or the last one of this process."""
        if not self.by_epoch:
            return None
        epoch = epoch if epoch in self.by_epoch else max(self.by_epoch)
        return epoch, self.by_epoch[epoch]


@dataclass(frozen=True)
class ValidationLosses:
    """What remains of a validation's losses: rows of the dataset by group, and LossFacts."""

    groups: dict[str, npt.NDArray[np.int64]]
    facts: LossFacts


class Extremes(Observer):
    """Keeps which rows each validation found best, median and worst, by epoch.

    With several ranks, those of the first one's shares. Cost: 12 bytes a sample, up to `MOST`.
    """

    MOST = 1 << 20  # samples
    EACH = 4  # rows in a group

    def __init__(self, objective: Objective, ranks: int = 1) -> None:
        self.objective, self.ranks = objective, ranks
        self.by_epoch: dict[int, ValidationLosses] = {}
        self._begin()

    def on_validation(self, done: int, steps: int | None) -> None:
        if done == 0:
            self._begin()

    def on_validation_batch(self, batch: Batch, losses: Tensor) -> None:
        if self._count >= self.MOST:
            return
        places, losses = self.objective.by_sample(losses, batch)
        self._rows.append(batch.indices[places.cpu().numpy()])
        self._losses.append(losses)
        self._count += len(losses)
        self._by_batch |= len(losses) > 1 and losses.stride(0) == 0  # one number, expanded

    def on_epoch_end(self, record: Record) -> None:
        if "val/loss" not in record or not self._count:
            return
        rows, losses = np.concatenate(self._rows), torch.cat(self._losses).double().cpu().numpy()
        order, count = np.argsort(losses, kind="stable"), len(losses)  # not a number comes last
        each, middle = min(self.EACH, -(-count // 3)), (count - 1) // 2
        first = max(each, middle - (each - 1) // 2)
        last = max(count - each, first)
        groups = {
            "best": order[:each],
            "median": order[first : min(first + each, last)],
            "worst": order[last:][::-1],
        }
        finite = losses[np.isfinite(losses)]
        quantiles = np.quantile(finite, QUANTILES).tolist() if len(finite) else []
        epoch = int(record["epoch"])
        self.by_epoch[epoch] = ValidationLosses(
            {name: rows[places] for name, places in groups.items()},
            LossFacts(epoch, count, tuple(quantiles), self._by_batch, self.ranks),
        )
        self._begin()

    def best(self, epoch: int | None) -> ValidationLosses | None:
        """Those of the given epoch, or of the last one of this process."""
        kept = self.by_epoch.get(-1 if epoch is None else epoch)
        return kept or next(reversed(self.by_epoch.values()), None)

    def _begin(self) -> None:
        self._rows: list[npt.NDArray[np.int64]] = []
        self._losses: list[Tensor] = []
        self._count, self._by_batch = 0, False


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


class Identity(Observer):
    """Writes what is seen of the training data to the manifest, once it is known."""

    def __init__(self, folder: RunFolder, train: Loader) -> None:
        self.folder, self.train = folder, train
        self._is_written = False

    def on_steps(self, steps: Sequence[Step]) -> None:
        if not self._is_written and self.train.seen is not None:
            self._is_written = True
            self.folder.identify(self.train.seen)


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
        lines: list[dict[str, Any]] = []
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

    def _passed(self, address: Address) -> list[dict[str, Any]]:
        """Lines of the ranges between the last address that was written and `address`."""
        found = self._skipped.starting(self._next, address)
        self._next = max(self._next, address)
        return [
            {"epoch": start.epoch, "step": start.step, "skipped_to": stop} for start, stop in found
        ]
