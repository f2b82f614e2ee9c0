"""The epochs: train, validate, save, stop.

    fit             epochs until the number, the optimizer steps or the patience is used up
      train_epoch   batches of one epoch; every `accumulate` of them make an optimizer step
        TrainStep   one batch, one optimizer step (pipeline/training/train_step.py)
      validate      loss and metrics over a whole split (pipeline/training/validation.py)

Cost beside the model's own: about 0.1 ms a batch. It waits for a GPU only to log, every `log_every`
optimizer steps, and to save; so that is also when it finds a loss that is not finite.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from penstock.distributed import stop
from penstock.distributed.parallel import same_buffers
from penstock.distributed.stop import Preempted
from penstock.errors import ConfigError, DataError, PenstockError, Problem
from penstock.loading.batch import Batch
from penstock.loading.loader import Loader
from penstock.order.address import Address
from penstock.runs.checkpoint import Checkpoints, State
from penstock.training.epoch_metrics import EpochMetrics, NonFiniteLossError, Step, order_hash
from penstock.training.observer import Observer, Record
from penstock.training.train_step import TrainOptions, TrainStep
from penstock.training.validation import in_turns, validate

__all__ = [
    "NonFiniteLossError",
    "Observer",
    "Record",
    "Result",
    "Session",
    "fit",
    "train_epoch",
    "validate",
]


@dataclass
class Result:
    """The outcome of a fit.

    Attributes:
        history: a record an epoch, including those before a resume.
        best: the record with the best monitored metric; None if none was finite.
        reason: for its end: "max_epochs", "max_steps", "patience", or what an observer gave.
        stale: validations since the best one.
        order: hash over the samples trained on and their addresses, of all ranks together.
    """

    history: list[Record] = field(default_factory=list)
    best: Record | None = None
    reason: str = "max_epochs"
    stale: int = 0
    order: str = ""


@dataclass
class Session:
    """The state that a fit begins with, and the place where it leaves its own.

    Attributes:
        checkpoints: where to save; None saves nothing.
        state: of a checkpoint to resume from.
        fingerprint: plain values saved in checkpoints, to recognize the same run later.
    """

    checkpoints: Checkpoints | None = None
    state: State | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)


def fit(
    train_step: TrainStep,
    train: Loader,
    val: Loader | None,
    session: Session | None = None,
    observers: Sequence[Observer] = (),
    asked: Callable[[], str | None] = stop.asked,
) -> Result:
    """Train the model of `train_step` in place; all ranks that train together make this call.

    Args:
        train: delivers to the model's device.
        val: validated on after epochs; without it there is no best epoch.
        observers: of this rank.
        asked: called before every batch: whether to stop.

    Raises:
        NonFiniteLossError: at the next log after a batch had such a loss.
        Preempted: asked to stop; a checkpoint has been saved.
    """
    run = _Fit(train_step, train, val, session or Session(), observers, asked)
    if run.coming.epoch >= run.options.max_epochs and not run.result.history:
        raise ConfigError(
            Problem(
                "trainer.skip",
                "leaves out every batch of trainer.max_epochs="
                f"{run.options.max_epochs}; leave something to train on",
            )
        )
    while (reason := run.reason) is None:
        run.epoch(*run.coming)
    run.result.reason = reason
    return run.result


class _Fit(Observer):
    """A fit under way: its position, and everything that it saves."""

    def __init__(
        self,
        train_step: TrainStep,
        train: Loader,
        val: Loader | None,
        session: Session,
        observers: Sequence[Observer],
        asked: Callable[[], str | None],
    ) -> None:
        self.train_step, self.train, self.val = train_step, train, val
        self.session, self.asked = session, asked
        self.observers = (self, *observers)
        self.options, self.group = train_step.options, train_step.group
        self.result = Result()
        self.epoch_metrics = EpochMetrics(self.group)
        self.address = Address(0, 0)  # of the next batch
        self.begun = False  # whether the epoch at that address has begun and has no record yet
        self.metrics: Record = {}  # of the last validation
        self.deaths = 0  # of workers, up to the last record; of this rank
        self.enough: str | None = None  # what an observer gives as a reason to end
        self.saved_at = time.monotonic()
        if session.state is not None:
            self.restore(session.state)

    def restore(self, state: State) -> None:
        """Resume from a result of `_settled`."""
        self.train_step.load_state_dict(state)
        self.address = Address(int(state["loader"]["epoch"]), int(state["loader"]["step"]))
        progress = state["progress"]
        self.begun = bool(progress["begun"]) and self.coming == self.address
        self.result = result = Result(**progress["result"])
        result.best = next((one for one in result.history if one == result.best), result.best)
        self._ask_observers()
        self.epoch_metrics = EpochMetrics(self.group, progress["meter"])
        self.metrics = dict(state["metrics"])

    @property
    def coming(self) -> Address:
        """Where to resume: `address`, or a later epoch's start if none of its epoch is left."""
        epoch, step = self.address
        return self.address if step else Address(self._next_epoch(epoch), 0)

    def _next_epoch(self, epoch: int) -> int:
        """The first epoch from `epoch` on that `trainer.skip` does not leave out as a whole."""
        skipped = self.train.plan.skipped
        while epoch < self.options.max_epochs and Address(epoch, 0) in skipped:
            if self._has_steps(epoch, 0):
                break
            epoch += 1
        return epoch

    def _has_steps(self, epoch: int, start: int) -> bool:
        """Whether there is a batch to train on from `start` on, as far as that is known."""
        plan = self.train.plan
        return next(plan.skipped.steps(epoch, start, plan.steps(epoch)), None) is not None

    def on_steps(self, steps: Sequence[Step]) -> None:
        self.result.order = order_hash(self.result.order, steps)

    @property
    def reason(self) -> str | None:
        """The reason to end here, if there is one."""
        options, result = self.options, self.result
        if self.begun or not result.history:
            return None
        if self.train_step.finished:
            return "max_steps"
        if options.patience is not None and result.stale >= options.patience:
            return "patience"
        return "max_epochs" if self.coming.epoch >= options.max_epochs else self.enough

    def _ask_observers(self) -> None:
        found = (one.enough for one in self.observers if one.enough)
        self.enough = self.group.gather(next(found, None))[0]  # of the first rank

    def epoch(self, epoch: int, start: int) -> None:
        """Train on the rest of an epoch, validate and save."""
        options, result = self.options, self.result
        self.address, self.begun = Address(epoch, start), True
        record = train_epoch(
            self.train_step,
            self.train,
            epoch,
            self.observers,
            start,
            self.epoch_metrics,
            self._after_step,
            self._turn,
        )
        last = self._next_epoch(epoch + 1) == options.max_epochs or self.train_step.finished
        improved = False
        if self.val is not None and (last or (epoch + 1) % options.val_every == 0):
            same_buffers(self.train_step.measured, self.group)
            self.metrics = validate(
                self.train_step.measured,
                self.train_step.objective,
                self.val,
                options.precision,
                self.group,
                self._val_turn,
                self.observers,
            )
            record |= {f"val/{name}": value for name, value in self.metrics.items()}
            improved = _is_best(record, result.best, options)
            result.stale = 0 if improved else result.stale + 1
        record["worker_deaths"] = lost = self._lost()
        self.deaths = self._own_deaths()
        if improved:
            result.best = record
        if result.history and result.history[-1]["epoch"] == epoch:  # max_steps was raised
            result.history.pop()
        result.history.append(record)
        self.train_step.end_epoch(record.get(f"val/{options.monitor}"))
        if not self.train_step.finished or not self._has_steps(*self.address):
            self.address, lost = Address(epoch + 1, 0), 0
            self.epoch_metrics = EpochMetrics(self.group)
        self.epoch_metrics.deaths = lost
        self.begun = False
        for observer in self.observers:
            observer.on_record(record)
        for observer in self.observers:
            observer.on_epoch_end(record)
        self._ask_observers()
        kept = self.session.checkpoints
        due = kept is not None and (epoch + 1) % kept.every_epochs == 0
        if last or improved or due or self.reason is not None:
            self._save(improved)

    def _lost(self) -> int:
        """Workers that died since the last epoch's record: in validation too, of all ranks."""
        return self.epoch_metrics.deaths + sum(self.group.gather(self._own_deaths() - self.deaths))

    def _own_deaths(self) -> int:
        return self.train.deaths + (self.val.deaths if self.val is not None else 0)

    def _after_step(self, batch: Batch) -> None:
        self.address = Address(batch.request.epoch, batch.request.step + 1)
        kept = self.session.checkpoints
        if kept and kept.every_steps and self.train_step.updates % kept.every_steps == 0:
            self._save()

    def _turn(self, broken_off: bool) -> None:
        """Before each batch and at the end: stop or save, if any rank wants to.

        A rank that waits for its batch answers, too. The others have received theirs and not
        started on it, so all ranks stop at the same address.
        """
        kept = self.session.checkpoints
        minutes = kept.every_minutes if kept else None
        late = minutes is not None and time.monotonic() - self.saved_at >= 60 * minutes
        ends, due = self.group.agree(broken_off or self.asked() is not None, late)
        if ends:
            self._stop()
        if due and not self.train_step.pending:
            self._save()

    def _val_turn(self, broken_off: bool) -> None:
        if self.group.agree(broken_off or self.asked() is not None, False)[0]:
            self._stop()  # before this validation, which the next session repeats

    def _stop(self) -> None:
        epoch, step = self.address
        self.train_step.drop_pending()  # batches since the last step, which are learned from again
        self.epoch_metrics.drop_from(self.address)
        self._save()
        if self.session.checkpoints:
            self.session.checkpoints.flush()
        raise Preempted(f"stopped before epoch {epoch}, step {step}")

    def _save(self, improved: bool = False) -> None:
        self.saved_at = time.monotonic()
        if self.session.checkpoints is not None:
            steps = self.train_step.updates
            self.session.checkpoints.save(self._settled(), steps, improved)

    def _settled(self) -> State:
        """Everything to resume from; observers know all steps in it."""
        _tell(self.observers, self.epoch_metrics.read())
        same_buffers(self.train_step.model, self.group)
        same_buffers(self.train_step.measured, self.group)
        epoch, step = self.address
        return {
            **self.train_step.state_dict(),
            "loader": {**self.train.state_dict(), "epoch": epoch, "step": step},
            "metrics": self.metrics,
            "progress": {
                "result": vars(self.result),
                "begun": self.begun,
                "meter": self.epoch_metrics.state_dict(self.train.stats.wait_seconds, self._lost()),
            },
            "fingerprint": {**self.session.fingerprint},
        }


