"""Objectives that take the optimizer steps themselves, with several optimizers if they like.

    class Gan:
        def step(self, model, batch, update):
            ...
            update(loss, "discriminator")
            ...
            update(loss, "generator")
            return {"discriminator": ..., "generator": ...}

Everything else is as in `train_step`: seeds, precision, clipping, EMA, schedules, checkpoints. The
gradients of a rank's weights are added up over the ranks in one piece after each backward pass,
without DDP, which would wait for weights that a step leaves alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from penstock.distributed.parallel import same_buffers, together
from penstock.errors import ConfigError, Problem
from penstock.loading.batch import Batch
from penstock.terminal import say
from penstock.training.objective_base import Objective, explained
from penstock.training.own_objective import OwnObjective
from penstock.training.train_step import TrainStep, autocast

# Methods of a LightningModule beside its forward, and the section used in their place.
_OF_LIGHTNING = {
    "training_step": "objective",
    "validation_step": "objective",
    "test_step": "objective",
    "configure_optimizers": "optimizer and scheduler",
    "train_dataloader": "dataset",
    "val_dataloader": "dataset",
}


def say_unused_steps(model: Any, objective: object) -> None:
    """Say what a model's class has for a loop of its own, if an objective does not use it."""
    own, empty = [], ("lightning.", "pytorch_lightning.")  # whose methods do nothing
    for name in _OF_LIGHTNING:
        bases = [base for base in getattr(model, "__mro__", ()) if name in vars(base)]
        if bases and not bases[0].__module__.startswith(empty):
            own.append(name)
    if own and not getattr(objective, "calls_the_models_steps", False):
        instead = ", ".join(dict.fromkeys(_OF_LIGHTNING[name] for name in own))
        say(
            f"model: {model.__name__} is used by its forward alone; its {', '.join(own)} are not "
            f"called. In their place are {instead} of the configuration (docs/own_parts.md)"
        )


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
        self.param_groups = groups  # the very ones, whose learning rates a schedule moves

    def state_dict(self) -> dict[str, Any]:
        state: dict[int, Any] = {}
        groups: list[Any] = []
        for optimizer, first in self._numbered():
            own = optimizer.state_dict()
            state |= {first + number: values for number, values in own["state"].items()}
            groups += [
                {**group, "params": [first + number for number in group["params"]]}
                for group in own["param_groups"]
            ]
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        groups = iter(state_dict["param_groups"])
        for optimizer, first in self._numbered():
            count = sum(len(group["params"]) for group in optimizer.param_groups)
            own = [
                {**group, "params": [number - first for number in group["params"]]}
                for group in islice(groups, len(optimizer.param_groups))
            ]
            state = {
                number - first: values
                for number, values in state_dict["state"].items()
                if first <= number < first + count
            }
            optimizer.load_state_dict({"state": state, "param_groups": own})
        # Loading made new groups.
        self.param_groups = [g for each in self.by_name.values() for g in each.param_groups]

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for optimizer in self.by_name.values():
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.by_name.values():
            optimizer.zero_grad(set_to_none)

    def _numbered(self) -> Iterator[tuple[Optimizer, int]]:
        """Each optimizer, and the number of its first weight."""
        first = 0
        for optimizer in self.by_name.values():
            yield optimizer, first
            first += sum(len(group["params"]) for group in optimizer.param_groups)


def make_train_step(model: nn.Module, objective: Objective, *parts: Any, **more: Any) -> TrainStep:
    """The `TrainStep` for an objective; arguments as its own."""
    own = objective if isinstance(objective, OwnObjective) else None
    kind = OwnSteps if own is not None and own.takes_steps(model) else TrainStep
    made = kind(model, objective, *parts, **more)
    if own is not None:
        own.train_step = made
    return made


class Update:
    """The means by which an objective takes steps: `update(loss, "generator")` does all; or
    `backward` and `step`.

    Args:
        train_step: whose weights change.
        count: samples of this rank's share.
        total: float32[], of all ranks' shares.
    """

    def __init__(self, train_step: OwnSteps, count: int, total: Tensor) -> None:
        self._train_step, self._count, self._total = train_step, count, total

    def __call__(self, loss: Tensor, optimizer: str | None = None) -> None:
        weights = self._train_step.weights(optimizer)
        if not weights:  # all of them are frozen in this epoch
            return
        self.backward(loss, inputs=weights)
        self.step(optimizer)
        self._train_step.optimizer_of(optimizer).zero_grad()

    def backward(self, loss: Tensor, **options: Any) -> None:
        """Add the gradients of a loss, a mean over this rank's share; options as torch's."""
        self._train_step.backward(loss, self._count, options)

    def step(self, optimizer: str | None = None) -> None:
        """Step with an optimizer, by the gradients of the mean over all ranks' samples."""
        self._train_step.step(optimizer, self._count, self._total)


