"""The epochs: train, validate, save, stop.

    fit             epochs until the number, the optimizer steps or the patience is used up
      train_epoch   batches of one epoch; every `accumulate` of them make an optimizer step
        Learner     one batch, one optimizer step (pipeline/training/train_step.py)
      validate      loss and metrics over a whole split (pipeline/training/validation.py)

Everything arrives as plain values and finished parts; what is shown and written while it runs is up
to observers. A fit can be left at any optimizer step and gone on with from its checkpoint, by any
number of ranks: what it needs beside weights and an address is in `Progress`.

Cost beside the model's own: about 0.1 ms a batch. A GPU is waited for only when something is
logged, every `log_every` optimizer steps, or saved; so that is also when a loss that is not finite
is found, with the address of the batch that had it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pipeline.distributed.group import Group
from pipeline.distributed.parallel import Parallel, same_buffers
from pipeline.distributed.preemption import Preempted, Preemption, in_turns
from pipeline.errors import ConfigError, PenstockError, Problem
from pipeline.loading.fetch import Batch
from pipeline.loading.loader import Loader
from pipeline.runs.checkpoint import Checkpoints, State
from pipeline.training.epoch_metrics import Meter, NonFiniteLossError, Step, order_hash
from pipeline.training.objective import Objective
from pipeline.training.observer import Observer, Record
from pipeline.training.train_step import Learner, Options
from pipeline.training.validation import validate

__all__ = ["NonFiniteLossError", "Observer", "Record", "Result", "fit", "train_epoch", "validate"]


@dataclass
class Result:
    """How a fit went.

    Attributes:
        history: a record an epoch, those before a resumption included.
        best: the record with the best monitored metric; None if there never was a finite one.
        reason: why it ended: "max_epochs", "max_steps" or "patience".
        stale: validations since the best one.
        order: hash over which samples were trained on at which addresses, by all ranks together.
    """

    history: list[Record] = field(default_factory=list)
    best: Record | None = None
    reason: str = "max_epochs"
    stale: int = 0
    order: str = ""


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
    group: Group | None = None,
    parallel: Parallel | None = None,
    preemption: Preemption | None = None,
    resume: State | None = None,
    fingerprint: Mapping[str, Any] | None = None,
) -> Result:
    """Train `model` in place, on the device that `train` delivers to.

    Args:
        model: its parameters are those that `optimizer` was made with.
        val: validated on after epochs; without it nothing is ever the best.
        checkpoints: where to save; None saves nothing.
        observers: of this rank.
        seed: of the model's randomness in training.
        group: the ranks that train together; all of them call this alike.
        parallel: how they share the model.
        preemption: asked before every batch whether to stop.
        resume: what a checkpoint of such a fit held; goes on from there.
        fingerprint: plain values to be saved, by which a later run knows that it is the same.

    Raises:
        NonFiniteLossError: at the next log after a batch had one.
        Preempted: asked to stop; a checkpoint has been saved.
    """
    group = group or Group(train.world)
    learner = Learner(model, objective, optimizer, scheduler, options, group, seed, parallel)
    run = _Fit(learner, train, val, checkpoints, observers, preemption, dict(fingerprint or {}))
    if resume is not None:
        run.restore(resume)
    return run.go()


class _Fit(Observer):
    """A fit under way: where it is, and everything that it saves."""

    def __init__(
        self, learner: Learner, train: Loader, val: Loader | None, checkpoints: Checkpoints | None,
        observers: Sequence[Observer], preemption: Preemption | None, fingerprint: dict[str, Any],
    ) -> None:  # fmt: skip
        self.learner, self.train, self.val = learner, train, val
        self.checkpoints, self.observers = checkpoints, (self, *observers)
        self.preemption, self.fingerprint = preemption, fingerprint
        self.options, self.group = learner.options, learner.group
        self.agreement = self.group.agreement()
        self.result = Result()
        self.meter = Meter(self.group)
        self.address = (0, 0)  # of the next batch
        self.begun = False  # whether the epoch at that address has begun, and has no record yet
        self.metrics: Record = {}  # of the last validation
        self.deaths = 0  # of workers, up to the last record; of this rank
        self.saved_at = time.monotonic()

    def restore(self, state: State) -> None:
        """Go on from what `_state` gave."""
        self.learner.load_state_dict(state)
        self.address = (int(state["loader"]["epoch"]), int(state["loader"]["step"]))
        progress = state["progress"]
        self.begun = bool(progress["begun"])
        self.result = result = Result(**progress["result"])
        result.best = next((one for one in result.history if one == result.best), result.best)
        self.meter = Meter(self.group, progress["meter"])
        self.metrics = dict(state["metrics"])

    def on_steps(self, steps: Sequence[Step]) -> None:
        self.result.order = order_hash(self.result.order, steps)

    def go(self) -> Result:
        """Train until there is a reason to stop."""
        while not self._ended():
            self._epoch(*self.address)
        return self.result

    def _ended(self) -> bool:
        options, result = self.options, self.result
        if self.begun or not result.history:
            return False
        if self.learner.finished:
            result.reason = "max_steps"
        elif options.patience is not None and result.stale >= options.patience:
            result.reason = "patience"
        else:
            result.reason = "max_epochs"
            return self.address[0] >= options.max_epochs
        return True

    def _epoch(self, epoch: int, start: int) -> None:
        options, result = self.options, self.result
        self.begun = True
        record = train_epoch(
            self.learner, self.train, epoch, self.observers, start, self.meter,
            self._after_step, self._turn,
        )  # fmt: skip
        last = epoch + 1 == options.max_epochs or self.learner.finished
        improved = False
        if self.val is not None and (last or (epoch + 1) % options.val_every == 0):
            self._validate(record)
            improved = _is_best(record, result.best, options)
            result.stale = 0 if improved else result.stale + 1
        record["worker_deaths"] = lost = self._lost()
        self.deaths = self._own_deaths()
        if improved:
            result.best = record
        if result.history and result.history[-1]["epoch"] == epoch:  # max_steps was raised
            result.history.pop()
        result.history.append(record)
        self.learner.end_epoch(record.get(f"val/{options.monitor}"))
        if not self.learner.finished or self.address[1] == self.train.plan.steps(epoch):
            self.address, self.meter, lost = (epoch + 1, 0), Meter(self.group), 0
        self.meter.deaths = lost
        self.begun = False
        for observer in self.observers:
            observer.on_epoch_end(record)
        if last or improved or self._ended() or (epoch + 1) % options.save_every == 0:
            self._save(improved)

    def _lost(self) -> int:
        """Workers that died since the last epoch's record: in validation too, of all ranks."""
        return self.meter.deaths + sum(self.group.gather(self._own_deaths() - self.deaths))

    def _own_deaths(self) -> int:
        return self.train.deaths + (self.val.deaths if self.val is not None else 0)

    def _validate(self, record: Record) -> None:
        assert self.val is not None
        same_buffers(self.learner.measured, self.group)
        measured = validate(
            self.learner.measured, self.learner.objective, self.val, self.options.precision,
            self.group, self._val_turn, self.observers,
        )  # fmt: skip
        self.metrics = measured
        record |= {f"val/{name}": value for name, value in measured.items()}

    def _after_step(self, batch: Batch) -> None:
        self.address = (batch.request.epoch, batch.request.step + 1)
        every = self.options.save_every_steps
        if every is not None and self.learner.updates % every == 0:
            self._save()

    def _turn(self, broken_off: bool) -> None:
        """Before each batch and at their end: stop or save, if any rank wants to.

        A rank that still waits for its batch answers as well when it is asked to stop. The others
        have theirs in hand and have not begun with it, so all of them stop at the same address.
        """
        minutes = self.options.save_every_minutes
        late = minutes is not None and time.monotonic() - self.saved_at >= 60 * minutes
        stop, due = self.agreement.ask(broken_off or self._asked(), late)
        if stop:
            self._stop()
        if due and not self.learner.pending:
            self._save()

    def _val_turn(self, broken_off: bool) -> None:
        if self.agreement.ask(broken_off or self._asked(), False)[0]:
            self._stop()  # before this validation, which the next run has all of

    def _asked(self) -> bool:
        return self.preemption is not None and self.preemption.asked is not None

    def _stop(self) -> None:
        epoch, step = self.address
        self.learner.drop_pending()  # batches since the last step, which are learned from again
        self.meter.drop_from(self.address)
        self._save()
        if self.checkpoints:
            self.checkpoints.close()
        raise Preempted(f"stopped before epoch {epoch}, step {step}")

    def _save(self, improved: bool = False) -> None:
        self.saved_at = time.monotonic()
        if self.checkpoints is None:
            return
        self._read()
        same_buffers(self.learner.model, self.group)
        same_buffers(self.learner.measured, self.group)
        self.checkpoints.save(self._state(), self.learner.updates, improved)

    def _read(self) -> None:
        _tell(self.observers, self.meter.read())

    def _state(self) -> State:
        """A checkpoint's contents: see Learner.state_dict; address, progress and metrics."""
        epoch, step = self.address
        result = self.result
        kept = {"history": result.history, "best": result.best, "reason": result.reason,
                "stale": result.stale, "order": result.order}  # fmt: skip
        return {
            **self.learner.state_dict(),
            "loader": {**self.train.state_dict(), "epoch": epoch, "step": step},
            "metrics": self.metrics,
            "progress": {
                "result": kept, "begun": self.begun,
                "meter": self.meter.state_dict(self.train.stats.wait_seconds, self._lost()),
            },
            "fingerprint": self.fingerprint,
        }  # fmt: skip


