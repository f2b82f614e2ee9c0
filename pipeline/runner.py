"""The epochs: train, validate, save, stop.

    fit             epochs until the number, the optimizer steps or the patience is used up
      train_epoch   batches of one epoch; every `accumulate` of them make an optimizer step
        Learner     one batch, one optimizer step (pipeline/learner.py)
      validate      loss and metrics over a whole split

Everything arrives as plain values and finished parts; what is shown and written while it runs is up
to observers.

Cost beside the model's own: about 0.1 ms a batch. A GPU is waited for only when something is
logged, every `log_every` optimizer steps; so that is also when a loss that is not finite is found,
with the address of the batch that had it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pipeline.checkpoint import Checkpoints, State
from pipeline.errors import ConfigError, PenstockError, Problem
from pipeline.fetch import Batch
from pipeline.learner import Learner, Options, Precision, autocast
from pipeline.loader import Loader
from pipeline.objective import Objective

Record = dict[str, float]


class NonFiniteLossError(PenstockError):
    """A batch's loss is NaN or infinite; `epoch` and `step` are its address."""

    def __init__(self, loss: float, epoch: int, step: int) -> None:
        super().__init__(f"the loss is {loss} at epoch {epoch}, step {step}")
        self.loss, self.epoch, self.step = loss, epoch, step


class Observer:
    """Is told what happens; subclasses override what they care for.

    Records have "epoch" and "step" (optimizer steps so far), and numbers such as "train/loss".
    """

    def on_epoch_start(self, epoch: int, steps: int | None) -> None:
        """Training on the `steps` batches of `epoch` begins; a stream may not know how many."""

    def on_batch(self, batch: Batch) -> None:
        """`batch` was trained on. Its tensors may be on a GPU that has not come to it yet."""

    def on_log(self, record: Record) -> None:
        """Numbers since the last log: train/loss, lr, samples_per_second, wait_share."""

    def on_epoch_end(self, record: Record) -> None:
        """Numbers of the whole epoch, with val/<metric> where it was validated."""


@dataclass
class Result:
    """How a fit went.

    Attributes:
        history: a record an epoch.
        best: the record with the best monitored metric; None if there never was a finite one.
        reason: why it ended: "max_epochs", "max_steps" or "patience".
    """

    history: list[Record] = field(default_factory=list)
    best: Record | None = None
    reason: str = "max_epochs"


def fit(
    model: nn.Module,
    objective: Objective,
    optimizer: Optimizer,
    train: Loader,
    val: Loader | None,
    options: Options,
    *,
    scheduler: LRScheduler | None = None,
    checkpoints: Checkpoints | None = None,
    observers: Sequence[Observer] = (),
    seed: int = 0,
) -> Result:
    """Train `model` in place, on the device that `train` delivers to.

    Args:
        model: its parameters are those that `optimizer` was made with.
        val: validated on after epochs; without it nothing is ever the best.
        checkpoints: where to save; None saves nothing.
        seed: of the model's randomness in training.

    Raises:
        NonFiniteLossError: at the next log after a batch had one.
    """
    learner = Learner(model, objective, optimizer, scheduler, options, train.world, seed)
    result = Result()
    stale = 0
    for epoch in range(options.max_epochs):
        record = train_epoch(learner, train, epoch, observers)
        result.history.append(record)
        if learner.finished:
            result.reason = "max_steps"
        last = epoch + 1 == options.max_epochs or learner.finished
        improved = False
        if val is not None and (last or (epoch + 1) % options.val_every == 0):
            measured = validate(model, objective, val, options.precision)
            record |= {f"val/{name}": value for name, value in measured.items()}
            improved = _is_best(record, result.best, options)
            stale = 0 if improved else stale + 1
        if improved:
            result.best = record
        learner.end_epoch(record.get(f"val/{options.monitor}"))
        if options.patience is not None and stale >= options.patience and not last:
            result.reason, last = "patience", True
        for observer in observers:
            observer.on_epoch_end(record)
        if checkpoints and (last or improved or (epoch + 1) % options.save_every == 0):
            checkpoints.save(_state(learner, train, record), learner.updates, improved)
        if last:
            break
    return result


