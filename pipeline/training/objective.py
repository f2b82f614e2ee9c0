"""The stock objectives: one output of a model against one field of a batch.

    Regression           numbers
    LandmarkRegression   points in an image
    Classification       one class of several
    MultiLabel           any number of the classes for each sample

Each has the members that docs/own_parts.md lists, as a person's own objective would; classes of
your own may be derived from them. `adapter.py` calls them, and takes padding out of batches before.

A loss that gives one number for a batch (torch's default, reduction "mean") gets the rows of one
share, and its number stands for each of them. For a plain mean that is the mean over all samples,
whatever the last batch, `trainer.accumulate` and the ranks; any other number (class weights, Dice)
depends on which samples are in one share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress, repeat
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from penstock.errors import ConfigError, DataError, Problem
from penstock.loading.batch import Batch
from penstock.training.adapter import Rendered, field, in_shape, is_known, require

if TYPE_CHECKING:
    from torchmetrics import Metric

Loss = Callable[[Tensor, Tensor], Tensor]
Row = Mapping[str, Any]

_FEW = 4  # numbers of a target that are written out
_THRESHOLD = 0.5  # the least probability of a label that is predicted
_RAREST = (1e-4, 1e-6)  # the least probability of a label, of a class, in a baseline: else log 0


class Supervised:
    """A field of a batch is predicted, and compared with the model's one output.

    Subclasses have `losses`, and `goals` for the baseline.

    Args:
        loss: (predictions, targets) -> [B] or [B, ...], a loss a sample, or the mean over the batch
            as one number; a module or any other callable.
        metrics: by name; the first one is monitored by default.
        inputs: fields of a batch that the model takes, in order.
        target: field of a batch to predict.
    """

    baseline_name = ""
    fits_validation = True

    def __init__(
        self, loss: Loss, metrics: Mapping[str, Metric], inputs: Sequence[str], target: str
    ) -> None:
        require(
            getattr(loss, "reduction", "none") != "sum",
            "objective.loss.reduction",
            "sum would weigh a step by the samples of its batch, and of each rank's share; set "
            "mean, or none for a loss a sample",
        )
        self.criterion, self.inputs, self.target = loss, list(inputs), target
        self.metrics = {name: metric for name, metric in metrics.items() if metric is not None}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """float32[B], a loss for each sample; float32[], one for all of them."""
        return self.losses(self.outputs(model, batch), batch)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """`loss`, of outputs that the model has already given."""
        raise NotImplementedError

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        """What the model gives, float32[B, ...]; of several outputs, `logits`, or `out` as
        torchvision's segmentation calls it.
        """
        # Of packed sequences the inputs have a row a token; the target always has one a sample.
        counted = isinstance(model, Constant) and self.target in batch
        inputs = [field(self, batch, name) for name in ([self.target] if counted else self.inputs)]
        made = model(*inputs)
        if not isinstance(made, Tensor):
            made = getattr(
                made, "logits", made.get("out", made) if isinstance(made, Mapping) else made
            )
        if not isinstance(made, Tensor):
            reason = f"gives {in_shape(made)}, and this objective takes one tensor; choose another"
            raise ConfigError(Problem("model", reason))
        # A loss in 16 bits would be inaccurate, and costs little in 32.
        return made.float()

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Outputs on the scale of `targets`, for metrics."""
        return outputs

    def targets(self, batch: Batch) -> Tensor:
        """The target field, for metrics."""
        return field(self, batch, self.target)

    def _unfit(self, target: Tensor, wanted: str) -> ConfigError:
        reason = f"{self.target!r} is {in_shape(target)}; {wanted}"
        return ConfigError(Problem("objective.target", reason))

    def measured(self, outputs: Tensor, batch: Batch) -> Mapping[str, tuple[Tensor, ...]]:
        return dict.fromkeys(self.metrics, (self.predictions(outputs, batch), self.targets(batch)))

    def words(self, rows: Tensor) -> list[str]:
        """Targets or predictions as texts: their numbers; "" where there are too many to write."""
        return [
            ", ".join(f"{number:.4g}" for number in row.flatten().tolist())
            if row.numel() <= _FEW
            else ""
            for row in rows
        ]

    def rendered(self, batch: Batch, outputs: Tensor | None = None) -> list[Rendered]:
        """Every row of a batch, to look at; with `outputs`, also what they predict."""
        truth = self.words(self.targets(batch))
        if outputs is None:
            return [*map(Rendered, truth)]
        return [*map(Rendered, truth, self.words(self.predictions(outputs, batch)))]

    def baseline(self, batches: Iterable[Batch]) -> nn.Module:
        return Constant(self.constant(batches))

    def constant(self, batches: Iterable[Batch]) -> Tensor:
        """The best output for the stock losses that does not depend on the input, float32[...]
        without a batch dimension.
        """
        # In float64, or digits that are shown would depend on the size of the batches.
        total, count = torch.zeros((), dtype=torch.float64), 0
        for batch in batches:
            rows = self.goals(batch).double().cpu()
            total, count = total + rows.sum(0), count + len(rows)
        if not count:
            raise ValueError("no batch to take the constant from")
        return self.from_mean(total / count).float()

    def goals(self, batch: Batch) -> Tensor:
        """A row for each sample, float[B, ...]; the best constant follows from their mean."""
        raise NotImplementedError

    def from_mean(self, mean: Tensor) -> Tensor:
        """The best constant output, given the mean of the goals."""
        return mean


