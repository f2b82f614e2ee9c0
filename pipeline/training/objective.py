"""Model, loss and metrics: from a batch to a loss a sample, without padding.

A loss that gives one number for a batch (torch's default, reduction "mean") gets the rows of one
share, and its number stands for each of them. For a plain mean that is the mean over all samples,
whatever the last batch, `trainer.accumulate` and the ranks; any other number (class weights, Dice)
depends on which samples are in one share.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from penstock.errors import ConfigError, DataError, Problem
from penstock.loading.batch import Batch
from penstock.training.objective_base import (
    Objective,
    in_shape,
    is_known,
    unpadded,
    valid,
)
from penstock.training.rendered import FEW, Rendered, classes_in_words, in_words

if TYPE_CHECKING:
    from torchmetrics import Metric


MOST_NAMED = 40  # values of one metric that get a name each
Loss = Callable[[Tensor, Tensor], Tensor]


class Supervised(Objective):
    """A field of a batch is predicted, and compared with the model's one output.

    Args:
        loss: (predictions, targets) -> [B] or [B, ...], a loss a sample, or the mean over the batch
            as one number; a module or any other callable.
        metrics: by name; the first one is monitored by default.
        inputs: fields of a batch that the model takes, in order.
        target: field of a batch to predict.
    """

    def __init__(
        self, loss: Loss, metrics: Mapping[str, Metric], inputs: Sequence[str], target: str
    ) -> None:
        if getattr(loss, "reduction", "none") == "sum":
            raise ConfigError(
                Problem(
                    "objective.loss.reduction",
                    "sum would weigh a step by the "
                    "samples of its batch, and of each rank's share; set mean, "
                    "or none for a loss a sample",
                )
            )
        super().__init__(metrics, inputs)
        self.loss = loss
        self.target = target

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Run the model.

        Returns:
            losses: float32[n], of the n samples that are not padding.
            outputs: float32[B, ...], of all rows.
        """
        # Of packed sequences the inputs have a row a token; the target always has one a sample.
        counted = isinstance(model, Constant) and self.target in batch
        given = [self._field(batch, name) for name in ([self.target] if counted else self.inputs)]
        outputs = _tensor(model(*given)).float()
        # In float32 also under autocast: the loss is cheap, and a sum in 16 bits is inaccurate.
        device = outputs.device.type
        mixed = torch.is_autocast_enabled(device)
        with torch.autocast(device, enabled=False) if mixed else nullcontext():
            losses = self._losses(outputs, batch)
            if losses.ndim == 0:
                losses = self._of_each(losses, outputs, batch)
            elif len(losses) != len(outputs) or losses.ndim > 1:
                raise ConfigError(
                    Problem(
                        "objective.loss",
                        f"gives {list(losses.shape)} for "
                        f"{len(outputs)} samples; it has to give one number a "
                        "sample, or one for all of them",
                    )
                )
            else:
                losses = valid(losses, batch)
        return losses, outputs

    def answer(self, model: nn.Module, batch: Batch) -> Tensor:
        outputs = model(*(self._field(batch, name) for name in self.inputs))
        return _tensor(outputs).float()

    def rows(self, outputs: Tensor, batch: Batch) -> Sequence[Mapping[str, Any]]:
        """`predicted`: the number or the numbers, as the model gives them."""
        values = valid(outputs, batch)
        values = values.squeeze(1) if values.shape[1:] == (1,) else values
        return [{"predicted": row.tolist()} for row in values]

    def _check_count(self, outputs: Tensor, target: Tensor) -> None:
        """Raise ConfigError unless there is an output for each sample."""
        count = len(outputs) if outputs.ndim else 0
        if count != len(target):
            reason = f"gives outputs for {count} samples, but {self.target!r} has {len(target)}"
            raise ConfigError(Problem("model", reason))

    def _of_each(self, loss: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        """The loss of a whole batch, for each of its samples, float32[n]."""
        if batch.valid is None:
            return loss.float().expand(len(outputs))
        mask = batch.valid_mask(outputs.device)
        rows = outputs[mask]
        if not len(rows):  # a share that is all padding: no loss, but a graph for the other ranks
            return rows.flatten(1).sum(1)
        return self._losses(rows, unpadded(batch)).float().expand(len(rows))

    def to(self, device: torch.device | str) -> Objective:
        """This objective with its loss and metrics on `device`."""
        if isinstance(self.loss, nn.Module):
            self.loss.to(device)
        return super().to(device)

    def update(self, outputs: Tensor, batch: Batch) -> None:
        """Add a batch to every metric; `outputs` as the call returned them."""
        predicted = valid(self.predictions(outputs, batch), batch)
        target = valid(self.targets(batch), batch)
        if len(predicted):  # not on a rank whose share is all padding
            for name in self.metrics:
                self.add(name, predicted, target)

    def add(self, name: str, *arguments: Any) -> None:
        """Add rows of `predictions` and `targets` to one metric."""
        if is_known(self.metrics[name]):
            arguments = self._as_known(*arguments)
        super().add(name, *arguments)

    def _as_known(self, predicted: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions and targets as the metrics of torchmetrics take them."""
        return predicted, target

    def baseline(self, batches: Iterable[Batch], monitor: str = "loss") -> nn.Module:
        return Constant(self.constant(batches, monitor))

    def constant(self, batches: Iterable[Batch], monitor: str = "loss") -> Tensor:
        """An output independent of the input, float32[...] without a batch dimension: the best
        one for the stock losses, and for `monitor` where that wants another one.

        Reads all of `batches`.
        """
        total, count = torch.tensor(0.0, dtype=torch.float64), 0
        for batch in batches:
            rows = valid(self._statistics(batch), batch).double().cpu()
            total, count = total + rows.sum(0), count + len(rows)
        if not count:
            raise ValueError("no batch to take the constant from")
        return self._from_mean(total / count).float()

    def rendered(self, batch: Batch, outputs: Tensor | None = None) -> list[Rendered]:
        """Every row of a batch, to look at; with `outputs`, also what they predict."""
        target = self.targets(batch)
        few = target[0].numel() <= FEW
        if outputs is None:
            return [Rendered(in_words(row) if few else "") for row in target]
        predicted = self.predictions(outputs, batch)
        if few and target.shape == predicted.shape:
            pairs = zip(target, predicted, strict=True)
            return [Rendered(in_words(true), in_words(guess)) for true, guess in pairs]
        return [Rendered(predicted=error) for error in self._errors(outputs, batch)]

    def _errors(self, outputs: Tensor, batch: Batch) -> list[str]:
        """The first metric of each sample, in words; "" where it needs more than one."""
        name, metric = next(iter(self.metrics.items()), ("", None))
        if metric is None:
            return [""] * len(outputs)
        predicted, target, errors = self.predictions(outputs, batch), self.targets(batch), []
        for row in range(len(outputs)):
            metric.reset()
            try:
                self.add(name, predicted[row : row + 1], target[row : row + 1])
                value = float(metric.compute().double().mean())
            except Exception:  # as for a correlation, or of a person's own metric
                value = math.nan
            errors.append("" if math.isnan(value) else f"{name} {value:.3f}")
        metric.reset()
        return errors

    @abstractmethod
    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Outputs on the scale of `targets`, for metrics."""

    def targets(self, batch: Batch) -> Tensor:
        """The target field, for metrics."""
        return self._field(batch, self.target)

    @abstractmethod
    def _losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """A loss a row, float32[B]; or one for all rows, float32[]."""

    @abstractmethod
    def _statistics(self, batch: Batch) -> Tensor:
        """A row a sample; their mean over the samples gives the best constant."""

    @abstractmethod
    def _from_mean(self, mean: Tensor) -> Tensor:
        """The best constant output, given the mean of the statistics."""


class Regression(Supervised):
    """Numbers: the model gives as many a sample as the target, float[B, ...].

    Metrics of torchmetrics' get them as [n], or as [n, k] for k numbers a sample, whatever their
    shape. One with a value an output has their mean as `name`, and up to `MOST_NAMED` of them as
    `name/<output>`. Metrics of a person's own get the shape of the targets.
    """

    baseline_name = "mean target"

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The outputs in the shape of the targets."""
        return outputs.reshape(self.targets(batch).shape)

    def _as_known(self, predicted: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        shape = (-1,) if target[0].numel() == 1 else (len(target), -1)
        target = target if target.is_floating_point() else target.float()
        # Contiguous, as torchmetrics takes views: a constant's rows are one row, expanded.
        return predicted.reshape(shape).contiguous(), target.reshape(shape).contiguous()

    def _named(self, name: str, result: Tensor) -> dict[str, float]:
        if result.ndim == 0 or not hasattr(self.metrics[name], "num_outputs"):
            return super()._named(name, result)
        each = super()._named(name, result) if len(result) <= MOST_NAMED else {}
        return {name: float(result.mean()), **each}

    def constant(self, batches: Iterable[Batch], monitor: str = "loss") -> Tensor:
        """The mean, or the median where absolute errors count: it has the smallest ones."""
        measured: Any = self.loss if monitor == "loss" else self.metrics.get(monitor)
        self.baseline_name = type(self).baseline_name
        if type(measured).__name__ not in ("L1Loss", "MeanAbsoluteError"):
            return super().constant(batches, monitor)
        self.baseline_name = self.baseline_name.replace("mean", "median")
        rows = [valid(self._statistics(batch), batch).cpu() for batch in batches]
        return self._from_mean(torch.cat(rows).nanmedian(0).values)

    def _losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        target = self.targets(batch)
        plain = type(self)._statistics is Regression._statistics
        if plain and outputs.ndim == 1 and outputs.shape == target.shape:
            losses: Tensor = self.loss(outputs, target.float())  # views would cost more than it
            return losses
        target = self._statistics(batch)
        self._check_count(outputs, target)
        outputs = outputs.reshape(len(outputs), -1)
        if outputs.shape != target.shape:  # the loss would broadcast, with a warning at most
            reason = (
                f"gives {outputs.shape[1]} numbers a sample, but {self.target!r} has "
                f"{target.shape[1]}"
            )
            raise ConfigError(Problem("model", reason))
        losses = self.loss(outputs, target)
        if losses.ndim < 2:
            return losses
        return losses.squeeze(1) if losses.shape[1] == 1 else losses.mean(1)

    def _statistics(self, batch: Batch) -> Tensor:
        target = self.targets(batch)
        return target.reshape(len(target), -1).float()

    def _from_mean(self, mean: Tensor) -> Tensor:
        return mean


class LandmarkRegression(Regression):
    """Points in an image: the model gives [B, 2 * L], -1 to 1 from edge to edge.

    Targets are float[B, L, 2], x and y in pixels of the image (the first input, [B, C, H, W]);
    metrics see pixels, the loss sees -1 to 1.
    """

    baseline_name = "mean face"

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """float32[B, L, 2] in pixels."""
        width, height = self._size(batch)
        x, y = outputs[:, 0::2], outputs[:, 1::2]
        return torch.stack([(x + 1) * (width / 2), (y + 1) * (height / 2)], dim=-1)

    def rows(self, outputs: Tensor, batch: Batch) -> Sequence[Mapping[str, Any]]:
        """`points`: x and y of each, in pixels of the image that the model saw."""
        points = valid(self.predictions(outputs, batch), batch)
        return [{"points": row.tolist()} for row in points]

    def rendered(self, batch: Batch, outputs: Tensor | None = None) -> list[Rendered]:
        points = self.targets(batch)
        if outputs is None:
            return [Rendered(points=one) for one in points]
        predicted, errors = self.predictions(outputs, batch), self._errors(outputs, batch)
        return [Rendered("", *row) for row in zip(errors, points, predicted, strict=True)]

    def _statistics(self, batch: Batch) -> Tensor:
        width, height = self._size(batch)
        targets = self.targets(batch)
        if targets.ndim != 3 or targets.shape[-1] != 2:
            raise ConfigError(
                Problem(
                    "objective.target",
                    f"{self.target!r} is {in_shape(targets)}; "
                    "landmarks are [B, L, 2], x and y of each",
                )
            )
        x, y = targets.float().unbind(-1)
        return torch.stack([x * (2 / width) - 1, y * (2 / height) - 1], dim=-1).flatten(1)

    def _size(self, batch: Batch) -> tuple[int, int]:
        # Numbers and no tensor: making one on a GPU would wait for it in every step.
        image = self._field(batch, self.inputs[0])
        return image.shape[-1], image.shape[-2]


class Classification(Supervised):
    """One class of several: the model gives logits [B, C], targets are whole numbers [B] or [B, 1].

    Targets may be shares of the classes too, float32[B, C]; metrics then take the likeliest class.

    If a batch also has soft targets (`label_soft`, float32[B, C], for the target `label`), as
    mixing makes them, the loss takes those; metrics take the classes.

    Args:
        classes: their names, for metrics that have a value a class.
        num_classes: how many there are; a fact of the dataset.
    """

    baseline_name = "class frequencies"

    def __init__(
        self,
        loss: Loss,
        metrics: Mapping[str, Metric],
        inputs: Sequence[str],
        target: str,
        num_classes: int,
        classes: Sequence[str] | None = None,
    ) -> None:
        super().__init__(loss, metrics, inputs, target)
        self.num_classes = num_classes
        self.names = list(classes) if classes else [str(number) for number in range(num_classes)]

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The logits; torchmetrics takes them as they are."""
        return outputs

    def targets(self, batch: Batch) -> Tensor:
        """The class of each sample, int64[B]; of float32[B, C], the likeliest.

        Raises:
            ConfigError: they are neither that nor whole numbers, [B] or [B, 1].
        """
        target = super().targets(batch)
        if target.dtype == torch.int64 and target.ndim == 1:
            return target
        if self._are_shares(target):
            return target.argmax(-1)
        if target.is_floating_point() or target.is_complex() or target.numel() != len(target):
            raise ConfigError(
                Problem(
                    "objective.target",
                    f"{self.target!r} is {in_shape(target)}; classes are one whole number a "
                    f"sample, or a share of each of {self.num_classes}",
                )
            )
        return target.reshape(-1).long()

    def rows(self, outputs: Tensor, batch: Batch) -> Sequence[Mapping[str, Any]]:
        """`predicted`: the likeliest class, and `score/NAME` of each."""
        return [
            {"predicted": self.names[int(row.argmax())]}
            | {f"score/{name}": score for name, score in zip(self.names, row.tolist(), strict=True)}
            for row in valid(outputs, batch).softmax(-1)
        ]

    def rendered(self, batch: Batch, outputs: Tensor | None = None) -> list[Rendered]:
        """The name of the class, of up to three where samples are mixed; and of the likeliest."""
        soft = batch.get(f"{self.target}_soft")
        if outputs is None and isinstance(soft, Tensor):
            return [Rendered(classes_in_words(shares, self.names)) for shares in soft.cpu()]
        known = dict(enumerate(self.names))  # a label that the loss ignores is none of them
        names = [known.get(number, str(number)) for number in self.targets(batch).tolist()]
        if outputs is None:
            return [Rendered(name) for name in names]
        shares, likeliest = outputs.softmax(-1).max(-1)
        guesses = zip(likeliest.tolist(), shares.tolist(), strict=True)
        return [
            Rendered(name, f"{self.names[guess]} {share:.0%}", wrong=self.names[guess] != name)
            for name, (guess, share) in zip(names, guesses, strict=True)
        ]

    def _are_shares(self, target: Tensor) -> bool:
        return target.is_floating_point() and target.shape[1:] == (self.num_classes,)

    def _losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        if outputs.ndim != 2 or outputs.shape[1] != self.num_classes:
            reason = (
                f"gives {list(outputs.shape[1:])} a sample; {self.num_classes} classes of "
                f"{self.target!r} need as many logits"
            )
            raise ConfigError(Problem("model", reason))
        soft = f"{self.target}_soft" in batch
        goals = self._field(batch, f"{self.target}_soft" if soft else self.target)
        goals = goals if self._are_shares(goals) else self.targets(batch)
        self._check_count(outputs, goals)
        losses: Tensor = self.loss(outputs, goals)
        return losses

    def _statistics(self, batch: Batch) -> Tensor:
        target = self._field(batch, self.target)
        if self._are_shares(target):
            return target
        target = self.targets(batch)
        ignored = target == getattr(self.loss, "ignore_index", self.num_classes)
        wrong = ((target < 0) | (target >= self.num_classes)) & ~ignored
        for place in wrong.nonzero().flatten().tolist()[:1]:
            row = "" if batch.indices is None else f" of row {int(batch.indices[place])}"
            raise DataError(
                f"{self.target!r}{row} is {int(target[place])}; {self.num_classes} classes are "
                f"0 to {self.num_classes - 1}"
            )
        # Rows of zeros for labels that the loss ignores: they move no frequency among the classes.
        return (
            nn.functional.one_hot(target.where(~ignored, 0), self.num_classes) * ~ignored[:, None]
        )

    def constant(self, batches: Iterable[Batch], monitor: str = "loss") -> Tensor:
        """How frequent each class is: also the best for accuracy, macro averages and their like.
        For a metric of one class, that one comes first.
        """
        logits, name = super().constant(batches, monitor), monitor.rpartition("/")[2]
        if name != monitor and name in self.names:
            self.baseline_name = f"always {name}"
            logits[self.names.index(name)] = logits.max() + 1e-3
        return logits

    def _from_mean(self, mean: Tensor) -> Tensor:
        # Else a class that never occurs has -inf, and a loss of inf where validation has it.
        return mean.clamp_min(1e-6).log()

    def _labels(self, count: int) -> Sequence[object]:
        return self.names if len(self.names) == count else range(count)


def _tensor(outputs: Any) -> Tensor:
    """The one output of a model, which may stand among others as `logits`."""
    found = getattr(outputs, "logits", outputs)
    if not isinstance(found, Tensor):
        reason = (
            f"gives {in_shape(found)}, and this objective takes one tensor; choose another model"
        )
        raise ConfigError(Problem("model", reason))
    return found


class Constant(nn.Module):
    """A model whose output is always `output`, float[...] without a batch dimension."""

    output: Tensor

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.register_buffer("output", output)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.output.expand(len(inputs[0]), *self.output.shape)