def train_epoch(
    learner: Learner, loader: Loader, epoch: int, observers: Sequence[Observer] = ()
) -> Record:
    """Train on one epoch, or on what is left of it until `max_steps`; returns its record."""
    steps = loader.plan.steps(epoch)
    for observer in observers:
        observer.on_epoch_start(epoch, steps)
    learner.model.train()
    meter = _Meter()
    for batch in loader.epoch(epoch):
        meter.add(batch, learner.learn(batch))
        stepped = (batch.request.step + 1) % learner.options.accumulate == 0
        if stepped:
            learner.update()
        for observer in observers:
            observer.on_batch(batch)
        if stepped and learner.updates % learner.options.log_every == 0:
            record = {"epoch": epoch, "step": learner.updates, "train/loss": meter.read(),
                      "lr": learner.lr, **meter.speed(loader)}  # fmt: skip
            for observer in observers:
                observer.on_log(record)
        if learner.finished:
            break
    if learner.pending:  # the epoch's last batches were less than `accumulate`
        learner.update()
    meter.read()
    if not meter.samples:
        reason = f"epoch {epoch} of the training split has no sample to train on"
        raise ConfigError(Problem("batch", f"{reason}; batch.tail=drop leaves out what is less "
                                  "than one batch"))  # fmt: skip
    return {"epoch": epoch, "step": learner.updates, "train/loss": meter.mean, "lr": learner.lr,
            "seconds": meter.seconds, **meter.speed(loader)}  # fmt: skip


@torch.no_grad()
def validate(
    model: nn.Module, objective: Objective, loader: Loader, precision: Precision = "fp32"
) -> Record:
    """The mean "loss" and every metric of the objective over one pass of `loader`.

    The pass is always that of epoch 0, so that random transforms would draw the same each time.
    """
    was_training = model.training
    device = torch.device(loader.world.device)
    model.to(device).eval()
    objective.to(device).reset()
    total, count = torch.zeros((), dtype=torch.float64, device=device), 0
    for batch in loader.epoch(0):
        with autocast(device, precision):
            losses, outputs = objective(model, batch)
        objective.update(outputs, batch)
        total += losses.double().sum()
        count += len(losses)
    model.train(was_training)
    return {"loss": float(total) / count if count else math.nan, **objective.compute()}


class _Meter:
    """Losses, kept on the device until they are read, and speed.

    Attributes:
        samples: how many have been read.
    """

    def __init__(self) -> None:
        self._pending: list[tuple[tuple[int, int], Tensor, int]] = []
        self._total, self.samples = 0.0, 0
        self._began = time.perf_counter()

    def add(self, batch: Batch, losses: Tensor) -> None:
        self._pending.append((batch.request.address, losses.sum(), len(losses)))

    def read(self) -> float:
        """The mean loss since the last reading; waits for the device."""
        if not self._pending:
            return math.nan
        addresses, sums, counts = zip(*self._pending, strict=True)
        self._pending.clear()
        values = torch.stack(sums).tolist()
        for address, value, count in zip(addresses, values, counts, strict=True):
            if not math.isfinite(value):
                raise NonFiniteLossError(value / count, *address)
        self._total += math.fsum(values)
        self.samples += sum(counts)
        return math.fsum(values) / max(sum(counts), 1)

    @property
    def mean(self) -> float:
        """The mean loss of all that was read."""
        return self._total / self.samples

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def speed(self, loader: Loader) -> Record:
        return {
            "samples_per_second": self.samples / self.seconds,
            "wait_share": loader.stats.wait_share,
        }


def _is_best(record: Record, best: Record | None, options: Options) -> bool:
    """Whether the monitored metric is progress. NaN never is."""
    name = f"val/{options.monitor}"
    if name not in record:
        known = ", ".join(key[4:] for key in record if key.startswith("val/"))
        raise PenstockError(f"trainer.monitor is {options.monitor!r}, but validation gives {known}")
    if math.isnan(record[name]):
        return False
    if best is None:
        return True
    return record[name] < best[name] if options.mode == "min" else record[name] > best[name]


def _state(learner: Learner, loader: Loader, record: Mapping[str, Any]) -> State:
    """A checkpoint's contents: see Learner.state_dict; the address of the next batch; metrics."""
    metrics = {key[4:]: value for key, value in record.items() if key.startswith("val/")}
    return {**learner.state_dict(), "loader": loader.state_dict(), "metrics": metrics}
