"""The epochs: train, validate, save, stop.

    fit             epochs until the number, the optimizer steps or the patience is used up
      TrainStep     one batch, one optimizer step (pipeline/training/step.py)
      Meter         losses, order and speed of an epoch (pipeline/training/meter.py)
      validate      loss and metrics over a whole split
      Observer      the events that files, trackers and displays receive

Cost beside the model's own: about 0.1 ms a batch. It waits for a GPU only to log, every `log_every`
optimizer steps, and to save; so that is also when it finds a loss that is not finite.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from penstock.distributed import stop
from penstock.distributed.group import Group
from penstock.distributed.parallel import same_buffers, together
from penstock.errors import DataError
from penstock.loading.batch import Batch
from penstock.loading.loader import Loader
from penstock.order.address import Address
from penstock.runs.checkpoint import Checkpoints, State
from penstock.runs.folder import Status
from penstock.training.adapter import Objective, explained, require
from penstock.training.meter import Meter, Step, order_hash
from penstock.training.step import Precision, TrainStep, autocast

Record = dict[str, float]


class Observer:
    """Base class whose methods do nothing; override the ones you need.

    Records have "epoch", "step" (optimizer steps so far) and numbers such as "train/loss".

    Attributes:
        enough: a reason to end the fit after this epoch, on all ranks; an observer sets its own.
    """

    enough: str | None = None

    def on_epoch_start(self, epoch: int, steps: int | None, done: int) -> None:
        """An epoch of `steps` batches (None: unknown) begins; `done` of them before a resume."""

    def on_batch(self, batch: Batch, losses: Tensor) -> None:
        """This rank's share was trained on; a GPU may still be at work. Reading the losses,
        float32[n] on the device, waits for it.
        """

    def on_steps(self, steps: Sequence[Step]) -> None:
        """Results of the global batches since the last call, before anything is saved."""

    def on_validation(self, done: int, steps: int | None) -> None:
        """`done` of `steps` validation batches were measured; 0 at the start."""

    def on_validation_batch(self, batch: Batch, losses: Tensor) -> None:
        """Losses of this rank's share, float32[n] on the device, without padding."""

    def on_validated(self, left_out: Sequence[Any]) -> None:
        """Validation is over; `left_out` are its unreadable samples, of all ranks."""

    def on_log(self, record: Record) -> None:
        """Numbers since the last log: train/loss, lr, samples_per_second, wait_share."""

    def on_record(self, record: Record) -> None:
        """The record of an epoch, before `on_epoch_end`: add numbers here."""

    def on_epoch_end(self, record: Record) -> None:
        """Numbers of the whole epoch, with val/<metric> if it was validated."""

    def on_done(self) -> None:
        """The fit has reached its end, and its results are printed."""

    def on_file(self, name: str, path: Path) -> None:
        """A result lies at `path`: a folder, a checkpoint, a picture."""

    def on_end(self, status: Status) -> None:
        """However the fit ended, the run's manifest is complete; left out if there is no run."""

    def on_close(self, status: Status) -> None:
        """The last call: close files and connections."""


def _tell(observers: Sequence[Observer], event: str, *arguments: Any) -> None:
    for observer in observers:
        getattr(observer, event)(*arguments)


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
    stop_requested: Callable[[], str | None] = stop.requested,
) -> Result:
    """Train the model of `train_step` in place; all ranks that train together make this call.

    Args:
        train: delivers to the model's device.
        val: validated on after epochs; without it there is no best epoch.
        observers: of this rank.
        stop_requested: called before every batch: whether to stop.

    Raises:
        NonFiniteLossError: at the next log after a batch had such a loss.
        Preempted: asked to stop; a checkpoint has been saved.
    """
    run = _Fit(train_step, train, val, session or Session(), observers, stop_requested)
    while (reason := run.reason) is None:
        run.epoch(*run.address)
    require(
        run.result.history,
        "trainer.skip",
        f"leaves out every batch of trainer.max_epochs={train_step.options.max_epochs}; leave some "
        "to train on",
    )
    run.result.reason = reason
    return run.result


