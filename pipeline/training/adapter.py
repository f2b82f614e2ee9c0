"""How training, validation and reports call an objective: any object with `loss(model, batch)`.

An objective may have more, each looked for by its name; `penstock.protocols.OwnLoss` and
docs/own_parts.md list what. `Objective` fills in what it lacks, so nothing else asks what an
objective has. It also takes padding out of batches, so no objective ever sees any. `objective.py`
has the stock ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from penstock.distributed.group import Group
from penstock.errors import ConfigError, Problem
from penstock.loading.batch import Batch
from penstock.terminal import one_line

if TYPE_CHECKING:
    from torchmetrics import Metric

MOST_NAMED = 40  # values of one metric that get a name each

# Libraries whose errors are about their arguments.
_LIBRARIES = ("penstock", "torch", "torchmetrics", "torchvision", "timm", "transformers")
_NORMALIZES = "Expected more than 1 value per channel when training"  # what batch norm raises


def require(holds: object, key: str, reason: str) -> None:
    """Refuse a configuration, with the reason at a key, unless something holds."""
    if not holds:
        raise ConfigError(Problem(key, reason))


@dataclass(frozen=True)
class Rendered:
    """A sample for a person to look at, and what was predicted for it.

    Attributes:
        truth, predicted: in words; "" where they are drawn, or too many.
        wrong: whether the prediction is another class than the truth; None if that is no question.
        points, predicted_points: float[L, 2], x and y in pixels of the first input, an image, to be
            drawn on it.
        past, future, forecast: float[P], float[H], float[H]: a series, how it continues, and how it
            was predicted to; drawn as lines.
        boxes, predicted_boxes: float[n, 4], x and y of two corners in pixels of the first input.
        labels, predicted_labels: what is written at each box; none, or as many as there are boxes.
        mask, predicted_mask: int[H, W], the class of each pixel of the first input, drawn over it;
            0 and below are not.
    """

    truth: str = ""
    predicted: str = ""
    points: Tensor | None = None
    predicted_points: Tensor | None = None
    past: Tensor | None = None
    future: Tensor | None = None
    forecast: Tensor | None = None
    boxes: Tensor | None = None
    predicted_boxes: Tensor | None = None
    labels: Sequence[str] = ()
    predicted_labels: Sequence[str] = ()
    mask: Tensor | None = None
    predicted_mask: Tensor | None = None
    wrong: bool | None = None


class Objective:
    """An objective as the pipeline calls it.

    A share of a batch that is nothing but padding, which other ranks wait for, goes through the
    model, and counts for nothing.

    Args:
        own: the objective itself, of the stock ones or a person's own.

    Raises:
        ConfigError: it has neither `loss` nor `step`, or something else than metrics.

    Attributes:
        metrics: by name; the first one is monitored by default.
        inputs: the fields of a batch that the model takes, as far as it names them; reports show
            these.
        named: the parts of the last loss by name, float32[] each: sums over this rank's samples.
        takes_steps: whether it takes the optimizer steps itself, by `step`.
        validates_loss: whether validation has a loss.
        fits_validation: whether `baseline` is the best constant for the rows that are measured; a
            person's own baseline is a model of the training rows.
    """

    def __init__(self, own: Any) -> None:
        from torchmetrics import Metric

        self.own, self.takes_steps = own, callable(getattr(own, "step", None))
        require(
            self.takes_steps or self._has("loss"),
            "objective",
            f"makes a {type(own).__name__}, which has no method loss(model, batch); "
            "docs/own_parts.md has one of ten lines",
        )
        metrics = getattr(own, "metrics", None) or {}
        named = metrics if isinstance(metrics, Mapping) else {"": metrics}
        # A null in the configuration removes a metric.
        self.metrics: dict[str, Metric] = {n: m for n, m in named.items() if m is not None}
        for name, metric in self.metrics.items():
            require(
                isinstance(metric, Metric),
                f"objective.metrics.{name}".rstrip("."),
                f"makes a {type(metric).__name__}, which is not a torchmetrics.Metric, by its "
                "name; docs/own_parts.md has one",
            )
        # Metrics may hold others, whose counts travel between the ranks like their own.
        modules = chain.from_iterable(metric.modules() for metric in self.metrics.values())
        self._counting = [part for part in modules if isinstance(part, Metric)]
        self.inputs: list[str] = list(getattr(own, "inputs", ()))
        self.validates_loss = bool(getattr(own, "validates_loss", self._has("loss")))
        self.fits_validation = bool(getattr(own, "fits_validation", False))
        self.named: Mapping[str, Tensor] = {}
        self._of_batch = False  # whether the last loss was one number for a whole batch

    def _has(self, name: str) -> bool:
        return callable(getattr(self.own, name, None))

    def to(self, device: torch.device | str) -> Objective:
        """Move the metrics, and every module among the attributes of the objective: its loss."""
        for part in (*self.metrics.values(), *vars(self.own).values(), self.own):
            if isinstance(part, nn.Module):
                part.to(device)
        return self

    # Training and validation

    def trained(self, model: nn.Module) -> nn.Module:
        """The module that runs the loss in training, which DDP wraps."""
        return _Loss(self.own, model)

    def losses(self, forward: Callable[..., Any], batch: Batch) -> Tensor:
        """Run the loss on this rank's share of a batch.

        Args:
            forward: that of `trained`, or DDP's around it.

        Returns:
            float32[n], a loss for each of the n samples that are not padding, or for each token.
        """
        losses = forward(lambda: unpadded(batch))
        return self._of_samples("loss(model, batch)", losses, batch.request.valid)

    def step(self, model: nn.Module, batch: Batch, update: Callable[..., None]) -> Tensor:
        """Take optimizer steps by `update(loss, optimizer)`; returns losses, float32[n]."""
        result = self.own.step(model, unpadded(batch), update)
        return self._of_samples("step(model, batch, update)", result, batch.request.valid)

    def measure(self, model: nn.Module, batch: Batch) -> tuple[Tensor | None, Any]:
        """Losses as `losses` has them, None unless `validates_loss`; and outputs for `update`."""
        rows = unpadded(batch)
        outputs = self.own.outputs(model, rows) if self._has("outputs") else None
        if not self.validates_loss:
            return None, outputs
        # `losses` takes the outputs, so the model runs once for both.
        once = self._has("losses")
        loss = self.own.losses(outputs, rows) if once else self.own.loss(model, rows)
        return self._of_samples("loss(model, batch)", loss, batch.request.valid), outputs

    def _of_samples(self, call: str, result: Any, count: int) -> Tensor:
        """The result of a call as a loss for each of `count` samples, float32[n]."""
        if isinstance(result, Tensor) or not isinstance(result, Mapping):
            self.named = {}
            return self._of_each(call, result, count)
        require(result, "objective", f"{call} gives a mapping without a loss")
        losses = {
            name: self._of_each(f"{call}[{name!r}]", loss, count) for name, loss in result.items()
        }
        self.named = {name: each.detach().sum() for name, each in losses.items()}
        total, *others = losses.values()
        return sum(others, start=total)

    def _of_each(self, what: str, loss: Any, count: int) -> Tensor:
        if not isinstance(loss, Tensor):
            raise ConfigError(Problem("objective", f"{what} gives {in_shape(loss)}, not a tensor"))
        self._of_batch = loss.ndim == 0
        each = loss.float().expand(count) if self._of_batch else loss.float()
        if not count:  # no loss counts, but the graph does: other ranks wait for its gradients
            return each[:0]
        if each.ndim > 1 or (each.numel() != count and not self._has("by_sample")):
            wanted = f"for {count} samples; a loss is one number a sample, or one for all of them"
            raise ConfigError(Problem("objective", f"{what} gives {in_shape(loss)} {wanted}"))
        return each

    def by_sample(self, losses: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The last losses by sample: places in the batch, int64[n], and losses, float[n].

        Both are empty where one number stood for the batch.
        """
        if self._has("by_sample"):
            return self.own.by_sample(losses, batch)
        losses = losses[:0] if self._of_batch else losses
        return torch.arange(len(losses), device=losses.device), losses

    # Metrics

    def update(self, outputs: Any, batch: Batch) -> None:
        """Add a batch to every metric; `outputs` as `measure` returned them."""
        if not self.metrics or not batch.request.valid:
            return
        rows, target = unpadded(batch), getattr(self.own, "target", "target")
        says = self._has("measured")
        arguments = (
            self.own.measured(outputs, rows) if says else (outputs, field(self.own, rows, target))
        )
        for name, metric in self.metrics.items():
            each = arguments[name] if isinstance(arguments, Mapping) else arguments
            with explained(f"objective.metrics.{name}", metric, partial(map, in_shape, each)):
                metric.update(*each)

    def compute(self, group: Group | None = None) -> dict[str, float]:
        """Every metric by name; one with a value a class as `name/<class>`. Waits for the device.

        Args:
            group: the ranks that measured a share each; all of them have to make this call.

        Raises:
            ConfigError: a metric gives something else than numbers, in a list or a mapping.
        """
        values: dict[str, float] = {}
        # Also a rank that measured nothing enters, or the others would wait for its counts.
        with (group or Group()).merged(self._counting):
            for name, metric in self.metrics.items():
                result = metric.compute()
                parts = result if isinstance(result, Mapping) else {"": result}
                for part, value in parts.items():
                    values |= self._numbers(f"{name}/{part}".rstrip("/"), metric, value)
        return values

    def _numbers(self, name: str, metric: Metric, value: Any) -> dict[str, float]:
        """A value of a metric by name, and by class or output where it has several numbers."""
        if isinstance(value, (int, float)):
            return {name: float(value)}
        require(
            isinstance(value, Tensor) and value.squeeze().ndim < 2,
            f"objective.metrics.{name}",
            f"{type(metric).__name__} gives {in_shape(value)}; a metric has to give a number, one "
            "for each class or output, or a mapping of these",
        )
        numbers = _of_present(metric, value.squeeze())
        if numbers.ndim == 0:
            return {name: float(numbers)}
        names = getattr(self.own, "names", ())
        names = names if len(names) == len(numbers) else range(len(numbers))
        each = {f"{name}/{k}": v for k, v in zip(names, numbers.tolist(), strict=True)}
        # Of several outputs, their mean is what can be monitored.
        mean = {name: float(numbers.mean())} if hasattr(metric, "num_outputs") else {}
        return mean if mean and len(each) > MOST_NAMED else mean | each

    def reset(self) -> None:
        for metric in self.metrics.values():
            metric.reset()

    # What a result is compared with

    @property
    def baseline_name(self) -> str:
        """Name of the model that `baseline` gave; "" where there is none."""
        return getattr(self.own, "baseline_name", "baseline") if self._has("baseline") else ""

    def baseline(self, batches: Iterable[Batch]) -> nn.Module:
        """The model that a result is compared with; reads all `batches`."""
        return self.own.baseline(unpadded(batch) for batch in batches if batch.request.valid)

    def comparisons(self, train: object, val: object) -> dict[str, dict[str, float]]:
        """Metrics of what else a result compares with, by name; from the two splits' datasets."""
        return self.own.comparisons(train, val) if self._has("comparisons") else {}

    # Predictions and reports

    def inputs_of(self, batch: Mapping[str, Any]) -> Iterator[str]:
        """The fields of a batch that the model takes, in words."""
        return (f"{name} {in_shape(batch.get(name))}" for name in self.inputs or batch)

    def answer(self, model: nn.Module, batch: Batch) -> Any:
        """Run the model on a share of a batch, which needs no target; outputs for `rows`."""
        return self.own.outputs(model, unpadded(batch)) if self._has("outputs") else None

    def rows(self, outputs: Any, batch: Batch) -> Sequence[Mapping[str, Any]]:
        """The predictions, a row of a table for each sample that is not padding: texts, numbers,
        and lists or mappings of these, by column. A tensor's rows are `predicted`.
        """
        made = self.own.rows(outputs, unpadded(batch)) if self._has("rows") else outputs
        if isinstance(made, Tensor):
            made = made.squeeze(1) if made.shape[1:] == (1,) else made
            return [{"predicted": row.tolist()} for row in made]
        require(
            self._has("rows"),
            "objective",
            "does not say how a prediction becomes a row of a table: give it a method "
            "rows(outputs, batch), see docs/own_parts.md",
        )
        return [*made]

    def rendered(self, batch: Batch, outputs: Any = None) -> list[Rendered]:
        """Every row of a batch, to look at; with `outputs`, also what they predict."""
        return (
            [*self.own.rendered(batch, outputs)]
            if self._has("rendered")
            else [Rendered()] * len(batch.indices)
        )

    def examples(
        self, model: nn.Module, dataset: object, transform: object, count: int
    ) -> list[Sequence[str]] | None:
        """Predictions that no batch has, as a table with a head; None: `rendered` shows enough.

        Args:
            dataset, transform: of a split.
            count: of samples.
        """
        return (
            self.own.examples(model, dataset, transform, count) if self._has("examples") else None
        )

    def shown_field(self, batch: Batch) -> str:
        """The field of a batch that reports show, with what `rendered` says of it."""
        return self.inputs[0] if self.inputs else next(iter(batch))


