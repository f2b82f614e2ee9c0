"""Observers of a fit: what writes the run's files line by line, and the progress on stderr.

    epoch 0 of 12  train/loss 0.0631  val/loss 0.0417  val/nme 0.1312  512 samples/s  7% waiting
    epoch 1 of 12 ━━━━━━━━━━╸━━━━━━━━━ 13/25 loss 0.0389  498 samples/s  6% waiting

"Waiting" is the share of the time in which training waits for data.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from penstock.files.disk import append
from penstock.loading.bad_samples import Budget, LeftOut
from penstock.loading.batch import Batch
from penstock.loading.facts import unfiltered_fingerprint
from penstock.loading.loader import Loader
from penstock.order.address import Address, Skipped
from penstock.runs.folder import RunFolder
from penstock.runs.only_shown import only_shown
from penstock.runs.quarantine import NAME as QUARANTINE
from penstock.runs.quarantine import QuarantineFile, entries
from penstock.terminal import progress, say
from penstock.training.loop import Observer, Record
from penstock.training.meter import Step

if TYPE_CHECKING:
    from penstock.tasks.fit import Fit

_NAMED = 5  # samples left out; quarantine.csv lists all
_LOSS_SECONDS = 0.5  # between two looks at the loss, each of which waits for the device

_log = logging.getLogger(__name__)


class OnlyShows(Observer):
    """An observer whose first error costs a warning; it gets no further events.

    Args:
        what: is missing then.
    """

    def __init__(self, what: str, observer: Observer) -> None:
        self._what, self._observer = what, observer
        for name in vars(Observer):
            if name.startswith("on_"):
                setattr(self, name, partial(self._tell, name))

    def _tell(self, event: str, *arguments: Any) -> None:
        # Until this event has worked, the observer is one that does nothing.
        observer, self._observer = self._observer, Observer()
        with only_shown(self._what):
            getattr(observer, event)(*arguments)
            self._observer = observer


def recording(fit: Fit) -> list[Observer]:
    """The observers that write the files of a run."""
    folder, trainer, data = fit.folder, fit.config.trainer, fit.data
    datasets = {
        split.name: unfiltered_fingerprint(split.dataset, split.fingerprint["dataset"])
        for split in data.splits
    }
    observers: list[Observer] = [
        Metrics(folder),
        Quarantine(folder.path / QUARANTINE, datasets, data.train.budget),
    ]
    if trainer.ledger:
        path = folder.path / "ledger.jsonl"
        observers.append(Ledger(path, fit.train_loader.plan.skipped, fit.opened.start))
    if trainer.digest:
        observers.append(Digests(folder.path / "digests.jsonl"))
    return observers


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
        self.file, self.datasets, self.budget = QuarantineFile(path), datasets, budget
        self._count = 0  # in the epoch

    def on_batch(self, batch: Batch, losses: Tensor) -> None:
        self._add("train", batch.left_out)

    def on_epoch_start(self, epoch: int, steps: int | None, done: int) -> None:
        self.budget.begin(epoch)

    def on_steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._add("train", step.left_out)
            self._count += len(step.left_out)
            # Steps have the samples of all ranks, batches only those of this one.
            self.budget.add(step.samples, step.left_out)

    def on_validated(self, left_out: Sequence[LeftOut]) -> None:
        self._add("val", left_out)

    def on_epoch_end(self, record: Record) -> None:
        if self._count:
            counts = self._count, self.file.path, len(self.file)
            _log.warning("epoch %d: left out %d sample(s); %s has %d", record["epoch"], *counts)
        self._count = 0

    def _add(self, split: str, left_out: Sequence[LeftOut]) -> None:
        if left_out:
            before = len(self.file)
            new = self.file.add(entries(left_out, split, self.datasets[split]))
            # A folder of 10,000 damaged files would push everything else off the screen.
            for one in new[: max(_NAMED - before, 0)]:
                path = f" {one.path}" if one.path and one.path not in one.cause else ""
                _log.warning(
                    f"left out: sample {one.index} of the {split} split (epoch {one.epoch}, step "
                    f"{one.step}, position {one.position}){path}: {one.cause}"
                )


class Ledger(Observer):
    """A line of {epoch, step, samples, order, loss} for every batch, for `task=diff`.

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
            # Hexadecimal: the decimal form rounds, and task=diff compares bits.
            order, loss = f"{step.order:016x}", float(step.loss).hex()
            address = {"epoch": step.epoch, "step": step.step}
            lines.append({**address, "samples": step.samples, "order": order, "loss": loss})
        append(self.path, map(json.dumps, lines))

    def on_epoch_end(self, record: Record) -> None:
        # A range at the end of an epoch has no later step that would write it.
        if passed := self._passed(Address(int(record["epoch"]) + 1, 0)):
            append(self.path, map(json.dumps, passed))

    def _passed(self, address: Address) -> list[dict[str, object]]:
        """Lines of the ranges between the last address that was written and `address`."""
        first, self._next = self._next, max(self._next, address)
        return [
            {"epoch": start.epoch, "step": start.step, "skipped_to": stop}
            for start, stop in self._skipped.ranges
            if first <= start < address
        ]


class Display(Observer):
    """A line an epoch, and the progress of the one that runs.

    Args:
        loader: of the training split, or the one that is measured.
        kind: `trainer.progress`; "none" shows nothing.
    """

    def __init__(self, loader: Loader, max_epochs: int, kind: str) -> None:
        self.loader, self.max_epochs, self._kind = loader, max_epochs, kind
        self._bar, self._epoch, self._due = ExitStack(), "", 0.0

    def on_epoch_start(self, epoch: int, steps: int | None, done: int) -> None:
        self._epoch = f"epoch {epoch:>{len(str(self.max_epochs))}} of {self.max_epochs}"
        self._begin(self._epoch, steps)

    def on_batch(self, batch: Batch, losses: Tensor) -> None:
        # float() waits until the device has computed the loss.
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _LOSS_SECONDS
        stats = self.loader.stats
        loss = f"loss {float(losses.mean()):.4g}  " if len(losses) else ""
        speed = f"{stats.samples / max(stats.total_seconds, 1e-9):,.0f} samples/s"
        self._show(batch.request.step + 1, f"{loss}{speed}  {stats.wait_share:.0%} waiting")

    def on_validation(self, done: int, steps: int | None) -> None:
        if not done:
            self._begin(f"{self._epoch}, validation" if self._epoch else "measuring", steps)
        self._show(done)
        if done == steps:  # what comes next may take long, too, and have a bar of its own
            self.close()

    def on_epoch_end(self, record: Record) -> None:
        self.close()
        if self._kind != "none":
            say(f"{self._epoch}  {describe(record)}")
        self._epoch = ""

    def close(self) -> None:
        """Leave the screen as it was; what has been printed stays."""
        self._bar.close()

    def _begin(self, what: str, steps: int | None) -> None:
        self.close()
        self._show = self._bar.enter_context(progress(what, steps))


def describe(record: Record) -> str:
    """A record's losses, metrics and speed in one line."""
    metrics = [
        f"{name} {value:.4g}"
        for name, value in record.items()
        if name.startswith(("train/", "val/")) and name.count("/") == 1  # not one a class
    ]
    unit = "tokens" if "tokens_per_second" in record else "samples"
    speed = f"{record[f'{unit}_per_second']:,.0f} {unit}/s"
    return "  ".join([*metrics, speed, f"{record['wait_share']:.0%} waiting"])
