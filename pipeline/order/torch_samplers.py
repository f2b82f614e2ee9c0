"""torch's samplers as orders: any `Sampler` or batch sampler, listed once an epoch (8 bytes a row).

It is made anew for each epoch and drawn under generators seeded with (seed, epoch), so the list is
a pure function of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch

from penstock.errors import ConfigError, Problem
from penstock.order.keys import IntArray, hash64
from penstock.order.samplers import BatchStrategy, Order
from penstock.order.seeding import scope, seed_global

SamplerFactory = Callable[[], Iterable[Any]]


@lru_cache(maxsize=4)
def _listed(
    factory: SamplerFactory, seed: int, length: int, epoch: int
) -> tuple[IntArray, IntArray]:
    """The rows of an epoch, int64[n], and where each batch begins and ends, int64[batches + 1]."""
    # Cached: a plan asks for a slice of the list at every step.
    key = hash64(seed, "sampler", epoch)
    generator = torch.Generator().manual_seed(key)
    with scope():
        seed_global(key)
        sampler = inner = cast(Any, factory())
        while inner is not None:  # samplers may wrap others
            if hasattr(inner, "set_epoch"):
                inner.set_epoch(epoch)
            if hasattr(inner, "generator"):
                inner.generator = generator
            inner = getattr(inner, "sampler", None)
        drawn = list(sampler)
    batches = drawn if drawn and isinstance(drawn[0], (list, tuple)) else [drawn]
    rows = np.array([row for batch in batches for row in batch], dtype=np.int64)
    outside = rows[(rows < 0) | (rows >= length)]
    if outside.size:
        reason = f"the sampler gave row {outside[0]}, but the dataset has only {length} rows"
        raise ConfigError(Problem("sampler", reason))
    return rows, np.cumsum([0, *map(len, batches)])


class _Listed:
    """A sampler that is listed anew for each epoch.

    Args:
        factory: makes the sampler anew; called once an epoch.
        seed: of the run.
        length: rows of the dataset, which every drawn row is checked against.
    """

    def __init__(self, factory: SamplerFactory, seed: int, length: int) -> None:
        self._arguments = (factory, seed, length)


class TorchOrder(_Listed, Order):
    """A `torch.utils.data.Sampler` of rows."""

    def size(self, epoch: int) -> int:
        return len(_listed(*self._arguments, epoch)[0])

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        return _listed(*self._arguments, epoch)[0][start:stop]


class TorchBatches(_Listed, BatchStrategy):
    """A batch sampler: anything whose elements are lists of rows."""

    def size(self, epoch: int) -> int:
        return len(_listed(*self._arguments, epoch)[1]) - 1

    def batch(self, epoch: int, step: int) -> tuple[IntArray, IntArray]:
        rows, edges = _listed(*self._arguments, epoch)
        first, last = edges[step : step + 2].tolist()
        return np.arange(first, last, dtype=np.int64), rows[first:last]


def adapt(factory: SamplerFactory, seed: int, length: int) -> Order | BatchStrategy:
    """The order of a torch sampler, or the batches of a batch sampler; see `_Listed`."""
    with scope():  # samplers draw as soon as they are iterated
        first = next(iter(factory()), 0)
    kind = TorchBatches if isinstance(first, (list, tuple)) else TorchOrder
    return kind(factory, seed, length)