class _Loss(nn.Module):
    """A loss as a forward pass, so that what it calls of a model is the model itself under DDP."""

    def __init__(self, own: Any, model: nn.Module) -> None:
        super().__init__()
        # Of an objective that is a module, not its weights.
        self.loss, self.model = partial(own.loss, model), model

    def forward(self, batch: Callable[[], Batch]) -> Any:
        # A function, as DDP takes apart and copies the tensors and mappings that it is called with.
        return self.loss(batch())


def unpadded(batch: Batch) -> Batch:
    """A batch without its rows of padding, which are its last ones, if it has any other."""
    count = batch.request.valid
    # A share of padding alone keeps it: the model has to run, as other ranks wait for its sums.
    if batch.valid is None or not count:
        return batch

    def rows(value: Any) -> Any:
        listed = isinstance(value, list) or (isinstance(value, Tensor) and value.ndim > 0)
        return value[:count] if listed and len(value) == len(batch.indices) else value

    fields = {name: rows(value) for name, value in batch.items()}
    own = {"positions": batch.positions[:count], "indices": batch.indices[:count]}
    return batch.replace(fields, valid=None, **own)


def field(own: object, batch: Mapping[str, Any], name: str) -> Tensor:
    """A field of a batch that an objective needs as a tensor.

    Raises:
        ConfigError: it is not there, or no tensor.
    """
    value = batch.get(name)
    if not isinstance(value, Tensor):
        there = ", ".join(f"{name} ({type(value).__name__})" for name, value in batch.items())
        raise ConfigError(
            f"{type(own).__name__} needs the field {name!r} (objective.inputs, objective.target) "
            f"as a tensor; a batch has {there}. A collate stacks tensors and arrays of one shape"
        )
    return value


