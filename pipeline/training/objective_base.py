"""The interface of an objective for training, validation and reports.

`objective.py` has the stock ones. A person's own needs `loss(model, batch)` only: `OwnObjective`
asks it for what else it has (`penstock.protocols.OwnLoss`), and fills in the rest, so training,
validation and reports meet an `Objective` in any case. docs/objectives.md has examples.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from itertools import chain
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from penstock.distributed.group import Group
from penstock.errors import ConfigError, Problem
from penstock.loading.batch import Batch
from penstock.terminal import one_line
from penstock.training.rendered import Rendered

if TYPE_CHECKING:
    from torchmetrics import Metric

# Whose errors are about what they are given.
_LIBRARIES = ("penstock", "torch", "torchvision", "timm", "transformers")
_NORMALIZES = "Expected more than 1 value per channel when training"  # what batch norm raises


class Objective(ABC):
    """The goal of a training: a loss and metrics.

    Args:
        metrics: by name; the first one is monitored by default.
        inputs: fields of a batch that the model takes, in order; those that are shown in reports.

    Attributes:
        named: the parts of the last loss by name, float32[] each: sums over this rank's samples.
        baseline_name: name of the model that `baseline` gives; "" where there is none.
        validates_loss: whether validation has a loss.
        takes_steps: whether it takes the optimizer steps itself, by `step`.
    """

    baseline_name: str = ""
    validates_loss: bool = True
    takes_steps: bool = False
    named: Mapping[str, Tensor] = {}

    def __init__(self, metrics: Mapping[str, Metric], inputs: Sequence[str]) -> None:
        from torchmetrics import Metric

        # One that is null is left out.
        metrics = {name: metric for name, metric in metrics.items() if metric is not None}
        for name, metric in metrics.items():
            if not isinstance(metric, Metric):
                raise ConfigError(
                    Problem(
                        f"objective.metrics.{name}",
                        f"makes a "
                        f"{type(metric).__name__}, which is not a torchmetrics."
                        "Metric; docs/own_parts.md has an example",
                    )
                )
        self.metrics = dict(metrics)
        modules = chain.from_iterable(metric.modules() for metric in metrics.values())
        self._counting = [part for part in modules if isinstance(part, Metric)]
        self.inputs = list(inputs)

    @abstractmethod
    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Any]:
        """Run the model on a share of a batch.

        Returns:
            losses: float32[n], of the n samples that are not padding.
            outputs: for `update` and `rendered`; of all rows, where they are a tensor.
        """

    def step(self, model: nn.Module, batch: Batch, update: Callable[..., None]) -> Tensor:
        """Take optimizer steps by `update(loss, optimizer)`; returns losses, float32[n]."""
        raise NotImplementedError

    def trained(self, model: nn.Module) -> nn.Module:
        """The `model` that the call gets in training, which DDP wraps around its forward pass."""
        return model

    def measure(self, model: nn.Module, batch: Batch) -> tuple[Tensor | None, Any]:
        """The same in validation; losses are None unless `validates_loss`."""
        return self(model, batch)

    def answer(self, model: nn.Module, batch: Batch) -> Any:
        """Run the model on a share of a batch without a target; outputs for `rows`."""
        raise self._no_rows()

    def rows(self, outputs: Any, batch: Batch) -> Sequence[Mapping[str, Any]]:
        """The predictions, a row of a table for each sample that is not padding: texts, numbers,
        and lists or mappings of these, by column.
        """
        raise self._no_rows()

    def _no_rows(self) -> ConfigError:
        reason = (
            "does not say how a prediction becomes a row of a table: give it a method "
            "rows(outputs, batch), see docs/objectives.md"
        )
        return ConfigError(Problem("objective", reason))

    @abstractmethod
    def update(self, outputs: Any, batch: Batch) -> None:
        """Add a batch to every metric; `outputs` as `measure` returned them."""

    def add(self, name: str, *arguments: Any) -> None:
        """Add a batch to one metric.

        Raises:
            ConfigError: a metric of torchmetrics' does not take the arguments.
        """
        metric = self.metrics[name]
        try:
            metric.update(*arguments)
        except torch.OutOfMemoryError:
            raise
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            if not is_known(metric):
                raise  # a person's own code: its traceback says more
            reason = str(error).strip().partition("\n")[0][:200]
            outputs = getattr(metric, "num_outputs", None)
            wanted = arguments[-1][0].numel() if isinstance(outputs, int) else outputs
            way = f"; set objective.metrics.{name}.num_outputs={wanted}" * (outputs != wanted)
            raise ConfigError(
                Problem(
                    f"objective.metrics.{name}",
                    f"{type(metric).__name__} does not take "
                    f"{' and '.join(map(in_shape, arguments))}: {reason}{way}",
                )
            ) from error

    def compute(self, group: Group | None = None) -> dict[str, float]:
        """Every metric by name; one with a value a class as `name/<class>`. Waits for the device.

        Args:
            group: the ranks that measured a share each; all of them have to make this call.

        Raises:
            ConfigError: a metric gives something else than numbers, in a list or a mapping.
        """
        with (group or Group()).merged(self._counting):
            return self._values()

    def _values(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for name, metric in self.metrics.items():
            result = metric.compute()
            if isinstance(result, (int, float)):
                values[name] = float(result)
            elif isinstance(result, Mapping):
                for part, value in result.items():
                    numbers = torch.as_tensor(value).squeeze()
                    if numbers.ndim:
                        numbers = numbers.flatten()
                    values |= Objective._named(self, f"{name}/{part}", numbers)
            elif not isinstance(result, Tensor) or result.ndim > 1:
                raise ConfigError(
                    Problem(
                        f"objective.metrics.{name}",
                        f"{type(metric).__name__} gives {in_shape(result)}; a metric has to give "
                        "one number, one for each class or output, or a mapping of these",
                    )
                )
            else:
                values |= self._named(name, _of_present(metric, result))
        return values

    def _named(self, name: str, result: Tensor) -> dict[str, float]:
        """The values of a metric by their names; `result` is [] or [n]."""
        if result.ndim == 0:
            return {name: float(result)}
        labels = self._labels(len(result))
        return {f"{name}/{k}": v for k, v in zip(labels, result.tolist(), strict=True)}

    def reset(self) -> None:
        for metric in self.metrics.values():
            metric.reset()

    def to(self, device: torch.device | str) -> Objective:
        """This objective with its loss and metrics on `device`."""
        for metric in self.metrics.values():
            metric.to(device)
        return self

    def baseline(self, batches: Iterable[Batch], monitor: str = "loss") -> nn.Module:
        """The model that a result is compared with by the metric `monitor`; `baseline_name` is its
        name from then on. It reads all of `batches`.
        """
        raise NotImplementedError

    def comparisons(self, train: object, val: object) -> dict[str, dict[str, float]]:
        """Metrics of what else a result compares with, by name; from the two splits' datasets."""
        return {}

    @abstractmethod
    def rendered(self, batch: Batch, outputs: Any = None) -> list[Rendered]:
        """Every row of a batch, to look at; with `outputs`, also what they predict."""

    def examples(
        self, model: nn.Module, dataset: object, transform: object, count: int
    ) -> list[Sequence[str]] | None:
        """Predictions that no batch has, as a table with a head; None: `rendered` shows enough.

        Args:
            dataset, transform: of a split.
            count: of samples.
        """
        return None

    def by_sample(self, losses: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Losses as the call returned them, by sample: places in the batch, int64[n], and losses.

        None where there is not a loss a sample.
        """
        places = torch.arange(len(batch.positions), device=losses.device)
        places = valid(places, batch)
        return (places, losses) if len(places) == len(losses) else (places[:0], losses[:0])

    def shown_field(self, batch: Batch) -> str:
        """The field of a batch that reports show, with what `rendered` says of it."""
        return self.inputs[0] if self.inputs else next(iter(batch))

    def _labels(self, count: int) -> Sequence[object]:
        """Names of a metric's values."""
        return range(count)

    def _field(self, batch: Batch, name: str) -> Tensor:
        if name not in batch:
            raise ConfigError(
                f"{type(self).__name__} needs the field {name!r} (objective.inputs"
                f", objective.target); a batch has {', '.join(batch)}"
            )
        value = batch[name]
        if not isinstance(value, Tensor):
            raise ConfigError(
                f"the field {name!r} of a batch is a {type(value).__name__}, not a tensor: choose "
                "a collate that stacks it, or give tensors or arrays in samples (lists of numbers "
                "are put together item by item)"
            )
        return value


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
        return super().to(device)

    def baseline(self, batches: Iterable[Batch], monitor: str = "loss") -> nn.Module:
        model: nn.Module = self.own.baseline(batches)
        return model

    def comparisons(self, train: object, val: object) -> dict[str, dict[str, float]]:
        if self._has("comparisons"):
            found: dict[str, dict[str, float]] = self.own.comparisons(train, val)
            return found
        return super().comparisons(train, val)

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


def unpadded(batch: Batch) -> Batch:
    """A batch without its rows of padding, if it has any other."""
    if batch.valid is None or not batch.valid.any():
        return batch
    kept, count = batch.valid.nonzero().squeeze(1), len(batch.valid)

    def rows(value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim and len(value) == count:
            return value[kept.to(value.device)]
        if isinstance(value, list) and len(value) == count:
            return [value[place] for place in kept.tolist()]
        return value  # which has no row a sample

    return batch.replace({name: rows(value) for name, value in batch.items()}, valid=None)


def valid(rows: Tensor, batch: Batch) -> Tensor:
    """The rows that are not padding."""
    if batch.valid is None:
        return rows
    return rows[batch.valid_mask(rows.device)]


@contextmanager
def explained(model: nn.Module, objective: Objective, batch: Batch) -> Iterator[None]:
    """Say what does not fit where a library's code raises below the call of `model`.

    What a person's own code raises keeps its traceback, which says more.
    """
    try:
        yield
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        text = one_line(error)[:300].rstrip(". ")
        if _NORMALIZES in text:
            reason = (
                f"batch {batch.request.address} has one sample for this process, and the model's "
                "batch norm needs two to train on; set drop, or another batch.size"
            )
            raise ConfigError(Problem("batch.tail", reason)) from error
        frames = [frame for frame, _ in walk_tb(error.__traceback__)]
        library = str(frames[-1].f_globals.get("__name__")).partition(".")[0] in _LIBRARIES
        below = any(frame.f_locals.get("self") is model for frame in frames)
        if not (library and below) or isinstance(error, torch.OutOfMemoryError) or "CUDA" in text:
            raise
        names = objective.inputs or batch
        given = ", ".join(f"{name} {in_shape(batch.get(name))}" for name in names)
        documented = re.search(r"Forward: (.+?)(?:\.\s|\n\s*\n|$)", type(model).__doc__ or "", re.S)
        takes = documented[1] if documented else ", ".join(signature(model.forward).parameters)
        reason = (
            f"{type(model).__name__} does not take {given}: {type(error).__name__}: {text}. It "
            f"takes {' '.join(takes.split())}. Choose another model, or other fields of a batch "
            f"({', '.join(batch)}) for objective.inputs"
        )
        raise ConfigError(Problem("model", reason)) from error


def _of_present(metric: Any, result: Tensor) -> Tensor:
    """The values of a metric of classes, NaN for those that occur neither in targets nor in
    predictions: torchmetrics gives these 0, or 1, or -1. A mean over one class says nothing either.
    """
    counts: Any = getattr(metric, "num_batches", None)
    confusions = getattr(metric, "confmat", None)
    if isinstance(confusions, Tensor) and confusions.ndim == 2:
        counts = confusions.sum(0) + confusions.sum(1)
    elif isinstance(getattr(metric, "tp", None), Tensor):
        counts = metric.tp + metric.fp + metric.fn
    if not isinstance(counts, Tensor) or counts.ndim != 1 or not is_known(metric):
        return result
    if result.shape == counts.shape:
        return result.float().where(counts > 0, torch.nan)
    alone = type(metric).__name__.startswith("Multiclass") and (counts > 0).sum() < 2 <= len(counts)
    return torch.full_like(result, torch.nan) if alone and result.ndim == 0 else result


def is_known(metric: object) -> bool:
    """Whether a metric is torchmetrics' own."""
    return type(metric).__module__.startswith("torchmetrics.")


def in_shape(value: object) -> str:
    """Dtype and shape of a tensor, or the type of anything else, for messages."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