class Regression(Supervised):
    """Numbers: the model gives as many a sample as the target, float[B, ...].

    Metrics of torchmetrics' get them as [n], or as [n, k] for k numbers a sample, whatever their
    shape. One with a value an output has their mean as `name`, and up to 40 of them as
    `name/<output>`. Metrics of a person's own get the shape of the targets.
    """

    baseline_name = "mean target"

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        goals = self.goals(batch)
        if outputs.shape != goals.shape:  # else views would cost more than the loss
            outputs, goals = outputs.reshape(len(outputs), -1), goals.reshape(len(goals), -1)
            if outputs.shape != goals.shape:  # the loss would broadcast, with a warning at most
                raise ConfigError(
                    Problem(
                        "model",
                        f"gives {outputs.shape[1]} numbers a sample, but {self.target!r} has "
                        f"{goals.shape[1]} (for {len(outputs)} samples and {len(goals)})",
                    )
                )
        losses = self.criterion(outputs, goals)
        if losses.ndim < 2:
            return losses
        # A view costs less than a mean of one number.
        return losses.squeeze(1) if losses.shape[1:] == (1,) else losses.mean(1)

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The outputs in the shape of the targets."""
        return outputs.reshape(self.targets(batch).shape)

    def measured(self, outputs: Tensor, batch: Batch) -> Mapping[str, tuple[Tensor, ...]]:
        predicted, target = self.predictions(outputs, batch), self.targets(batch)
        shape = (-1,) if target[0].numel() == 1 else (len(target), -1)
        numbers = target if target.is_floating_point() else target.float()
        # Contiguous, as torchmetrics takes views: a constant's rows are one row, expanded.
        known = (predicted.reshape(shape).contiguous(), numbers.reshape(shape).contiguous())
        return {
            name: known if is_known(metric) else (predicted, target)
            for name, metric in self.metrics.items()
        }

    def goals(self, batch: Batch) -> Tensor:
        """The targets as the loss compares them, float32[B] or [B, k]."""
        target = self.targets(batch).float()
        return target if target.ndim < 2 else target.flatten(1)


class LandmarkRegression(Regression):
    """Points in an image: the model gives [B, 2 * L], -1 to 1 from edge to edge.

    Targets are float[B, L, 2], x and y in pixels of the image (the first input, [B, C, H, W]);
    metrics see pixels, the loss sees -1 to 1.
    """

    baseline_name = "mean face"

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """float32[B, L, 2] in pixels."""
        height, width = field(self, batch, self.inputs[0]).shape[-2:]
        x, y = outputs[:, 0::2], outputs[:, 1::2]
        return torch.stack([(x + 1) * (width / 2), (y + 1) * (height / 2)], dim=-1)

    def rows(self, outputs: Tensor, batch: Batch) -> Sequence[Row]:
        """`points`: x and y of each, in pixels of the image that the model saw."""
        return [{"points": row.tolist()} for row in self.predictions(outputs, batch)]

    def rendered(self, batch: Batch, outputs: Tensor | None = None) -> list[Rendered]:
        guesses = repeat(None) if outputs is None else self.predictions(outputs, batch)
        pairs = zip(self.targets(batch), guesses, strict=False)
        return [Rendered(points=true, predicted_points=guess) for true, guess in pairs]

    def goals(self, batch: Batch) -> Tensor:
        targets = self.targets(batch)
        if targets.ndim != 3 or targets.shape[-1] != 2:
            raise self._unfit(targets, "landmarks are [B, L, 2]")
        # Numbers and no tensor: making one on a GPU would wait for it in every step.
        height, width = field(self, batch, self.inputs[0]).shape[-2:]
        x, y = targets.float().unbind(-1)
        return torch.stack([x * (2 / width) - 1, y * (2 / height) - 1], dim=-1).flatten(1)


class Classification(Supervised):
    """One class of several: the model gives logits [B, C], targets are whole numbers [B] or [B, 1].

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

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        soft = batch.get(f"{self.target}_soft")
        return self.compared(outputs, self.targets(batch) if soft is None else soft)

    def compared(self, outputs: Tensor, goals: Tensor) -> Tensor:
        """The loss, of logits that have the shape of the classes."""
        if outputs.shape != (len(goals), self.num_classes):
            raise ConfigError(
                Problem(
                    "model",
                    f"gives {list(outputs.shape)} for {len(goals)} samples; {self.num_classes} "
                    f"classes of {self.target!r} need as many logits a sample",
                )
            )
        return self.criterion(outputs, goals)

    def targets(self, batch: Batch) -> Tensor:
        """The class of each sample, int64[B].

        Raises:
            ConfigError: they are no whole numbers, [B] or [B, 1].
            DataError: a class is none of them; not looked for on a GPU, which would wait.
        """
        target = field(self, batch, self.target)
        if target.is_floating_point() or target.is_complex() or target.numel() != len(target):
            raise self._unfit(target, "classes are one whole number a sample")
        target = target.reshape(-1).long()
        # On a GPU this would wait for the device at every step; there CUDA's assert ends the run.
        if target.device.type == "cpu":
            wrong = ((target < 0) | (target >= self.num_classes)) & ~self._ignored(target)
            if wrong.any():
                place = int(wrong.nonzero()[0])
                raise DataError(
                    f"{self.target!r} of row {int(batch.indices[place])} is {int(target[place])}; "
                    f"{self.num_classes} classes are 0 to {self.num_classes - 1}"
                )
        return target

    def rows(self, outputs: Tensor, batch: Batch) -> Sequence[Row]:
        """`predicted`: the likeliest class, and `score/NAME` of each."""
        return self.scored(outputs.softmax(-1), self.words(outputs.argmax(-1)))

    def scored(self, shares: Tensor, predicted: Sequence[str]) -> Sequence[Row]:
        return [
            {"predicted": words}
            | {f"score/{name}": score for name, score in zip(self.names, row.tolist(), strict=True)}
            for words, row in zip(predicted, shares, strict=True)
        ]

    def words(self, rows: Tensor) -> list[str]:
        """The names of classes, int64[n]."""
        known = dict(enumerate(self.names))  # a label that the loss ignores is none of them
        return [known.get(number, str(number)) for number in rows.tolist()]

    def rendered(self, batch: Batch, outputs: Tensor | None = None) -> list[Rendered]:
        """The name of the class, and of the likeliest."""
        names = self.words(self.targets(batch))
        if outputs is None:
            return [*map(Rendered, names)]
        shares, likeliest = outputs.softmax(-1).max(-1)
        guesses = zip(names, self.words(likeliest), shares.tolist(), strict=True)
        return [Rendered(true, f"{seen} {p:.0%}", wrong=seen != true) for true, seen, p in guesses]

    def _ignored(self, target: Tensor) -> Tensor:
        return target == getattr(self.criterion, "ignore_index", self.num_classes)

    def goals(self, batch: Batch) -> Tensor:
        target = self.targets(batch)
        return nn.functional.one_hot(target[~self._ignored(target)], self.num_classes)

    def from_mean(self, mean: Tensor) -> Tensor:
        # Else a class that never occurs has -inf, and a loss of inf where validation has it.
        return mean.clamp_min(_RAREST[1]).log()