@contextmanager
def explained(key: str, part: Any, inputs: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Say what does not fit where a library's code raises below the call of a part, at its key.

    What a person's own code raises keeps its traceback, which says more.

    Args:
        inputs: what the part is called with, as texts; called only where it is needed.
    """
    try:
        yield
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        text = one_line(error)[:300].rstrip(". ")
        if _NORMALIZES in text:
            raise ConfigError(
                Problem(
                    "batch.tail",
                    "a batch has one sample for this process, and the model's batch norm needs two "
                    "to train on; set drop, or another batch.size",
                )
            ) from error
        # The innermost frame tells whose code raises; a frame whose `self` is the part tells an
        # error below its call from one of the loss, which other frames raise.
        frames = [frame for frame, _ in walk_tb(error.__traceback__)]
        library = str(frames[-1].f_globals.get("__name__")).partition(".")[0] in _LIBRARIES
        below = any(frame.f_locals.get("self") is part for frame in frames)
        # Memory runs out anywhere, and CUDA raises later than its cause: frames say nothing then.
        if not (library and below) or isinstance(error, torch.OutOfMemoryError) or "CUDA" in text:
            raise
        reason = f"{type(part).__name__} does not take {' and '.join(inputs())}: "
        way = f". Choose another {key}, or arguments that fit"
        raise ConfigError(Problem(key, f"{reason}{type(error).__name__}: {text}{way}")) from error


def _of_present(metric: Any, result: Tensor) -> Tensor:
    """The values of a metric of classes, NaN for those that occur neither in targets nor in
    predictions: torchmetrics gives these 0, or 1, or -1. A mean over one class says nothing either.
    """
    if isinstance(confusion := getattr(metric, "confmat", None), Tensor) and confusion.ndim == 2:
        counts = confusion.sum(0) + confusion.sum(1)
    elif isinstance(hits := getattr(metric, "tp", None), Tensor) and hits.ndim == 1:
        counts = hits + metric.fp + metric.fn
    else:
        return result
    if result.shape == counts.shape:
        return result.float().where(counts > 0, torch.nan)
    is_mean = type(metric).__name__.startswith("Multiclass") and len(counts) > 1
    return result * torch.nan if is_mean and (counts > 0).sum() < 2 else result


def is_known(metric: object) -> bool:
    """Whether a metric is torchmetrics' own."""
    return type(metric).__module__.startswith("torchmetrics.")


def in_shape(value: object) -> str:
    """Dtype and shape of a tensor, or the type of anything else, for messages."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
