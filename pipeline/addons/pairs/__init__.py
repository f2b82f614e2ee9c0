"""Contrastive learning: what belongs together lies closer than all else in a batch.

    Views         two views of a sample, `transform.views`
    TwoViews      separates an image's views from those of all others (SimCLR)
    ImageText     finds an image by its caption, and the caption by its image (CLIP)
    Retrieval     how often the partner is among the k nearest of all of validation

The losses compare the samples of the global batch, so they are the same for any number of ranks, up
to rounding; `penstock.gathered` brings the rows together. Each rank has the losses of its own
samples. Cost: a matrix of all rows of the global batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from penstock.distributed.parallel import gathered
from penstock.distributed.world import launched_rank
from penstock.errors import ConfigError, Problem
from penstock.loading.batch import Batch
from penstock.loading.fetch import Compose
from penstock.order.keys import begin_sample, hash64, key_at_hand
from penstock.training.adapter import Rendered

_EQUAL = 1e-5  # likenesses that differ by no more differ by rounding


class Views(Compose):
    """The same steps twice over one sample, as one step: `transform.views=2`.

    The first view keeps the names of its fields, so all that takes a sample without views takes
    one with them. Tensors and arrays of the second are added as `image_2` and so on. It has draws
    of its own, which follow from the sample's key; those of the first are the draws that there
    would be without views. Cost: the steps twice, and a copy of what they start from.
    """

    def __call__(self, sample: Any) -> Any:
        key, copied = key_at_hand(), deepcopy(sample)
        first = dict(super().__call__(sample))
        # Generators continue after the previous view; what derives from the key needs another key.
        begin_sample(hash64(key, "view", 2))
        second = super().__call__(copied)
        begin_sample(key)
        # A class or a text is there once.
        return first | {f"{of}_2": value for of, value in second.items() if hasattr(value, "ndim")}


class ImageEncoder(nn.Sequential):
    """Four strided convolutions, their mean over the image, and two layers behind it.

    Channels are normalised in groups, within a sample: statistics of a batch would tell a
    contrastive loss which rows belong together, and would be others for other numbers of ranks.

    Forward: image float[B, 3, H, W], H and W from 16 on -> float[B, num_outputs].

    Args:
        num_outputs: size of the vectors.
        width: channels of the first convolution, in eights; each following one doubles them.
        where: also tell the last layers in which quarter of the image things are, and not only
            what there is.
    """

    def __init__(self, num_outputs: int = 64, width: int = 16, where: bool = False) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise([3, width, 2 * width, 4 * width, 8 * width]):
            layers.append(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False))
            layers += [nn.GroupNorm(8, outputs), nn.ReLU(inplace=True)]
        side, hidden = 2 if where else 1, 8 * width
        layers += [nn.AdaptiveAvgPool2d(side), nn.Flatten(), nn.Linear(hidden * side**2, hidden)]
        super().__init__(*layers, nn.ReLU(inplace=True), nn.Linear(hidden, num_outputs))


class TwoTowers(nn.Module):
    """A network for images and one for texts, whose outputs are compared with each other.

    Args:
        image: float[B, 3, H, W] -> float[B, D].
        text: tokens int64[B, T] and lengths int64[B] -> float[B, D].
        temperature: that likenesses are divided by at first; it is learned, from 0.01 on, as in
            CLIP.
    """

    def __init__(self, image: nn.Module, text: nn.Module, temperature: float = 0.1) -> None:
        super().__init__()
        self.image, self.text = image, text
        # Its logarithm is learned, so that a step multiplies it and never makes it negative.
        self.scale = nn.Parameter(-torch.tensor(temperature).log())

    def forward(self, image: Tensor, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors of images and texts, float[B, D] each."""
        return self.image(image), self.text(tokens, lengths)

    def factor(self) -> Tensor:
        """What likenesses are multiplied with, float32[]."""
        return self.scale.exp().clamp(max=100.0)


class Retrieval(Metric):
    """The share of rows whose partner is among the k likest of all rows on the other side.

    Likeness is the cosine. Rows on the other side that are as like as the partner (the same caption
    twice) share its rank: a partner among m equal ones at the top counts 1 / m. So a model that
    gives all the same vector has chance, k / N. Cost: N x N likenesses, 1,024 rows of them at a
    time.

    Args:
        k: numbers of rows.
    """

    higher_is_better = True
    first: list[Tensor]
    second: list[Tensor]

    def __init__(self, k: Sequence[int] = (1, 5)) -> None:
        super().__init__()
        self.k = list(k)
        self.add_state("first", [], dist_reduce_fx="cat")
        self.add_state("second", [], dist_reduce_fx="cat")

    def update(self, first: Tensor, second: Tensor) -> None:
        """Add pairs of rows, float[n, D] each."""
        self.first.append(normalize(first.detach().float()))
        self.second.append(normalize(second.detach().float()))

    def compute(self) -> dict[str, Tensor]:
        """`top1` and so on for each k, float64[]; NaN without a row."""
        first, second = map(dim_zero_cat, (self.first, self.second))  # merged ranks have a tensor
        hits = torch.zeros(len(self.k), dtype=torch.float64, device=first.device)
        # Some rows at a time: all likenesses of 50,000 rows would be 10 GB.
        for rows, partners in zip(first.split(1024), second.split(1024), strict=True):
            likeness, own = rows @ second.T, (rows * partners).sum(1, keepdim=True)
            # A tie is shared: otherwise a model that says the same of all would be right.
            ahead = (likeness > own + _EQUAL).sum(1)
            equal = ((likeness - own).abs() <= _EQUAL).sum(1).clamp(min=1)
            hits += torch.stack([((k - ahead) / equal).clamp(0, 1).double().sum() for k in self.k])
        return dict(zip((f"top{k}" for k in self.k), hits / len(first), strict=True))


