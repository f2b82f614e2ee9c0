"""The trainer as a LightningModule sees it.

A module calls methods of its own that lead to the trainer: `log`, `optimizers`, `manual_backward`.
Those are replaced on the instance, by their public names; `module.trainer` tells where training is.
Nothing of Lightning is imported, so a module of `lightning` and of `pytorch_lightning` is the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from penstock.errors import ConfigError, Problem
from penstock.loading.batch import Batch
from penstock.training.own_steps import Update

_NAME = "_penstock_trainer"  # of the attribute of a module


class Trainer:
    """The attributes of Lightning's `Trainer` that say where training is.

    Attributes:
        current_epoch: of the batch at hand, from 0 on.
        global_step: optimizer steps before it, of the whole run; in manual optimization batches.
        estimated_stepping_batches: moves of a schedule in the whole run.
        optimizers, schedules: of `configure_optimizers`.
        logged: what the step at hand has logged, by name.
        update: of the step at hand, in manual optimization.
    """

    logger = None
    loggers: tuple[object, ...] = ()
    datamodule = None
    sanity_checking = testing = predicting = False
    gradient_clip_val = gradient_clip_algorithm = None
    accumulate_grad_batches = 1

    def __init__(self) -> None:
        self.current_epoch = self.global_step = 0
        self.estimated_stepping_batches = 0
        self.training, self.validating = True, False
        self.optimizers: list[Optimizer] = []
        self.schedules: list[Any] = []
        self.logged: dict[str, Any] = {}
        self.update: Update | None = None

    @property
    def global_rank(self) -> int:
        return dist.get_rank() if _has_ranks() else 0

    @property
    def local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK", "0")) if _has_ranks() else 0

    @property
    def world_size(self) -> int:
        return dist.get_world_size() if _has_ranks() else 1

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    def begin(self, batch: Batch, training: bool, steps: int) -> None:
        """Be at a batch, with so many steps before it."""
        self.logged, self.training, self.validating = {}, training, not training
        self.global_step = steps
        if training:
            self.current_epoch = batch.request.epoch

    def stepping(self) -> Update:
        """The part that takes steps; only in a training step of manual optimization."""
        if self.update is None:
            reason = (
                "takes a step with self.manual_backward or optimizer.step() outside of a "
                "training_step with automatic_optimization=False"
            )
            raise ConfigError(Problem("model", reason))
        return self.update

    def __deepcopy__(self, memo: object) -> Trainer:
        return self  # of a running mean of the module too

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = ", ".join(sorted(n for n in (*vars(self), *vars(Trainer)) if n[0] != "_"))
        reason = f"asks for trainer.{name}, which Penstock does not have; it has {known}"
        raise ConfigError(Problem("model", reason))


def _has_ranks() -> bool:
    return dist.is_available() and dist.is_initialized()


class _Stepping:
    """An optimizer as `self.optimizers()` gives it: its `step` averages over the ranks first."""

    def __init__(self, trainer: Trainer, number: int) -> None:
        self._trainer, self._number = trainer, number

    @property
    def optimizer(self) -> Optimizer:
        return self._trainer.optimizers[self._number]

    def step(self, closure: Any = None, **options: Any) -> None:
        if closure is not None:
            closure()
        self._trainer.stepping().step(str(self._number))

    @contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Iterator[None]:
        """Train this optimizer's weights alone, as Lightning's does."""
        weights = {w: w.requires_grad for o in self._trainer.optimizers for w in _weights(o)}
        own = {*_weights(self.optimizer)}
        for weight, learns in weights.items():
            weight.requires_grad = learns and weight in own
        try:
            yield
        finally:
            for weight, learns in weights.items():
                weight.requires_grad = learns

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)


def trainer_of(module: nn.Module) -> Trainer:
    """The trainer that a module asks; made, and given to the module, the first time.

    Raises:
        ConfigError: it is no LightningModule.
    """
    trainer = vars(module).get(_NAME)
    if isinstance(trainer, Trainer) and getattr(module, "_trainer", trainer) is trainer:
        return trainer
    if not callable(getattr(module, "training_step", None)):
        name = type(module).__name__
        reason = f"{name} has no training_step; objective=lightning is for a LightningModule"
        raise ConfigError(Problem("model", reason))
    trainer = trainer if isinstance(trainer, Trainer) else Trainer()
    _attach(module, trainer)
    return trainer


def _attach(module: Any, trainer: Trainer) -> None:
    def log(name: str, value: Any, *rest: Any, **options: Any) -> None:
        trainer.logged[name] = value, options.get("batch_size")

    def log_dict(dictionary: Mapping[str, Any], *rest: Any, **options: Any) -> None:
        for name, value in dictionary.items():
            log(name, value, **options)

    def optimizers(use_pl_optimizer: bool = True) -> Any:
        proxies = [_Stepping(trainer, number) for number in range(len(trainer.optimizers))]
        return proxies[0] if len(proxies) == 1 else proxies

    def lr_schedulers() -> Any:
        schedules = trainer.schedules
        return None if not schedules else schedules[0] if len(schedules) == 1 else schedules

    def manual_backward(loss: Tensor, *rest: Any, **options: Any) -> None:
        trainer.stepping().backward(loss, **options)

    def clip_gradients(*rest: Any, **options: Any) -> None:
        reason = "calls self.clip_gradients; set trainer.clip_norm, which clips in every step"
        raise ConfigError(Problem("model", reason))

    def all_gather(data: Any, *rest: Any, **options: Any) -> Any:
        if trainer.world_size > 1:
            reason = "calls self.all_gather; penstock.gathered gives the rows of all ranks"
            raise ConfigError(Problem("model", reason))
        return data

    for replaced in (log, log_dict, optimizers, lr_schedulers, manual_backward):
        setattr(module, replaced.__name__, replaced)
    module.clip_gradients, module.all_gather = clip_gradients, all_gather
    module.trainer = trainer
    vars(module)[_NAME] = trainer


def _weights(optimizer: Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]