class _Fit:
    """A fit under way: its position, and everything that it saves."""

    def __init__(
        self,
        train_step: TrainStep,
        train: Loader,
        val: Loader | None,
        session: Session,
        observers: Sequence[Observer],
        stop_requested: Callable[[], str | None],
    ) -> None:
        self.train_step, self.train, self.val = train_step, train, val
        self.options, self.group = train_step.options, train_step.group
        self.checkpoints, self.fingerprint = session.checkpoints, session.fingerprint
        self.observers, self.stop_requested = observers, stop_requested
        self.result, self.meter = Result(), Meter(self.group)
        self.address = Address(0, 0)  # of the next batch
        self.begun = False  # whether the epoch at that address has begun and has no record yet
        self.metrics: Record = {}  # of the last validation
        self.deaths = 0  # of workers of this rank, up to the last record
        self.saved_at = time.monotonic()
        if (state := session.state) is not None:  # as `_save` makes it
            train_step.load_state_dict(state)
            self.address = Address(int(state["loader"]["epoch"]), int(state["loader"]["step"]))
            progress, self.metrics = state["progress"], dict(state["metrics"])
            self.begun = bool(progress["begun"])
            self.result = Result(**progress["result"])
            self.meter = Meter(self.group, progress["meter"])
            session.state = None  # its tensors would stay in the memory of every rank

    def _has_steps(self, epoch: int, start: int = 0) -> bool:
        """Whether the epoch has a batch to train on from `start` on, as far as that is known."""
        plan = self.train.plan
        return next(plan.skipped.steps(epoch, start, plan.steps(epoch)), None) is not None

    @property
    def reason(self) -> str | None:
        """The reason to end here, if there is one; all ranks ask for it."""
        options, history = self.options, self.result.history
        # A run that stopped in the validation after its last step has yet to write its record.
        if self.begun:
            return None
        reasons = {
            "max_steps": bool(history) and self.train_step.finished,
            "patience": options.patience is not None and self.result.stale >= options.patience,
            "max_epochs": self.address.epoch >= options.max_epochs,
        }
        reason = next((reason for reason, holds in reasons.items() if holds), None)
        enough = next((each.enough for each in self.observers if each.enough and history), None)
        return reason or self.group.gather(enough)[0]  # of the first rank

    def epoch(self, epoch: int, start: int) -> None:
        """Train on the rest of an epoch, validate and save."""
        options, result, step = self.options, self.result, self.train_step
        if (epoch, 0) == self.address in self.train.plan.skipped and not self._has_steps(epoch):
            self.address, self.begun = Address(epoch + 1, 0), False  # it has no record
            return
        self.begun = True
        record, improved = self._train(epoch, start), False
        later = range(epoch + 1, options.max_epochs)
        last = step.finished or not any(map(self._has_steps, later))
        if self.val is not None and (last or (epoch + 1) % options.val_every == 0):
            same_buffers(step.measured, self.group)
            parts = step.measured, step.objective, self.val, options.precision
            self.metrics = validate(*parts, self.group, self._turn, self.observers)
            record |= {f"val/{name}": value for name, value in self.metrics.items()}
            improved = self._is_best(record)
            result.stale = 0 if improved else result.stale + 1
            result.best = record if improved else result.best
        loaders = [loader for loader in (self.train, self.val) if loader is not None]
        before, self.deaths = self.deaths, sum(loader.workers.deaths for loader in loaders)
        record["worker_deaths"] = sum(self.group.gather(self.deaths - before))
        # An epoch that continues after max_steps was raised has one record.
        result.history = [one for one in result.history if one["epoch"] != epoch] + [record]
        step.move_schedule("epoch", record.get(f"val/{options.monitor}"))
        if not step.finished or not self._has_steps(*self.address):
            self.address, self.meter = Address(epoch + 1, 0), Meter(self.group)
        self.begun = False
        # Before the save: a run resumed from it does not write this record again.
        _tell(self.observers, "on_record", record)
        _tell(self.observers, "on_epoch_end", record)
        due = self.checkpoints and (epoch + 1) % self.checkpoints.every_epochs == 0
        if last or improved or due or self.reason is not None:
            self._save(improved)

    def _train(self, epoch: int, start: int) -> Record:
        """Train on an epoch from the step `start` on, up to `max_steps`; returns its record."""
        step, plan, size = self.train_step, self.train.plan, self.options.accumulate
        _tell(self.observers, "on_epoch_start", epoch, plan.steps(epoch), start)
        step.begin_epoch(epoch)
        batch = None
        with (
            explained("model", step.model, lambda: step.objective.inputs_of(batch or {})),
            closing(self.train.epoch(epoch, start)) as batches,
        ):
            # A run that was stopped in the validation after its last step has no batch left.
            for batch in () if step.finished else in_turns(batches, self._turn):
                losses = step.learn(batch)
                self.meter.add(batch, losses, step.objective.named)
                _tell(self.observers, "on_batch", batch, losses)
                # With one batch a step this is no question, and its answer takes 2 us.
                if size == 1 or plan.skipped.ends_group(batch.request.address, size):
                    self._update(batch)
                if step.finished:
                    break
        if step.pending and batch is not None:  # the last batches were fewer than `accumulate`
            self._update(batch)
        self._read()
        if not self.meter.sums["samples"] and not start and not plan.skipped:
            raise DataError(f"every sample of epoch {epoch} was left out (bad_samples.on_error)")
        parts = {
            f"train/{name}": self.meter.mean(name)
            for name in self.meter.sums
            if name.startswith("loss/")
        }
        return self._record(self.meter.mean()) | parts | {"seconds": self.train.stats.total_seconds}

    def _update(self, batch: Batch) -> None:
        """Take an optimizer step, log every `log_every` of them, and save if that is due."""
        self.train_step.update()
        updates, checkpoints = self.train_step.updates, self.checkpoints
        if updates % self.options.log_every == 0:
            self._read()
            record = self._record(self.meter.mean("window_total", "window_losses"))
            self.meter.begin_window()
            _tell(self.observers, "on_log", record)
        self.address = Address(batch.request.epoch, batch.request.step + 1)
        if checkpoints and checkpoints.every_steps and updates % checkpoints.every_steps == 0:
            self._save()

    def _record(self, loss: float) -> Record:
        """Samples a second of all ranks; waiting and milliseconds of this one."""
        stats, meter = self.train.stats, self.meter
        speed = sum(self.group.gather(stats.samples)) / max(stats.total_seconds, 1e-9)
        by_token = meter.sums["losses"] / max(meter.sums["samples"], 1)
        ms = {
            f"ms/{stage}": 1000 * seconds / max(stats.samples, 1)
            for stage, seconds in stats.stages.items()
        }
        return {
            "epoch": self.address.epoch,
            "step": self.train_step.updates,
            "train/loss": loss,
            "lr": self.train_step.lr,
            "samples_per_second": speed,
            **({"tokens_per_second": speed * by_token} if by_token not in (0, 1) else {}),
            "wait_share": stats.wait_share,
            **ms,
        }

    def _read(self) -> None:
        """Tell observers of the batches since the last read; it waits for the device."""
        if steps := self.meter.read():
            self.result.order = order_hash(self.result.order, steps)
            _tell(self.observers, "on_steps", steps)

    def _is_best(self, record: Record) -> bool:
        """Whether the monitored metric has improved. NaN never does."""
        name, best = f"val/{self.options.monitor}", self.result.best
        require(
            name in record,
            "trainer.monitor",
            f"is {self.options.monitor!r}, but validation gives "
            + ", ".join(key[4:] for key in record if key.startswith("val/")),
        )
        value = record[name]
        if best is None or math.isnan(value):
            return not math.isnan(value)
        return value < best[name] if self.options.mode == "min" else value > best[name]

    def _turn(self, interrupted: bool) -> None:
        """Before each batch and at the end, also in validation: stop or save, if any rank wants to.

        A rank that waits for its batch answers, too. The others have received theirs and not
        started on it, so all ranks stop at the same address; in validation, before all of it.
        """
        minutes = self.checkpoints.every_minutes if self.checkpoints else None
        late = minutes is not None and time.monotonic() - self.saved_at >= 60 * minutes
        ends, due = self.group.agree(interrupted or self.stop_requested() is not None, late)
        # Between accumulated batches there is no address to resume from.
        if due and not ends and not self.train_step.pending:
            self._save()
        if not ends:
            return
        self.train_step.drop_pending()  # batches since the last step, which are learned from again
        self.meter.drop_from(self.address)
        self._save()
        if self.checkpoints:  # a thread writes, and the process ends soon
            self.checkpoints.flush()
        raise stop.Preempted(f"stopped before epoch {self.address.epoch}, step {self.address.step}")

    def _save(self, improved: bool = False) -> None:
        """Save everything to resume from; observers know all steps in it."""
        self.saved_at = time.monotonic()
        if self.checkpoints is None:
            return
        self._read()
        # Running means differ between ranks since the last step; a checkpoint has rank 0's.
        same_buffers(self.train_step.model, self.group)
        same_buffers(self.train_step.measured, self.group)
        state = {
            **self.train_step.state_dict(),
            "loader": {**self.train.state_dict(), **self.address._asdict()},
            "metrics": self.metrics,
            "progress": {
                "result": vars(self.result),
                "begun": self.begun,
                "meter": {**self.meter.sums},
            },
            "fingerprint": {**self.fingerprint},
        }
        self.checkpoints.save(state, self.train_step.updates, improved)