class TwoViews:
    """Separates the views of a sample from those of all other samples: NT-Xent, as in SimCLR.

    The loss of a view is the cross entropy of finding its sample's other view among all views of
    the batch by their cosine, over the temperature (Chen et al. 2020,
    https://arxiv.org/abs/2002.05709).

    Args:
        metrics: by name, of the two views: `Retrieval`.
        inputs: the field whose views are compared; `transform.views` makes the second.
        temperature: the smaller, the more the likest of the others count.
    """

    def __init__(
        self,
        metrics: Mapping[str, Any] | None = None,
        inputs: Sequence[str] = ("image",),
        temperature: float = 0.2,
    ) -> None:
        self.metrics, self.inputs = metrics or {}, list(inputs)
        self.temperature = temperature

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        own = self.outputs(model, batch)
        all_ranks = torch.stack([gathered(rows) for rows in own])
        return nt_xent(torch.stack(own), all_ranks, places_of(own[0]), self.temperature)

    def outputs(self, model: nn.Module, batch: Batch) -> list[Tensor]:
        """The vectors of each view, of length 1: float32[B, D] each."""
        names = [self.inputs[0], f"{self.inputs[0]}_2"]
        # A batch of one view would train silently towards nothing.
        if names[1] not in batch or batch[names[0]].shape != batch[names[1]].shape:
            reason = (
                f"a batch has no second view of {names[0]!r} of the same shape; set "
                "transform.views=2, and resize in transform.train"
            )
            raise ConfigError(Problem("transform.views", reason))
        return list(normalize(model(torch.cat([batch[name] for name in names])).float()).chunk(2))

    def measured(self, outputs: Sequence[Tensor], batch: Batch) -> dict[str, tuple[Any, ...]]:
        return dict.fromkeys(self.metrics, (outputs[0], outputs[1]))

    def comparisons(self, train: Any, val: Any) -> dict[str, dict[str, float]]:
        """What a model has that gives all rows the same vector."""
        chance = {
            f"{name}/top{k}": min(1.0, k / len(val))
            for name, metric in self.metrics.items()
            if isinstance(metric, Retrieval)
            for k in metric.k
        }
        return {"chance": chance}


class ImageText(TwoViews):
    """Finds an image among all others by its caption, and the caption by its image: CLIP.

    The loss is the mean of the cross entropies of finding the caption of each image among those of
    the batch, and the image of each caption (Radford et al. 2021,
    https://arxiv.org/abs/2103.00020).

    Args:
        metrics: by name; a `Retrieval` whose name begins with "picture" finds images by captions,
            any other one captions by images.
        inputs: the fields of images, tokens and their lengths, as in conf/objective: captions come
            from dataset.caption, tokens from transform.train.tokenize, lengths from collate=pad.
    """

    def loss(self, model: Any, batch: Batch) -> Tensor:
        images, texts = self.outputs(model, batch)
        goal, factor = places_of(images), model.factor()
        captions = cross_entropy(factor * images @ gathered(texts).T, goal, reduction="none")
        return (
            captions + cross_entropy(factor * texts @ gathered(images).T, goal, reduction="none")
        ) / 2

    def outputs(self, model: Any, batch: Batch) -> list[Tensor]:
        """The vectors of images and captions, of length 1: float32[B, D] each."""
        return [normalize(rows.float()) for rows in model(*(batch[name] for name in self.inputs))]

    def measured(self, outputs: Sequence[Tensor], batch: Batch) -> dict[str, tuple[Any, ...]]:
        return {
            name: (outputs[1], outputs[0]) if name.startswith("picture") else tuple(outputs)
            for name in self.metrics
        }

    def rendered(self, batch: Batch, outputs: Any = None) -> list[Rendered]:
        """The caption of each row, and the one of this batch that is nearest to the image."""
        captions = batch.get("caption") or [""] * len(batch.positions)
        if outputs is None:
            return [Rendered(caption) for caption in captions]
        nearest = [captions[row] for row in (outputs[0] @ outputs[1].T).argmax(1).tolist()]
        return [
            Rendered(own, f"nearest of these: {other}" if other else "", wrong=own != other)
            for own, other in zip(captions, nearest, strict=True)
        ]


def nt_xent(own: Tensor, everything: Tensor, places: Tensor, temperature: float) -> Tensor:
    """The mean cross entropy of finding a sample's other view among all views, float32[n].

    Args:
        own: float32[2, n, D] of length 1; the views of this rank's samples.
        everything: float32[2, N, D], of the samples of all ranks.
        places: int64[n], where the own samples are among all.
    """
    total = everything.shape[1]
    itself = torch.cat([places, places + total])
    likeness = own.flatten(0, 1) @ everything.flatten(0, 1).T / temperature
    # A view is no candidate for itself.
    logits = likeness.scatter(1, itself[:, None], -torch.inf)
    losses = cross_entropy(logits, (itself + total) % (2 * total), reduction="none")
    return losses.reshape(2, -1).mean(0)


def places_of(rows: Tensor) -> Tensor:
    """Where this rank's rows are among those of all ranks, as `gathered` has them: int64[n]."""
    # By rank and not by size: shares of ranks may differ by a row.
    rank = launched_rank()[0]
    return (gathered(rows.new_full((len(rows),), rank)) == rank).nonzero().flatten()
