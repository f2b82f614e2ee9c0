"""torch's samplers as orders: any `Sampler` or batch sampler, listed once an epoch (8 bytes a row).

It is made anew for each epoch and drawn under generators seeded with (seed, epoch), so the list is
a pure function of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from penstock.errors import ConfigError, Problem
from penstock.order.keys import IntArray, hash64
from penstock.order.randomness import scope, seed_global
from penstock.order.samplers import BatchStrategy, Order

SamplerFactory = Callable[[], Iterable[Any]]


class _Epochs:
    """The batches of each epoch of a sampler; keeps the latest two epochs."""

    def __init__(self, factory: SamplerFactory, seed: int, length: int) -> None:
        self._factory = factory
        self._seed = seed
        self._length = length
        self._kept: dict[int, list[IntArray]] = {}

    def __call__(self, epoch: int) -> list[IntArray]:
        if epoch not in self._kept:
            while len(self._kept) >= 2:
                self._kept.pop(next(iter(self._kept)))
            self._kept[epoch] = self._draw(epoch)
        return self._kept[epoch]

    def _draw(self, epoch: int) -> list[IntArray]:
        key = hash64(self._seed, "sampler", epoch)
        generator = torch.Generator().manual_seed(key)
        with scope():
            seed_global(key)
            inner: Any = self._factory()
            sampler = inner
            while inner is not None:  # samplers may wrap others
                if hasattr(inner, "set_epoch"):
                    inner.set_epoch(epoch)
                if hasattr(inner, "generator"):
                    inner.generator = generator
                inner = getattr(inner, "sampler", None)
            drawn = list(sampler)
        batched = bool(drawn) and isinstance(drawn[0], (list, tuple))
        batches = [np.asarray(batch, dtype=np.int64) for batch in (drawn if batched else [drawn])]
        for rows in batches:
            outside = rows[(rows < 0) | (rows >= self._length)]
            if outside.size:
                raise ConfigError(
                    Problem(
                        "sampler",
                        f"the sampler gave row {outside[0]}, but the dataset has "
                        f"only {self._length} rows",
                    )
                )
        return batches


class TorchOrder(Order):
    """A `torch.utils.data.Sampler` of rows."""

    def __init__(self, factory: SamplerFactory, seed: int, length: int) -> None:
        self._epochs = _Epochs(factory, seed, length)

    def size(self, epoch: int) -> int:
        return len(self._epochs(epoch)[0])

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        return self._epochs(epoch)[0][start:stop]


class TorchBatches(BatchStrategy):
    """A batch sampler: anything whose elements are lists of rows."""

    def __init__(self, factory: SamplerFactory, seed: int, length: int) -> None:
        self._epochs = _Epochs(factory, seed, length)

    def size(self, epoch: int) -> int:
        return len(self._epochs(epoch))

    def batch(self, epoch: int, step: int) -> tuple[IntArray, IntArray]:
        batches = self._epochs(epoch)
        start = sum(len(batch) for batch in batches[:step])
        rows = batches[step]
        return start + np.arange(len(rows), dtype=np.int64), rows


def adapt(factory: SamplerFactory, seed: int, length: int) -> Order | BatchStrategy:
    """The order of a torch sampler, or the batches of a batch sampler.

    Args:
        factory: makes the sampler anew; called once an epoch.
        seed: of the run.
        length: rows of the dataset, which every drawn row is checked against.
    """
    with scope():
        first = next(iter(factory()), 0)
    kind = TorchBatches if isinstance(first, (list, tuple)) else TorchOrder
    return kind(factory, seed, length)
