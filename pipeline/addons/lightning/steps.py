"""A LightningModule's own `training_step` and `validation_step` as an objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from penstock.addons.lightning.trainer import Trainer, trainer_of
from penstock.distributed.group import Group
from penstock.distributed.metric_states import count_apart, is_metric
from penstock.errors import ConfigError, Problem
from penstock.loading.batch import Batch
from penstock.training.objective_base import batch_norm_explained, unpadded
from penstock.training.own_objective import OwnObjective

# Hooks that are called, and those that mean nothing here.
_CALLED = ("on_validation_epoch_start", "on_validation_epoch_end")
_QUIET = ("on_fit_start", "on_fit_end")
_LIGHTNING = ("lightning.", "pytorch_lightning.")


class LightningSteps(OwnObjective):
    """The steps of a LightningModule, in automatic and in manual optimization.

    Values that `self.log` gets in a training step are logged with the loss; in a validation step it
    is a metric: a number is averaged over the samples, a metric of torchmetrics' computed over all.

    Args:
        batch: the fields that a step gets as a tuple; []: the batch itself, a mapping; null: the
            inputs and the target.
        inputs: the fields that reports show first.
        target: the field that is learned.
        without: hooks of the module that need not be called.

    Raises:
        ConfigError: a module has a hook that is not called, and `without` does not name it.
    """

    calls_the_models_steps = True

    def __init__(
        self,
        batch: Sequence[str] | None = None,
        inputs: Sequence[str] = (),
        target: str = "",
        without: Sequence[str] = (),
    ) -> None:
        known = [*inputs, *([target] if target else [])]
        self.fields = known if batch is None else list(batch)
        self.without = frozenset(without)
        self._model: nn.Module | None = None  # whose hooks have been looked at
        super().__init__(_Calls(self, inputs))

    def takes_steps(self, model: nn.Module) -> bool:
        self.check(model)
        return not getattr(model, "automatic_optimization", True)

    def trained(self, model: nn.Module) -> nn.Module:
        self.check(model)
        return super().trained(model)

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Any]:
        result = super().__call__(model, batch)
        self._note(batch.request.valid)
        return result

    def step(self, model: nn.Module, batch: Batch, update: Any) -> Tensor:
        losses = super().step(model, batch, update)
        self._note(batch.request.valid)
        return losses

    def measure(self, model: nn.Module, batch: Batch) -> tuple[Tensor | None, Any]:
        """No losses, and what was logged."""
        if not batch.request.valid:
            return None, {}
        trainer = self.at(model, batch, training=False)
        step = getattr(model, "validation_step", None)
        if step is None:
            name = type(model).__name__
            reason = f"{name} has no validation_step; give it one, or set dataset.val=null"
            raise ConfigError(Problem("model", reason))
        with batch_norm_explained(batch):
            step(self.given(unpadded(batch)), batch.request.step)
        self._model = model
        return None, trainer.logged

    def update(self, outputs: Mapping[str, Any], batch: Batch) -> None:
        for name, (value, size) in outputs.items():
            self._add(name, value, size or batch.request.valid)

    def _add(self, name: str, value: Any, samples: int) -> None:
        from torchmetrics import MeanMetric

        if is_metric(value):  # which the step has updated
            if name not in self.metrics:
                self.metrics[name] = value
                count_apart({name: value})
            return
        if name not in self.metrics:
            self.metrics[name] = MeanMetric()
            count_apart({name: self.metrics[name]})
        number = torch.as_tensor(value).detach().float()
        if number.numel() != 1:
            reason = f"logs {name} of shape {list(number.shape)}; self.log takes one number"
            raise ConfigError(Problem("model", reason))
        metric = self.metrics[name].to(number.device)
        metric.update(number.reshape(()), samples)

    def compute(self, group: Group | None = None) -> dict[str, float]:
        group = group or Group()
        model = self._model
        if model is not None:
            trainer = trainer_of(model)
            trainer.logged = {}
            self._hook(model, "on_validation_epoch_end", group)
            for name, (value, size) in trainer.logged.items():
                self._add(name, value, size or 1)
        self._agree(group)
        return super().compute(group)

    def _agree(self, group: Group) -> None:
        """Give every rank the same metrics, also one that had no sample."""
        if group.alone:
            return
        from torchmetrics import MeanMetric

        model = self._model
        paths = {id(part): path for path, part in model.named_modules()} if model else {}
        own = {name: paths.get(id(metric)) for name, metric in self.metrics.items()}
        every: dict[str, str | None] = {}
        for names in group.gather(own):
            every |= names
        for name, path in every.items():
            if name not in self.metrics:
                part = model.get_submodule(path) if model is not None and path else MeanMetric()
                assert is_metric(part)
                self.metrics[name] = part
                count_apart({name: part})
        self.metrics = {name: self.metrics[name] for name in every}  # in one order

    def reset(self) -> None:
        super().reset()
        if self._model is not None:
            self._hook(self._model, "on_validation_epoch_start", Group())

    def check(self, model: nn.Module) -> None:
        """Refuse a module with hooks that are not called."""
        trainer_of(model)
        known = {*_CALLED, *_QUIET, *self.without}
        own = [
            name
            for name in dir(type(model))
            if name.startswith(("on_", "optimizer_", "configure_gradient", "lr_scheduler_step"))
            and name not in known
            and any(
                name in vars(base) and not base.__module__.startswith((*_LIGHTNING, "torch."))
                for base in type(model).__mro__
            )
        ]
        if own:
            reason = (
                f"does not call {', '.join(own)} of {type(model).__name__}; name those that it "
                f"can do without: objective.without=[{','.join(own)}]"
            )
            raise ConfigError(Problem("objective", reason))

    def _hook(self, model: nn.Module, name: str, group: Group) -> None:
        hook = getattr(model, name, None)
        if hook is None or name in self.without:
            return
        if not group.alone and not hook.__func__.__module__.startswith(_LIGHTNING):
            reason = f"cannot call {name} on several ranks, each of which knows its share alone"
            raise ConfigError(Problem("objective", reason))
        hook()

    def at(self, model: nn.Module, batch: Batch, training: bool) -> Trainer:
        """The trainer of a module, which learns of a batch."""
        trainer = trainer_of(model)
        trainer.begin(batch, training, self.train_step.updates if self.train_step else 0)
        return trainer

    def given(self, batch: Batch) -> Any:
        """The part of a batch that a step gets."""
        if not self.fields:
            return batch
        return tuple(self._field(batch, name) for name in self.fields)

    def _note(self, count: int) -> None:
        """Log the numbers of a training step beside its loss."""
        logged = self.own.trainer.logged if self.own.trainer else {}
        numbers = {
            name: torch.as_tensor(value).detach().float()
            for name, (value, _) in logged.items()
            if not is_metric(value)
        }
        self.named = {name: number * count for name, number in numbers.items() if not number.ndim}


class _Calls:
    """The calls of a module's training step, as `OwnObjective` makes them."""

    validates_loss = False

    def __init__(self, steps: LightningSteps, inputs: Sequence[str]) -> None:
        self._steps, self.inputs = steps, list(inputs)
        self.trainer: Trainer | None = None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        result = self._result(model, batch)
        loss = result.get("loss") if isinstance(result, Mapping) else result
        if not isinstance(loss, Tensor):
            reason = (
                f"training_step of {type(model).__name__} gives {type(loss).__name__}; it has to "
                "give a loss, or a mapping with one"
            )
            raise ConfigError(Problem("model", reason))
        return loss

    def step(self, model: nn.Module, batch: Batch, update: Any) -> Tensor:
        trainer = trainer_of(model)
        for optimizer in trainer.optimizers:
            optimizer.zero_grad()  # gradients of batches before would be lost by a resumed run
        trainer.update = update
        try:
            result = self._result(model, batch)
        finally:
            trainer.update = None
        loss = result.get("loss") if isinstance(result, Mapping) else result
        if loss is None:
            numbers = [torch.as_tensor(v) for v, _ in trainer.logged.values() if not is_metric(v)]
            loss = sum((n.detach().float() for n in numbers if not n.ndim), torch.tensor(0.0))
        return loss

    def _result(self, model: nn.Module, batch: Batch) -> Any:
        self.trainer = self._steps.at(model, batch, training=True)
        return model.training_step(self._steps.given(batch), batch.request.step)  # type: ignore[operator]