@torch.no_grad()
def validate(
    model: nn.Module,
    objective: Objective,
    loader: Loader,
    precision: Precision = "fp32",
    group: Group | None = None,
    turn: Callable[[bool], None] = lambda broken_off: None,
    observers: Sequence[Observer] = (),
) -> dict[str, float]:
    """The mean "loss" and every metric of the objective over epoch 0 of `loader`.

    Each sample (or token, where the objective gives a loss a token) counts once, whatever the
    number of ranks.

    Args:
        group: the ranks that measure a share each; all get the same numbers.
        turn: called before each batch and at the end; see `in_turns`.
        observers: receive the progress, and the unreadable samples of all ranks.
    """
    group, device = group or Group(), torch.device(loader.world.device)
    model.eval()
    # A metric is made on the CPU, and keeps what the last validation has counted.
    objective.to(device).reset()
    sums: dict[str, Any] = defaultdict(float)  # of losses and their parts, on the device
    count, left_out = 0, list[object]()
    steps = loader.plan.steps(0)
    _tell(observers, "on_validation", 0, steps)
    with closing(loader.epoch(0)) as batches:
        for done, batch in enumerate(in_turns(batches, turn), start=1):
            with autocast(device, precision), together(group, batch.request):
                losses, outputs = objective.measure(model, batch)
            objective.update(outputs, batch)
            left_out += batch.left_out
            count += batch.request.valid if losses is None else len(losses)
            if losses is not None:
                parts = {f"loss/{name}": part for name, part in objective.named.items()}
                for name, part in {"loss": losses.sum(), **parts}.items():
                    sums[name] += part.double()
                _tell(observers, "on_validation_batch", batch, losses)
            _tell(observers, "on_validation", done, steps)
    own = {name: float(value) for name, value in sums.items()}
    # All ranks make this call alike.
    sums_of_ranks, counts, lost = zip(*group.gather((own, count, left_out)), strict=True)
    _tell(observers, "on_validated", [*chain.from_iterable(lost)])
    if not sum(counts):
        raise DataError(
            "validation has nothing to measure: the split has no sample that can be read"
        )
    means = {
        name: sum(one.get(name, 0.0) for one in sums_of_ranks) / sum(counts)
        for name in dict.fromkeys(chain.from_iterable(sums_of_ranks))
    }
    return {**means, **objective.compute(group)}


def in_turns(batches: Iterator[Batch], turn: Callable[[bool], None]) -> Iterator[Batch]:
    """`batches`, with `turn(interrupted)` called before each of them and at their end.

    It is called with True where the wait for the next one was interrupted, and may raise.
    """
    while True:
        try:
            batch = next(batches, None)
        except stop.Stop:
            turn(True)
            raise
        turn(False)
        if batch is None:
            return
        yield batch
