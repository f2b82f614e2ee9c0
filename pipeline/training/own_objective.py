"""Objectives of a person's own, of which only `loss(model, batch)` is needed.

`OwnObjective` asks one for what it has (`penstock.protocols.OwnLoss`), and fills in the rest, so
training, validation and reports meet an `Objective` in any case. docs/objectives.md has examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from penstock.errors import ConfigError, Problem
from penstock.loading.batch import Batch
from penstock.training.objective_base import Objective, in_shape, unpadded
from penstock.training.rendered import Rendered


def adapted(made: Any) -> Objective:
    """An objective as training needs it.

    Raises:
        ConfigError: it is no `Objective`, and has neither `loss(model, batch)` nor a `step`.
    """
    if isinstance(made, Objective):
        return made
    if not any(callable(getattr(made, name, None)) for name in ("loss", "step")):
        reason = (
            f"makes a {type(made).__name__}, which has no method loss(model, batch); "
            "docs/objectives.md has an objective of ten lines"
        )
        raise ConfigError(Problem("objective", reason))
    return OwnObjective(made)


class OwnObjective(Objective):
    """A person's own objective.

    It never sees padding. A share that is nothing but padding, which other ranks wait for, goes
    through the model, and counts for nothing.
    """

    def __init__(self, own: Any) -> None:
        metrics = getattr(own, "metrics", None) or {}
        if not isinstance(metrics, Mapping):
            reason = f"is a {type(metrics).__name__}, not a mapping of metrics by name"
            raise ConfigError(Problem("objective.metrics", reason))
        inputs, target = getattr(own, "inputs", ()), getattr(own, "target", "")
        super().__init__(metrics, inputs)
        self.target = target
        self.own = own
        if self._has("baseline"):
            self.baseline_name = getattr(own, "baseline_name", "baseline")
        self.validates_loss = bool(getattr(own, "validates_loss", self._has("loss")))
        self.takes_steps = self._has("step")
        self._of_batch = True  # whether the last loss was a number for a whole batch

    def trained(self, model: nn.Module) -> nn.Module:
        return _Loss(self.own, model)

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Any]:
        """Run the loss, of `trained` or of a model itself; it has no outputs."""
        inner = getattr(model, "module", model)  # in DDP's wrapper
        loss = inner if isinstance(inner, _Loss) else _Loss(self.own, model)
        loss.batch = unpadded(batch)
        result = model() if loss is inner else loss()
        return self._by_sample("loss(model, batch)", result, batch.request.valid), None

    def measure(self, model: nn.Module, batch: Batch) -> tuple[Tensor | None, Any]:
        losses = self(model, batch)[0] if self.validates_loss else None
        if not self._has("outputs"):
            return losses, None
        return losses, self.own.outputs(model, unpadded(batch))

    def step(self, model: nn.Module, batch: Batch, update: Callable[..., None]) -> Tensor:
        result = self.own.step(model, unpadded(batch), update)
        return self._by_sample("step(model, batch, update)", result, batch.request.valid)

    def answer(self, model: nn.Module, batch: Batch) -> Any:
        if not self._has("outputs"):
            raise self._no_rows()
        return self.own.outputs(model, unpadded(batch))

    def rows(self, outputs: Any, batch: Batch) -> Sequence[Mapping[str, Any]]:
        """The result of its `rows`; without one, a tensor's rows as lists of numbers."""
        if self._has("rows"):
            rows: Sequence[Mapping[str, Any]] = self.own.rows(outputs, unpadded(batch))
            return rows
        if not isinstance(outputs, Tensor):
            raise self._no_rows()
        return [{"predicted": row.tolist()} for row in outputs]

    def _by_sample(self, call: str, result: Any, count: int) -> Tensor:
        """The result of a call as a loss for each of `count` samples, float32[n]."""
        named = result if isinstance(result, Mapping) else {"": result}
        if not named:
            raise ConfigError(Problem("objective", f"{call} gives a mapping without a loss"))
        losses = {
            name: self._of_samples(f"{call}[{name!r}]" if name else call, loss, count)
            for name, loss in named.items()
        }
        self.named = {name: each.detach().sum() for name, each in losses.items() if name}
        total, *others = losses.values()
        return sum(others, start=total)

    def _of_samples(self, what: str, loss: Any, count: int) -> Tensor:
        """A loss for each of `count` samples."""
        if not isinstance(loss, Tensor):
            reason = f"{what} gives a {type(loss).__name__}, not a tensor"
            raise ConfigError(Problem("objective", reason))
        self._of_batch = loss.ndim == 0
        if loss.ndim == 0:
            return loss.float().expand(count)
        if loss.ndim > 1 or (len(loss) != count and count):
            reason = (
                f"{what} gives {in_shape(loss)} for {count} samples; it has to give one number a "
                "sample, or one for all of them"
            )
            raise ConfigError(Problem("objective", reason))
        return loss.float()[:count]

    def update(self, outputs: Any, batch: Batch) -> None:
        if not batch.request.valid:
            return
        if self._has("update"):
            self.own.update(outputs, unpadded(batch))
            return
        given = self._measured(outputs, unpadded(batch)) if self.metrics else ()
        for name in self.metrics:
            arguments = given[name] if isinstance(given, Mapping) else given
            self.add(name, *arguments)

    def _measured(self, outputs: Any, batch: Batch) -> Any:
        """The arguments of metrics, or a mapping of them by metric."""
        if self._has("measured"):
            return self.own.measured(outputs, batch)
        if self.target:
            return outputs, self._field(batch, self.target)
        reason = (
            f"{type(self.own).__name__} does not say what metrics take: give it a method "
            "measured(outputs, batch), or a `target`, the field to compare outputs with"
        )
        raise ConfigError(Problem("objective.metrics", reason))

    def compute(self, group: Any = None) -> dict[str, float]:
        more = self.own.compute() if self._has("compute") else {}
        if more and group is not None and not group.alone:  # ranks would not agree on the best
            reason = (
                f"{type(self.own).__name__}.compute measures one rank's share alone; give it "
                "`metrics` of torchmetrics, which are added up over the ranks"
            )
            raise ConfigError(Problem("objective", reason))
        return {**super().compute(group), **{name: float(value) for name, value in more.items()}}

    def reset(self) -> None:
        super().reset()
        if self._has("reset"):
            self.own.reset()

    def to(self, device: torch.device | str) -> Objective:
        if self._has("to"):
            self.own.to(device)
        for metric in self.metrics.values():
            metric.to(device)
        return self

    def baseline(self, batches: Iterable[Batch], monitor: str = "loss") -> nn.Module:
        made: nn.Module = self.own.baseline(batches)
        return made

    def comparisons(self, train: object, val: object) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        return self.own.comparisons(train, val) if self._has("comparisons") else found

    def rendered(self, batch: Batch, outputs: Any = None) -> list[Rendered]:
        if self._has("rendered"):
            return list(self.own.rendered(batch, outputs))
        return [Rendered()] * len(batch.positions)

    def by_sample(self, losses: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        places, losses = super().by_sample(losses, batch)
        return (places[:0], losses[:0]) if self._of_batch else (places, losses)

    def _has(self, name: str) -> bool:
        return callable(getattr(self.own, name, None))


class _Loss(nn.Module):
    """A loss as a forward pass, so that what it calls of a model is the model itself under DDP.

    The batch is no argument, which DDP would take apart and move.
    """

    batch: Batch

    def __init__(self, own: Any, model: nn.Module) -> None:
        super().__init__()
        self.loss, self.model = own.loss, model  # of an objective that is a module, not its weights

    def forward(self) -> Any:
        return self.loss(self.model, self.batch)