class MultiLabel(Classification):
    """Several labels a sample: each of C classes is there or not, whatever the others are.

    The model gives logits [B, C]; targets are 0 and 1, or shares between, [B, C]. Metrics get
    probabilities float32[n, C], and targets int64[n, C].

    Args:
        loss: as for `Supervised`; one that gives [B, C] counts with its mean over the classes.
        classes: their names, for metrics that have a value a class.
        num_classes: how many there are; a fact of the dataset.
    """

    baseline_name = "label frequencies"

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        losses = self.compared(outputs, self.goals(batch))
        return losses.mean(1) if losses.ndim == 2 else losses

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Probabilities: torchmetrics would take logits that all lie in [0, 1] for some."""
        return outputs.sigmoid()

    def targets(self, batch: Batch) -> Tensor:
        """Which labels each sample has, int64[B, C]; of shares, those from one half on."""
        return (self.goals(batch) >= _THRESHOLD).long()

    def rows(self, outputs: Tensor, batch: Batch) -> Sequence[Row]:
        """`predicted`: the labels that are likelier than not, and `score/NAME` of each."""
        return self.scored(outputs.sigmoid(), self.words(outputs.sigmoid()))

    def words(self, rows: Tensor) -> list[str]:
        """The labels that a sample has, or that are likelier than not; of 0 to 1, [n, C]."""
        there = [compress(self.names, row) for row in (rows >= _THRESHOLD).tolist()]
        return [", ".join(names) or "none" for names in there]

    rendered = Supervised.rendered  # no label is likelier than another here

    def goals(self, batch: Batch) -> Tensor:
        """The target as float32[B, C].

        Raises:
            ConfigError: it has another shape.
            DataError: a value is outside of 0 to 1; not looked for on a GPU, which would wait.
        """
        target = field(self, batch, self.target)
        if target.shape[1:] != (self.num_classes,):
            labels = f"several labels are 0 or 1 for each of {self.num_classes} classes"
            way = "Of dataset=image_table set dataset.labels; one class is objective=classification"
            raise self._unfit(target, f"{labels}. {way}")
        if target.device.type == "cpu" and not bool(((target >= 0) & (target <= 1)).all()):
            raise DataError(f"{self.target!r} must lie between 0 and 1")
        return target.float()

    def from_mean(self, mean: Tensor) -> Tensor:
        return torch.logit(mean.clamp(_RAREST[0], 1 - _RAREST[0]))


class Constant(nn.Module):
    """A model whose output is always `output`, float[...] without a batch dimension."""

    output: Tensor

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        # No parameter: no optimizer finds it, and it moves with the model.
        self.register_buffer("output", output)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.output.expand(len(inputs[0]), *self.output.shape)