def train_epoch(
    learner: Learner,
    loader: Loader,
    epoch: int,
    observers: Sequence[Observer] = (),
    start: int = 0,
    meter: Meter | None = None,
    after_step: Callable[[Batch], None] | None = None,
    turn: Callable[[bool], None] | None = None,
) -> Record:
    """Train on one epoch, or on what is left of it until `max_steps`; returns its record.

    Args:
        start: the step to begin at.
        meter: what the steps before that came to.
        after_step: called after each optimizer step with its last batch.
        turn: called before each batch and at their end; see `preemption.in_turns`.
    """
    meter = Meter(learner.group) if meter is None else meter
    for observer in observers:
        observer.on_epoch_start(epoch, loader.plan.steps(epoch), start)
    learner.model.train()
    batch = None
    with closing(loader.epoch(epoch, start)) as batches:
        # Nothing is left to do where a run was stopped in the validation after its last step.
        for batch in () if learner.finished else in_turns(batches, turn):
            losses = learner.learn(batch)
            meter.add(batch, losses)
            for observer in observers:
                observer.on_losses(losses)
                observer.on_batch(batch)
            if (batch.request.step + 1) % learner.options.accumulate == 0:
                _step(learner, loader, epoch, observers, meter)
                if after_step is not None:
                    after_step(batch)
            if learner.finished:
                break
    if learner.pending:  # the epoch's last batches were less than `accumulate`
        learner.update()
        if after_step is not None and batch is not None:
            after_step(batch)
    _tell(observers, meter.read())
    if not meter.samples and not start:
        reason = f"epoch {epoch} of the training split has no sample to train on"
        raise ConfigError(Problem("batch", f"{reason}; batch.tail=drop leaves out what is less "
                                  "than one batch"))  # fmt: skip
    return {"epoch": epoch, "step": learner.updates, "train/loss": meter.mean, "lr": learner.lr,
            "seconds": meter.seconds, **_speed(learner, loader, meter)}  # fmt: skip


def _step(
    learner: Learner, loader: Loader, epoch: int, observers: Sequence[Observer], meter: Meter
) -> None:
    """Take an optimizer step, and log if it is time to."""
    learner.update()
    if learner.updates % learner.options.log_every:
        return
    _tell(observers, meter.read())
    record = {"epoch": epoch, "step": learner.updates, "train/loss": meter.window,
              "lr": learner.lr, **_speed(learner, loader, meter)}  # fmt: skip
    meter.begin_window()
    for observer in observers:
        observer.on_log(record)


def _tell(observers: Sequence[Observer], steps: Sequence[Step]) -> None:
    if steps:
        for observer in observers:
            observer.on_steps(steps)


def _speed(learner: Learner, loader: Loader, meter: Meter) -> Record:
    """Samples a second and lost workers over all ranks; waiting and milliseconds of this one."""
    stats = loader.stats
    return {
        **meter.speed(stats.wait_seconds),
        **{f"ms/{stage}": 1000 * seconds / max(stats.samples, 1)
           for stage, seconds in stats.stages.items()},
        "worker_deaths": sum(learner.group.gather(stats.deaths)),
    }  # fmt: skip


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