def train_epoch(
    train_step: TrainStep,
    loader: Loader,
    epoch: int,
    observers: Sequence[Observer] = (),
    start: int = 0,
    epoch_metrics: EpochMetrics | None = None,
    after_step: Callable[[Batch], None] | None = None,
    turn: Callable[[bool], None] = lambda broken_off: None,
) -> Record:
    """Train on one epoch, or the part of it before `max_steps`; returns its record.

    Args:
        start: the first step.
        epoch_metrics: of the steps before that.
        after_step: called after each optimizer step with its last batch.
        turn: called before each batch and at the end; see `in_turns`.
    """
    epoch_metrics = epoch_metrics or EpochMetrics(train_step.group)
    skipped = loader.plan.skipped
    for observer in observers:
        observer.on_epoch_start(epoch, loader.plan.steps(epoch), start)
    train_step.begin_epoch(epoch)
    batch = None
    with closing(loader.epoch(epoch, start)) as batches:
        # A run that was stopped in the validation after its last step has no batch left.
        for batch in () if train_step.finished else in_turns(batches, turn):
            losses = train_step.learn(batch)
            epoch_metrics.add(batch, losses, train_step.objective.named)
            for observer in observers:
                observer.on_losses(losses)
                observer.on_batch(batch)
            if skipped.ends_group(batch.request.address, train_step.options.accumulate):
                _step(train_step, loader, epoch, observers, epoch_metrics)
                if after_step is not None:
                    after_step(batch)
            if train_step.finished:
                break
    if train_step.pending:  # the epoch's last batches were fewer than `accumulate`
        train_step.update()
        if after_step is not None and batch is not None:
            after_step(batch)
    _tell(observers, epoch_metrics.read())
    if not epoch_metrics.samples and not start and not skipped:
        raise DataError(
            f"every sample of epoch {epoch} was left out (bad_samples.on_error), so "
            "there is none to train on"
        )
    return {
        "epoch": epoch,
        "step": train_step.updates,
        "train/loss": epoch_metrics.mean,
        **{f"train/loss/{name}": mean for name, mean in epoch_metrics.named.items()},
        "lr": train_step.lr,
        "seconds": epoch_metrics.seconds,
        **_speed(train_step, loader, epoch_metrics),
    }


