"""One batch and one optimizer step: forward, backward, accumulate, scale, clip, step, schedule.

Model randomness (dropout ...) is seeded at every batch from (seed, batches so far, rank), so a
checkpoint holds weights, optimizer and an address, and no generator states. Nothing here waits for
a GPU, except that fp16's loss scaling does at each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from pipeline.fetch import Batch
from pipeline.objective import Objective
from pipeline.randomness import hash64
from pipeline.world import World

Precision = Literal["fp32", "bf16", "fp16"]
Mode = Literal["min", "max"]

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Options:
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
        monitor: the validation metric that says what is best.
        mode: whether less ("min") or more ("max") of it is better.
        patience: validations without a new best after which to stop; None: never.
        save_every: epochs between two checkpoints; the best and the last are always saved.
    """

    max_epochs: int = 10
    max_steps: int | None = None
    accumulate: int = 1
    clip_norm: float | None = None
    precision: Precision = "fp32"
    compile: bool = False
    channels_last: bool = False
    log_every: int = 20
    val_every: int = 1
    schedule: Literal["step", "epoch"] = "step"
    monitor: str = "loss"
    mode: Mode = "min"
    patience: int | None = None
    save_every: int = 1


class Learner:
    """A model that is being trained, and how far it has come.

    Attributes:
        batches: batches learned from.
        updates: optimizer steps taken.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        optimizer: Optimizer,
        scheduler: LRScheduler | None,
        options: Options,
        world: World,
        seed: int,
    ) -> None:
        self.device = torch.device(world.device)
        self.rank = world.rank
        # In place, so that the optimizer keeps its hold on the weights.
        self.model = model.to(self.device)
        if options.channels_last:
            model.to(memory_format=torch.channels_last)
        if options.compile:
            model.compile()
        self.objective = objective.to(self.device)
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=options.precision == "fp16")
        self.options = options
        self.seed = seed
        self.batches = 0
        self.updates = 0
        self._samples = 0  # in the gradients since the last update
        self._divisor = 1  # what those gradients have been divided by

    @property
    def finished(self) -> bool:
        """Whether `max_steps` are done."""
        limit = self.options.max_steps
        return limit is not None and self.updates >= limit

    @property
    def pending(self) -> bool:
        """Whether there are gradients of batches since the last update."""
        return self._samples > 0

    @property
    def lr(self) -> float:
        """Learning rate of the first group of weights."""
        return float(self.optimizer.param_groups[0]["lr"])

    def learn(self, batch: Batch) -> Tensor:
        """Add the gradients of a batch; returns its losses, float32[n], without waiting."""
        self._seed_model()
        with autocast(self.device, self.options.precision):
            losses, _ = self.objective(self.model, batch)
        # The mean is over the samples of all accumulated batches, whose number is known only at
        # the end. Until then it is taken to be this one's, times the batches; update() corrects.
        if not self._samples:
            self._divisor = max(len(losses) * self.options.accumulate, 1)
        self._samples += len(losses)
        self.batches += 1
        self.scaler.scale(losses.sum() / self._divisor).backward()
        return losses.detach()

    def update(self) -> None:
        """Take an optimizer step with the gradients of the batches since the last one."""
        self.scaler.unscale_(self.optimizer)
        weights = [w for group in self.optimizer.param_groups for w in group["params"]]
        if self._samples not in (0, self._divisor):
            gradients = [weight.grad for weight in weights if weight.grad is not None]
            torch._foreach_mul_(gradients, self._divisor / self._samples)
        if self.options.clip_norm is not None:
            nn.utils.clip_grad_norm_(weights, self.options.clip_norm)
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self._samples = 0
        self.updates += 1
        # A scale that shrank says that the step was left out; then the schedule waits, too.
        if self.options.schedule == "step" and self.scaler.get_scale() >= scale:
            self._step_scheduler(None)

    def end_epoch(self, monitored: float | None) -> None:
        """Move a scheduler that goes by epochs; `monitored` is there if the epoch has one."""
        follows = isinstance(self.scheduler, ReduceLROnPlateau)
        if self.options.schedule == "epoch" or follows:
            self._step_scheduler(monitored)

    def state_dict(self) -> dict[str, Any]:
        """Everything that training goes on from but the loader's address."""
        scheduler = self.scheduler.state_dict() if self.scheduler else None
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                "scheduler": scheduler, "scaler": self.scaler.state_dict(),
                "batches": self.batches, "updates": self.updates}  # fmt: skip

    def _step_scheduler(self, monitored: float | None) -> None:
        if isinstance(self.scheduler, ReduceLROnPlateau):
            if monitored is not None:
                self.scheduler.step(monitored)
        elif self.scheduler is not None:
            self.scheduler.step()

    def _seed_model(self) -> None:
        key = hash64(self.seed, "model", self.batches, self.rank)
        torch.default_generator.manual_seed(key)
        if self.device.type == "cuda":
            torch.cuda.manual_seed_all(key)


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """The context in which a forward pass has that precision."""
    return torch.autocast(device.type, _AUTOCAST.get(precision), enabled=precision != "fp32")
