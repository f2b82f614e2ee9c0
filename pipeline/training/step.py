"""One batch and one optimizer step: forward, backward, accumulate, scale, clip, step, schedule.

Model randomness (dropout ...) is seeded at every batch from (seed, batches so far, rank), so a
checkpoint needs no generator states. Gradients are those of the mean of all losses of the global
batch, however unequal the ranks' shares are: one a sample, or one a token
(addons/tokens/language_model.py). Only fp16's loss scaling waits for a GPU.

An objective with `step(model, batch, update)` takes the steps itself, with several optimizers if it
likes. Seeds, precision, clipping, EMA, schedules and checkpoints are the same:

    class Gan:
        def step(self, model, batch, update):
            ...
            update(loss, "discriminator")
            ...
            update(loss, "generator")
            return {"discriminator": ..., "generator": ...}

At the end stand the schedules of learning rates: a warm-up before any of torch's, and a new
schedule on a resume.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, swa_utils
from torch.optim.lr_scheduler import (
    LinearLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from penstock.distributed.group import Group
from penstock.distributed.parallel import Parallel, like, same_buffers, together, wrap
from penstock.errors import PenstockError
from penstock.loading.batch import Batch
from penstock.order.keys import hash64_last, hash64_on
from penstock.torch_internals import run_backward, scale
from penstock.training.adapter import Objective, require

Precision = Literal["fp32", "bf16", "fp16"]
Mode = Literal["min", "max"]

_BLOCK = 256  # batches whose seeds are computed together

# Raised for the state of another model or optimizer.
_UNFIT = (LookupError, TypeError, ValueError, RuntimeError, AttributeError)


@dataclass(frozen=True)
class TrainOptions:
    """How to train; units of "steps" are optimizer steps.

    Attributes:
        max_epochs: passes over the training split.
        max_steps: steps after which to stop, wherever the epoch is; None: never.
        accumulate: batches whose gradients make one step.
        clip_norm: largest L2 norm of the gradient of all weights together; None: any.
        precision: of the forward pass, by autocast; fp16 also scales the loss.
        compile: let torch.compile work on the model.
        channels_last: memory layout of the model's convolutions.
        log_every: steps between two `on_log`.
        val_every: epochs between two validations; the last epoch always has one.
        schedule: what moves the scheduler, a "step" or an "epoch".
        ema: decay of a running mean of the weights, which is what is validated; None: none.
        monitor: the validation metric that says what is best.
        mode: whether less ("min") or more ("max") of it is better.
        patience: validations without a new best after which to stop; None: never.
    """

    max_epochs: int = 10
    max_steps: int | None = None
    accumulate: int = 1
    clip_norm: float | None = None
    precision: Precision = "fp32"
    compile: bool = False
    channels_last: bool = False
    log_every: int = 50
    val_every: int = 1
    schedule: Literal["step", "epoch"] = "step"
    monitor: str = "loss"
    mode: Mode = "min"
    patience: int | None = None
    ema: float | None = None


class Optimizers(Optimizer):
    """Optimizers of parts of a model by name, which training keeps and schedules as one.

    Its state is that of one optimizer with the parameter groups of all of them, in their order.
    """

    def __init__(self, optimizers: Mapping[str, Optimizer]) -> None:
        self.by_name = dict(optimizers)
        groups = [group for each in optimizers.values() for group in each.param_groups]
        # Schedules ask whether all have a momentum, say.
        first, *others = (each.defaults for each in optimizers.values())
        shared = {name: value for name, value in first.items() if all(name in o for o in others)}
        super().__init__([{"params": group["params"]} for group in groups], shared)
        # The very groups, whose learning rates a schedule moves.
        self.__setstate__({"state": self.state, "param_groups": groups})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take groups and a state, which torch's `load_state_dict` gives, for all optimizers."""
        super().__setstate__(state)
        groups = iter(self.param_groups)
        for optimizer in self.by_name.values():
            own = [*islice(groups, len(optimizer.param_groups))]
            # One dict for all, so that a state of the whole needs no collecting.
            optimizer.__setstate__({"state": self.state, "param_groups": own})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for optimizer in self.by_name.values():
            optimizer.step()