class OwnSteps(TrainStep):
    """A model in training whose objective takes the steps.

    Raises:
        ConfigError: batches are accumulated, or the model is in parts on the ranks.
    """

    objective: OwnObjective

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        who = f"{type(self.objective.own).__name__} takes the steps itself"
        if self.options.accumulate > 1:
            raise ConfigError(Problem("trainer.accumulate", f"must be 1, as {who}"))
        if self._parallel.strategy == "fsdp":
            raise ConfigError(Problem("distributed.strategy", f"must be none or ddp, as {who}"))
        self._stepped = False  # whether this batch has changed weights

    def _wrapped(self, objective: Objective) -> nn.Module:
        return self.model

    def learn(self, batch: Batch) -> Tensor:
        """Let the objective learn from a batch; returns its losses, without waiting."""
        self.seed()
        self.batches += 1
        same_buffers(self.model, self.group)
        self._stepped = False
        total = self.group.sum(torch.tensor(float(batch.request.valid), device=self.device))

        update = Update(self, batch.request.valid, total)
        with (
            autocast(self.device, self.options.precision),
            together(self.group, batch.request),
            explained(self.model, self.objective, batch),
        ):
            return self.objective.step(self.model, batch, update).detach()

    def backward(self, loss: Tensor, count: int, options: Mapping[str, Any]) -> None:
        """The backward pass of a loss of `count` samples."""
        loss = loss.float().mean() if loss.ndim else loss.float()
        with torch.autocast(self.device.type, enabled=False):
            share = loss if self.group.alone else loss * count
            self.scaler.scale(share).backward(**options)

    def step(self, name: str | None, count: int, total: Tensor) -> None:
        """A step with one optimizer; none if no sample of the batch could be read."""
        optimizer, weights = self.optimizer_of(name), self.weights(name)
        if weights and not self.group.alone:
            self._add_up(weights, total)
        if not (count or total.item()):  # only then is the device waited for
            return
        if self.scaler.is_enabled():
            self.scaler.unscale_(optimizer)
        if self.options.clip_norm is not None:
            nn.utils.clip_grad_norm_(weights, self.options.clip_norm)
        self.scaler.step(optimizer)
        self._stepped = True

    def weights(self, name: str | None) -> list[Tensor]:
        """The weights of one optimizer that learn."""
        groups = self.optimizer_of(name).param_groups
        return [weight for group in groups for weight in group["params"] if weight.requires_grad]

    def _add_up(self, weights: list[Tensor], total: Tensor) -> None:
        """Give weights the gradients of the mean over all ranks' samples."""
        gradients = [
            torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights
        ]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        flat = self.group.sum(flat) / total.clamp_min(1)
        sizes = [weight.numel() for weight in weights]
        for weight, part in zip(weights, flat.split(sizes), strict=True):
            weight.grad = part.view_as(weight).to(weight.dtype)

    def optimizer_of(self, name: str | None) -> Optimizer:
        """The optimizer of that name; the only one for None."""
        if not isinstance(self.optimizer, Optimizers):
            if name is None:
                return self.optimizer
            reason = f"is a single optimizer, and the objective asks for {name!r}: optimizer.{name}"
            raise ConfigError(Problem("optimizer", reason))
        if name not in self.optimizer.by_name:
            known = ", ".join(self.optimizer.by_name)
            raise ConfigError(Problem("optimizer", f"has {known}; the objective asks for {name!r}"))
        return self.optimizer.by_name[name]

    def update(self) -> None:
        """Count the steps of a batch as one, with its schedule and the mean of the weights."""
        scale = self.scaler.get_scale()
        if self.scaler.is_enabled() and self._stepped:
            self.scaler.update()
        skipped = self.scaler.get_scale() < scale
        self.updates += 1
        self._resumed = False
        # torch's schedulers look whether it was stepped.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        if self.options.schedule == "step" and not skipped:
            self._step_scheduler(None)
        if self._stepped and not skipped and self.options.ema is not None:
            self._mean(self.options.ema).update_parameters(self.model)