def _step(
    train_step: TrainStep,
    loader: Loader,
    epoch: int,
    observers: Sequence[Observer],
    epoch_metrics: EpochMetrics,
) -> None:
    """Take an optimizer step, and log every `log_every` of them."""
    train_step.update()
    if train_step.updates % train_step.options.log_every:
        return
    _tell(observers, epoch_metrics.read())
    record = {
        "epoch": epoch,
        "step": train_step.updates,
        "train/loss": epoch_metrics.window,
        "lr": train_step.lr,
        **_speed(train_step, loader, epoch_metrics),
    }
    epoch_metrics.begin_window()
    for observer in observers:
        observer.on_log(record)


def _speed(train_step: TrainStep, loader: Loader, epoch_metrics: EpochMetrics) -> Record:
    """Samples a second and dead workers of all ranks; waiting and milliseconds of this one."""
    stats, samples = loader.stats, max(loader.stats.samples, 1)
    stages = {f"ms/{stage}": 1000 * seconds / samples for stage, seconds in stats.stages.items()}
    deaths = sum(train_step.group.gather(stats.deaths))
    return {**epoch_metrics.speed(stats.wait_seconds), **stages, "worker_deaths": deaths}


def _tell(observers: Sequence[Observer], steps: Sequence[Step]) -> None:
    if steps:
        for observer in observers:
            observer.on_steps(steps)


def _is_best(record: Record, best: Record | None, options: TrainOptions) -> bool:
    """Whether the monitored metric has improved. NaN never does."""
    name = f"val/{options.monitor}"
    if name not in record:
        known = ", ".join(key[4:] for key in record if key.startswith("val/"))
        raise PenstockError(f"trainer.monitor is {options.monitor!r}, but validation gives {known}")
    if math.isnan(record[name]):
        return False
    if best is None:
        return True
    return record[name] < best[name] if options.mode == "min" else record[name] > best[name]
