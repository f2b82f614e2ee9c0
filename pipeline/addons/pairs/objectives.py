"""Contrastive objectives: what belongs together lies closer than all else in a batch.

Each is an objective of docs/objectives.md's kind: `loss`, `outputs`, `measured`, `comparisons`,
`rendered`. The losses compare the samples of the global batch, so they are the same for any number
of ranks, up to rounding; `penstock.gathered` brings the rows together. Each rank has the losses of
its own samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, normalize
from torchmetrics import Metric

from penstock.addons.pairs.views import further_views
from penstock.distributed.parallel import gathered
from penstock.distributed.world import launched_rank
from penstock.errors import ConfigError, Problem
from penstock.loading.batch import Batch
from penstock.training.rendered import Rendered

_AT_ONCE = 1024  # rows that are compared with all others
_EQUAL = 1e-5  # likenesses that differ by no more differ by rounding


class Retrieval(Metric):
    """The share of rows whose partner is among the k likest of all rows on the other side.

    Likeness is the cosine. Rows on the other side that are as like as the partner (the same caption
    twice) share its rank: a partner among m equal ones at the top counts 1 / m. So a model that
    gives all the same place has chance, k / N. Cost: N x N likenesses, 1,024 rows of them at a
    time.

    Args:
        k: numbers of rows.
    """

    higher_is_better = True
    full_state_update = False
    first: list[Tensor]
    second: list[Tensor]

    def __init__(self, k: Sequence[int] = (1, 5)) -> None:
        super().__init__()
        if not k or min(k) < 1:
            raise ValueError(f"k is {list(k)}; it has to be numbers from 1 on, as [1, 5]")
        self.k = list(k)
        self.add_state("first", [], dist_reduce_fx="cat")
        self.add_state("second", [], dist_reduce_fx="cat")

    def update(self, first: Tensor, second: Tensor) -> None:
        """Add pairs of rows, float[n, D] each."""
        if first.shape != second.shape or first.ndim != 2:
            raise ValueError(f"{list(first.shape)} and {list(second.shape)} are no pairs of rows")
        self.first.append(normalize(first.detach().float()))
        self.second.append(normalize(second.detach().float()))

    def compute(self) -> dict[str, Tensor]:
        """`top1` and so on for each k, float64[]; NaN without a row."""
        first, second = (torch.cat([*rows]) for rows in (self.first, self.second))
        found = torch.zeros(len(self.k), dtype=torch.float64, device=first.device)
        for start in range(0, len(first), _AT_ONCE):
            rows = slice(start, start + _AT_ONCE)
            likeness = first[rows] @ second.T
            own = (first[rows] * second[rows]).sum(1, keepdim=True)
            ahead = (likeness > own + _EQUAL).sum(1)
            equal = ((likeness - own).abs() <= _EQUAL).sum(1).clamp(min=1)
            for place, k in enumerate(self.k):
                found[place] += ((k - ahead) / equal).clamp(0, 1).double().sum()
        return dict(zip((f"top{k}" for k in self.k), found / len(first), strict=True))


class NearestLabel(Metric):
    """The share of rows whose likest other row has the same label: what a space knows of classes.

    A probe without training. Cost: N x N likenesses, 1,024 rows of them at a time.
    """

    higher_is_better = True
    full_state_update = False
    rows: list[Tensor]
    labels: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("rows", [], dist_reduce_fx="cat")
        self.add_state("labels", [], dist_reduce_fx="cat")

    def update(self, rows: Tensor, labels: Tensor) -> None:
        """Add rows, float[n, D], with a label each, int64[n]."""
        if rows.ndim != 2 or labels.shape != rows.shape[:1]:
            raise ValueError(f"{list(labels.shape)} labels for rows {list(rows.shape)}")
        self.rows.append(normalize(rows.detach().float()))
        self.labels.append(labels)

    def compute(self) -> Tensor:
        """float64[]; NaN with fewer than two rows."""
        rows, labels = torch.cat([*self.rows]), torch.cat([*self.labels])
        if len(rows) < 2:
            return torch.tensor(torch.nan, dtype=torch.float64)
        found = torch.zeros((), dtype=torch.float64, device=rows.device)
        for start in range(0, len(rows), _AT_ONCE):
            likeness = rows[start : start + _AT_ONCE] @ rows.T
            own = torch.arange(len(likeness), device=rows.device)
            likeness[own, start + own] = -torch.inf
            same = labels[likeness.argmax(1)] == labels[start : start + _AT_ONCE]
            found += same.double().sum()
        return found / len(rows)


_MOST = 1 << 32  # samples of a rank


class TwoViews:
    """Separates the views of a sample from those of all other samples: NT-Xent, as in SimCLR.

    The loss of a view is the cross entropy of finding its sample's other views among all views of
    the batch by their cosine, over the temperature (Chen et al. 2020,
    https://arxiv.org/abs/2002.05709).

    Args:
        metrics: by name: `Retrieval` gets the first two views, `NearestLabel` the first and the
            label.
        inputs: the field whose views are compared; `transform.views` makes the others.
        temperature: the smaller, the more the likest of the others count.
        label: the field of classes, for `NearestLabel`.
    """

    def __init__(
        self,
        metrics: Mapping[str, Any] | None = None,
        inputs: Sequence[str] = ("image",),
        temperature: float = 0.2,
        label: str = "label",
    ) -> None:
        if temperature <= 0:
            raise ConfigError(Problem("objective.temperature", f"{temperature}; allowed: above 0"))
        self.metrics, self.inputs = metrics or {}, list(inputs)
        self.temperature, self.label = temperature, label

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        own = self._rows(model, batch)
        everything = torch.stack([gathered(rows).float() for rows in own])
        return nt_xent(torch.stack(own), everything, places_of(own[0]), self.temperature)

    def outputs(self, model: nn.Module, batch: Batch) -> list[Tensor]:
        """The places of each view, of length 1: float32[B, D] each."""
        return [rows.float() for rows in self._rows(model, batch)]

    def measured(self, outputs: list[Tensor], batch: Batch) -> dict[str, tuple[Any, ...]]:
        return {
            name: (outputs[0], self._label(batch, name))
            if isinstance(metric, NearestLabel)
            else (outputs[0], outputs[1])
            for name, metric in self.metrics.items()
        }

    def comparisons(self, train: Any, val: Any) -> dict[str, dict[str, float]]:
        """The loss of a model that gives all images the same place."""
        values = chance(self.metrics, len(val))
        table = getattr(val, "metadata", None)
        if values and table is not None and self.label in table:
            shares = table[self.label].value_counts(normalize=True)
            for name, metric in self.metrics.items():
                if isinstance(metric, NearestLabel):
                    values["chance"][name] = float((shares**2).sum())
        return values

    def rendered(self, batch: Batch, outputs: list[Tensor] | None = None) -> list[Rendered]:
        """Whose second view is likest to the first view of each row, among the rows shown."""
        if outputs is None:
            return [Rendered()] * len(batch.positions)
        likest = (outputs[0] @ outputs[1].T).argmax(1).tolist()
        rows = batch.indices.tolist()
        return [
            Rendered(predicted="finds its other view" if row == own else f"takes row {rows[row]}'s")
            for own, row in enumerate(likest)
        ]

    def _rows(self, model: nn.Module, batch: Batch) -> list[Tensor]:
        """The places of each view of this rank's samples, of length 1."""
        views = views_of(batch, self.inputs[0])
        together = model(torch.cat(views))
        return list(normalize(together.float()).chunk(len(views)))

    def _label(self, batch: Batch, name: str) -> Tensor:
        if self.label not in batch:
            reason = (
                f"compares labels, and a batch has no field {self.label!r} ({', '.join(batch)}); "
                f"leave it out: objective.metrics.{name}=null"
            )
            raise ConfigError(Problem(f"objective.metrics.{name}", reason))
        label: Tensor = batch[self.label]
        return label


class ImageText:
    """Finds an image among all others by its caption, and the caption by its picture: CLIP.

    The loss is the mean of the cross entropies of finding the caption of each picture among those
    of the batch, and the picture of each caption (Radford et al. 2021,
    https://arxiv.org/abs/2103.00020).

    Args:
        metrics: by name; a `Retrieval` whose name begins with "picture" finds pictures by captions,
            any other one captions by pictures.
        inputs: the fields of pictures, tokens and their lengths.
    """

    def __init__(
        self,
        metrics: Mapping[str, Any] | None = None,
        inputs: Sequence[str] = ("image", "tokens", "tokens_lengths"),
    ) -> None:
        if len(inputs) != 3:
            reason = f"{list(inputs)}; needed: the fields of pictures, of tokens, of their lengths"
            raise ConfigError(Problem("objective.inputs", reason))
        self.metrics, self.inputs = metrics or {}, list(inputs)

    def loss(self, model: Any, batch: Batch) -> Tensor:
        pictures, texts = self.outputs(model, batch)
        goal, factor = places_of(pictures), model.factor()
        captions = factor * pictures @ gathered(texts).float().T
        found = factor * texts @ gathered(pictures).float().T
        losses = (cross_entropy(likeness, goal, reduction="none") for likeness in (captions, found))
        return sum(losses, start=torch.zeros_like(factor)) / 2

    def outputs(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """The places of pictures and captions, of length 1: float32[B, D] each."""
        for name in self.inputs:
            if name not in batch:
                reason = (
                    f"{name!r} is no field of a batch ({', '.join(batch)}). Captions come from "
                    "dataset.caption; transform.train.tokenize makes tokens of them, and "
                    "collate=pad their lengths"
                )
                raise ConfigError(Problem("objective.inputs", reason))
        pictures, texts = model(*(batch[name] for name in self.inputs))
        return normalize(pictures.float()), normalize(texts.float())

    def measured(self, outputs: Any, batch: Batch) -> dict[str, tuple[Any, ...]]:
        pictures, texts = outputs
        return {
            name: (texts, pictures) if name.startswith("picture") else (pictures, texts)
            for name in self.metrics
        }

    def comparisons(self, train: Any, val: Any) -> dict[str, dict[str, float]]:
        """The loss of a model that gives all the same place."""
        return chance(self.metrics, len(val))

    def rendered(self, batch: Batch, outputs: Any = None) -> list[Rendered]:
        """The caption of each row, and the likest of those shown."""
        captions = captions_of(batch)
        if outputs is None:
            return [Rendered(caption) for caption in captions]
        likest = (outputs[0] @ outputs[1].T).argmax(1).tolist()
        return [Rendered(own, captions[other]) for own, other in zip(captions, likest, strict=True)]


def nt_xent(own: Tensor, everything: Tensor, places: Tensor, temperature: float) -> Tensor:
    """The mean cross entropy of finding a sample's other views among all views, float32[n].

    Args:
        own: float32[V, n, D] of length 1; V views of this rank's samples.
        everything: float32[V, N, D], of the samples of all ranks.
        places: int64[n], where the own samples are among all.
    """
    count, total = everything.shape[:2]
    likeness = own.flatten(0, 1) @ everything.flatten(0, 1).T / temperature
    columns = torch.arange(count * total, device=own.device)
    same = places.repeat(count)[:, None] == columns % total
    views = torch.arange(count, device=own.device).repeat_interleave(len(places))
    itself = same & (views[:, None] == columns // total)
    logs = log_softmax(likeness.masked_fill(itself, -torch.inf), dim=1)
    losses = -logs.masked_fill(~(same & ~itself), 0.0).sum(1) / (count - 1)
    return losses.reshape(count, -1).mean(0)


def places_of(rows: Tensor) -> Tensor:
    """Where this rank's rows are among those of all ranks, as `gathered` has them: int64[n]."""
    first = launched_rank()[0] * _MOST
    numbers = torch.arange(len(rows), device=rows.device, dtype=torch.float64) + first
    everything = gathered(numbers)
    if not len(everything):
        return numbers.long()
    return (numbers[:, None] == everything).byte().argmax(1)


def views_of(batch: Batch, field: str) -> list[Tensor]:
    """All views of a field: `image`, `image_2` and so on.

    Raises:
        ConfigError: there is one only, or the field is not stacked.
    """
    more = further_views(batch, field)
    if field not in batch or not more:
        reason = (
            f"a batch has no second view of {field!r} (it has {', '.join(batch)}); set "
            "transform.views=2"
        )
        raise ConfigError(Problem("transform.views", reason))
    views = [batch[name] for name in (field, *more)]
    if not all(isinstance(view, Tensor) and view.shape == views[0].shape for view in views):
        reason = f"the views of {field!r} are not of one shape; resize them in transform.train"
        raise ConfigError(Problem("transform.views", reason))
    return views


def captions_of(batch: Batch) -> list[str]:
    """The captions of a batch; "" where it has none as text."""
    captions = batch.get("caption")
    return captions if isinstance(captions, list) else [""] * len(batch.positions)


def chance(metrics: Mapping[str, Any], count: int) -> dict[str, dict[str, float]]:
    """The result of guessing, for each `Retrieval` among `count` rows."""
    values = {
        f"{name}/top{k}": min(1.0, k / count)
        for name, metric in metrics.items()
        if isinstance(metric, Retrieval)
        for k in metric.k
    }
    return {"chance": values} if values else {}