class TrainStep:
    """A model in training, with its optimizer, scheduler and counts.

    Args:
        model: under FSDP the result of `parallel.prepare`.
        group: the ranks that train together.
        parallel: how they share the model.
        epochs: functions of (the model, an epoch) that say which weights learn in it, and return
            whether others do than before.

    Raises:
        ConfigError: the objective takes the steps, and batches are accumulated, or the model is in
            parts on the ranks.

    Attributes:
        batches: batches learned from.
        updates: optimizer steps taken.
        averaged: the running mean of the weights, from the first step on; None without `ema`.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        optimizer: Optimizer,
        scheduler: LRScheduler | None,
        options: TrainOptions,
        group: Group,
        seed: int,
        parallel: Parallel | None = None,
        epochs: Sequence[Callable[[nn.Module, int], bool]] = (),
    ) -> None:
        self._own, how = objective.takes_steps, parallel or Parallel()
        for fits, key, wanted in (
            (options.accumulate == 1, "trainer.accumulate", "1"),
            (how.strategy != "fsdp", "distributed.strategy", "none or ddp"),
        ):
            reason = f"must be {wanted}, as the objective takes the steps itself"
            require(fits or not self._own, key, reason)
        self.group, self.options, self._parallel = group, options, how
        self.device = torch.device(group.world.device)
        self.model = model.to(self.device)  # in place: the optimizer refers to the weights
        if options.channels_last:
            model.to(memory_format=torch.channels_last)
        if options.compile:
            model.compile()
        self.objective = objective.to(self.device)
        self._forward: Any = None  # the loss, as DDP wraps it
        self._autocast = autocast(self.device, options.precision)
        self.optimizer, self.scheduler, self._epochs = optimizer, scheduler, epochs
        # After a resume, and after a step that the scaler skipped, a schedule may move first.
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=options.precision == "fp16")
        self._model_key = hash64_on(4, seed, "model")
        self.batches = self.updates = 0
        self.averaged: swa_utils.AveragedModel | None = None
        self.pending = False  # whether there are gradients since the last update
        self._ranks = 1 if group.alone else group.world.size
        self._counted, self._divisor = 0, 1  # losses of this rank in them; what divides them
        self._stepped = False  # whether weights have changed since the last update
        self._batches_before, self._buffers_before = 0, list[Tensor]()  # at the last update

    @property
    def finished(self) -> bool:
        """Whether `max_steps` are done."""
        return self.options.max_steps is not None and self.updates >= self.options.max_steps

    @property
    def measured(self) -> nn.Module:
        """The model to validate: the running mean, or the model itself."""
        return self.model if self.averaged is None else self.averaged.module

    @property
    def lr(self) -> float:
        """Learning rate of the first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def begin_epoch(self, epoch: int) -> None:
        """Put the model into training mode, with the weights that learn in that epoch."""
        changed = [begin(self.model, epoch) for begin in self._epochs]
        if any(changed):
            self._forward = None  # DDP has to let go of the weights before it takes more
            gc.collect()
        self.model.train()

    def learn(self, batch: Batch) -> Tensor:
        """Add the gradients of a batch, or let the objective take its steps with them.

        Returns: the objective's losses, float32[n], without waiting for the device.
        """
        if not self.pending:  # `drop_pending` returns to this state
            self._batches_before = self.batches
            if self.options.accumulate > 1:
                self._buffers_before = [buffer.clone() for buffer in self.model.buffers()]
        # DDP would wait for gradients of weights that a step of the objective's own leaves alone.
        if self._forward is None and not self._own:
            self._forward = wrap(self.objective.trained(self.model), self._parallel, self.group)
        self.seed()
        self.batches += 1
        if self._own or self._parallel.strategy == "fsdp":  # as DDP does by itself
            same_buffers(self.model, self.group)
        with (
            self._autocast,
            nullcontext() if self.group.alone else together(self.group, batch.request),
        ):
            if self._own:
                return self.objective.step(
                    self.model, batch, partial(self._own_step, batch.request.valid)
                ).detach()
            losses = self.objective.losses(self._forward, batch)
        # The mean is over the losses of all accumulated batches, whose number is known only at
        # the end. Until then it is estimated by an average share of this batch's samples, which
        # all ranks know alike, times the batches; update() corrects.
        count = losses.numel()
        if not self.pending:  # also where this rank has no loss yet: ranks need the same divisor
            total = count if self.group.alone else batch.request.total or count
            self._divisor = max(-(-total // self._ranks), 1) * self.options.accumulate
        self._counted += count
        self.pending = True
        # As `(losses.sum() / divisor).backward()`, which costs 50 us more. `backward(gradient)`
        # imports sympy to compare shapes, 0.7 s at first.
        gradient = self.scaler.scale(torch.full_like(losses, 1 / self._divisor))
        run_backward((losses,), (gradient,), False, False, (), True, True)
        return losses.detach()

    def _own_step(self, count: int, loss: Tensor, name: str | None = None) -> None:
        """An objective's `update(loss, "generator")`: backward pass, sum over the ranks, step.

        Args:
            count: samples of this rank's share.
            loss: of one part of the model: float32[], or a loss a sample, float32[n].
            name: of its optimizer; None: there is only one.
        """
        optimizers = getattr(self.optimizer, "by_name", {None: self.optimizer})
        require(
            name in optimizers,
            "optimizer",
            f"has {', '.join(filter(None, optimizers)) or 'a single optimizer, without a name'}; "
            f"the objective asks for {name!r}",
        )
        optimizer = optimizers[name]
        weights = [weight for weight in weights_of(optimizer) if weight.requires_grad]
        if not weights:  # all of them are frozen in this epoch
            return
        with torch.autocast(self.device.type, enabled=False):
            mean = loss.float().mean()
            self.scaler.scale(mean if self.group.alone else mean * count).backward(inputs=weights)
        total = self.group.sum(torch.tensor(float(count), device=self.device))
        if not self.group.alone:
            for weight in weights:
                # Zeros where this rank's loss leaves a weight alone: all ranks send the same.
                own = torch.zeros_like(weight) if weight.grad is None else weight.grad
                weight.grad = self.group.sum(own) / total.clamp_min(1)
        if count or total.item():  # only if this rank has no sample is the device waited for
            self._take(optimizer)
        optimizer.zero_grad()

    def seed(self) -> None:
        """Seed what the model draws at the next batch on this rank: dropout, noise."""
        key = _seeds(self._model_key, self.group.world.rank, self.batches // _BLOCK)[
            self.batches % _BLOCK
        ]
        torch.default_generator.manual_seed(key)
        if self.device.type == "cuda":
            torch.cuda.manual_seed_all(key)

    def update(self) -> None:
        """Take an optimizer step with the gradients of the batches since the last one.

        It counts, but changes no weight, if they have no loss: no sample could be read. Where the
        objective takes the steps, those of a batch count as one.
        """
        if not self._own and self._average():
            self._take(self.optimizer)
        scale = self.scaler.get_scale()
        if self._stepped:
            self.scaler.update()
        # A smaller scale means that the scaler skipped the step; then the schedule waits, too.
        skipped = self.scaler.get_scale() < scale
        self.optimizer.zero_grad()  # to None: of zeros, an optimizer would move weights by decay
        self.updates += 1
        if not skipped:
            self.move_schedule("step")
        if self._stepped and not skipped and self.options.ema is not None:
            self._mean(self.options.ema).update_parameters(self.model)
        self._counted, self.pending, self._stepped = 0, False, False

    def _take(self, optimizer: Optimizer) -> None:
        """Clip the gradients of its weights and step."""
        # The norm is one of true gradients, so the scale comes off first.
        self.scaler.unscale_(optimizer)
        if self.options.clip_norm is not None:
            nn.utils.clip_grad_norm_(weights_of(optimizer), self.options.clip_norm)
        self.scaler.step(optimizer)
        self._stepped = True

    def _mean(self, decay: float) -> swa_utils.AveragedModel:
        """torch's running mean; made when lazy weights have their shapes. Buffers are copied."""
        if self.averaged is None:
            mean = swa_utils.get_ema_multi_avg_fn(decay)
            self.averaged = swa_utils.AveragedModel(self.model, multi_avg_fn=mean)
        return self.averaged

    def drop_pending(self) -> None:
        """Return to the state after the last update: forget the batches since then."""
        if not self.pending:
            return
        with torch.no_grad():
            for buffer, before in zip(self.model.buffers(), self._buffers_before, strict=True):
                buffer.copy_(before)
        self.optimizer.zero_grad()
        self.batches, self._counted, self.pending = self._batches_before, 0, False

    def _average(self) -> bool:
        """Scale gradients to the mean over all ranks' losses; returns whether there are any."""
        losses: Any = self._counted
        if not self.group.alone:
            losses = self.group.sum(torch.tensor(float(losses), device=self.device))
        # The device is waited for only if this rank has no loss.
        if not self._counted and (self.group.alone or not losses.item()):
            return False
        if not self.group.alone or losses != self._divisor:
            gradients: Any = [each.grad for each in weights_of(self.optimizer)]
            own = [
                g.to_local() if hasattr(g, "to_local") else g for g in gradients if g is not None
            ]
            # The ranks' gradients were averaged, not added up.
            scale(own, self._divisor * self._ranks / losses)
        return True

    def move_schedule(self, unit: str, monitored: float | None = None) -> None:
        """Move the scheduler, if it counts this unit: "step" or "epoch".

        Args:
            monitored: the metric of an epoch, for a scheduler that waits for a plateau.
        """
        if isinstance(self.scheduler, ReduceLROnPlateau):
            if monitored is not None:
                self.scheduler.step(monitored)
        elif self.scheduler is not None and self.options.schedule == unit:
            self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """All state of the training but the loader's address."""
        averaged = self.averaged and {"averaged": self.averaged.module.state_dict()}
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler else None,
            "scaler": self.scaler.state_dict(),
            "batches": self.batches,
            "updates": self.updates,
            **(averaged or {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state saved by any number of ranks; its tensors are whole.

        Raises:
            PenstockError: the state is of another model, optimizer or scheduler.
        """
        try:
            self.model.load_state_dict(like(state["model"], self.model.state_dict()))
            weights, parts = weights_of(self.optimizer), {}
            for number, values in state["optimizer"]["state"].items():
                weight = weights[int(number)]
                # What has the weight's shape, such as a momentum, is sharded like it.
                shapes = {name: getattr(value, "shape", None) for name, value in values.items()}
                alike = [name for name, shape in shapes.items() if shape == weight.shape]
                parts[number] = like(values, dict.fromkeys(alike, weight))
            self.optimizer.load_state_dict({**state["optimizer"], "state": parts})
            if self.scheduler is not None:
                self.scheduler.load_state_dict(state["scheduler"])
            self.scaler.load_state_dict(state["scaler"])
            if self.options.ema is not None and "averaged" in state:
                mean = self._mean(self.options.ema)
                mean.module.load_state_dict(state["averaged"])
                mean.n_averaged.fill_(1)  # not 0: the first update copies the weights
        except _UNFIT as error:
            raise PenstockError(
                "the checkpoint does not fit the model, the optimizer or the scheduler of this "
                f"configuration; give the overrides of its run. {type(error).__name__}: {error}"
            ) from error
        self.batches, self.updates = int(state["batches"]), int(state["updates"])


@lru_cache(maxsize=1)
def _seeds(key: int, rank: int, block: int) -> list[int]:
    """The model's seeds at the batches of a block; together, as a hash by itself takes 6 us."""
    # hash64(seed, "model", batches, rank)
    batches = range(_BLOCK * block, _BLOCK * (block + 1))
    return hash64_last(hash64_last(key, batches), [rank]).tolist()


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """The context in which a forward pass has that precision."""
    # One that is not enabled costs 10 us a batch, too.
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if precision == "bf16" else torch.float16)


def weights_of(optimizer: Optimizer) -> list[Tensor]:
    """All weights that an optimizer trains."""
    return [weight for group in optimizer.param_groups for weight in group["params"]]


# Schedules

_START = 0.01  # of the rate, at the first step of a warm-up: a step at zero would change nothing


def warmup_steps(warmup: float, total_steps: int) -> int:
    """Steps of warm-up: `warmup` below 1 is a share of all steps, otherwise a number of steps.

    Raises:
        ConfigError: no step remains after it, or there is no step at all.
    """
    require(
        total_steps > 0,
        "batch",
        "the training split has less than one batch, and batch.tail=drop leaves that out; set a "
        "smaller batch.size, or batch.tail=keep",
    )
    steps, key = round(warmup * total_steps if warmup < 1 else warmup), "schedule.warmup"
    require(warmup < 1 or warmup == steps, key, f"{warmup} is neither a share below 1 nor whole")
    require(steps < total_steps, key, f"{steps} of {total_steps} steps leave none after it")
    return steps


def with_warmup(
    optimizer: Optimizer, steps: int, main: Callable[[Optimizer], LRScheduler]
) -> LRScheduler:
    """`main`, preceded by `steps` steps in which the learning rate rises linearly to its value."""
    if steps == 0:
        return main(optimizer)
    rise, follows = LinearLR(optimizer, start_factor=_START, total_iters=steps), main(optimizer)
    require(
        not isinstance(follows, (OneCycleLR, ReduceLROnPlateau)),
        "schedule.warmup",
        f"nothing can come before {type(follows).__name__}, which warms up itself or follows no "
        "step; set it to 0",
    )
    return SequentialLR(optimizer, [rise, follows], milestones=[steps])
